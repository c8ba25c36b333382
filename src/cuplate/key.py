"""The content key: all that decides a cubin, and nothing else. The one place that hashes.

No path, time, id, address or salted hash gets in, so that other processes, users and machines find the same entry.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cuplate.backend.protocol import Toolchain
from cuplate.headers import Closure
from cuplate.options import Options

if TYPE_CHECKING:
    from cuplate.render import Source

__all__ = [
    "HOST_CHECK",
    "KEY_SCHEMA",
    "Key",
    "compiled_text",
    "difference",
    "fold",
    "make",
    "request",
    "request_of",
    "sha256",
]

KEY_SCHEMA = 1
"""Raised whenever the same ingredients would give another cubin, or are spelled in another way."""

HOST_CHECK = "-DCUPLATE_CHECK"
"""Of a host compiler's flags, which follow from the compiler, the one that is a wish: that a kernel checks itself."""

_NAMED_HEADERS = 64  # beyond that many of the user's headers one digest of them stands for all
# They follow from other ingredients, and explain nothing while one of those differs too.
_DERIVED = ("headers", "program key")
_REQUESTED = ("schema", "source", "kernel", "options", "arch", "parameter checks", "host cpu", "cpu backend")


@dataclass(frozen=True, slots=True)
class Key:
    """Identity of one cubin.

    Attributes
    ----------
    digest : bytes
        SHA-256 over the ingredients, 32 bytes.
    ingredients : tuple of (str, str)
        What it was made of, in order: short values as they are, long ones by their SHA-256. Stored beside the cubin, so
        that a miss can be explained.
    storable : bool
        False when something decides the binary that the key cannot see.
    reason : str or None
        What that is, one sentence.
    """

    digest: bytes
    ingredients: tuple[tuple[str, str], ...]
    storable: bool = True
    reason: str | None = None

    @property
    def hex(self) -> str:
        """The digest, 64 hexadecimal digits."""
        return self.digest.hex()


def make(
    source: Source,
    options: Options,
    toolchain: Toolchain,
    arch: str,
    closure: Closure,
    *,
    program_key: bytes = b"",
    checks: str = "",
    more: tuple[tuple[str, str], ...] = (),
) -> Key:
    """The key of a rendered source.

    Parameters
    ----------
    source : Source
        Its text counts (with ``#line`` only where line numbers reach the cubin) and its entry; its template's name and
        parameters do not: equal renders share a cubin.
    options : Options
        In canonical form. Include directories count by what is in them, see `closure`.
    toolchain : Toolchain
        The compiler by name and full build.
    arch : str
        ``"sm_90a"``.
    closure : Closure
        The headers, by content.
    program_key : bytes, optional
        ``cuda.core``'s own key of the program.
    checks : str, optional
        Text that the compiler gets after the source.
    more : tuple of (str, str), optional
        Further ingredients, of a build for the host.

    Returns
    -------
    Key
        Storable exactly if the closure is.
    """
    ingredients = (
        ("schema", str(KEY_SCHEMA)),
        ("source", sha256(compiled_text(source, options))),
        ("kernel", source.entry),
        ("options", "\n".join(options.canonical())),  # no option holds a line break, so nothing runs together
        ("compiler", f"{toolchain.name} {toolchain.build}"),
        ("arch", arch),
        *_headers(closure),
        ("parameter checks", sha256(checks) if checks else "none"),
        ("program key", program_key.hex() or "none"),
        *more,
    )
    return Key(fold(ingredients), ingredients, closure.storable, closure.reason)


def compiled_text(source: Source, options: Options) -> str:
    """What the compiler gets of a source: with ``#line`` only where line numbers reach the cubin."""
    return source.text_with_lines() if options.keeps_lines else source.text


def request(
    source: Source,
    options: Options,
    arch: str,
    closure: Closure,
    *,
    checks: str = "",
    more: tuple[tuple[str, str], ...] = (),
) -> bytes:
    """Digest of all that can be told of a key where there is no compiler, and no header of a toolkit.

    Parameters
    ----------
    source, options, arch, closure, checks, more
        As for `make`; of the closure only the user's own headers count.

    Returns
    -------
    bytes
        32 bytes, and those of `request_of` for the key that `make` would make.
    """
    nobody = Toolchain("", "", "", ())
    return _fold_request(make(source, options, nobody, arch, closure, checks=checks, more=more).ingredients)


def request_of(ingredients: Iterable[tuple[str, str]]) -> bytes | None:
    """The `request` that a key answers.

    Parameters
    ----------
    ingredients : iterable of (str, str)
        Of the key.

    Returns
    -------
    bytes or None
        None for a kernel that neither NVRTC nor the CPU backend has compiled.
    """
    pairs = tuple(ingredients)
    told = dict(pairs)
    return _fold_request(pairs) if told.get("compiler", "").startswith("nvrtc ") or "host cpu" in told else None


def _fold_request(ingredients: Iterable[tuple[str, str]]) -> bytes:
    asked = [("request", "1")]
    for name, value in ingredients:
        if name == "options":  # whether the compiler's own headers are used is the compiler's side of the matter
            value = "\n".join(flag for flag in value.split("\n") if flag != "bundled_headers")
        if name == "host flags":
            asked.append(("host check", "on" if HOST_CHECK in value.split(" ") else "off"))
        if name in _REQUESTED or name.startswith("header "):
            asked.append((name, value))
    return fold(asked)


def difference(a: Iterable[tuple[str, str]], b: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Names of the ingredients that differ between two keys, in order.

    Parameters
    ----------
    a, b : iterable of (str, str)
        ``ingredients`` of two keys.

    Returns
    -------
    tuple of str
        Empty for equal keys. An ingredient that follows from others is named only when it differs alone.
    """
    first, second = _by_name(a), _by_name(b)
    names = [n for n in dict.fromkeys((*first, *second)) if first.get(n) != second.get(n)]
    telling = [n for n in names if n not in _DERIVED]
    return tuple(telling or names)


def _by_name(ingredients: Iterable[tuple[str, str]]) -> dict[str, tuple[str, ...]]:
    """Values by name; two headers of one name (``#include_next``) keep both values."""
    found: dict[str, tuple[str, ...]] = {}
    for name, value in ingredients:
        found[name] = (*found.get(name, ()), value)
    return found


def _headers(closure: Closure) -> tuple[tuple[str, str], ...]:
    if not (closure.files or closure.absent or closure.toolkit):
        return (("headers", "none"),)
    named = closure.files
    if len(named) > _NAMED_HEADERS:
        named = ((f"({len(named)} of the user's)", sha256("\n".join(f"{n} {d}" for n, d in named))),)
    return (
        ("headers", closure.digest),
        *((f"header {name}", digest) for name, digest in named),
        *((("toolkit headers", closure.toolkit),) if closure.toolkit else ()),
    )


def sha256(text: str) -> str:
    """How a long ingredient enters: 64 hexadecimal digits."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def fold(ingredients: Iterable[tuple[str, str]]) -> bytes:
    """SHA-256 over length-prefixed names and values, so that no byte can move from one to the next."""
    state = hashlib.sha256(b"cuplate key")
    for pair in ingredients:
        for field in pair:
            data = field.encode("utf-8", "surrogatepass")
            state.update(len(data).to_bytes(8, "little") + data)
    return state.digest()
