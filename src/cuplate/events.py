"""What happens on the walk, told to whoever listens: subscribers, and the standard logger ``cuplate``.

The hot path tests :data:`listeners` for truth and does nothing else. ``logging`` is never imported to say that nothing
happened: a process that has not imported it cannot have enabled it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType, TracebackType
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from cuplate.errors import SettingError

__all__ = ["KINDS", "Event", "Kind", "Subscription", "caller_depth", "emit", "heard", "listeners", "say", "subscribe"]

Kind: TypeAlias = Literal["render", "hit", "miss", "compile", "load", "launch", "evict", "tune"]
KINDS: tuple[str, ...] = get_args(Kind)
_EMPTY: Mapping[str, object] = MappingProxyType({})
_DEBUG = 10  # logging.DEBUG, without the import


class Event(NamedTuple):
    """One thing that happened.

    Attributes
    ----------
    kind : str
        ``render``, ``hit``, ``miss``, ``compile``, ``load``, ``launch``, ``evict`` or ``tune``.
    function : str
        The specialized function; for an eviction on disk, the name stored with the entry.
    key : str or None
        Content key, hexadecimal, where one is known.
    tier : str or None
        ``"memory"`` or ``"disk"`` for hit, miss and evict; ``"shared"`` for hit.
    seconds : float or None
        How long it took.
    detail : Mapping
        Further facts by name, read-only.
    """

    kind: Kind
    function: str
    key: str | None = None
    tier: str | None = None
    seconds: float | None = None
    detail: Mapping[str, object] = _EMPTY

    def __str__(self) -> str:
        parts = [self.kind, self.function]
        parts += [f"tier={self.tier}"] if self.tier else []
        parts += [f"key={self.key[:16]}"] if self.key else []
        parts += [f"{self.seconds * 1e3:.3f} ms"] if self.seconds is not None else []
        return " ".join(parts + [f"{name}={value}" for name, value in self.detail.items()])


class Subscription:
    """One callback that is told of events until :meth:`close`, or until the ``with`` block ends."""

    __slots__ = ("callback", "kinds")

    def __init__(self, callback: Callable[[Event], object], kinds: frozenset[str]) -> None:
        self.callback = callback
        self.kinds = kinds

    def close(self) -> None:
        """Stop; a second time does nothing."""
        if self in listeners:
            listeners.remove(self)

    def __enter__(self) -> Subscription:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


listeners: list[Subscription] = []
"""The open subscriptions: always this one list, so that generated code may bind it and test its truth."""


def subscribe(callback: Callable[[Event], object], kinds: Collection[str] | str | None = None) -> Subscription:
    """Call ``callback(event)`` for each event, in the thread in which it happens.

    Parameters
    ----------
    callback : callable
        Gets one :class:`Event`. What it raises is logged and goes no further.
    kinds : str or collection of str, optional
        Only these; default all.

    Returns
    -------
    Subscription
        Close it to stop, or use it in ``with``.

    Raises
    ------
    SettingError
        ``kinds`` names a kind that does not exist.
    """
    wanted = frozenset(KINDS if kinds is None else (kinds,) if isinstance(kinds, str) else kinds)
    for kind in sorted(wanted.difference(KINDS)):
        from cuplate.hints import nearest_name

        near = nearest_name(kind, KINDS)
        raise SettingError(
            "no event of this kind exists.",
            given=f"kinds={kind!r}",
            allowed=", ".join(KINDS),
            try_=repr(near) if near else None,
        )
    subscription = Subscription(callback, wanted)
    listeners.append(subscription)
    return subscription


def caller_depth() -> int:
    """``stacklevel`` for a warning of the calling function: the user's line, outside cuplate and its generated code."""
    home = __file__.rpartition("events")[0]
    depth, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith((home, "<cuplate ")):
        depth, frame = depth + 1, frame.f_back
    return depth


def heard(kind: Kind | None = None) -> bool:
    """Whether :func:`emit` has anybody to tell; ask before measuring what only an event needs.

    Parameters
    ----------
    kind : str, optional
        Of this kind; default any.

    Returns
    -------
    bool
        True if a subscriber wants it, or the logger is at DEBUG.
    """
    if listeners and any(kind is None or kind in subscription.kinds for subscription in tuple(listeners)):
        return True
    return _debug_logger() is not None


def emit(
    kind: Kind,
    function: str,
    *,
    key: str | None = None,
    tier: str | None = None,
    seconds: float | None = None,
    **detail: object,
) -> None:
    """Tell every subscriber, and the logger at level DEBUG.

    Parameters
    ----------
    kind, function, key, tier, seconds
        See :class:`Event`.
    **detail : object
        Further facts by name.
    """
    logger = _debug_logger()
    if not listeners and logger is None:
        return
    event = Event(kind, function, key, tier, seconds, MappingProxyType(detail) if detail else _EMPTY)
    if logger is not None:
        logger.debug("%s", event)
    for subscription in tuple(listeners):
        if kind in subscription.kinds:
            try:
                subscription.callback(event)
            except Exception:
                import logging

                logging.getLogger("cuplate").exception("a subscriber failed on %s", event)


def say(message: str, *, level: Literal["info", "warning"] = "warning") -> None:
    """Log one line.

    Parameters
    ----------
    message : str
        The line.
    level : str
        ``"info"`` for what is in order, ``"warning"`` for what is not.
    """
    import logging

    logger = logging.getLogger("cuplate")
    if not logger.handlers:  # a library is silent until the program asks; warnings reach the user as warnings
        logger.addHandler(logging.NullHandler())
    logger.log(logging.INFO if level == "info" else logging.WARNING, "%s", message)


def _debug_logger() -> Any:
    logging = sys.modules.get("logging")
    if logging is None:
        return None
    logger = _loggers.get(logging)
    if logger is None:
        logger = _loggers[logging] = logging.getLogger("cuplate")
    return logger if logger.isEnabledFor(_DEBUG) else None


_loggers: dict[Any, Any] = {}  # by module, as tests take it away and bring another
