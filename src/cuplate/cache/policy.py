"""How much is kept, where, by which rule: one frozen policy, and where each of its values came from.

Precedence, for each value alone: ``policy=`` of the function, ``cuplate.configure``, the environment,
``[tool.cuplate]`` in pyproject.toml, the default.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypedDict

from cuplate.config import CHOICES, OFF, UNLIMITED, said
from cuplate.errors import SettingError

__all__ = [
    "SMALLEST_DISK_BYTES",
    "CachePolicy",
    "EffectivePolicy",
    "Engine",
    "Eviction",
    "OnError",
    "PolicyValues",
    "TuneMode",
    "resolve",
    "resolve_directory",
]

SMALLEST_DISK_BYTES = 16_000_000
"""An empty store takes tens of kilobytes, one kernel up to megabytes: less than this only evicts."""

Eviction = Literal["least-recently-used", "least-recently-stored", "least-frequently-used", "none"]
Engine = Literal["auto", "diskcache", "files"]
OnError = Literal["warn", "ignore", "raise"]
TuneMode = Literal["auto", "off", "cached", "on"]


class PolicyValues(TypedDict, total=False):
    """Values of `CachePolicy` by name, for checkers of types."""

    memory_kernels: int | None
    disk_bytes: int | None
    directory: str | os.PathLike[str] | None
    secret: bytes | None
    disk: bool | None
    eviction: Eviction | None
    time_to_live_s: float | None
    layers: Iterable[str | os.PathLike[str]] | None
    shared: str | None
    engine: Engine | None
    frozen: bool | None
    single_flight: bool | None
    flight_wait_s: float | None
    on_error: OnError | None
    tune: TuneMode | None
    tune_s: float | None


_DEFAULTS: dict[str, Any] = {
    "memory_kernels": 256,
    "disk_bytes": 1 << 30,
    "secret": b"",
    "disk": True,
    "eviction": "least-recently-used",
    "time_to_live_s": UNLIMITED,
    "layers": (),
    "shared": OFF,
    "engine": "auto",
    "frozen": False,
    "single_flight": True,
    "flight_wait_s": 60.0,
    "on_error": "warn",
    "tune": "auto",
    "tune_s": 60.0,
}
_SETTING = {"secret": "cache_secret"}  # a value of the policy -> the setting of another name
_ASKED = ("cache_dir", *(_SETTING.get(name, name) for name in _DEFAULTS if name != "disk"))


@dataclass(frozen=True, slots=True, kw_only=True)
class CachePolicy:
    """What to keep; ``None`` leaves a value to the next in line: configure, environment, pyproject.toml, default.

    Parameters
    ----------
    memory_kernels : int, optional
        Loaded kernels kept, at least 1; default 256; ``cuplate.cache.UNLIMITED`` for no limit. One limit for the
        process: in ``policy=`` of a function it has no effect. Environment: ``CUPLATE_MEMORY_KERNELS``.
    disk_bytes : int, optional
        Sum of the stored entries in bytes, at least 16 000 000 (16 MB); default 1 GiB; ``UNLIMITED`` for no limit.
        Environment: ``CUPLATE_DISK_BYTES``.
    directory : path, optional
        Where the disk cache lives, a path as it is: neither ``~`` nor ``$NAME`` is expanded; a relative one is taken
        from the working directory of this moment. Default: ``cuplate`` in ``XDG_CACHE_HOME``, else in ``HOME/.cache``,
        else in the ``.cache`` of the home that the user database knows, else nowhere (memory only). Environment:
        ``CUPLATE_CACHE_DIR``, with ``off`` for no disk cache.
    secret : bytes, optional
        Key of the seal on every entry; needed where others can write the directory, and for ``shared``. Default none.
        Environment: ``CUPLATE_CACHE_SECRET``; not in pyproject.toml.
    disk : bool, optional
        False keeps everything in memory. Default True.
    eviction : str, optional
        Which entries go when the disk is full: ``"least-recently-used"`` (default), ``"least-recently-stored"``,
        ``"least-frequently-used"``, or ``"none"``: nothing goes, and what does not fit is not stored.
        Environment: ``CUPLATE_EVICTION``.
    time_to_live_s : float, optional
        Seconds after which a stored entry counts as absent, above 0; default ``UNLIMITED``.
        Environment: ``CUPLATE_TIME_TO_LIVE``, with a unit if wanted (``30d``).
    layers : iterable of path, optional
        Read-only directories below the writable one, asked in this order. Default none.
        Environment: ``CUPLATE_LAYERS``, separated as in ``PATH``.
    shared : str, optional
        The tier that a fleet shares, asked when the disk has missed: ``"redis://host:6379/0"``, ``"rediss://..."``
        (TLS), ``"unix:///socket"``, or ``"module:Class"``, a `cuplate.cache.SharedStore`; ``"off"`` (default) for none.
        It needs a ``secret``, and keeps entries for ``time_to_live_s``. User and password of a URL are never shown.
        Environment: ``CUPLATE_SHARED``.
    engine : str, optional
        ``"auto"`` (default): diskcache on a local disk, plain files on a network file system; ``"diskcache"`` or
        ``"files"`` decide it. Environment: ``CUPLATE_ENGINE``.
    frozen : bool, optional
        True makes a compile an error that names kernel, parameters, key and the nearest stored entry. Default False.
        Environment: ``CUPLATE_FROZEN``.
    single_flight : bool, optional
        One compile per key on this node, across processes. Default True. Environment: ``CUPLATE_SINGLE_FLIGHT``.
    flight_wait_s : float, optional
        Longest wait for another process's compile, seconds, at least 0; default 60. Environment:
        ``CUPLATE_FLIGHT_WAIT``.
    on_error : str, optional
        When a tier of the disk, or the shared one, fails: ``"warn"`` once a cause (default), ``"ignore"`` it, or
        ``"raise"`` it, which is for debugging. Counted all the same. Environment: ``CUPLATE_ON_ERROR``.
    tune : str, optional
        Where a parameter is left to `cuplate.tune`: ``"on"`` measures once and keeps the winner in the disk cache,
        ``"cached"`` takes a stored winner and never measures, ``"off"`` takes the first candidate. Default ``"auto"``:
        on with arrays on a GPU, cached with arrays in host memory. Environment: ``CUPLATE_TUNE``.
    tune_s : float, optional
        Seconds after which one tuning takes the best of what it has measured, above 0; default 60.
        Environment: ``CUPLATE_TUNE_SECONDS``.

    Raises
    ------
    SettingError
        A value is outside what is allowed.

    Examples
    --------
    >>> CachePolicy(memory_kernels=64, eviction="least-frequently-used").effective().source("eviction")
    'code'
    """

    memory_kernels: int | None = None
    disk_bytes: int | None = None
    directory: str | os.PathLike[str] | None = None
    secret: bytes | None = field(default=None, repr=False)
    disk: bool | None = None
    eviction: Eviction | None = None
    time_to_live_s: float | None = None
    layers: Iterable[str | os.PathLike[str]] | None = None
    shared: str | None = field(default=None, repr=False)
    engine: Engine | None = None
    frozen: bool | None = None
    single_flight: bool | None = None
    flight_wait_s: float | None = None
    on_error: OnError | None = None
    tune: TuneMode | None = None
    tune_s: float | None = None

    def __post_init__(self) -> None:
        _check_int("memory_kernels", self.memory_kernels, 1, "CachePolicy(memory_kernels=256)")
        _check_int("disk_bytes", self.disk_bytes, SMALLEST_DISK_BYTES, "CachePolicy(disk_bytes=1 << 30)")
        _check_directory("directory", self.directory)
        if self.secret is not None and type(self.secret) is not bytes:
            raise SettingError(
                "the secret of a cache policy is not bytes.", given=type(self.secret).__name__, allowed="bytes"
            )
        for name in ("disk", "frozen", "single_flight"):
            _check_bool(name, getattr(self, name))
        for name in CHOICES:
            _check_choice(name, getattr(self, name))
        _check_seconds("time_to_live_s", self.time_to_live_s, allow_zero=False)
        _check_seconds("flight_wait_s", self.flight_wait_s, allow_zero=True)
        _check_seconds("tune_s", self.tune_s, allow_zero=False)
        # Absolute from now on: a later chdir moves no cache.
        if self.directory is not None:
            object.__setattr__(self, "directory", _absolute(self.directory))
        if self.layers is not None:
            object.__setattr__(self, "layers", _check_layers(self.layers))
        if self.shared is not None:
            _check_shared("shared", self.shared)

    def effective(self) -> EffectivePolicy:
        """This policy with environment, pyproject.toml and the defaults filled in.

        Returns
        -------
        EffectivePolicy
            Every value known.

        Raises
        ------
        SettingError
            A variable of the environment, or the file, holds what is not allowed.
        """
        return resolve(code=self)

    def describe(self) -> str:
        """The effective values, one a line, each with where it came from."""
        return self.effective().describe()


NAMES = tuple(f.name for f in fields(CachePolicy))


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectivePolicy:
    """A policy with every value decided; ``str()`` lists them with their sources.

    Attributes
    ----------
    memory_kernels, disk_bytes : int
        The limits; ``UNLIMITED`` for none.
    directory : str or None
        Absolute path; None for memory only.
    secret : bytes
        Empty for none.
    disk : bool
        Whether a disk cache is wanted.
    eviction, engine, on_error, tune : str
    time_to_live_s, flight_wait_s, tune_s : float
        Seconds; ``UNLIMITED`` for no end.
    layers : tuple of Path
        Absolute.
    shared : str
        A URL or ``module:Class``, not in ``repr()``; empty for none.
    frozen, single_flight : bool
    sources : tuple of str
        Where each came from, in the order of `CachePolicy`: ``policy=``, ``code``, a variable's name, a file and its
        line, or ``default``.
    """

    memory_kernels: int
    disk_bytes: int
    directory: str | None
    secret: bytes = field(repr=False)
    disk: bool
    eviction: Eviction = "least-recently-used"
    time_to_live_s: float = UNLIMITED
    layers: tuple[Path, ...] = ()
    shared: str = field(default="", repr=False)
    engine: Engine = "auto"
    frozen: bool = False
    single_flight: bool = True
    flight_wait_s: float = 60.0
    on_error: OnError = "warn"
    tune: TuneMode = "auto"
    tune_s: float = 60.0
    sources: tuple[str, ...] = field(default=(), compare=False)

    def source(self, name: str) -> str:
        """Where a value came from.

        Parameters
        ----------
        name : str
            As in `CachePolicy`.
        """
        return dict(zip(NAMES, self.sources or ("code",) * len(NAMES), strict=True))[name]

    def shared_place(self) -> str:
        """The shared tier's place, without user and password; empty for none."""
        if not self.shared:
            return ""
        from cuplate.cache.address import shown

        return shown(self.shared)

    def rows(self) -> tuple[tuple[str, str, str], ...]:
        """(name, value, source) of every value; the secret's value is not shown."""
        shown = {
            "memory_kernels": _limit(self.memory_kernels, "kernels"),
            "disk_bytes": _limit(self.disk_bytes, "bytes"),
            "directory": self.directory or "none (memory only)",
            "secret": "set" if self.secret else "none",
            "time_to_live_s": _limit(self.time_to_live_s, "s"),
            "flight_wait_s": _limit(self.flight_wait_s, "s"),
            "shared": self.shared_place() or "none",
            "tune_s": _limit(self.tune_s, "s"),
            "layers": os.pathsep.join(map(str, self.layers)) or "none",
        }
        for name in ("disk", "frozen", "single_flight"):
            shown[name] = "on" if getattr(self, name) else "off"
        return tuple((name, shown.get(name) or str(getattr(self, name)), self.source(name)) for name in NAMES)

    def describe(self) -> str:
        """The values, one a line, each with where it came from."""
        return "\n".join(f"{name:<14} {value}  [{source}]" for name, value, source in self.rows())

    def __str__(self) -> str:
        return self.describe()


def resolve(*, function: CachePolicy | None = None, code: CachePolicy | None = None) -> EffectivePolicy:
    """Decide every value: the first in line that says something.

    Parameters
    ----------
    function : CachePolicy, optional
        Of ``policy=``. Its ``memory_kernels`` is passed over: loaded kernels have one limit, the process's.
    code : CachePolicy, optional
        Of the process.

    Returns
    -------
    EffectivePolicy
        With the sources.

    Raises
    ------
    SettingError
        A variable of the environment, or pyproject.toml, holds what is not allowed.
    """
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    told = said(*_ASKED)
    for name in NAMES:
        if name == "directory":
            continue
        for source, policy in (("policy=", function if name != "memory_kernels" else None), ("code", code)):
            if policy is not None and getattr(policy, name) is not None:
                values[name], sources[name] = getattr(policy, name), source
                break
        else:
            # "disk" is in nobody's mouth but the code's: elsewhere the directory turns it off.
            values[name], sources[name] = told.get(_SETTING.get(name, name)) or (_DEFAULTS[name], "default")
    for name, smallest, example in (("memory_kernels", 1, "256"), ("disk_bytes", SMALLEST_DISK_BYTES, "1G")):
        _check_int(f"{name} ({sources[name]})", values[name], smallest, f"{name}={example}")
    place, values["disk"], sources["disk"], sources["directory"] = _place(
        function, code, values["disk"], sources["disk"], told.get("cache_dir")
    )
    values["layers"] = _check_layers(values["layers"], f"a layer ({sources['layers']})")
    values["shared"] = _shared(values["shared"], sources["shared"], values["secret"])
    return EffectivePolicy(**values, directory=place, sources=tuple(sources[name] for name in NAMES))


def _shared(value: str, source: str, secret: bytes) -> str:
    """The place of the shared tier; empty for none."""
    if value.lower() == OFF:
        return ""
    _check_shared(f"shared ({source})", value)
    if not secret:
        raise SettingError(
            "a shared tier needs a secret: what it holds is code for the GPU and for this host.",
            given=f"shared ({source}), and no secret",
            allowed="the same secret on all nodes: CUPLATE_CACHE_SECRET or CachePolicy(secret=...)",
            try_="CUPLATE_CACHE_SECRET=$(openssl rand -hex 32)",
        )
    return value


def _check_shared(name: str, value: object) -> None:
    if type(value) is str and value.lower() == OFF:
        return
    from cuplate.cache.address import check  # a process without a shared tier does without

    check(name, value)


def _place(
    function: CachePolicy | None, code: CachePolicy | None, disk: bool, disk_from: str, told: tuple[Any, str] | None
) -> tuple[str | None, bool, str, str]:
    """Directory, whether there is a disk cache, and the sources of both."""
    if not disk:
        return None, False, disk_from, disk_from
    for source, policy in (("policy=", function), ("code", code)):
        if policy is not None and policy.directory is not None:
            return _absolute(policy.directory), True, disk_from, source
    place, source = resolve_directory(told=told)
    if place is None and told is not None:  # "off"
        return None, False, source, source
    return place, True, disk_from, source


def resolve_directory(*, told: tuple[Any, str] | None) -> tuple[str | None, str]:
    """Where the disk cache lives when the code does not say it.

    Parameters
    ----------
    told : tuple of (str, str), or None
        What environment or pyproject.toml say, and where, see `cuplate.config.said`.

    Returns
    -------
    directory : str or None
        Absolute path, not created and not looked at; None for memory only.
    source : str
        A variable, a file and its line, ``user database``, or what is missing.

    Raises
    ------
    SettingError
        ``CUPLATE_CACHE_DIR`` starts with ``~``.
    """
    if told is not None:
        text, source = told
        if str(text).lower() == OFF:
            return None, source
        _check_directory(source, text)
        return _absolute(text), source
    for name, below in (("XDG_CACHE_HOME", ()), ("HOME", (".cache",))):
        base = os.environ.get(name, "")
        if os.path.isabs(base):  # the XDG specification: a relative path is to be ignored
            return os.path.join(base, *below, "cuplate"), name
    home = _home_of_user()
    if home is not None:
        return os.path.join(home, ".cache", "cuplate"), "user database"
    return None, "no home directory"


def _home_of_user() -> str | None:
    try:
        import pwd
    except ImportError:  # Windows
        return None
    try:
        home = pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return None
    return home if os.path.isabs(home) else None


def _absolute(path: str | os.PathLike[str]) -> str:
    try:
        return os.path.abspath(os.fspath(path))
    except FileNotFoundError:  # the working directory is gone
        return os.fspath(path)


def _limit(value: float, unit: str) -> str:
    return "unlimited" if value >= UNLIMITED else f"{int(value) if value == int(value) else value} {unit}"


def _check_int(name: str, value: object, smallest: int, example: str) -> None:
    if value is None:
        return
    if type(value) is not int:
        raise SettingError(f"{name} of a cache policy is not an int.", given=repr(value), allowed="int", try_=example)
    if value < smallest:
        raise SettingError(
            f"{name} of a cache policy is too small.",
            given=value,
            allowed=f"at least {smallest}, or cuplate.cache.UNLIMITED",
            try_=example,
        )


def _check_seconds(name: str, value: object, *, allow_zero: bool) -> None:
    if value is None:
        return
    if type(value) not in (int, float) or not math.isfinite(value) or value < 0 or (value == 0 and not allow_zero):  # type: ignore[arg-type, operator]
        raise SettingError(
            f"{name} of a cache policy is no time.",
            given=repr(value),
            allowed=f"seconds, {'at least' if allow_zero else 'above'} 0, or cuplate.cache.UNLIMITED",
            try_=f"CachePolicy({name}=60.0)",
        )


def _check_bool(name: str, value: object) -> None:
    if value is not None and type(value) is not bool:
        raise SettingError(f"{name} of a cache policy is not a bool.", given=repr(value), allowed="True or False")


def _check_choice(name: str, value: object) -> None:
    if value is not None and value not in CHOICES[name]:
        raise SettingError(
            f"{name} of a cache policy is not one of its kinds.", given=repr(value), allowed=", ".join(CHOICES[name])
        )


_PATH = "a path, full or relative"


def _check_directory(name: str, value: object) -> None:
    if value is None:
        return
    if not isinstance(value, str | os.PathLike) or not isinstance(os.fspath(value), str):
        raise SettingError(f"{name} of a cache policy is not a path.", given=repr(value), allowed="str or os.PathLike")
    text = os.fspath(value)
    if not text or "\0" in text:
        raise SettingError(f"{name} of a cache policy is not a path.", given=repr(text), allowed=_PATH)
    if text.startswith("~"):
        # Taken literally it would make a directory named "~"; expanded, it would depend on who expands it.
        raise SettingError(
            f"{name} starts with '~', which is not expanded.",
            given=text,
            allowed=_PATH,
            try_=f"{os.path.expanduser(text)} (or ./{text} for a directory of that name)",
        )


def _check_layers(value: object, name: str = "a layer") -> tuple[Path, ...]:
    if isinstance(value, str | bytes | os.PathLike) or not isinstance(value, Iterable):
        raise SettingError(
            "layers of a cache policy are not a sequence of paths.",
            given=repr(value),
            allowed="a tuple of str or os.PathLike",
            try_="CachePolicy(layers=(directory,))",
        )
    layers = tuple(value)
    for layer in layers:
        if layer is None:
            raise SettingError("a layer of a cache policy is not a path.", given="None", allowed="str or os.PathLike")
        _check_directory(name, layer)
    return tuple(Path(_absolute(layer)) for layer in layers)
