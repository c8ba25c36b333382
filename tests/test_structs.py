"""Structs by value, and null pointers: what a launch passes besides arrays and numbers."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import pytest
from jaxtyping import Float32

from cuplate import ArgumentError, Array, CompileError, DeclarationError, DtypeError, Inline, specialize
from cuplate.structs import struct_of

MEMBERS = [("gain", np.float32, (3,)), ("shift", np.int64), ("on", np.bool_)]
PARAMS: Any = np.dtype(MEMBERS, align=True)

BODY = """
{
    const {{ index_t }} i = ({{ index_t }})blockIdx.x * blockDim.x + threadIdx.x;
    if (i < N) out[i] = x[i] * p.gain[i % 3] + p.shift + (p.on ? 100 : 0);
}
"""


@specialize(Inline('{{ p.definition }}\nextern "C" __global__ void {{ kernel }}({{ args }})' + BODY))
def adjust(p: Annotated[np.void, PARAMS], x: Float32[Array, " N"]) -> Float32[Array, " N"]:
    """x * gain + shift."""
    raise NotImplementedError


def struct(gain: Any = (1, 2, 3), shift: int = 10, on: bool = False, dtype: Any = PARAMS) -> Any:
    """A structured scalar."""
    return np.array((gain, shift, on), dtype)[()]


def check_struct(adjust: Any, put: Any, get: Any) -> None:
    """Every member arrives, in calls one after another that differ in it alone; `put` and `get` move arrays."""
    host = np.ones(7, np.float32)
    x = put(host)
    for shift, on in [(10, False), (-(2**33), False), (10, True), (10, True)]:
        want = np.float32(host * np.array([1, 2, 3, 1, 2, 3, 1]) + shift + 100 * on)
        np.testing.assert_array_equal(get(adjust(struct(shift=shift, on=on), x)), want)
        out = put(np.zeros(7, np.float32))
        assert adjust(struct(shift=shift, on=on), x, out=out) is out
        np.testing.assert_array_equal(get(out), want)


def test_a_struct_arrives_member_by_member() -> None:
    """An array, eight bytes, a bool; with padding between them."""
    check_struct(adjust, lambda a: a, lambda a: a)


@pytest.mark.parametrize(
    "value",
    [
        1,
        ((1, 2, 3), 10, False),
        np.array(((1, 2, 3), 10, False), PARAMS),
        struct(dtype=np.dtype(MEMBERS)),
        np.array((1.0,), [("gain", "f4")])[()],
        np.float32(1),
        None,
    ],
    ids=["number", "tuple", "array", "packed", "other members", "float32", "None"],
)
def test_only_a_scalar_of_the_struct_s_dtype_is_one(value: Any) -> None:
    """Anything else is a TypeError that shows the members."""
    with pytest.raises(DtypeError, match="scalar argument 'p' is another kind of value") as caught:
        adjust(value, np.ones(3, np.float32))
    assert isinstance(caught.value, TypeError)
    assert "gain: float32, shift: int64, on: bool" in str(caught.value)


OWN = (
    "struct Own { MEMBERS };\n" + 'extern "C" __global__ void k(float* out, const Own p, const float* x, int N)' + BODY
)


def own(members: str) -> Any:
    """A kernel with a struct of its own."""

    @specialize(Inline(OWN.replace("MEMBERS", members)), entry="k")
    def adjusted(p: Annotated[np.void, PARAMS], x: Float32[Array, " N"]) -> Float32[Array, " N"]:
        """x * gain + shift."""
        raise NotImplementedError

    return adjusted


@pytest.mark.parametrize("kind", ["long long", "long"])
def test_a_kernel_may_bring_its_own_struct(kind: str) -> None:
    """Its name does not matter; its members are compared by the compiler, on either backend."""
    f = own(f"float gain[3]; {kind} shift; bool on;")
    np.testing.assert_array_equal(f(struct(), np.ones(3, np.float32)), [11, 12, 13])
    assert f.compile(struct(), "float32", arch="sm_90").entry == "k"


@pytest.mark.parametrize(
    ("members", "says"),
    [
        ("float gain[3]; int shift; bool on;", "a call passes 32 bytes"),
        ("float gain[3]; double shift; bool on;", "its member long long shift lies at byte 16"),
        ("float gain[3]; bool on; long long shift;", "its member bool on lies at byte 24"),
        ("float gain[2]; float more; long long shift; bool on;", "its member float gain"),
        ("float gains[3]; long long shift; bool on;", "gain"),
    ],
)
@pytest.mark.parametrize("arch", ["sm_90", None], ids=["GPU", "CPU"])
def test_a_struct_that_differs_does_not_compile(members: str, says: str, arch: str | None) -> None:
    """Size, place, type and name of each member."""
    body = own(members)
    with pytest.raises(CompileError, match=says):
        body.compile(struct(), "float32", arch=arch) if arch else body(struct(), np.ones(3, np.float32))


@pytest.mark.parametrize(
    ("dtype", "says"),
    [
        (np.dtype([("a", "i1"), ("b", "f4")]), "'b' lies at byte 1, in C at 4"),
        (np.dtype([("a", "f4"), ("b", "i1")]), "it has 5 bytes, in C 8"),
        (np.dtype([("a", ">f4")]), "'a' is >f4"),
        (np.dtype([("a", "U3")]), "'a' is <U3"),
        (np.dtype([("a", "f4", (2, 2))]), "'a' is"),
        (np.dtype([("a", [("b", "f4")])]), "'a' is"),
        (np.dtype([("a b", "f4")]), "has no name in C"),
        (np.dtype([("f", "f4"), ("z", "c8")], align=True), "'z' lies at byte 4, in C at 8"),
    ],
    ids=str,
)
def test_a_struct_that_c_lays_out_otherwise_is_refused(dtype: Any, says: str) -> None:
    """At the decoration, with what C would do."""
    with pytest.raises(ValueError, match=says):
        struct_of("p_t", dtype)
    with pytest.raises(DeclarationError, match=says):

        @specialize(Inline("{{ p }}{{ x }}"))
        def f(p: Annotated[np.void, dtype], x: Float32[Array, " N"]) -> Float32[Array, " N"]:
            raise NotImplementedError


NULLABLE = """
extern "C" __global__ void k(const float* x, const float* bias, float* out, int N)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < N) out[i] = x[i] + (bias ? bias[i] : 0.0f);
}
"""


@pytest.mark.parametrize("args", [None, "x bias out N"])
def test_a_kernel_that_lists_an_optional_array_gets_a_null_pointer(args: str | None) -> None:
    """Matched by name or by order; with and without the array, by turns."""

    @specialize(Inline(NULLABLE), entry="k", args=args)
    def f(x: Float32[Array, " N"], bias: Float32[Array, " N"] | None = None) -> Float32[Array, " N"]:
        """x + bias."""
        raise NotImplementedError

    x = np.ones(4, np.float32)
    for _ in range(2):
        np.testing.assert_array_equal(f(x), x)
        np.testing.assert_array_equal(f(x, None), x)
        np.testing.assert_array_equal(f(x, x), 2 * x)
    assert f.compile("float32", None, arch="sm_90").entry == "k"


def test_none_is_taken_only_where_it_is_declared() -> None:
    """An array without ``| None`` is no optional pointer, whatever the kernel would do with a null."""

    @specialize(Inline(NULLABLE), entry="k")
    def f(x: Float32[Array, " N"], bias: Float32[Array, " N"]) -> Float32[Array, " N"]:
        """x + bias."""
        raise NotImplementedError

    with pytest.raises(ArgumentError, match="argument 'bias' is no array"):
        f(np.ones(4, np.float32), None)


def test_a_null_for_what_is_no_pointer_does_not_compile() -> None:
    """The parameter has to be a pointer."""

    @specialize(Inline(NULLABLE.replace("const float* bias", "float bias").replace("bias[i]", "bias")), entry="k")
    def f(x: Float32[Array, " N"], bias: Float32[Array, " N"] | None = None) -> Float32[Array, " N"]:
        """x + bias."""
        raise NotImplementedError

    with pytest.raises(CompileError, match="a call passes a null pointer"):
        f(np.ones(4, np.float32))
