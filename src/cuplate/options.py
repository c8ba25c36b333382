"""What reaches the compiler besides the source: one frozen value, validated where it is written down."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from cuplate.errors import DeclarationError
from cuplate.hints import nearest_name

__all__ = ["Options"]

_STANDARDS = ("c++11", "c++14", "c++17", "c++20", "c++23")
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*\Z", re.ASCII)


@dataclass(frozen=True, slots=True)
class Options:
    """Compiler options of a specialized function.

    Parameters
    ----------
    std : str
        Language standard: ``"c++11"``, ``"c++14"``, ``"c++17"`` (default), ``"c++20"`` or, where the compiler has it,
        ``"c++23"``.
    fast_math : bool
        Approximate division, square root and transcendentals, denormals flushed to zero.
    max_registers : int or None
        Upper bound of registers a thread, 16 to 255; None leaves it to the compiler.
    line_info : bool
        Line table in the cubin, so that Nsight and cuda-gdb show the template's lines.
    debug : bool
        Device debug information; turns the optimizer off.
    arch_specific : bool
        Compile for the architecture's own instructions too (``sm_90a`` for ``sm_90``): ``wgmma``, ``setmaxnreg``.
    include : str, Path or sequence of them
        Directories searched for headers, in this order. A relative one is relative to the file that binds the template.
        Their *contents* decide the key, their names do not.
    bundled_headers : bool or None
        True: the CUDA headers that NVRTC itself brings (NVRTC 13.3 or newer). False: none of ours are added. None
        (default): the headers of the CUDA toolkit where one is found, else the bundled ones, and only for a source that
        includes something which `include` lacks.
    define : mapping or sequence of pairs
        Macros, name to value; None defines the name alone (which the preprocessor reads as 1).

    Raises
    ------
    DeclarationError
        A value is of another type or outside what is allowed.

    Examples
    --------
    >>> Options(fast_math=True, define={"TILE": 16}).canonical()
    ('std=c++17', 'fast_math', 'define TILE=16')
    """

    std: str = "c++17"
    fast_math: bool = False
    max_registers: int | None = None
    line_info: bool = False
    debug: bool = False
    arch_specific: bool = False
    include: tuple[Path, ...] = ()
    bundled_headers: bool | None = None
    define: tuple[tuple[str, str | None], ...] = ()

    def __init__(
        self,
        std: str = "c++17",
        *,
        fast_math: bool = False,
        max_registers: int | None = None,
        line_info: bool = False,
        debug: bool = False,
        arch_specific: bool = False,
        include: str | Path | Iterable[str | Path] = (),
        bundled_headers: bool | None = None,
        define: Mapping[str, object] | Iterable[tuple[str, object]] = (),
    ) -> None:
        put = object.__setattr__
        put(self, "std", _one_of("std", std, _STANDARDS))
        flags = {"fast_math": fast_math, "line_info": line_info, "debug": debug, "arch_specific": arch_specific}
        for name, value in flags.items():
            put(self, name, _flag(name, value))
        put(self, "max_registers", _registers(max_registers))
        put(self, "include", _directories(include))
        put(self, "bundled_headers", None if bundled_headers is None else _flag("bundled_headers", bundled_headers))
        put(self, "define", _definitions(define))

    @classmethod
    def from_value(cls, value: Options | Mapping[str, Any] | None) -> Options:
        """Options from what ``options=`` accepts.

        Parameters
        ----------
        value : Options, mapping or None
            A mapping holds the keyword arguments of `Options`.

        Raises
        ------
        DeclarationError
            Another type, or a keyword that `Options` does not have.
        """
        if value is None:
            return cls()
        if isinstance(value, Options):
            return value
        if not isinstance(value, Mapping):
            raise DeclarationError(
                "options= takes cuplate.Options or a mapping of its keywords",
                given=f"{value!r} ({type(value).__name__})",
            )
        names = [f.name for f in fields(cls)]
        for name in value:
            if name not in names:
                near = nearest_name(name, names)
                raise DeclarationError(f"options has no keyword {name!r}", allowed=", ".join(names), try_=near)
        return cls(**value)

    def replace(self, **changes: Any) -> Options:
        """These options with some of them changed."""
        return Options(**{**{f.name: getattr(self, f.name) for f in fields(self)}, **changes})

    @property
    def keeps_lines(self) -> bool:
        """Whether line numbers reach the cubin, so that ``#line`` belongs into source and key."""
        return self.line_info or self.debug

    def target(self, arch: str) -> str:
        """The architecture to compile for: ``"sm_90a"`` for ``"sm_90"`` with `arch_specific`, from 90 on."""
        number = arch.removeprefix("sm_")
        return f"{arch}a" if self.arch_specific and number.isdigit() and int(number) >= 90 else arch

    def directories(self, anchor: Path) -> tuple[Path, ...]:
        """Directories of ``include`` as absolute paths.

        Parameters
        ----------
        anchor : Path
            Directory that relative entries are relative to.

        Raises
        ------
        DeclarationError
            A directory does not exist: a misspelt one would surface as a missing header much later.
        """
        found = tuple((anchor / d.expanduser()).absolute() for d in self.include)
        for written, path in zip(self.include, found, strict=True):
            if not path.is_dir():
                raise DeclarationError(
                    "options: an include directory does not exist", given=f"include={str(written)!r}, that is {path}"
                )
        return found

    def canonical(self) -> tuple[str, ...]:
        """Everything but directories, in one spelling and order: for keys and messages."""
        flags = ("fast_math", "line_info", "debug")
        return (
            f"std={self.std}",
            *(name for name in flags if getattr(self, name)),
            *((f"max_registers={self.max_registers}",) if self.max_registers is not None else ()),
            *(("bundled_headers",) if self.bundled_headers else ()),
            *(f"define {name}" if value is None else f"define {name}={value}" for name, value in self.define),
        )


def _one_of(name: str, value: object, allowed: tuple[str, ...]) -> str:
    if isinstance(value, str) and value.lower() in allowed:
        return value.lower()
    near = nearest_name(value, allowed)
    raise DeclarationError(
        f"options: {name} is not known",
        given=f"{name}={value!r}",
        allowed=", ".join(allowed),
        try_=f"{name}={near!r}" if near else None,
    )


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise DeclarationError(f"options: {name} is True or False", given=f"{name}={value!r}")
    return value


def _registers(value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 16 <= value <= 255:
        raise DeclarationError(
            "options: max_registers is out of range",
            given=f"max_registers={value!r}",
            allowed="16 to 255 registers a thread, or None",
        )
    return value


def _directories(value: object) -> tuple[Path, ...]:
    entries = (value,) if isinstance(value, (str, Path)) else value
    if not isinstance(entries, Iterable) or isinstance(entries, (bytes, Mapping)):
        raise DeclarationError("options: include takes directories", given=f"include={value!r}")
    found = []
    for entry in entries:
        if not isinstance(entry, (str, Path)) or not str(entry):
            raise DeclarationError("options: include takes directories, each a str or a Path", given=f"{entry!r}")
        found.append(Path(entry))
    return tuple(dict.fromkeys(found))


def _definitions(value: object) -> tuple[tuple[str, str | None], ...]:
    pairs = value.items() if isinstance(value, Mapping) else value
    if not isinstance(pairs, Iterable) or isinstance(pairs, (str, bytes)):
        raise DeclarationError(
            "options: define takes a mapping or pairs", given=f"define={value!r}", try_='define={"NAME": 1}'
        )
    found: dict[str, str | None] = {}
    for pair in pairs:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise DeclarationError("options: each entry of define is (name, value)", given=f"{pair!r}")
        name, text = pair[0], _macro_text(*pair)
        if name in found:
            raise DeclarationError("options: a macro is defined twice", given=f"define {name}")
        found[name] = text
    return tuple(sorted(found.items()))


def _macro_text(name: object, value: object) -> str | None:
    if not isinstance(name, str) or not _IDENTIFIER.match(name):
        raise DeclarationError("options: the name of a macro is a C identifier", given=f"define {name!r}")
    if value is None:
        return None
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, int) or (isinstance(value, str) and "\n" not in value and "\0" not in value):
        return str(value)
    raise DeclarationError(
        f"options: the value of macro {name} cannot be used",
        given=f"{value!r}",
        allowed="str on one line, int, bool, or None for the name alone",
    )
