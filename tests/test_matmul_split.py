"""float32 by sums of bfloat16 without a GPU: the arithmetic in NumPy, what the parts of the text agree on, refusals."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from jaxtyping import Float32, Int16

from cuplate import Array, ArraySpec, DeviceError, Inline, ParameterError, specialize
from cuplate.kernels import matmul_epilogue, matmul_split

LIMIT_BYTES = 232_448  # shared memory of a block
TILES: list[dict[str, Any]] = [
    {"precision": "bf16x3"},
    {"precision": "bf16x6"},
    {"precision": "bf16x6", "tile_n": 192, "stages": 5, "promote": 1},
    {"precision": "bf16x3", "tile_n": 64, "stages": 3, "promote": 8},
]
PRODUCTS = {
    "bf16x3": [(1, 0), (0, 1), (0, 0)],
    "bf16x6": [(2, 0), (0, 2), (1, 1), (1, 0), (0, 1), (0, 0)],
}


def described(shape: tuple[int, int, int], order: str = "C", arch: str = "sm_90", **given: Any) -> Any:
    """A call by its arrays' descriptions."""
    m, k, n = shape
    b = ArraySpec((k, n), strides=(1, k) if order == "F" else None)
    return matmul_split.inspect.__self__._described((ArraySpec((m, k)), b), given, arch)  # type: ignore[attr-defined]


# arithmetic -----------------------------------------------------------------------------------------------------------


def rounded(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The nearest bfloat16, as float32."""
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).view(np.float32)


def planes_of(x: np.ndarray[Any, Any], count: int) -> list[np.ndarray[Any, Any]]:
    """What the kernel's first phase writes."""
    planes = []
    for _ in range(count):
        planes.append(rounded(x))
        x = x - planes[-1]
    return planes


def towards_zero(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A float64 as the float32 that tensor cores keep of it."""
    near = x.astype(np.float32)
    return np.where(np.abs(near.astype(np.float64)) > np.abs(x), np.nextafter(near, np.float32(0)), near)


def product(a: Any, b: Any, precision: str, promote: int) -> np.ndarray[Any, Any]:
    """The second phase: 16 of K at a time, rounded towards zero, and every `promote` * 64 of K to nearest."""
    pairs = PRODUCTS[precision]
    a_planes, b_planes = (planes_of(x, 1 + max(pairs)[0]) for x in (a, b))
    k = a.shape[1]
    total = np.zeros((len(a), b.shape[1]), np.float32)
    span = promote * 64 or k
    for begin in range(0, k, span):
        d = np.zeros_like(total)
        for step in range(begin, min(begin + span, k), 64):
            for p, q in pairs:
                for at in range(step, min(step + 64, k), 16):
                    x, y = a_planes[p][:, at : at + 16].astype(float), b_planes[q][at : at + 16].astype(float)
                    d = towards_zero(d + x @ y)
        total = total + d
    return total


def relative(found: np.ndarray[Any, Any], a: Any, b: Any) -> float:
    """Frobenius norm of the error over that of the product."""
    wanted = a.astype(float) @ b.astype(float)
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


def test_planes_add_up_to_what_was_split() -> None:
    """Two hold 16 bits of 24 or more, three all of them, from 2**-109 to 2**127."""
    rng = np.random.default_rng()
    x = (rng.uniform(1, 2, 5000) * 2.0 ** rng.integers(-109, 127, 5000)).astype(np.float32)
    two, three = (sum(p.astype(float) for p in planes_of(x, n)) for n in (2, 3))
    assert (np.abs(two - x) <= 2.0**-17 * np.abs(x)).all()
    assert (three == x).all()
    tiny = np.float32([1e-39, 3e-38, -1e-41])
    assert (np.abs(sum(p.astype(float) for p in planes_of(tiny, 2)) - tiny) <= 2.0**-134).all()


@pytest.mark.parametrize("spread", [0, 20])
@pytest.mark.parametrize(("precision", "promote", "limit"), [("bf16x3", 2, 8e-6), ("bf16x6", 2, 2e-6)])
def test_the_error_is_what_is_stated(precision: str, promote: int, limit: float, spread: int) -> None:
    """With normal data, and times powers of two from 2**-20 to 2**20."""
    rng = np.random.default_rng()
    for k in (64, 4096):
        a, b = (rng.standard_normal(s) * 2.0 ** rng.integers(-spread, spread + 1, s) for s in ((24, k), (k, 24)))
        a, b = a.astype(np.float32), b.astype(np.float32)
        assert relative(product(a, b, precision, promote), a, b) < limit


def test_what_is_promoted_and_left_out_matters() -> None:
    """The model can tell: without promotion six products are little better than three, and two are far worse."""
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((24, 8192), np.float32), rng.standard_normal((8192, 24), np.float32)
    kept = relative(product(a, b, "bf16x6", 0), a, b)
    assert kept > 2 * relative(product(a, b, "bf16x6", 2), a, b) and kept > 2e-6
    hi, mid = planes_of(a, 2)
    two = (hi.astype(float) + mid) @ rounded(b).astype(float)
    assert relative(two, a, b) > 1e-3


def first_phase() -> Any:
    """The text that writes the planes, with its one instruction written out, as a kernel of its own."""
    text = described((64, 64, 64), precision="bf16x6").content.source.text
    text = text[text.index("// The nearest bfloat16") : text.index("// What threads have written")]
    text, n = re.subn(r"asm\(.*?\);", "word = nearest(first) | nearest(second) << 16;", text)
    assert n == 1
    nearest = """__device__ unsigned nearest(const float x)
{
    const unsigned bits = __float_as_uint(x);
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
"""
    kernel = """extern "C" __global__ void {{ kernel }}({{ args }})
{
    const int thread = blockIdx.x * 384 + threadIdx.x;
    split<4>({{ x }}, {{ out }}, {{ R }}, {{ C }}, 0, {{ R }} / 2, thread, 768);
    split<1>({{ x }}, {{ out }}, {{ R }}, {{ C }}, {{ R }} / 2, {{ R }}, thread, 768);
}
"""

    @specialize(Inline(f"{nearest}{{% raw %}}{text}{{% endraw %}}{kernel}"), grid=2, block=384)
    def planes(x: Float32[Array, "R C"]) -> Int16[Array, "3 R cdiv(C,8)*8"]:
        """Three planes, in rows that are padded with zeros."""
        raise NotImplementedError

    return planes


def test_the_first_phase_writes_the_planes() -> None:
    """Of whole rows by 16 bytes, of others and of unaligned ones by single elements: each once, on the CPU backend."""
    write, rng = first_phase(), np.random.default_rng()
    for rows, columns, offset in ((5, 16, 0), (3, 13, 0), (70, 24, 1), (1, 1, 0)):
        x = rng.standard_normal(rows * columns + offset).astype(np.float32)[offset:].reshape(rows, columns)
        planes = (write(x).astype(np.uint16).astype(np.uint32) << 16).view(np.float32)
        assert (planes[:, :, columns:] == 0).all()
        for found, wanted in zip(planes, planes_of(x, 3), strict=True):
            assert (found[:, :columns] == wanted).all()


# agreement of the parts -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("given", TILES, ids=str)
def test_a_stage_waits_for_the_bytes_that_its_copies_bring(given: dict[str, Any], order: str) -> None:
    """One too many and the kernel hangs, one too few and it multiplies what has not come."""
    found = described((4096, 4096, 4096), order, **given)
    text, parameters = found.content.source.text, dict(found.plan.specialization.parameters)
    tile_n, stages = parameters["tile_n"], parameters["stages"]
    a_box, b_box = (int(np.prod(found.plan.maps[name].box)) * 2 for name in ("a_map", "b_map"))
    copies = 1 if order == "F" else tile_n // 64
    (expected,) = map(int, re.findall(r"barrier_expect\(full \+ stage \* 8, (\d+)u\)", text))
    assert expected == a_box + copies * b_box
    rings = [int(n) for n in re.findall(r"const unsigned (?:b_ring|full) = \w+ \+ (\d+)u", text)]
    assert rings == [stages * a_box, stages * copies * b_box] and all(n % 1024 == 0 for n in rings)
    shared = sum(rings) + stages * 16  # barriers: full and empty
    assert shared == stages * ((128 + tile_n) * 128 + 16) <= LIMIT_BYTES


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(1, 1, 1), (37, 29, 53), (300, 0, 77), (128, 64, 192)], ids=str)
def test_planes_end_where_their_map_ends(shape: tuple[int, int, int], order: str) -> None:
    """Rows of the memory order of `b`, padded to 16 bytes as the text pads them; never without an element."""
    m, k, n = shape
    for precision, planes in (("bf16x3", 2), ("bf16x6", 3)):
        plan = described(shape, order, precision=precision).plan
        sizes = {name: size for name, size, _ in plan.scratch}
        outer, inner = (n, k) if order == "F" and k else (max(k, 1), n)
        for name, rows, columns in (("a", m, max(k, 1)), ("b", outer, inner)):
            padded = -(-columns // 8) * 8
            layout = plan.maps[f"{name}_map"]
            assert layout.shape == (planes, rows, columns) and layout.memory == f"{name}_planes"
            assert sizes[f"{name}_planes"] == planes * rows * padded
            if rows > 1:
                assert layout.strides == (rows * padded * 2, padded * 2, 2)
        assert sizes["arrived"] == -(-m // 1024) and plan.zeroed == ("arrived",)


def test_each_product_is_there_once() -> None:
    """The smallest first, and in the code as often as the text says."""
    for precision, products in PRODUCTS.items():
        text = described((256, 256, 256), precision=precision).content.source.text
        pairs = re.findall(r"multiply\(d, a_tile\[(\d)\], b_tile\[(\d)\]", text)
        assert [(int(p), int(q)) for p, q in pairs] == products and "#include" not in text
    report = matmul_split.inspect(*[ArraySpec((256, 256))] * 2, arch="sm_90", precision="bf16x3")
    assert report.arch == "sm_90a" and report.ptx.count("wgmma.mma_async") == 4 * 3


@pytest.mark.parametrize(
    "shape", [(8192, 8192), (4096, 4096), (1025, 50_000), (5000, 256), (128, 8192), (1, 1)], ids=str
)
def test_every_row_is_split_before_it_is_copied(shape: tuple[int, int]) -> None:
    """By the first phase, or in the band that is waited for; the walks of the text, in Python."""
    m, n = shape
    text = described((m, 64, n), precision="bf16x3").content.source.text
    assert "const int at_first = in_band * 2 >= gridDim.x ? min(m_size, 1024) : m_size;" in text
    assert "for (int band = 1, begin = at_first; begin < m_size; ++band, begin += 1024)" in text
    tiles_m, tiles_n, blocks = -(-m // 128), -(-n // 128), 132
    in_band = 8 * tiles_n
    at_first = min(m, 1024) if in_band * 2 >= blocks else m
    bands = {0: range(at_first)}
    for band, begin in enumerate(range(at_first, m, 1024), 1):
        bands[band] = range(begin, min(begin + 1024, m))
    assert sum(map(len, bands.values())) == m and len(bands) <= -(-m // 1024)  # each row once, a count for each band
    for block in (0, 57, blocks - 1):
        ready, known = (0 if at_first < m else tiles_m), {0}
        for tile in range(block, tiles_m * tiles_n, blocks):
            band = tile // in_band
            if band > ready:
                ready = band
                known.add(band)
            height = min(tiles_m - band * 8, 8)
            row = (band * 8 + tile % in_band % height) * 128
            assert all(any(r in bands[b] for b in known) for r in (row, min(row + 127, m - 1)))


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("planes", "stages"), [(2, 3), (2, 5), (3, 4), (3, 5), (3, 7)])
@pytest.mark.parametrize(("tiles", "steps", "promote"), [(1, 1, 4), (2, 3, 8), (3, 5, 2), (2, 9, 4), (5, 2, 1)])
def test_the_ring_neither_stands_still_nor_runs_over(
    tiles: int, steps: int, promote: int, planes: int, stages: int, seed: int
) -> None:
    """Barriers by their parity, as the text waits for them, in an order drawn at random: a model of one block."""
    full, empty, arrived = [0] * stages, [0] * stages, [0] * stages  # phases that are complete, arrivals in the next
    ring = [(-1, -1, -1)] * stages
    multiplied = []

    def complete(phases: list[int], stage: int, parity: int) -> bool:
        return phases[stage] & 1 != parity

    def release(stage: int) -> None:
        arrived[stage] += 1
        if arrived[stage] == 2:
            arrived[stage] = 0
            empty[stage] += 1

    def produce() -> Iterator[None]:
        stage = parity = 0
        for tile in range(tiles):
            for step in range(steps):
                for plane in reversed(range(planes)):
                    while not complete(empty, stage, parity ^ 1):
                        yield
                    ring[stage] = (tile, step, plane)
                    full[stage] += 1
                    yield
                    stage, parity = (0, parity ^ 1) if stage + 1 == stages else (stage + 1, parity)

    def consume(group: int) -> Iterator[None]:
        stage = parity = 0
        for tile in range(tiles):
            for begin in range(0, steps, promote):
                before = -1
                for step in range(begin, min(begin + promote, steps)):
                    held = {}
                    for plane in reversed(range(planes)):
                        while not complete(full, stage, parity):
                            yield
                        assert ring[stage] == (tile, step, plane)
                        held[plane] = stage
                        stage, parity = (0, parity ^ 1) if stage + 1 == stages else (stage + 1, parity)
                    for freed in reversed(range(planes)):
                        yield
                        for plane in range(freed + 1):  # nobody copies there while it is read
                            assert ring[held[plane]] == (tile, step, plane)
                        if before >= 0:
                            release(before)
                        before = held[freed]
                    multiplied.append((group, tile, step))
                yield
                release(before)

    rng = np.random.default_rng(seed)
    running = [produce(), consume(0), consume(1)]
    for _ in range(400 * tiles * steps * planes):
        if running:
            chosen = running[rng.integers(len(running))]
            if next(chosen, "ended") == "ended":
                running.remove(chosen)
    assert not running, "it stands still"
    assert len(set(multiplied)) == len(multiplied) == tiles * steps * 2


# refused --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "condition"),
    [
        ({"precision": "bf16x6", "stages": 3}, "stages > 3"),
        ({"precision": "bf16x3", "tile_n": 192}, "stages * (128 + tile_n)"),
        ({"precision": "bf16x3", "relu": True, "epilogue": "silu"}, "relu == None"),
        ({"precision": "tf32"}, "precision = 'tf32'"),
    ],
    ids=str,
)
def test_what_does_not_go_together_is_refused(given: dict[str, Any], condition: str) -> None:
    """A ring that would stand still, registers, and what is no precision."""
    with pytest.raises(ParameterError, match=re.escape(condition)):
        matmul_split.inspect(*[ArraySpec((256, 256))] * 2, arch="sm_90", **given)


@pytest.mark.parametrize(
    ("shape", "three", "six"),
    [
        ((8192, 8192, 8192), "matmul_split_wide", "matmul_split"),
        ((4096, 4096, 4096), "matmul_split", "matmul_split"),  # 6 rounds of the wide tile for what fills 5.3
        ((1024, 1024, 1024), "matmul_split_small", "matmul_split_small"),
    ],
    ids=str,
)
def test_the_tile_follows_from_the_shape(shape: tuple[int, int, int], three: str, six: str) -> None:
    """As it was measured on an H200."""
    m, k, n = shape
    for precision, name in (("bf16x3", three), ("bf16x6", six)):
        arrays = ArraySpec((m, k)), ArraySpec((k, n))
        found = matmul_epilogue.inspect.__self__._described(arrays, {"precision": precision}, "sm_90")  # type: ignore[attr-defined]
        assert found.chosen.name == name


def test_it_is_chosen_where_it_is_asked_for() -> None:
    """By its precision and by nothing else; any alignment, size and order of `b`, where the device can."""
    a, b, bias = ArraySpec((4095, 4097), alignment=4), ArraySpec((4097, 4093), strides=(1, 4097)), ArraySpec((4093,))
    chosen = matmul_epilogue.inspect(a, b, bias, arch="sm_90", precision="bf16x6", expression="x * row")
    assert chosen.variant == "matmul_split" and chosen.cubin.resources.spill_store_bytes == 0
    assert matmul_epilogue.inspect(a, b, bias, arch="sm_90").variant == "matmul_simt_ragged"
    for arch, dtype, why in (
        ("sm_80", "float32", "only a GPU from sm_90 on"),
        ("sm_100", "float32", "'arch == 90'"),
        ("sm_90", "float16", "array 'a' is float16"),
    ):
        with pytest.raises(ParameterError, match="no variant that takes precision = 'bf16x3' runs this call") as caught:
            matmul_epilogue.inspect(*[ArraySpec((64, 64), dtype)] * 2, arch=arch, precision="bf16x3")
        assert why in caught.value.passed_over  # type: ignore[attr-defined]
    x = np.zeros((8, 8), np.float32)
    with pytest.raises(ParameterError, match=r"matmul_split: .* only a GPU"):
        matmul_epilogue(x, x, precision="bf16x3")


def test_another_device_refuses() -> None:
    """By what it lacks."""
    with pytest.raises(DeviceError, match="only a GPU from sm_90 on"):
        described((64, 64, 64), arch="sm_80", precision="bf16x3")
    with pytest.raises(ParameterError, match="arch == 90"):
        described((64, 64, 64), arch="sm_100", precision="bf16x3")
    x = np.zeros((8, 8), np.float32)
    with pytest.raises(DeviceError, match="the CPU backend has no tensor maps"):
        matmul_split(x, x, precision="bf16x3")
