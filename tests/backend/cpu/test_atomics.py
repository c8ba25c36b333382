"""Atomics: every type that CUDA has one for, exact overloads, and many workers at once."""

from __future__ import annotations

import numpy as np
import pytest

from cuplate.backend.cpu.build import BuildError

OPERATIONS = {
    "atomicAdd": (["int", "unsigned", "unsigned long long", "float", "double"], np.add),
    "atomicSub": (["int", "unsigned"], np.subtract),
    "atomicMin": (["int", "unsigned", "long long", "unsigned long long"], np.minimum),
    "atomicMax": (["int", "unsigned", "long long", "unsigned long long"], np.maximum),
    "atomicAnd": (["int", "unsigned", "long long", "unsigned long long"], np.bitwise_and),
    "atomicOr": (["int", "unsigned", "long long", "unsigned long long"], np.bitwise_or),
    "atomicXor": (["int", "unsigned", "long long", "unsigned long long"], np.bitwise_xor),
}
DTYPES = {
    "int": "int32",
    "unsigned": "uint32",
    "long long": "int64",
    "unsigned long long": "uint64",
    "float": "float32",
    "double": "float64",
}
CASES = [(name, ctype) for name, (ctypes, _) in OPERATIONS.items() for ctype in ctypes]


@pytest.mark.parametrize("check", ["off", "full"])
@pytest.mark.parametrize(("name", "ctype"), CASES)
def test_each_returns_the_old_value_and_combines(compiled, name, ctype, check):
    """One thread after another; the scopes _block and _system are the same operation here."""
    text = f"""
    extern "C" __global__ void k(const {ctype}* a, {ctype}* cell, {ctype}* old) {{
        old[threadIdx.x] = threadIdx.x % 3 == 0 ? {name}(cell, a[threadIdx.x])
            : threadIdx.x % 3 == 1 ? {name}_block(cell, a[threadIdx.x]) : {name}_system(cell, a[threadIdx.x]);
    }}
    """
    dtype = np.dtype(DTYPES[ctype])
    rng = np.random.default_rng(2)
    if dtype.kind == "f":
        a = rng.integers(-1000, 1000, 64).astype(dtype)
    else:
        info = np.iinfo(dtype)
        a = rng.integers(info.min, info.max, 64, dtype=dtype)
    cell, old = a[:1].copy(), np.zeros(64, dtype)
    want = [cell[0]]
    with np.errstate(over="ignore"):
        for value in a:
            want.append(OPERATIONS[name][1](want[-1], value))
    compiled(text, check=check)(1, 64, a, cell, old, check=check)
    assert old.tolist() == want[:-1]
    assert cell[0] == want[-1]


def test_inc_and_dec_wrap(compiled):
    """Inc goes back to 0 behind its bound, dec to its bound below 0."""
    text = """
    extern "C" __global__ void k(unsigned* cell, unsigned* old) {
        old[threadIdx.x] = atomicInc(cell, 5);
        old[32 + threadIdx.x] = atomicDec(cell + 1, 5);
    }
    """
    cell, old = np.array([3, 9], np.uint32), np.zeros((2, 32), np.uint32)
    compiled(text)(1, 32, cell, old)
    assert old[0, :5].tolist() == [3, 4, 5, 0, 1]
    assert old[1, :4].tolist() == [9, 5, 4, 3]


def test_exchange_and_compare_and_swap(compiled):
    """exch on int, unsigned, 64 bits and float; cas on 16, 32 and 64 bits."""
    text = """
    extern "C" __global__ void k(int* i, float* f, unsigned long long* l, unsigned short* s, double* out) {
        out[0] = atomicExch(i, 7);
        out[1] = atomicExch(f, 2.5f);
        out[2] = (double)atomicExch(l, 1ull << 40);
        out[3] = atomicCAS(s, (unsigned short)3, (unsigned short)9);
        out[4] = atomicCAS(s + 1, (unsigned short)3, (unsigned short)9);
        out[5] = atomicCAS(i, 7, 8);
        out[6] = (double)atomicCAS(l, 1ull << 40, 5ull);
    }
    """
    i, f, u = np.array([1], np.int32), np.array([1.5], np.float32), np.array([2], np.uint64)
    s, out = np.array([3, 4], np.uint16), np.zeros(7)
    compiled(text)(1, 1, i, f, u, s, out)
    assert out.tolist() == [1, 1.5, 2, 3, 4, 7, 2**40]
    assert (i[0], f[0], u[0], s.tolist()) == (8, 2.5, 5, [9, 4])


@pytest.mark.parametrize("ctype", ["int", "unsigned long long", "float", "double"])
def test_many_workers_lose_no_update(compiled, ctype):
    """Blocks on four OS threads add to one cell."""
    text = f"""
    extern "C" __global__ void k({ctype}* cell) {{
        for (int i = 0; i < 50; ++i) atomicAdd(cell, ({ctype})1);
    }}
    """
    cell = np.zeros(1, DTYPES[ctype])
    compiled(text)(64, 64, cell, workers=4)
    assert cell[0] == 64 * 64 * 50


@pytest.mark.parametrize(
    "statement",
    [
        "long long x = 0; atomicAdd(&x, 1ll);",
        "unsigned long x = 0; atomicAdd(&x, 1ul);",
        "short x = 0; atomicAdd(&x, 1);",
        "float x = 0; atomicMin(&x, 1.f);",
        "double x = 0; atomicExch(&x, 1.0);",
        "int x = 0; atomicInc(&x, 1u);",
        "unsigned long long x = 0; atomicSub(&x, 1ull);",
        "float x = 0; atomicCAS(&x, 1.f, 2.f);",
        "volatile int x = 0; atomicAdd(&x, 1);",
    ],
)
def test_a_type_that_cuda_has_no_overload_for_does_not_compile(compiled, statement):
    """NVRTC refuses each of these, so the CPU does too, at its line."""
    with pytest.raises(BuildError) as caught:
        compiled(f'extern "C" __global__ void k() {{\n{statement}\n}}')
    assert caught.value.findings[0].line == 2


@pytest.mark.parametrize(
    "statement",
    [
        "unsigned long long x = 0; atomicAdd(&x, 1);",
        "double x = 0; atomicAdd(&x, 1);",
        "int x = 0; atomicMax(&x, 1u);",
        "float x = 0; atomicExch(&x, 1);",
        "unsigned short x = 0; atomicCAS(&x, 1, 2);",
    ],
)
def test_operands_convert_as_in_cuda(compiled, statement):
    """NVRTC takes each of these: only the pointer's type chooses."""
    compiled(f'extern "C" __global__ void k() {{ {statement} }}')
