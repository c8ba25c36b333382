"""What a backend offers to the walk."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["Toolchain"]

_ARCH = re.compile(r"sm_(\d+)[af]?\Z")


@dataclass(frozen=True, slots=True)
class Toolchain:
    """A compiler.

    Attributes
    ----------
    name : str
        ``"nvrtc"``.
    version : str
        Major and minor, for messages: ``"13.5"``.
    build : str
        Full build, for keys: ``"13.5.37"``.
    architectures : tuple of str
        Base architectures that it compiles for, ascending: ``"sm_75"``, ...
    """

    name: str
    version: str
    build: str
    architectures: tuple[str, ...]

    def supports(self, arch: str) -> bool:
        """Whether ``arch`` is one of the architectures, a suffix ``a`` or ``f`` left aside."""
        found = _ARCH.match(arch)
        return found is not None and f"sm_{found[1]}" in self.architectures
