"""Settings of the process: every environment variable that cuplate reads, in one place and with a type.

Nothing is read at import, and of the environment nothing is kept: a change of ``os.environ`` is seen by the next
:func:`settings`. An empty variable counts as unset. What the environment does not say, ``[tool.cuplate]`` in
pyproject.toml may (see ``project.py``), under the names of `CachePolicy` and `Settings`.

==========================  ==========  ==================================================================
``CUPLATE_CACHE_DIR``       path        directory of the disk cache; ``off`` for none (``./off`` is a path)
``CUPLATE_CACHE_SECRET``    text        key of the seal on every stored entry
``CUPLATE_DISK_BYTES``      size        limit of the disk cache: ``2G``, ``512 MiB``, ``1073741824``, ``unlimited``
``CUPLATE_MEMORY_KERNELS``  count       loaded kernels kept: an integer or ``unlimited``
``CUPLATE_EVICTION``        choice      what leaves a full disk cache: ``least-recently-used``, ..., ``none``
``CUPLATE_TIME_TO_LIVE``    time        age at which a stored entry counts as absent: ``30d``, ``unlimited``
``CUPLATE_LAYERS``          paths       read-only directories below the disk cache, separated as in ``PATH``
``CUPLATE_SHARED``          place       the tier that a fleet shares: a URL, ``module:Class``, or ``off``
``CUPLATE_ENGINE``          choice      of the disk cache: ``auto``, ``diskcache``, ``files``
``CUPLATE_FROZEN``          0 or 1      a compile is an error
``CUPLATE_SINGLE_FLIGHT``   0 or 1      one compile per key on this node, across processes
``CUPLATE_FLIGHT_WAIT``     time        longest wait for another process's compile
``CUPLATE_ON_ERROR``        choice      when the disk cache fails: ``warn``, ``ignore``, ``raise``
``CUPLATE_TUNE``            choice      of tuned parameters: ``auto``, ``off``, ``cached``, ``on``
``CUPLATE_TUNE_SECONDS``    time        after which one tuning takes the best so far
``CUPLATE_TRACE``           path        file to which every look-up is written down, see ``cuplate.cache.record``
``CUPLATE_RECORD``          path        manifest to which each specialization in use is added, see ``cuplate.record``
``CUPLATE_METRICS``         path        where a process leaves its OpenMetrics text at its end; ``{pid}`` is its number
``CUPLATE_CONFIG``          path        a pyproject.toml to read instead of the nearest; ``off`` for none
``CUPLATE_EXPLAIN``         0 or 1      print one line per miss
``CUPLATE_DEBUG``           0 or 1      each call on a GPU waits for its kernel and raises its fault
``CUPLATE_CPU_CHECK``       choice      what the CPU backend looks for: ``full``, ``bounds``, ``off``
``CUPLATE_CPU_COMPILER``    text        its C++ compiler: a command, a path, or ``zig``
``CUPLATE_CPU_ARCH``        arch        the architecture that it stands for: ``sm_80``
``CUPLATE_CPU_BUDGET``      seconds     after which it stops a launch
``CUPLATE_CPU_THREADS``     count       OS threads of an unchecked launch
``CUPLATE_REQUIRE_GPU``     0 or 1      make a missing GPU an error where it would be a message
==========================  ==========  ==================================================================
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any

from cuplate import project
from cuplate.errors import SettingError

__all__ = [
    "CHECKS",
    "CHOICES",
    "CPU",
    "OFF",
    "UNLIMITED",
    "VARIABLES",
    "Settings",
    "cpu_settings",
    "debugging",
    "parse_size",
    "parse_time",
    "said",
    "scope",
    "settings",
]

UNLIMITED = sys.maxsize
"""The value of a limit that never binds; an integer, so that no comparison needs a special case."""

OFF = "off"
"""``CUPLATE_CACHE_DIR=off``: no disk cache; ``CUPLATE_SHARED=off``: no shared tier."""

CPU = ("cpu_check", "cpu_compiler", "cpu_arch", "cpu_budget_s", "cpu_threads")
"""What a call on the CPU backend reads."""

CHECKS = ("full", "bounds", "off")
"""Check modes of the CPU backend."""

CHOICES: Mapping[str, tuple[str, ...]] = {
    "eviction": ("least-recently-used", "least-recently-stored", "least-frequently-used", "none"),
    "engine": ("auto", "diskcache", "files"),
    "on_error": ("warn", "ignore", "raise"),
    "tune": ("auto", "off", "cached", "on"),
}
"""Settings that are one of a few words."""

_TIME = re.compile(r"(\d{1,15}(?:\.\d{1,15})?)\s*([smhdw]?)", re.IGNORECASE)
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_SIZE = re.compile(r"(\d{1,30}(?:\.\d{1,30})?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_SCALE = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_SWITCH = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


@dataclass(frozen=True, slots=True)
class Settings:
    """What environment and pyproject.toml say; ``None`` where they say nothing.

    Attributes
    ----------
    cache_dir : str or None
        Directory of the disk cache as written, or :data:`OFF`.
    cache_secret : bytes or None
        Key of the seal.
    disk_bytes : int or None
        Limit of the disk cache, bytes.
    memory_kernels : int or None
        Limit of loaded kernels.
    eviction, engine, on_error, tune : str or None
        See `CachePolicy`.
    time_to_live_s, flight_wait_s, tune_s : float or None
        Seconds.
    layers : tuple of str or None
        Paths, as written.
    shared : str or None
        Place of the shared tier as written, or :data:`OFF`.
    frozen, single_flight : bool or None
    trace : str or None
        File of a trace.
    record : str or None
        File of a manifest.
    metrics : str or None
        File of the OpenMetrics text that a process leaves at its end.
    explain : bool
        One line on stderr for each look-up that left memory.
    debug : bool
        Each call on a GPU is compiled with line info, waits for its kernel, and raises the fault that it ended with.
    require_gpu : bool
        For the test suite: a missing GPU fails its GPU tests instead of skipping them.
    cpu_check : str
        What the CPU backend looks for while a kernel runs: ``"full"``, ``"bounds"`` or ``"off"``.
    cpu_compiler : str or None
        Its C++ compiler: a command, a path or ``"zig"``; None for the first that is found.
    cpu_arch : str
        The architecture that it stands for: ``"sm_80"``.
    cpu_budget_s : float
        Seconds after which it stops a launch.
    cpu_threads : int or None
        OS threads of an unchecked launch; None for one a core.
    """

    cache_dir: str | None = None
    cache_secret: bytes | None = None
    disk_bytes: int | None = None
    memory_kernels: int | None = None
    eviction: str | None = None
    time_to_live_s: float | None = None
    layers: tuple[str, ...] | None = None
    shared: str | None = None
    engine: str | None = None
    frozen: bool | None = None
    single_flight: bool | None = None
    flight_wait_s: float | None = None
    on_error: str | None = None
    tune: str | None = None
    tune_s: float | None = None
    trace: str | None = None
    record: str | None = None
    metrics: str | None = None
    explain: bool = False
    debug: bool = False
    require_gpu: bool = False
    cpu_check: str = "full"
    cpu_compiler: str | None = None
    cpu_arch: str = "sm_80"
    cpu_budget_s: float = 30.0
    cpu_threads: int | None = None

    def __repr__(self) -> str:
        shown = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if f.name not in _HIDDEN)
        hidden = ", ".join(f"{name}={'set' if getattr(self, name) else 'unset'}" for name in _HIDDEN)
        return f"Settings({shown}, {hidden})"


_HIDDEN = ("cache_secret", "shared")  # a URL may hold a password


def _text(variable: str, value: str) -> str:
    return value


def _secret(variable: str, value: str) -> bytes:
    return os.fsencode(value)


def parse_size(variable: str, value: str) -> int:
    """Bytes, of ``"64K"``, ``"2 GiB"``, ``"1000"`` or ``"unlimited"``; `variable` is what an error names.

    Raises
    ------
    SettingError
    """
    if value.strip().lower() == "unlimited":
        return UNLIMITED
    match = _SIZE.fullmatch(value.strip())
    if match is None:
        raise SettingError(
            f"{variable} is not a size.",
            given=repr(value),
            allowed="bytes, or a number with K, M, G or T (powers of 1024), or unlimited",
            try_=f"{variable}=2G",
        )
    number, scale = match[1], 1 << _SCALE[match[2].lower()]
    return int(float(number) * scale) if "." in number else int(number) * scale


def _count(variable: str, value: str) -> int:
    text = value.strip().lower()
    if text == "unlimited":
        return UNLIMITED
    if not (text.isascii() and text.isdigit() and len(text) <= 30):  # Python converts no more than some thousands
        raise SettingError(
            f"{variable} is not a count.",
            given=repr(value),
            allowed="an integer of at least 1, or unlimited",
            try_=f"{variable}=256",
        )
    return int(text)


def _switch(variable: str, value: str) -> bool:
    try:
        return _SWITCH[value.strip().lower()]
    except KeyError:
        raise SettingError(
            f"{variable} is not a switch.", given=repr(value), allowed="0 or 1", try_=f"{variable}=1"
        ) from None


def _choice(name: str) -> Callable[[str, str], str]:
    def read(variable: str, value: str) -> str:
        text = value.strip().lower()
        if text not in CHOICES[name]:
            raise SettingError(
                f"{variable} is not one of its kinds.",
                given=repr(value),
                allowed=", ".join(CHOICES[name]),
                try_=f"{variable}={CHOICES[name][0]}",
            )
        return text

    return read


def parse_time(variable: str, value: str) -> float:
    """Seconds, of ``"30d"``, ``"12h"``, ``"90"`` or ``"unlimited"``; `variable` is what an error names.

    Raises
    ------
    SettingError
    """
    if value.strip().lower() == "unlimited":
        return UNLIMITED
    match = _TIME.fullmatch(value.strip())
    seconds = float(match[1]) * _SECONDS[match[2].lower()] if match else 0.0
    if match is None or (seconds == 0 and not variable.endswith(_MAY_BE_ZERO)):
        raise SettingError(
            f"{variable} is no time.",
            given=repr(value),
            allowed="seconds, or a number with s, m, h, d or w, or unlimited",
            try_=f"{variable}=30d",
        )
    return seconds


_MAY_BE_ZERO = ("CUPLATE_FLIGHT_WAIT", "flight_wait_s")


def _paths(variable: str, value: str) -> tuple[str, ...]:
    return tuple(part for part in value.split(os.pathsep) if part)


def _check_mode(variable: str, value: str) -> str:
    text = value.strip().lower()
    if text not in CHECKS:
        raise SettingError(
            f"{variable} is no check mode.", given=repr(value), allowed=", ".join(CHECKS), try_=f"{variable}=full"
        )
    return text


def _arch(variable: str, value: str) -> str:
    text = value.strip().lower()
    if not re.fullmatch(r"sm_[1-9]\d{1,2}", text) or int(text[3:]) < 70:
        raise SettingError(
            f"{variable} is no architecture that the CPU backend can stand for.",
            given=repr(value),
            allowed="sm_70 or newer, without a suffix",
            try_=f"{variable}=sm_80",
        )
    return text


def _seconds(variable: str, value: str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds <= 1e6:
        raise SettingError(
            f"{variable} is no time.", given=repr(value), allowed="seconds, above 0", try_=f"{variable}=30"
        )
    return seconds


_READERS: dict[str, tuple[str, Callable[[str, str], Any]]] = {
    "cache_dir": ("CUPLATE_CACHE_DIR", _text),
    "cache_secret": ("CUPLATE_CACHE_SECRET", _secret),
    "disk_bytes": ("CUPLATE_DISK_BYTES", parse_size),
    "memory_kernels": ("CUPLATE_MEMORY_KERNELS", _count),
    "eviction": ("CUPLATE_EVICTION", _choice("eviction")),
    "time_to_live_s": ("CUPLATE_TIME_TO_LIVE", parse_time),
    "layers": ("CUPLATE_LAYERS", _paths),
    "shared": ("CUPLATE_SHARED", _text),
    "engine": ("CUPLATE_ENGINE", _choice("engine")),
    "frozen": ("CUPLATE_FROZEN", _switch),
    "single_flight": ("CUPLATE_SINGLE_FLIGHT", _switch),
    "flight_wait_s": ("CUPLATE_FLIGHT_WAIT", parse_time),
    "on_error": ("CUPLATE_ON_ERROR", _choice("on_error")),
    "tune": ("CUPLATE_TUNE", _choice("tune")),
    "tune_s": ("CUPLATE_TUNE_SECONDS", parse_time),
    "trace": ("CUPLATE_TRACE", _text),
    "record": ("CUPLATE_RECORD", _text),
    "metrics": ("CUPLATE_METRICS", _text),
    "explain": ("CUPLATE_EXPLAIN", _switch),
    "debug": ("CUPLATE_DEBUG", _switch),
    "require_gpu": ("CUPLATE_REQUIRE_GPU", _switch),
    "cpu_check": ("CUPLATE_CPU_CHECK", _check_mode),
    "cpu_compiler": ("CUPLATE_CPU_COMPILER", _text),
    "cpu_arch": ("CUPLATE_CPU_ARCH", _arch),
    "cpu_budget_s": ("CUPLATE_CPU_BUDGET", _seconds),
    "cpu_threads": ("CUPLATE_CPU_THREADS", _count),
}

VARIABLES: Mapping[str, str] = {
    **{name: variable for name, (variable, _) in _READERS.items()},
    "config": "CUPLATE_CONFIG",  # read by project.py
}
"""Setting -> environment variable."""

_KEYS = {
    "directory" if name == "cache_dir" else name: name
    for name in _READERS
    # All but the first belong to a run, not to a project.
    if name not in ("cache_secret", "require_gpu", "trace", "record", "metrics", "debug")
}
"""Key of ``[tool.cuplate]`` -> setting: the names of `CachePolicy` and of `Settings`."""

_overrides: list[dict[str, Any]] = []
_typed: dict[int, tuple[project.Table, dict[str, tuple[Any, str]]]] = {}


def settings(*names: str) -> Settings:
    """The settings as they are now.

    Parameters
    ----------
    *names : str
        Fields to read, the others keep their defaults: a variable costs two microseconds. Default: all.

    Returns
    -------
    Settings
        From pyproject.toml, then the environment, then the open :func:`scope` blocks, innermost last.

    Raises
    ------
    SettingError
        A variable holds text that its type does not allow, or the file does.
    """
    values = {}
    of_project = _of_project()
    for name in names or _READERS:
        found = _said(name) or of_project.get(name)
        if found is not None:
            values[name] = found[0]
    return Settings(**values)


def said(*names: str) -> dict[str, tuple[Any, str]]:
    """What is said about settings outside the code, and where.

    Parameters
    ----------
    *names : str
        Fields of `Settings`.

    Returns
    -------
    dict of str to (object, str)
        The value, and the variable's name, ``scope`` or ``path:line``; nothing for those of which nothing is said.

    Raises
    ------
    SettingError
        One is not allowed.
    """
    of_project = _of_project()
    found = {name: _said(name) or of_project.get(name) for name in names}
    return {name: told for name, told in found.items() if told is not None and told[0] is not None}


def _said(name: str) -> tuple[Any, str] | None:
    for block in reversed(_overrides):
        if name in block:
            return block[name], "scope"
    variable, read = _READERS[name]
    text = os.environ[variable] if variable in os.environ else None  # noqa: SIM401 - where unset, a third of the time
    return (read(variable, text), variable) if text else None


def _of_project() -> dict[str, tuple[Any, str]]:
    """Settings of the project's table, typed once; a wrong one is told at every question."""
    table = project.table()
    if table is None:
        return {}
    known = _typed.get(id(table))
    if known is None:
        known = table, {_key_of(table, key): _value_of(table, key) for key in table.values}
        _typed[id(table)] = known  # with the table, so that no other gets its id
    return known[1]


def _key_of(table: project.Table, key: str) -> str:
    if key in _KEYS:
        return _KEYS[key]
    from cuplate.hints import nearest_name

    near = nearest_name(key.replace("-", "_"), _KEYS)
    hint = f"{near} = ..." if near else None
    if key in ("secret", "cache_secret"):
        hint = "CUPLATE_CACHE_SECRET: a secret does not belong in a file of the project"
    elif key == "disk":
        hint = 'directory = "off"'
    raise SettingError(
        f"[tool.cuplate] has no key {key!r}.", file=table.place(key), allowed=", ".join(_KEYS), try_=hint
    )


def _value_of(table: project.Table, key: str) -> tuple[Any, str]:
    """A value through the reader of its variable, so that both have one grammar, and where it stands."""
    value, place = table.values[key], table.place(key)
    name = _KEYS[key]
    read = _READERS[name][1]
    texts = value if type(value) is list and name == "layers" else [value]
    try:
        if type(value) is bool and read is not _switch:
            read = _wrong_type
        values = [_text_of(text) for text in texts]
        if name == "shared" and "@" in values[0]:
            allowed = "a URL without them; CUPLATE_SHARED may have them"
            raise SettingError("user and password do not belong in a file of the project.", allowed=allowed)
        if name in ("layers", "cache_dir"):  # relative ones are taken from the file's folder
            values = [v if v.lower() == OFF or v.startswith("~") else _beside(table.path, v) for v in values]
            return (tuple(values) if name == "layers" else values[0]), place
        return read(key, values[0]), place
    except SettingError as error:
        facts = {name: fact for name, fact in error.facts.items() if name not in ("given", "try_")}
        _, _, example = str(error.facts.get("try_") or "").partition("=")
        hint = f'{key} = "{example}"' if example else None
        given = repr(value) if name != "shared" else "***"
        raise SettingError(error.summary, file=place, given=given, **facts, try_=hint) from None


def _text_of(value: object) -> str:
    if type(value) is bool:
        return "1" if value else "0"
    if type(value) not in (str, int, float) or value == "":
        raise SettingError(f"a value of [tool.cuplate] is a {type(value).__name__}.", allowed="text or a number")
    return str(value)


def _wrong_type(key: str, value: str) -> str:
    raise SettingError(f"{key} is no switch.", allowed="text or a number")


def _beside(file: str, path: str) -> str:
    return os.path.abspath(os.path.join(os.path.dirname(file), path))


def cpu_settings() -> Settings:
    """What a call on the CPU backend reads: ``settings(*CPU)``, remembered while what it depends on has not changed.

    The same object stands for the same compiler too: it is another one when ``PATH`` changes.
    """
    # The environment's own dictionary: its public face costs two microseconds a variable, ten for a call.
    data = getattr(os.environ, "_data", None)
    if not isinstance(data, dict):
        return settings(*CPU)
    said = (_scopes[0], project.table(os.fsdecode(data.get(_CONFIG, ""))), *map(data.get, _CPU_VARIABLES))
    known = _cpu_settings[0] if _cpu_settings else None
    if known is None or known[0] != said:
        known = said, settings(*CPU)
        _cpu_settings[:] = [known]
    return known[1]


def debugging() -> bool:
    """Whether calls on a GPU check themselves: ``settings("debug").debug``, for next to nothing where it is not set."""
    data = getattr(os.environ, "_data", None)
    if not _overrides and isinstance(data, dict) and _DEBUG not in data:
        return False
    return settings("debug").debug


def _inner(variable: str) -> Any:
    """A variable's name in the environment's own dictionary."""
    return variable.encode() if os.name == "posix" else variable


_CONFIG = _inner(VARIABLES["config"])
_DEBUG = _inner(VARIABLES["debug"])
_CPU_VARIABLES = (*(_inner(VARIABLES[name]) for name in CPU), _inner("PATH"))  # by which a compiler is found
_cpu_settings: list[tuple[tuple[Any, ...], Settings]] = []
_scopes = [0]  # how often one was opened or closed: counted behind the change, so that nothing older is remembered


@contextmanager
def scope(**values: Any) -> Iterator[Settings]:
    """Override settings for the whole process until the block ends; meant for tests.

    Parameters
    ----------
    **values : object
        Fields of :class:`Settings` by name, already typed; ``None`` stands for an unset variable.

    Yields
    ------
    Settings
        What holds inside.
    """
    replace(Settings(), **values)  # a misspelt name is a TypeError here, not a setting without effect
    _overrides.append(values)
    _scopes[0] += 1
    try:
        yield settings()
    finally:
        # By identity: two scopes with equal values may end in any order (threads).
        del _overrides[next(i for i, block in enumerate(_overrides) if block is values)]
        _scopes[0] += 1
