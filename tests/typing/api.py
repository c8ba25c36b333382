"""A user's file, checked and not run: the README's snippets, and the mistakes that a checker must find.

mypy, pyright and ruff read it in ``test_typing.py``. Each ``type: ignore`` names what mypy reports there, each
``pyright: ignore`` what pyright reports; both refuse an ignore that hides nothing.
"""

from __future__ import annotations

from typing import Generic, Literal, NamedTuple, Protocol, assert_type

import numpy as np
import numpy.typing as npt
from jaxtyping import Float32, Int32

import cuplate
from cuplate import Array, ArraySpec, CacheInfo, CuplateError, Inline, Options, f32, i64, specialize, tune
from cuplate.autotune.tuned import Tuned
from cuplate.cache import EffectivePolicy
from cuplate.cubin import Cubin
from cuplate.kernels import matmul_epilogue, matmul_wgmma, matmul_wgmma_wide
from cuplate.report import Report

Host = npt.NDArray[np.float32]


class Device(Protocol):
    """Stands for an array type of another library: CuPy ships no types, and torch is large.

    A protocol only because its methods then need no bodies.
    """

    shape: tuple[int, ...]
    dtype: object
    ndim: int

    @property
    def T(self) -> Device: ...
    def __array__(self) -> npt.NDArray[np.float32]: ...
    def __len__(self) -> int: ...
    def __getitem__(self, key: object) -> Device: ...
    def __setitem__(self, key: object, value: object) -> None: ...
    def __add__(self, other: Device | float) -> Device: ...
    def __radd__(self, other: Device | float) -> Device: ...
    def __sub__(self, other: Device | float) -> Device: ...
    def __rsub__(self, other: Device | float) -> Device: ...
    def __mul__(self, other: Device | float) -> Device: ...
    def __rmul__(self, other: Device | float) -> Device: ...
    def __truediv__(self, other: Device | float) -> Device: ...
    def __rtruediv__(self, other: Device | float) -> Device: ...
    def __matmul__(self, other: Device) -> Device: ...
    def __pow__(self, other: Device | float) -> Device: ...
    def __neg__(self) -> Device: ...
    def __abs__(self) -> Device: ...
    def clip(self, low: float | None = None, high: float | None = None) -> Device: ...
    def sum(self, axis: int | None = None) -> Device: ...


# README's snippets, word for word: tests/test_docs.py holds the two files together.


@specialize("saxpy.cu.j2", block="block_x")
def saxpy(
    alpha: f32,
    x: Float32[Array, " N"],
    y: Float32[Array, " N"],
    *,
    block_x: int = 256,
    relu: bool = False,
) -> Float32[Array, " N"]:
    """alpha * x + y, with or without a relu."""
    z = alpha * x + y
    return z.clip(0) if relu else z


@specialize("rotate.cu.j2", block="block_x")
def rotate(x: Float32[Array, " N"], *, block_x: int = 64, sync: bool = True) -> Float32[Array, " N"]:
    """Each block's elements, one place to the right."""
    raise NotImplementedError


@specialize("convolve.cu.j2", tiles={"N-K+1": 256})
def convolve(x: Float32[Array, " N"], w: Float32[Array, " K"]) -> Float32[Array, " N-K+1"]:
    """Every output sees all of w."""
    raise NotImplementedError


@specialize(
    "sgemm.cu",
    args="M N K alpha a a.stride(0) b b.stride(0) out N",  # m n k alpha A lda B ldb C ldc
    tiles={"N": 16, "M": 16},
    block=(16, 16),
)
def sgemm(a: Float32[Array, "M K"], b: Float32[Array, "K N"], alpha: f32) -> Float32[Array, "M N"]:
    """alpha * a @ b."""
    return alpha * (a @ b)


def readme(x: Device, y: Device) -> None:
    """README's calls."""
    z = saxpy(2.0, x, y, relu=True)  # renders, compiles, stores, launches
    z = saxpy(2.0, x, y, relu=True)  # one dictionary look-up, one launch
    assert_type(z, Device)

    print(cuplate.cache.info())  # directory, limits, sizes, evictions, and where each setting came from
    print(saxpy.explain(relu=True, arch="sm_90"))  # hit, or the ingredient that differs from the nearest stored entry
    with cuplate.cache.exclusive() as cache:  # no eviction of loaded kernels, no clear() by other threads
        cache.reset()
        saxpy.compile(arch="sm_90")
        print(cache.stats().disk)  # this thread's own work

    spec = cuplate.ArraySpec((1_000_000,), "float32")
    report = saxpy.inspect(2.0, spec, spec, relu=True, arch="sm_90")
    print(report)
    assert_type(report, Report)
    assert_type(convolve(x, y), Device)
    assert_type(sgemm(x, y, 2.0), Device)
    assert_type(matmul_epilogue(x, x, y, relu=True), Device)
    assert_type(matmul_epilogue(x, x, residual=x, row_scale=y, expression="x / (1 + fabsf(x))", high=6.0), Device)
    assert_type(matmul_wgmma(x, x, y, epilogue="gelu"), Device)
    assert_type(matmul_wgmma_wide(x, x, tile_n=128, cluster=1), Device)


@specialize(Inline("..."), tiles={"N": "tile"})
def tuned(
    x: Float32[Array, " N"],
    *,
    tile: Literal[16, 32] = tune(),
    stages: int = tune(configs=[{"stages": 2, "wide": True}, {"stages": 3, "wide": False}], key="N"),
    wide: bool = tune(),
) -> Float32[Array, " N"]:
    """Parameters that are measured."""
    raise NotImplementedError


# The design's matmul.


@specialize("matmul_epilogue.cu.j2", tiles={"N": "tile", "M": "tile"}, block=("tile", "tile"))
def matmul(
    a: Float32[Array, "M K"],
    b: Float32[Array, "K N"],
    bias: Float32[Array, " N"],
    *,
    tile: Literal[16, 32] = 16,
    relu: bool = False,
) -> Float32[Array, "M N"]:
    """relu(a @ b + bias), or without the relu."""
    c = a @ b + bias
    return c.clip(0) if relu else c


# Every kind of row in the signature.


class Extreme(NamedTuple, Generic[Array]):
    """Two outputs of different dtypes."""

    value: Float32[Array, " R"]
    place: Int32[Array, " R"]


@specialize(Inline("..."), options=Options(), policy=None)
def row_max(x: Float32[Array, "R C"], shift: i64, *, num_warps: int = 4) -> Extreme[Array]:
    """Largest element of each row, and where it is."""
    raise NotImplementedError


@specialize("scale.cu.j2", mutates=("x",))
def scale(x: Float32[Array, " N"], factor: float) -> None:
    """X times factor, in place."""
    x *= factor


@specialize("linear.cu.j2")
def linear(
    a: Float32[Array, "M K"],
    b: Float32[Array, "K N"],
    bias: Float32[Array, " N"] | None = None,
    *,
    out: Float32[Array, "M N"] | None = None,
    stream: object = None,
) -> Float32[Array, "M N"]:
    """A @ b, with a bias if there is one; it lists `out` and `stream`, so checkers know them."""
    c = a @ b
    return c if bias is None else c + bias


def calls(host: Host, device: Device) -> None:
    """The array type that goes in comes out."""
    assert_type(matmul(host, host, host, relu=True), Host)
    assert_type(matmul(device, device, device, tile=32), Device)
    assert_type(saxpy(2.0, device, device), Device)
    assert_type(saxpy(alpha=2, x=host, y=host), Host)
    assert_type(row_max(device, 0).value, Device)
    assert_type(row_max(host, 3, num_warps=8).place, Host)
    assert_type(linear(device, device), Device)
    assert_type(linear(device, device, device, out=device, stream=None), Device)
    scale(device, 2.0)


def attributes(host: Host, device: Device) -> None:
    """A specialized function's own attributes have types too."""
    assert_type(matmul.reference(host, host, host), Host)
    assert_type(matmul.reference(device, device, device), Device)
    assert_type(matmul.inspect(device, device, device, relu=True), Report)
    spec = ArraySpec((64, 64), "float32")
    assert_type(matmul.inspect(spec, spec, ArraySpec((64,)), arch="sm_90a"), Report)
    assert_type(matmul.compile(spec, spec, spec, arch="sm_80"), Cubin)
    assert_type(matmul.explain(spec, spec, spec), str)
    assert_type(matmul.cache_info(), CacheInfo)
    assert_type(matmul.__name__, str)
    assert_type(tuned(host, tile=32), Host)
    assert_type(tuned.tune(host, executor=None), Tuned)
    assert_type(tuned.tuning(device), Tuned)
    tuned(host, tile=64)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    matmul.cache_clear()
    assert_type(matmul.cache_policy(), EffectivePolicy)
    matmul.reload()


def catches(device: Device) -> str:
    """Errors are classes to catch."""
    try:
        scale(device, 2.0)
    except CuplateError as error:
        return error.summary
    return ""


def mistakes(host: Host, device: Device) -> None:
    """What a checker must refuse."""
    matmul(host, host)  # type: ignore[call-arg, misc]  # pyright: ignore[reportCallIssue]
    matmul(host, host, host, host)  # type: ignore[call-arg, arg-type]  # pyright: ignore[reportCallIssue]
    matmul(host, host, host, rleu=True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    matmul(host, host, host, tile=17)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    matmul(host, host, host, relu="yes")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    matmul(1, 2, 3)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
    saxpy("2", device, device)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    saxpy(2.0, device, device, out=device)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    matmul.reference(host, host)  # type: ignore[call-arg, misc]  # pyright: ignore[reportCallIssue]
    row_max(device, 0.5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    row_max(device, 0).valeu  # type: ignore[attr-defined]  # noqa: B018  # pyright: ignore
    matmul.inspct(device)  # type: ignore[attr-defined]  # pyright: ignore
    cuplate.configure(memory_kernels=64, engine="files", layers=["a"])
    cuplate.mount(__package__)
    with cuplate.record("run.json") as recording:
        assert_type(recording.manifest, cuplate.Manifest)
    assert_type(saxpy.wanted("float32"), cuplate.Wanted)
    assert_type(cuplate.warmup(recording.manifest | recording.manifest, arch=["sm_80"]).check().compiled, int)
    cuplate.configure(memory_kernel=64)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    cuplate.configure(engine="file")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    scale(device, 2.0).shape  # type: ignore[attr-defined]  # noqa: B018  # pyright: ignore


# Two kinds of array in one call: a run-time error always, and a checker's where it does not join the two to `object`.
def mixed(host: Host, device: Device) -> Device:
    """Host and device arrays do not mix."""
    return matmul(host, device, device)  # type: ignore[return-value]  # pyright: ignore


@specialize("wrong.cu.j2", tilse={"N": "tile"})  # type: ignore[call-arg]  # pyright: ignore
def misspelt(x: Float32[Array, " N"]) -> Float32[Array, " N"]:
    """A misspelt keyword of `specialize` itself."""
    return -x
