"""Stored kernels that no compiler was needed for, right in every way that a check of a store looks at."""

from __future__ import annotations

import struct

from cuplate.cache import DiskTier
from cuplate.cache.files import FilesTier
from cuplate.cubin import Cubin, Resources, encode
from cuplate.key import fold, sha256

SOURCE = "// one kernel\n__global__ void k() {}\n"


def image(*, machine: int = 190, abi: int = 8, flags: int = 90 << 8, entry: str = "k", code: bytes = b"") -> bytes:
    """As much of an ELF image as is looked at; by default of a CUDA 13 compiler for sm_90."""
    head = bytearray(64)
    head[:9] = b"\x7fELF\x02\x01\x01\x41" + bytes([abi])
    struct.pack_into("<H", head, 18, machine)
    struct.pack_into("<I", head, 48, flags)
    return bytes(head) + entry.encode() + b"\0" + code


def kernel(
    number: int = 0, *, function: str = "f", arch: str = "sm_90", code: bytes = b"", source: str = SOURCE
) -> tuple[bytes, Cubin]:
    """The key of a kernel, and the kernel; ``arch="host"`` for one of the CPU backend."""
    host = arch == "host"
    ingredients = (
        ("source", sha256(source)),
        ("kernel", "k<16>"),
        ("arch", "sm_80" if host else arch),
        ("number", str(number)),
    )
    made = code or (image(machine=62) if host else image(flags=int(arch.removeprefix("sm_")) << 8))
    cubin = Cubin(
        made,
        "k",
        arch,
        function,
        source=source,
        ingredients=ingredients,
        parameters_text=f"number={number}",
        resources=Resources() if host else Resources(registers=number, spill_store_bytes=0),
        toolchain="gcc 12.2.0, standing for sm_80" if host else "nvrtc 13.5.37",
        compile_s=0.25,
    )
    return fold(ingredients), cubin


def put(tier: DiskTier | FilesTier, number: int, *, function: str = "f", **more: str) -> str:
    """Store one; its key, hexadecimal."""
    key, cubin = kernel(number, function=function, **more)  # type: ignore[arg-type]
    assert tier.put(key, encode(cubin), tag=function)
    return key.hex()
