"""One tree of errors; each message reads in the same order, and its facts are attributes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = [
    "ArgumentError",
    "BudgetError",
    "CacheError",
    "CacheWarning",
    "CaptureError",
    "CompileError",
    "CuplateError",
    "CuplateWarning",
    "DeclarationError",
    "DeviceError",
    "DtypeError",
    "ExpressionError",
    "FrozenCacheError",
    "KernelError",
    "KernelNotFoundError",
    "LaunchError",
    "LayoutError",
    "ManifestError",
    "ParameterError",
    "ScalarOverflowError",
    "SettingError",
    "ShapeError",
    "TemplateError",
    "ToolchainError",
    "TuneError",
    "TuneWarning",
    "VariantWarning",
]

# What a reader needs first stands first: where, what was given, what is allowed, what to try.
_ORDER = ("template", "argument", "given", "allowed", "called_as", "try_")


class CuplateError(Exception):
    """Root of every error that cuplate raises on purpose.

    Parameters
    ----------
    summary : str
        What failed, in one sentence.
    function : str, optional
        Name of the specialized function; the message starts with it.
    **facts : object
        Printed below the summary, one a line, in a fixed order (``template``, ``argument``, ``given``, ``allowed``,
        ``called_as``, ``try_``, then the rest as given); ``None`` values are left out. Each is an attribute too.
        A fact whose name starts with an underscore is an attribute (without the underscore) and is not printed.
    """

    def __init__(self, summary: str, *, function: str | None = None, **facts: Any) -> None:
        super().__init__(summary)
        self.summary = summary
        self.function = function
        self.facts = facts
        for name, value in facts.items():
            setattr(self, name.strip("_") if name != "try_" else "try_", value)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """A fact; which ones there are depends on the error."""

    def __str__(self) -> str:
        head = f"{self.function}: {self.summary}" if self.function else self.summary
        shown = {k: v for k, v in self.facts.items() if v is not None and not k.startswith("_")}
        names = [k for k in _ORDER if k in shown] + [k for k in shown if k not in _ORDER]
        if not names:
            return head
        labels = {k: k.rstrip("_").replace("_", " ") for k in names}
        width = max(10, *(len(label) for label in labels.values()))
        indent = "\n" + " " * (width + 3)
        lines = [f"  {labels[k]:<{width}} {indent.join(str(shown[k]).splitlines() or [''])}" for k in names]
        return "\n".join([head, *lines])

    def __reduce__(self) -> tuple[Any, ...]:
        notes = getattr(self, "__notes__", None)  # of add_note()
        state = {"__notes__": list(notes)} if notes else None
        return _rebuild, (type(self), self.summary, self.function, self.facts), state


def _rebuild(cls: type[CuplateError], summary: str, function: str | None, facts: dict[str, Any]) -> CuplateError:
    return cls(summary, function=function, **facts)


class DeclarationError(CuplateError, TypeError):
    """A decoration is wrong: signature, keyword or combination of them. Raised when the module is imported."""


class ExpressionError(DeclarationError, ValueError):
    """A string of the expression language cannot be parsed, or cannot be evaluated for a call."""


class TemplateError(CuplateError, ValueError):
    """A template is missing, malformed, or disagrees with the signature; ``template`` is ``file:line``."""


class ParameterError(CuplateError, ValueError, TypeError):
    """A compile-time value is outside what its annotation or ``require=`` allows."""


class ArgumentError(CuplateError, TypeError):
    """A launch-time argument is missing, superfluous or of the wrong kind."""


class DtypeError(ArgumentError):
    """An array or a scalar has another dtype than the annotation says."""


class ShapeError(ArgumentError, ValueError):
    """Rank or sizes of the arrays disagree with the annotations or with each other."""


class LayoutError(ArgumentError, ValueError):
    """An array's strides, alignment or overlap are not what the kernel reads."""


class DeviceError(ArgumentError, ValueError):
    """Arrays live on the host, on different devices, or where no backend runs."""


class ScalarOverflowError(ArgumentError, OverflowError):
    """A scalar does not fit the C type it is passed as."""


class LaunchError(CuplateError, RuntimeError, ValueError):
    """A launch configuration is beyond a limit of the device or the kernel, or the driver refused a launch."""


class CaptureError(LaunchError):
    """A cold call came inside a CUDA graph capture, where nothing may be compiled or loaded."""


class KernelError(CuplateError, RuntimeError):
    """A kernel did what no kernel may: out of bounds, a race, a barrier that not all reach.

    The CPU backend sees it while the kernel runs. On a GPU it is a fault of the device, raised at its own call with
    ``CUPLATE_DEBUG=1``.

    Attributes
    ----------
    reports : tuple
        What the checker found, each a `cuplate.backend.cpu.reports.Report`; empty where the kernel was stopped by a
        fault instead.
    """


class BudgetError(KernelError):
    """A kernel on the CPU backend did not end within its time, and was stopped."""


class SettingError(CuplateError, ValueError):
    """A setting, in code, in the environment or in pyproject.toml, is outside what is allowed."""


class ToolchainError(CuplateError, RuntimeError):
    """The compiler or the driver is missing, or does not know what was asked of it."""


class CompileError(CuplateError, RuntimeError):
    """The compiler refused a rendered source.

    Attributes
    ----------
    source : str
        The rendered text.
    log : str
        The compiler's whole log.
    options : tuple of str
        The compiler's options in canonical form.
    key : str
        The content key, hexadecimal.
    saved : str or None
        File where the rendered source was saved.
    """


class KernelNotFoundError(CompileError):
    """The rendered source compiles, but does not define the kernel that was asked for."""


class CacheError(CuplateError, RuntimeError):
    """A tier of the disk cache failed, and the policy says ``on_error="raise"``, which is for debugging."""


class FrozenCacheError(CuplateError, RuntimeError):
    """A kernel is not in the cache, and the policy is ``frozen``: nothing is compiled.

    Attributes
    ----------
    kernel : str
        The kernel's name.
    parameters : str
        The call's parameters, readable.
    key : str
        The content key, hexadecimal.
    nearest : str
        What differs from the nearest stored entry.
    """


class ManifestError(CuplateError, ValueError):
    """A manifest cannot be read or written, or names a function that is not there."""


class TuneError(CuplateError, RuntimeError):
    """None of a function's candidates can run a call.

    Attributes
    ----------
    tuned : Tuned
        What was tried, and what was against each.
    """


class CuplateWarning(UserWarning):
    """Root of cuplate's warnings."""


class CacheWarning(CuplateWarning):
    """A tier of the cache does not work; calls go on without it."""


class VariantWarning(CuplateWarning):
    """One function has been compiled in a suspicious number of variants."""


class TuneWarning(CuplateWarning):
    """Nothing was measured for a call that was to be tuned, or a candidate's result is wrong."""
