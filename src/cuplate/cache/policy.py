"""How much is kept, where, and under which secret: one frozen policy, and where each of its values came from.

Precedence, for each value alone: the policy given in code, then the environment, then the default.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from cuplate.config import OFF, UNLIMITED, VARIABLES, SettingError, settings

__all__ = ["FORMAT", "SMALLEST_DISK_BYTES", "CachePolicy", "EffectivePolicy", "resolve_directory"]

FORMAT = "v1"
"""Name of the folder below the cache directory; another format gets another name, so two versions never meet."""

SMALLEST_DISK_BYTES = 16_000_000
"""An empty store takes tens of kilobytes, one kernel up to megabytes: less than this only evicts."""

_DEFAULTS = {"memory_kernels": 256, "disk_bytes": 1 << 30, "secret": b"", "disk": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class CachePolicy:
    """What to keep; ``None`` leaves a value to the environment, then to the default.

    Parameters
    ----------
    memory_kernels : int, optional
        Loaded kernels kept, at least 1; default 256; ``cuplate.cache.UNLIMITED`` for no limit.
        Environment: ``CUPLATE_MEMORY_KERNELS``.
    disk_bytes : int, optional
        Sum of the stored entries in bytes, at least 16 000 000 (16 MB); default 1 GiB; ``UNLIMITED`` for no limit.
        Environment: ``CUPLATE_DISK_BYTES``.
    directory : path, optional
        Where the disk cache lives, as a full path: neither ``~`` nor ``$NAME`` is expanded. Default: ``cuplate`` in
        ``XDG_CACHE_HOME``, else in ``HOME/.cache``, else in the ``.cache`` of the home that the user database knows,
        else nowhere (memory only). Environment: ``CUPLATE_CACHE_DIR``, with ``off`` for no disk cache.
    secret : bytes, optional
        Key of the seal on every entry; needed only where others can write the directory. Default none.
        Environment: ``CUPLATE_CACHE_SECRET``.
    disk : bool, optional
        False keeps everything in memory. Default True.

    Raises
    ------
    SettingError
        A value is outside what is allowed.
    """

    memory_kernels: int | None = None
    disk_bytes: int | None = None
    directory: str | os.PathLike[str] | None = None
    secret: bytes | None = field(default=None, repr=False)
    disk: bool | None = None

    def __post_init__(self) -> None:
        _check_int("memory_kernels", self.memory_kernels, 1, "CachePolicy(memory_kernels=256)")
        _check_int("disk_bytes", self.disk_bytes, SMALLEST_DISK_BYTES, "CachePolicy(disk_bytes=1 << 30)")
        _check_directory("directory", self.directory)
        if self.secret is not None and type(self.secret) is not bytes:
            raise SettingError(
                "the secret of a cache policy is not bytes.", given=type(self.secret).__name__, allowed="bytes"
            )
        if self.disk is not None and type(self.disk) is not bool:
            raise SettingError("disk of a cache policy is not a bool.", given=repr(self.disk), allowed="True or False")

    def effective(self) -> EffectivePolicy:
        """This policy with the environment and the defaults filled in.

        Returns
        -------
        EffectivePolicy
            Every value known.

        Raises
        ------
        SettingError
            A variable of the environment holds what is not allowed.
        """
        said = settings()
        kernels, kernels_from = _pick("memory_kernels", self.memory_kernels, said.memory_kernels)
        size, size_from = _pick("disk_bytes", self.disk_bytes, said.disk_bytes)
        secret, secret_from = _pick("secret", self.secret, said.cache_secret, "cache_secret")
        _check_int(f"memory_kernels ({kernels_from})", kernels, 1, f"{VARIABLES['memory_kernels']}=256")
        _check_int(f"disk_bytes ({size_from})", size, SMALLEST_DISK_BYTES, f"{VARIABLES['disk_bytes']}=1G")
        off = self.directory is None and str(said.cache_dir).lower() == OFF
        disk, disk_from = _pick("disk", self.disk, False if off else None, "cache_dir")
        place, place_from = resolve_directory(self.directory) if disk else (None, disk_from)
        sources = (kernels_from, size_from, place_from, secret_from, disk_from)
        return EffectivePolicy(
            memory_kernels=kernels, disk_bytes=size, directory=place, secret=secret, disk=disk, sources=sources
        )

    def describe(self) -> str:
        """The effective values, one a line, each with where it came from."""
        return self.effective().describe()


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectivePolicy:
    """A policy with every value decided.

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
    sources : tuple of str
        Where each of the five came from, in that order: ``code``, a variable's name, or ``default``.
    """

    memory_kernels: int
    disk_bytes: int
    directory: str | None
    secret: bytes = field(repr=False)
    disk: bool
    sources: tuple[str, ...] = field(default=(), compare=False)

    def rows(self) -> tuple[tuple[str, str, str], ...]:
        """(name, value, source) of every value; the secret's value is not shown."""
        values = (
            _limit(self.memory_kernels, "kernels"),
            _limit(self.disk_bytes, "bytes"),
            self.directory or "none (memory only)",
            "set" if self.secret else "none",
            "on" if self.disk else "off",
        )
        names = ("memory_kernels", "disk_bytes", "directory", "secret", "disk")
        return tuple(zip(names, values, self.sources or ("code",) * 5, strict=True))

    def describe(self) -> str:
        """The values, one a line, each with where it came from."""
        return "\n".join(f"{name:<14} {value}  [{source}]" for name, value, source in self.rows())


def resolve_directory(given: str | os.PathLike[str] | None = None) -> tuple[str | None, str]:
    """Where the disk cache lives.

    Parameters
    ----------
    given : path, optional
        Said in code; a relative path is taken from the working directory.

    Returns
    -------
    directory : str or None
        Absolute path, not created and not looked at; None for memory only.
    source : str
        ``code``, a variable, ``user database``, or what is missing.

    Raises
    ------
    SettingError
        ``CUPLATE_CACHE_DIR`` starts with ``~``.
    """
    if given is not None:
        return os.path.abspath(os.fspath(given)), "code"
    variable, said = VARIABLES["cache_dir"], settings().cache_dir
    if str(said).lower() == OFF:
        return None, variable
    if said:
        _check_directory(variable, said)
        return os.path.abspath(said), variable
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


def _pick(name: str, code: object, environment: object, variable: str | None = None) -> tuple[Any, str]:
    if code is not None:
        return code, "code"
    if environment is not None:
        return environment, VARIABLES[variable or name]
    return _DEFAULTS[name], "default"


def _limit(value: int, unit: str) -> str:
    return "unlimited" if value >= UNLIMITED else f"{value} {unit}"


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


def _check_directory(name: str, value: object) -> None:
    if value is None:
        return
    if not isinstance(value, str | os.PathLike) or not isinstance(os.fspath(value), str):
        raise SettingError(f"{name} of a cache policy is not a path.", given=repr(value), allowed="str or os.PathLike")
    text = os.fspath(value)
    if not text or "\0" in text:
        raise SettingError(f"{name} of a cache policy is not a path.", given=repr(text), allowed="a full path")
    if text.startswith("~"):
        # Taken literally it would make a directory named "~"; expanded, it would depend on who expands it.
        raise SettingError(
            f"{name} starts with '~', which is not expanded.",
            given=text,
            allowed="a full path",
            try_=f"{os.path.expanduser(text)} (or ./{text} for a directory of that name)",
        )
