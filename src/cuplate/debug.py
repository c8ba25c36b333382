"""``CUPLATE_DEBUG=1``: each call on a GPU checks itself. What it costs when off: nothing on the hot path.

The generated code of the hot path takes no call while somebody listens to events, so that the general path can tell
them. A subscriber that wants no kind of event sends every call there, where the setting is read.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from cuplate import config
from cuplate.compile import save
from cuplate.errors import KernelError, LaunchError
from cuplate.events import Event, Subscription, listeners

if TYPE_CHECKING:
    from cuplate.content import Content
    from cuplate.grid import Grid

__all__ = ["check_before", "checking", "fault"]


def checking() -> bool:
    """Whether the call under way is to check itself; asked once by each call on a GPU that is not a hot one.

    The first to find the answer changed closes the hot paths of all functions, or opens them again. So the variable
    counts from the next call that is not hot, which is the first one where it was set before.
    """
    on = config.debugging()
    if on != (_detour in listeners):
        with _changing:
            if not on:
                _detour.close()
            elif _detour not in listeners:
                listeners.append(_detour)
    return on


def check_before(gpu: Any, pointer: int, function: str, called_as: str) -> None:
    """Wait for what a stream does already, so that a fault of earlier work is not taken for this call's.

    Parameters
    ----------
    gpu : module
        ``cuplate.backend.cuda.device``.
    pointer : int
        Of the stream; not one that is captured.
    function, called_as : str
        For the message.

    Raises
    ------
    LaunchError
        It has failed.
    """
    found = gpu.wait(gpu.stream_of(pointer))
    if found is not None:
        raise LaunchError(
            "the GPU had failed before this call began.",
            function=function,
            given=found,
            called_as=called_as,
            try_="look at what ran on this GPU before: kernels of other libraries are not checked by CUPLATE_DEBUG=1",
        )


def fault(found: str, content: Content, grid: Grid | None, called_as: str) -> KernelError:
    """The error of a launch that the driver says has failed.

    Parameters
    ----------
    found : str
        What the driver says.
    content : Content
        What ran.
    grid : Grid or None
        How.
    called_as : str
        The call, with its parameters.
    """
    source = content.source
    return KernelError(
        f"the kernel {source.entry} ended with {found}.",
        function=source.function,
        template=source.template_name,
        called_as=called_as,
        parameters=content.parameters_text or "none",
        grid=None if grid is None else grid.grid,
        block=None if grid is None else grid.block,
        rendered_to=save(source.text),
        try_="compute-sanitizer python ..., which names the template's line\nNumPy arrays: the CPU backend checks them",
        _kernel=source.entry,
        _key=content.key.hex,
        _reports=(),
    )


def _nothing(event: Event) -> None:
    """Hears no event."""


_detour = Subscription(_nothing, frozenset())
_changing = threading.Lock()
