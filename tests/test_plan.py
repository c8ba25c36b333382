"""One call -> Plan, with no GPU and no compiler: grid, integers, outputs, parameter lists."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import pytest
from jaxtyping import Float32, Int32

from cuplate import Array, ArraySpec, Inline, LaunchError, TemplateError, f32, specialize
from cuplate.arguments import Described
from cuplate.call import check_call
from cuplate.errors import CuplateError
from cuplate.grid import limits_for
from cuplate.plan import Plan, Recipe, arch_number, fold, make_plan, make_recipes, match_slots

OURS = Inline('extern "C" __global__ void {{ kernel }}({{ args }}) {}')


class Two(NamedTuple):
    value: Float32[Array, " N"]
    place: Int32[Array, "2 N"]


def plan_of(function: Any, *args: Any, arch: str = "sm_90", **kwargs: Any) -> Plan:
    """The plan of a call of described arrays."""
    binding = function.inspect.__self__.variants.binding
    names = [a.name for a in binding.signature.arguments]
    call = check_call(binding, {**dict(zip(names, args, strict=False)), **kwargs}, (), {}, partial=True)
    return make_plan(
        binding, call.solved, call.parameters, arch=arch, limits=limits_for(arch), called_as=call.called_as("f")
    )


def lone(**keywords: Any) -> Any:
    """A function of one array under keywords."""

    @specialize(keywords.pop("template", OURS), **keywords)
    def f(x: Float32[Array, "M N"], *, tile: int = 16) -> Float32[Array, "M N"]:
        raise NotImplementedError

    return f


@pytest.mark.parametrize(
    ("keywords", "grid"),
    [
        ({"block": "tile"}, (63, 1, 1)),
        ({"tiles": {"N": "tile"}}, (7, 1, 1)),
        ({"tiles": {"N": "tile", "M": 1}}, (7, 10, 1)),
        ({"tiles": {"M*N": "tile"}}, (63, 1, 1)),
        ({"grid": ("cdiv(N, tile)", "M", 3)}, (7, 10, 3)),
        ({"grid": "min(tile, 4)"}, (4, 1, 1)),
        ({"grid": lambda c: (c.N // c.tile, c.M)}, (6, 10, 1)),
        ({"grid": lambda c: c.x.size + c.arch - c.arch + c.tile - c.tile}, (1000, 1, 1)),
        ({"grid": "0 * tile"}, (1, 1, 1)),
        ({"tiles": {"N-100": "tile"}}, (1, 1, 1)),
    ],
    ids=lambda x: re.sub(r" at 0x\w+", "", str(x)),
)
def test_the_grid_of_a_call(keywords: dict[str, Any], grid: tuple[int, int, int]) -> None:
    """Tiles, expressions, a callable, or one thread for each element; never fewer than one block."""
    plan = plan_of(lone(**keywords), ArraySpec((10, 100)))
    assert plan.grid is not None and plan.grid.grid == grid


@pytest.mark.parametrize("result", [None, 1.5, "1", (1, 2, 3, 4), (), (True,), (1, 2.0)], ids=str)
def test_what_a_callable_grid_returns_is_checked(result: Any) -> None:
    """One to three integers."""
    with pytest.raises(LaunchError, match="grid= returned") as caught:
        plan_of(lone(grid=lambda c: result), ArraySpec((10, 100)))
    assert caught.value.function == "f"


def test_what_a_callable_grid_raises_is_told() -> None:
    """With the names it may use, and the cause behind it."""
    with pytest.raises(LaunchError, match="grid= raised AttributeError") as caught:
        plan_of(lone(grid=lambda c: c.K), ArraySpec((10, 100)))
    assert "M, N, arch" in caught.value.facts["allowed"] and isinstance(caught.value.__cause__, AttributeError)


def test_the_grid_is_unknown_without_sizes() -> None:
    """Dtypes alone give text, block and list."""
    plan = plan_of(lone(block="tile"))
    assert plan.grid is None and plan.specialization.block == (16, 1, 1)
    assert [s.name for s in plan.specialization.slots or ()] == ["x", "out", "M", "N"]


def test_outputs_and_scratch_are_sized() -> None:
    """Each output's own shape and dtype; scratch in elements, 0 included; below 0 is refused."""

    @specialize(OURS, scratch={"a": ("uint64", "N // 2"), "b": ("float32", 3)}, grid=1)
    def f(x: Float32[Array, " N"]) -> Two:
        raise NotImplementedError

    plan = plan_of(f, ArraySpec((5,)))
    assert plan.outputs == (("value", (5,), "float32"), ("place", (2, 5), "int32"))
    assert plan.scratch == (("a", 2, "uint64"), ("b", 3, "float32"))
    assert plan_of(f, ArraySpec((1,))).scratch[0] == ("a", 0, "uint64")
    with pytest.raises(LaunchError, match="scratch 'a' would have -1 elements"):

        @specialize(OURS, scratch={"a": ("uint64", "N - 2")}, grid=1)
        def g(x: Float32[Array, " N"]) -> Float32[Array, " N"]:
            raise NotImplementedError

        plan_of(g, ArraySpec((1,)))


@pytest.mark.parametrize(
    ("shape", "scratch", "wanted"),
    [
        ((10, 10), 1, "int"),
        ((2**20, 507), 1, "int"),
        ((2**20, 508), 1, "long long"),
        ((2**31, 1), 1, "long long"),
        ((0, 2**31), 1, "long long"),
        ((10, 10), 2**28, "long long"),
    ],
)
def test_the_index_type_follows_the_largest_memory(shape: Any, scratch: int, wanted: str) -> None:
    """Arrays, single axes and scratch: 64 bits where a rounded-up byte offset would pass 2**31."""
    f = lone(grid="tile", scratch={"state": ("uint64", scratch)})
    assert plan_of(f, ArraySpec(shape)).specialization.index_type == wanted


def test_strides_count_for_the_index_type() -> None:
    """A few elements far apart need 64 bits as many near ones do."""
    f = lone(
        template=Inline('extern "C" __global__ void {{ kernel }}({{ args }}) { /* {{ x.stride(0) }} {{ tile }} */ }')
    )
    plan = plan_of(f, ArraySpec((3, 4), strides=(2**29, 1)))
    assert plan.specialization.index_type == "long long"


def test_an_output_not_yet_allocated_is_aligned_as_device_memory_is() -> None:
    """To 256 bytes, which every allocator gives; not to whatever the template asks for."""
    f = lone(
        template=Inline(
            'extern "C" __global__ void {{ kernel }}({{ args }})'
            " { /* {{ tile }} {{ out.aligned(256) }} {{ out.aligned(512) }} */ }"
        )
    )
    (facts,) = [a for a in plan_of(f, ArraySpec((4, 4))).specialization.arrays if a.name == "out"]
    assert facts.aligned == ((256, True), (512, False))


def test_an_absent_mutated_array_is_not_zeroed() -> None:
    """Nor does it keep an empty call from being empty."""

    @specialize(OURS, mutates=("x", "y"), zeroed="y")
    def f(x: Float32[Array, " N"], y: Float32[Array, " N"] | None = None) -> None:
        raise NotImplementedError

    assert plan_of(f, ArraySpec((4,))).zeroed == ()
    assert plan_of(f, ArraySpec((4,)), ArraySpec((4,))).zeroed == ("y",)
    assert plan_of(f, ArraySpec((0,))).empty and not plan_of(f, ArraySpec((4,))).empty


def test_an_empty_call_has_no_grid_to_compute() -> None:
    """A grid that divides by a number of tiles is no reason to refuse a call that launches nothing."""
    f = lone(template=OURS, grid="cdiv(N, cdiv(M, tile))")
    plan = plan_of(f, ArraySpec((0, 4)))
    assert plan.empty and plan.grid is not None and plan.grid.grid == (1, 1, 1)


def test_equal_plans_differ_in_sizes_only() -> None:
    """What is rendered knows no run-time size."""
    f = lone(tiles={"N": "tile"})
    assert plan_of(f, ArraySpec((3, 4))).specialization == plan_of(f, ArraySpec((30, 44))).specialization


def test_a_long_axis_is_folded_only_for_a_template_that_can_bear_it_b45() -> None:
    """B45: 70000 tiles on y: folded onto x where only `tile_index` is read, else refused with the numbers."""
    index = (
        'extern "C" __global__ void {{ kernel }}({{ args }}) { out[{{ M.tile_index }} * N + {{ N.tile_index }}] = 0; }'
    )
    free = lone(template=Inline(index), tiles={"N": 1, "M": 1}, require="tile > 0")
    plan = plan_of(free, ArraySpec((70000, 3)))
    assert plan.grid is not None and plan.grid.folded and plan.grid.grid[1:] == (1, 1)
    fixed = lone(template=Inline(index.replace("= 0", "= blockIdx.x")), tiles={"N": 1, "M": 1}, require="tile > 0")
    with pytest.raises(LaunchError, match="70000"):
        plan_of(fixed, ArraySpec((70000, 3)))


def test_fold_makes_one_axis_of_several() -> None:
    """Of packed arrays; one leading axis stays as it is."""
    f = specialize(OURS)(_folded)
    argument = f.inspect.__self__.signature.arrays[0]
    array = Described("x", 0, "float32", (2, 3, 4), (12, 4, 1), None)
    assert (fold(array, argument).shape, fold(array, argument).strides) == ((6, 4), (4, 1))
    single = Described("x", 0, "float32", (6, 4), (9, 1), None)
    assert fold(single, argument) is single
    row = fold(Described("x", 0, "float32", (4,), (1,), None), argument)
    assert (row.shape, row.strides) == ((1, 4), (4, 1))


def _folded(x: Float32[Array, "*B N"]) -> Float32[Array, "*B N"]:
    raise NotImplementedError


# parameter lists ------------------------------------------------------------------------------------------------------


def own(**keywords: Any) -> Any:
    """A kernel with a list of its own."""

    @specialize(
        Inline('extern "C" __global__ void f(const float* x, float* out, float s, int M, int N) {}'), **keywords
    )
    def f(x: Float32[Array, "M N"], s: f32) -> Float32[Array, "M N"]:
        raise NotImplementedError

    return f


def test_recipes_follow_the_list() -> None:
    """Pointers, encoded scalars, integers of the plan."""
    plan = plan_of(own(args="N*M out s x x.stride(0)"), ArraySpec((3, 4)))
    assert plan.specialization.slots is not None
    assert make_recipes(plan.specialization.slots, plan.integers) == (
        Recipe("int", "N*M", 12),
        Recipe("array", "out"),
        Recipe("scalar", "s"),
        Recipe("array", "x"),
        Recipe("int", "x.stride(0)", 4),
    )


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (None, "cannot be read from its text"),
        (("x", "out", "s", "K"), "has 'K', which is no name of the signature"),
        (("x", "s"), "has no 'out'"),
        (("x", "out"), "has no 's'"),
    ],
)
def test_a_list_that_does_not_match_is_refused(names: Any, says: str) -> None:
    """With the kernel's names, ours, and `args=` as the way out."""
    plan = plan_of(own(), ArraySpec((3, 4)))
    with pytest.raises(TemplateError) as caught:
        match_slots(plan, names, "k.cu")
    assert says in caught.value.summary and "args=" in caught.value.facts["try_"]
    assert caught.value.facts["template"] == "k.cu"


def test_a_matching_list_is_taken_in_its_order() -> None:
    """Sizes may be left out."""
    plan = plan_of(own(), ArraySpec((3, 4)))
    slots = match_slots(plan, ("N", "s", "out", "x"), "k.cu")
    assert [(s.name, s.kind) for s in slots] == [("N", "axis"), ("s", "scalar"), ("out", "array"), ("x", "array")]
    assert "unsigned int" in slots[0].ctypes and slots[2].ctypes[0] == "float*"


@pytest.mark.parametrize(("arch", "number"), [("sm_90", 90), ("sm_90a", 90), ("sm_120f", 120)])
def test_the_number_of_an_architecture(arch: str, number: int) -> None:
    """Letters do not count."""
    assert arch_number(arch) == number


@pytest.mark.parametrize("arch", ["90", "compute_90", "sm_", "sm_90x", ""])
def test_what_is_no_architecture_is_refused(arch: str) -> None:
    """In our words."""
    with pytest.raises(CuplateError, match="no architecture"):
        arch_number(arch)
