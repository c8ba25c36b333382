"""What the CPU backend found in a kernel, told at the template's lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from cuplate.compile import SOURCE_NAME, save
from cuplate.errors import BudgetError, KernelError

if TYPE_CHECKING:
    from cuplate.backend.cpu.reports import Report
    from cuplate.content import Content

__all__ = ["raise_found", "raise_stopped"]


def raise_stopped(error: Exception, content: Content, called_as: Callable[[], str]) -> NoReturn:
    """Raise what stopped a launch on the CPU backend, as an error of ours where it was the kernel.

    Parameters
    ----------
    error : Exception
        That the launch ended with.
    content : Content
        What ran.
    called_as : callable
        Gives the Python call, with its parameters.

    Raises
    ------
    KernelError
        A fault has stopped the kernel.
    BudgetError
        It did not end in time.
    """
    from cuplate.backend.cpu.engine import BudgetExceeded, KernelFault

    speaker = _Speaker(content, called_as)
    if isinstance(error, KernelFault):
        raise speaker.fault(error) from None
    if isinstance(error, BudgetExceeded):
        raise speaker.budget(error) from None
    raise error


def raise_found(reports: Sequence[Report], content: Content, called_as: Callable[[], str]) -> NoReturn:
    """Raise what the checker found in a launch that came to its end.

    Parameters
    ----------
    reports : sequence of Report
        At least one.
    content, called_as
        See `raise_stopped`.

    Raises
    ------
    KernelError
    """
    raise _Speaker(content, called_as).error(reports)


class _Speaker:
    def __init__(self, content: Content, called_as: Callable[[], str]) -> None:
        self.source = content.source
        self.key = content.key
        self.called_as = called_as

    def error(self, reports: Sequence[Report]) -> KernelError:
        from cuplate.backend.cpu.reports import advice, listing, text

        # A race comes before what follows from it: reads of what the other thread has not written yet.
        first, *others = sorted(reports, key=lambda report: report.kind != "data race")
        sentence = text(first, self.where)
        return KernelError(
            sentence if sentence.startswith(first.kind) else f"{first.kind}: {sentence}",
            template=self.excerpt(first.file, first.line, first.column),
            try_=advice(first, self.written(first.line)),
            also=listing(others, self.where) or None,
            **self.common(reports),
        )

    def fault(self, fault: Any) -> KernelError:
        summary, *waiting = fault.text(self.where).splitlines()
        return KernelError(
            summary,
            template=self.excerpt(fault.file, fault.line),
            waiting="\n".join(waiting) or None,
            **self.common(getattr(fault, "reports", ())),
        )

    def budget(self, stop: Any) -> BudgetError:
        return BudgetError(
            f"{stop}.",
            try_="CUPLATE_CPU_BUDGET=300 for more seconds; a smaller problem; CUPLATE_CPU_CHECK=off to run unchecked",
            **self.common(getattr(stop, "reports", ())),
        )

    def common(self, reports: Sequence[Report]) -> dict[str, Any]:
        return {
            "function": self.source.function,
            "called_as": self.called_as(),
            "rendered_to": save(self.source.text),
            "_reports": tuple(reports),
        }

    def where(self, file: str, line: int, column: int = 0) -> str:
        """How to name a line of the rendered text: the template's line and what stands there."""
        if not line:
            return "at a line that is not known"
        if file not in ("", SOURCE_NAME):
            return f"{file}:{line}"
        written = f": {code}" if (code := self.written(line)) else ""
        origin = self.source.origin(line, column)
        return f"{origin.template}:{origin.line}{written}" if origin is not None else f"rendered line {line}{written}"

    def written(self, line: int) -> str:
        """A line of the rendered text."""
        lines = self.source.text.split("\n")
        return lines[line - 1].strip() if 0 < line <= len(lines) else ""

    def excerpt(self, file: str, line: int, column: int = 0) -> str | None:
        origin = self.source.origin(line, column) if line and file in ("", SOURCE_NAME) else None
        return None if origin is None else f"{origin}\n{self.source.excerpt(origin)}"
