"""Loads an image from bytes."""

from __future__ import annotations

import ctypes as C
import functools
import itertools
import os
import tempfile

from cuplate.errors import ToolchainError

__all__ = ["load"]

_loads = itertools.count()


@functools.lru_cache(maxsize=1)
def _math_library() -> object:
    """Makes the C library's mathematics visible to images, which name no library."""
    for name in ("libm.so.6", "libm.so"):
        try:
            return C.CDLL(name, mode=C.RTLD_GLOBAL)
        except OSError:
            continue
    return None


def load(image: bytes) -> C.CDLL:
    """A library with variables of its own, whatever was loaded from the same bytes before.

    Raises
    ------
    ToolchainError
        The loader refuses it.
    """
    _math_library()
    try:
        if hasattr(os, "memfd_create"):
            return _load_from_memory(image)
    except OSError:
        pass  # no memfd, or nothing may be executed from one
    return _load_from_file(image)


def _load_from_memory(image: bytes) -> C.CDLL:
    descriptor = os.memfd_create("cuplate", os.MFD_CLOEXEC)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(image)
        # The loader takes two files of one name for one: slashes and dots make each name new and mean nothing.
        bits = f"{next(_loads):b}".replace("0", "/").replace("1", "/.")
        return C.CDLL(f"/proc/self/fd{bits}/{descriptor}")
    finally:
        os.close(descriptor)


def _load_from_file(image: bytes) -> C.CDLL:
    try:
        with tempfile.TemporaryDirectory(prefix="cuplate-", ignore_cleanup_errors=True) as directory:
            path = os.path.join(directory, f"kernel{next(_loads)}.so")
            with open(path, "wb") as file:
                file.write(image)
            return C.CDLL(path)
    except OSError as error:
        raise ToolchainError("a kernel built for the CPU cannot be loaded", given=str(error)) from error
