"""What a backend offers to the walk."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from cuplate.grid import Limits

__all__ = ["NOWHERE", "DeviceFacts", "Toolchain", "runs_on"]

NOWHERE = "no device"
"""Product name of an architecture of which no device is at hand."""


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """One GPU, or the CPU that stands for one.

    Attributes
    ----------
    arch : str
        ``"sm_90"``.
    limits : Limits
    name : str
        Product name.
    """

    arch: str
    limits: Limits
    name: str


_ARCH = re.compile(r"sm_(\d+)([af]?)\Z")


@functools.cache  # asked before each load, of which it would be a sixth
def runs_on(arch: str, device: str) -> bool:
    """Whether a cubin for `arch` can run on a device.

    Parameters
    ----------
    arch : str
        ``"sm_90"``; ``"sm_90a"`` runs on that very architecture only, ``"sm_100f"`` on it and later ones of its major.
    device : str
        The device's own, without a suffix.

    Returns
    -------
    bool
        Source: CUDA C++ Programming Guide, binary compatibility and feature sets.
    """
    wanted, own = _ARCH.match(arch), _ARCH.match(device)
    if wanted is None or own is None:
        return False
    (major, minor), (own_major, own_minor) = divmod(int(wanted[1]), 10), divmod(int(own[1]), 10)
    return major == own_major and (minor == own_minor if wanted[2] == "a" else minor <= own_minor)


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
