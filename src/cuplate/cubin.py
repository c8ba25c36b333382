"""A compiled kernel with all that a later process needs to know of it, as one record of bytes.

Nothing is ever unpickled: a record is a magic, six lengths, three names, canonical JSON, the deflated source, and the
code. Stores seal it, see `cuplate.seal`.
"""

from __future__ import annotations

import json
import math
import struct
import zlib
from dataclasses import FrozenInstanceError, dataclass, fields, replace
from typing import Any

__all__ = ["HOST_ARCH", "About", "Cubin", "Resources", "decode", "encode"]

HOST_ARCH = "host"
"""Of a kernel that is built for the CPU backend, in place of ``"sm_90"``."""

_RECORD = b"CUPLATE\x02"  # the last byte is the version of the record
_RECORD_1 = b"CUPLATE\x01"  # the same, without source and its length; read, and no longer written
_ELF = b"\x7fELF"
_LENGTHS = struct.Struct("<IIIIIQ")  # of entry, arch, function, the rest, the source, and the code
_LENGTHS_1 = struct.Struct("<IIIIQ")
_LARGEST_SOURCE_BYTES = 1 << 26  # what a planted record may inflate to


@dataclass(frozen=True, slots=True)
class Resources:
    """What one kernel takes, as the compiler reports it; ``None`` where it did not say.

    Attributes
    ----------
    registers : int or None
        32-bit registers per thread.
    spill_store_bytes, spill_load_bytes, stack_bytes : int or None
        Bytes per thread.
    static_shared_bytes : int or None
        Bytes per block.
    constant_bytes : int or None
        Bytes of constant memory, arguments included.
    barriers : int or None
        Named barriers per block.
    max_threads : int or None
        Largest block, threads, as far as the source limits it.
    """

    registers: int | None = None
    spill_store_bytes: int | None = None
    spill_load_bytes: int | None = None
    stack_bytes: int | None = None
    static_shared_bytes: int | None = None
    constant_bytes: int | None = None
    barriers: int | None = None
    max_threads: int | None = None


@dataclass(frozen=True, slots=True)
class About:
    """What is kept of a compile beside its code; see `Cubin` for the fields."""

    resources: Resources = Resources()
    ingredients: tuple[tuple[str, str], ...] = ()
    log: str = ""
    compile_s: float = 0.0
    toolchain: str = ""
    parameters_text: str = ""


class Cubin:
    """One compiled kernel; immutable.

    A disk hit needs the code and the name of the kernel in it, and nothing else, so the rest of a stored record is read
    when it is first asked for.

    Attributes
    ----------
    code : bytes
        An ELF image.
    entry : str
        The kernel's lowered name inside it.
    arch : str
        ``"sm_90a"``.
    function : str
        The specialized function it was compiled for.
    resources : Resources
        Registers, shared memory and so on.
    ingredients : tuple of (str, str)
        What the content key was made of, by name, in order: how a miss is explained.
    log : str
        The compiler's log, often empty.
    compile_s : float
        Seconds the compiler took.
    toolchain : str
        The compiler's full build.
    parameters_text : str
        The parameters, readable: ``"tile=16, relu=True"``.
    source : str
        The rendered text that was compiled; empty where the record holds none.
    """

    __slots__ = ("_about", "_source", "arch", "code", "entry", "function")

    code: bytes
    entry: str
    arch: str
    function: str
    _about: About | bytes
    _source: str | bytes

    def __init__(self, code: bytes, entry: str, arch: str, function: str, *, source: str = "", **about: Any) -> None:
        self._set(code, entry, arch, function, About(**about), source)

    def _set(
        self, code: bytes, entry: str, arch: str, function: str, about: About | bytes, source: str | bytes
    ) -> None:
        _put_code(self, code)
        _put_entry(self, entry)
        _put_arch(self, arch)
        _put_function(self, function)
        _put_about(self, about)
        _put_source(self, source)

    @property
    def about(self) -> About:
        """All but the code and its names.

        Raises
        ------
        ValueError
            The stored text is not what `encode` writes (another program wrote the record, and sealed it).
        """
        about = self._about
        if isinstance(about, bytes):
            about = _about(about)
            _put_about(self, about)
        return about

    @property
    def resources(self) -> Resources:  # noqa: D102 - the class says it
        return self.about.resources

    @property
    def ingredients(self) -> tuple[tuple[str, str], ...]:  # noqa: D102
        return self.about.ingredients

    @property
    def log(self) -> str:  # noqa: D102
        return self.about.log

    @property
    def compile_s(self) -> float:  # noqa: D102
        return self.about.compile_s

    @property
    def toolchain(self) -> str:  # noqa: D102
        return self.about.toolchain

    @property
    def parameters_text(self) -> str:  # noqa: D102
        return self.about.parameters_text

    @property
    def source(self) -> str:
        """The rendered text that was compiled; empty where the record holds none.

        Raises
        ------
        ValueError
            What is stored is not what `encode` writes.
        """
        source = self._source
        if isinstance(source, bytes):
            source = _inflated(source)
            _put_source(self, source)
        return source

    def with_ingredients(self, ingredients: tuple[tuple[str, str], ...]) -> Cubin:
        """The same kernel, known to have been made of `ingredients`."""
        return self._with(replace(self.about, ingredients=ingredients), self._source)

    def without_source(self) -> Cubin:
        """The same kernel, for a place where its text does not belong."""
        return self._with(self._about, "")

    def _with(self, about: About | bytes, source: str | bytes) -> Cubin:
        made = Cubin.__new__(Cubin)
        made._set(self.code, self.entry, self.arch, self.function, about, source)
        return made

    def __setattr__(self, name: str, value: object) -> None:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Cubin):
            return NotImplemented
        return self._all() == other._all()

    def __hash__(self) -> int:
        return hash((self.code, *self._names()))

    def __repr__(self) -> str:
        return f"Cubin(entry={self.entry!r}, arch={self.arch!r}, function={self.function!r}, {len(self.code)} bytes)"

    def __reduce__(self) -> tuple[Any, ...]:
        return decode, (encode(self),)

    def _all(self) -> tuple[Any, ...]:
        return self._names(), self.code, self.about, self.source

    def _names(self) -> tuple[str, str, str]:
        return self.entry, self.arch, self.function


# The slots' own setters, past the __setattr__ that refuses: half the time of object.__setattr__ with a name.
_put_code, _put_entry, _put_arch, _put_function, _put_about, _put_source = (
    vars(Cubin)[name].__set__ for name in ("code", "entry", "arch", "function", "_about", "_source")
)
_TEXTS = ("log", "toolchain", "parameters_text")
_RESOURCES = tuple(f.name for f in fields(Resources))
_RESOURCE_NAMES = frozenset(_RESOURCES)
_FIELDS = frozenset(f.name for f in fields(About))


def encode(cubin: Cubin) -> bytes:
    """The record of a kernel; equal kernels give equal bytes.

    Parameters
    ----------
    cubin : Cubin
        What to store.

    Returns
    -------
    bytes
        Magic with version, six lengths, then the three names, the rest as text, the deflated source, and the code.

    Raises
    ------
    ValueError
        The code is empty or no ELF image: a failed compile must never be stored.
    """
    if not cubin.code.startswith(_ELF):
        raise ValueError(f"not an ELF image: {cubin.code[:4]!r} ({len(cubin.code)} bytes)")
    about = {f.name: getattr(cubin.about, f.name) for f in fields(About)}
    about["resources"] = {name: getattr(cubin.resources, name) for name in _RESOURCES}
    text = json.dumps(about, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")
    parts = [*(name.encode() for name in cubin._names()), text, _deflated(cubin._source), cubin.code]
    return b"".join((_RECORD, _LENGTHS.pack(*map(len, parts)), *parts))


def decode(record: bytes, *, lazily: bool = False) -> Cubin:
    """The kernel of a record.

    Parameters
    ----------
    record : bytes
        As :func:`encode` made it.
    lazily : bool
        True checks the rest of the record (`Cubin.about`) only when it is asked for: what a disk hit can afford, whose
        record has been unsealed. The source is always read that late.

    Returns
    -------
    Cubin
        Equal to what was encoded.

    Raises
    ------
    ValueError
        The record is of another version, cut, longer than it says, or holds a value of the wrong type.
    """
    if record.startswith(_RECORD):
        form = _LENGTHS
    elif record.startswith(_RECORD_1):
        form = _LENGTHS_1
    else:
        raise ValueError(f"not a cuplate record of this version: {record[:8]!r}")
    head = len(_RECORD) + form.size
    if len(record) < head:
        raise ValueError(f"record is cut at byte {len(record)}")
    # Written out, as a process that starts waits for it: each part ends where the next begins.
    *sizes, code_bytes = form.unpack_from(record, len(_RECORD))
    arch_at = head + sizes[0]
    function_at = arch_at + sizes[1]
    about_at = function_at + sizes[2]
    source_at = about_at + sizes[3]
    code_at = source_at + sizes[4] if form is _LENGTHS else source_at
    if code_at + code_bytes != len(record):
        raise ValueError(f"record is cut, or longer than it says: {len(record)} bytes")
    code, about = record[code_at:], record[about_at:source_at]
    if not code.startswith(_ELF):
        raise ValueError(f"not an ELF image: {code[:4]!r} ({len(code)} bytes)")
    cubin = Cubin.__new__(Cubin)
    cubin._set(
        code,
        record[head:arch_at].decode(),
        record[arch_at:function_at].decode(),
        record[function_at:about_at].decode(),
        about if lazily else _about(about),
        record[source_at:code_at],
    )
    return cubin


def _deflated(source: str | bytes) -> bytes:
    if isinstance(source, bytes):  # as it was read
        return source
    return zlib.compress(source.encode("utf-8", "surrogatepass")) if source else b""


def _inflated(packed: bytes) -> str:
    if not packed:
        return ""
    inflate = zlib.decompressobj()
    try:
        text = inflate.decompress(packed, _LARGEST_SOURCE_BYTES)
        if not inflate.eof or inflate.unused_data:
            raise ValueError("the source is cut, or longer than it may be")
        return text.decode("utf-8", "surrogatepass")
    except (zlib.error, UnicodeDecodeError) as error:
        raise ValueError(f"the source cannot be read: {error}") from error


def _about(text: bytes) -> About:
    try:
        meta = json.loads(text.decode("ascii"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"metadata is not JSON: {error}") from error
    if not isinstance(meta, dict) or meta.keys() != _FIELDS:
        raise ValueError("metadata has other fields")
    for name in _TEXTS:
        if type(meta[name]) is not str:
            raise ValueError(f"metadata: {name} is not text")
    seconds = meta["compile_s"]
    if type(seconds) not in (int, float) or not math.isfinite(seconds):
        raise ValueError("metadata: compile_s is not a number")
    texts = {name: meta[name] for name in _TEXTS}
    ingredients, resources = _ingredients(meta["ingredients"]), _resources(meta["resources"])
    return About(resources=resources, ingredients=ingredients, compile_s=float(seconds), **texts)


def _ingredients(found: Any) -> tuple[tuple[str, str], ...]:
    if not isinstance(found, list):
        raise ValueError("metadata: ingredients is not a list")
    for pair in found:
        if type(pair) is not list or len(pair) != 2 or type(pair[0]) is not str or type(pair[1]) is not str:
            raise ValueError("metadata: an ingredient is not a pair of texts")
    return tuple(map(tuple, found))


def _resources(found: Any) -> Resources:
    if not isinstance(found, dict) or found.keys() != _RESOURCE_NAMES:
        raise ValueError("metadata: resources has other fields")
    for name, value in found.items():
        if value is not None and (type(value) is not int or value < 0):
            raise ValueError(f"metadata: {name} is not a count")
    return Resources(**found)
