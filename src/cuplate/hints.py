"""What an error suggests."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["nearest_name"]


def nearest_name(given: object, names: Iterable[object]) -> str | None:
    """The name that was probably meant, for ``try_=``; None if none is near. Another case counts as the same name.

    Parameters
    ----------
    given : object
        What stood where a name should.
    names : iterable of object
        Those that exist; what is no text counts by its text.

    Returns
    -------
    str or None
    """
    folded = {str(name).lower(): str(name) for name in sorted(map(str, names), reverse=True)}
    found = difflib.get_close_matches(str(given).lower(), folded, n=1)
    return folded[found[0]] if found else None
