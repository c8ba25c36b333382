"""The choice among functions whose times are modelled."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["fastest"]


def fastest(name: str, times: Mapping[str, object]) -> str:
    """The condition that a function takes no longer than those that stand behind it, by expressions of what they take.

    Of variants in the order of `times` the first one for which it holds is the fastest of all.
    """
    names = list(times)
    behind = [str(times[other]) for other in names[names.index(name) + 1 :]]
    return f"{times[name]} <= " + (f"min({', '.join(behind)})" if len(behind) > 1 else behind[0])
