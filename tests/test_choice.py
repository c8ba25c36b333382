"""Which of several functions runs a call: at decoration, at a call, in the receipt, and on the hot path."""

from __future__ import annotations

import gc
import linecache
import weakref
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import numpy as np
import pytest
from jaxtyping import Float, Float32, Int32

import cuplate
from cuplate import (
    Array,
    ArraySpec,
    CachePolicy,
    CaptureError,
    DeclarationError,
    ExpressionError,
    Inline,
    LayoutError,
    ParameterError,
    cache,
    config,
    f32,
    specialize,
)
from cuplate.events import Event
from tests.doubles import Gpu, install

KERNEL = 'extern "C" __global__ void {{ kernel }}({{ args }}) { /* %s */ }'
FILL = """
extern "C" __global__ void {{ kernel }}({{ args }})
{
    const {{ index_t }} i = ({{ index_t }})blockIdx.x * blockDim.x + threadIdx.x;
    if (i < {{ N }}) out[i] = %s;
}
"""


@specialize(Inline(FILL % "4 /* {{ mode }} {{ width }} */"), when=("N % 4 == 0", "on_gpu"), require="x.aligned(16)")
def by_four(x: Float32[Array, " N"], *, mode: Literal["a", "b"] = "a", width: int = 4) -> Float32[Array, " N"]:
    """For a GPU, whole fours, aligned; has a parameter of its own."""
    raise NotImplementedError


@specialize(Inline(FILL % "{{ x.stride(0) }}"), when="N >= 100")
def strided(x: Float32[Array, " N"]) -> Float32[Array, " N"]:
    """For long arrays, any stride; has no parameter at all."""
    raise NotImplementedError


@specialize(Inline(FILL % "{{ tile }} /* {{ mode }} */"), variants=[by_four, strided])
def chosen(
    x: Float32[Array, " N"], *, tile: Literal[1, 2] = 1, mode: Literal["a", "b", "c"] = "a"
) -> Float32[Array, " N"]:
    """What is left."""
    raise NotImplementedError


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    """A recording GPU; the functions of this module forget it again."""
    yield install(monkeypatch)
    for function in (by_four, strided, chosen):
        function.reload()


def variant(size: int, *, alignment: int = 256, strides: tuple[int, ...] | None = None, **given: Any) -> str:
    """Which function `chosen` would run."""
    return chosen.inspect(ArraySpec((size,), strides=strides, alignment=alignment), arch="sm_90", **given).variant


# the choice -----------------------------------------------------------------------------------------------------------


def test_the_first_whose_conditions_hold_runs_and_the_function_itself_is_last() -> None:
    """In the order of the list; `require` of a variant counts like its `when`."""
    assert variant(400) == "by_four"
    assert variant(401) == "strided"
    assert variant(401) == "strided" and variant(41) == "chosen"
    assert variant(400, alignment=4) == "strided" and variant(40, alignment=4) == "chosen"


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({}, "by_four"),
        ({"tile": 1}, "chosen"),  # the default, but given: nobody else has a tile
        ({"tile": 2}, "chosen"),
        ({"mode": "b"}, "by_four"),  # `strided` lacks it, and stands behind
        ({"mode": "c"}, "chosen"),  # `by_four` has it, and not this value
    ],
    ids=str,
)
def test_a_given_parameter_rules_out_variants_that_lack_it(given: dict[str, Any], name: str) -> None:
    """Given is what counts, not the value: left out, the same default rules out nobody."""
    assert variant(400, **given) == name


def test_a_shared_parameter_reaches_the_variant_with_the_callers_value() -> None:
    """And a parameter that only the variant has keeps its default."""
    report = chosen.inspect(ArraySpec((400,)), mode="b", arch="sm_90")
    assert report.variant_parameters == (("mode", "b"), ("width", 4))


def test_a_layout_that_nobody_reads_is_refused_by_the_function_itself() -> None:
    """A variant that reads the stride takes a view; where none may, the error is as without variants."""
    assert variant(400, strides=(2,)) == "strided"
    with pytest.raises(LayoutError, match=r"chosen: array 'x' is not row-major"):
        variant(50, strides=(2,))


def test_the_receipt_says_who_runs_and_what_was_against_the_others() -> None:
    """The parameters of who runs; of the call only those that were given, or that it shares."""
    report = chosen.inspect(ArraySpec((401,)), arch="sm_90")
    assert report.passed_over == (("by_four", "'N % 4 == 0' does not hold"),)
    assert report.function == "chosen" and report.cubin.entry == "strided"
    lines = str(report).splitlines()
    assert lines[0] == "chosen(x=float32[401])"
    assert lines[-2:] == ["  variant    strided()", "  not taken  by_four: 'N % 4 == 0' does not hold"]
    lines = str(chosen.inspect(ArraySpec((401,)), tile=2, arch="sm_90")).splitlines()
    assert lines[0] == "chosen(x=float32[401], tile=2, mode='a')"
    assert lines[-1] == "  not taken  by_four, strided: it has no parameter 'tile', which was given"
    assert not any("variant" in line for line in lines)


def test_without_sizes_a_condition_on_sizes_does_not_hold() -> None:
    """`inspect` of dtypes alone shows the function itself, and says what it did not know."""
    report = chosen.inspect(arch="sm_90")
    assert report.variant == "chosen"
    assert report.passed_over[0] == ("by_four", "'N % 4 == 0' needs N, which is not known here")


def test_a_condition_that_cannot_be_computed_is_an_error_where_the_sizes_are_known() -> None:
    """It is never taken for one that does not hold."""

    @specialize(Inline(KERNEL % ""), when="100 // N > 3")
    def other(x: Float32[Array, " N"]) -> Float32[Array, " N"]:
        raise NotImplementedError

    @specialize(Inline(KERNEL % ""), variants=[other])
    def f(x: Float32[Array, " N"]) -> Float32[Array, " N"]:
        raise NotImplementedError

    assert f.inspect(ArraySpec((20,)), arch="sm_90").variant == "other"
    with pytest.raises(ExpressionError, match="by zero in when"):
        f.inspect(ArraySpec((0,)), arch="sm_90")


def test_a_variant_may_take_fewer_dtypes() -> None:
    """A dtype decides as a size does."""

    @specialize(Inline(KERNEL % ""))
    def single(x: Float32[Array, " N"]) -> Float32[Array, " N"]:
        raise NotImplementedError

    @specialize(Inline(KERNEL % ""), variants=[single])
    def f(x: Float[Array, " N"]) -> Float[Array, " N"]:
        raise NotImplementedError

    assert f.inspect(ArraySpec((8,), "float32"), arch="sm_90").variant == "single"
    report = f.inspect(ArraySpec((8,), "float64"), arch="sm_90")
    assert report.variant == "f" and report.passed_over == (("single", "array 'x' is float64"),)


def test_device_facts_decide() -> None:
    """Architecture, and memory that the device has."""

    @specialize(Inline(KERNEL % ""), when="arch >= 90", options={"arch_specific": True})
    def newest(x: Float32[Array, " N"]) -> Float32[Array, " N"]:
        raise NotImplementedError

    @specialize(Inline(KERNEL % ""), when="max_shared_bytes >= 120_000")
    def large(x: Float32[Array, " N"]) -> Float32[Array, " N"]:
        raise NotImplementedError

    @specialize(Inline(KERNEL % ""), variants=[newest, large])
    def f(x: Float32[Array, " N"]) -> Float32[Array, " N"]:
        raise NotImplementedError

    x = ArraySpec((8,))
    found = {arch: f.inspect(x, arch=arch) for arch in ("sm_90", "sm_80", "sm_86")}
    assert [r.variant for r in found.values()] == ["newest", "large", "f"]
    assert [r.arch for r in found.values()] == ["sm_90a", "sm_80", "sm_86"]  # the variant's own options


# at decoration --------------------------------------------------------------------------------------------------------


def declared(other: Any, **keywords: Any) -> Any:
    """A function with `other` as its variant."""

    @specialize(Inline(KERNEL % "{{ tile }}"), **{"variants": [other], **keywords})
    def f(x: Float32[Array, " N"], alpha: f32, *, tile: int = 1) -> Float32[Array, " N"]:
        raise NotImplementedError

    return f


class Two(NamedTuple):
    out: Float32[Array, " N"]
    other: Float32[Array, " N"]


def _other_name(y: Float32[Array, " N"], alpha: f32) -> Float32[Array, " N"]:
    raise NotImplementedError


def _fewer(x: Float32[Array, " N"]) -> Float32[Array, " N"]:
    raise NotImplementedError


def _more(x: Float32[Array, " N"], alpha: f32, beta: f32) -> Float32[Array, " N"]:
    raise NotImplementedError


def _other_axes(x: Float32[Array, " M"], alpha: f32) -> Float32[Array, " M"]:
    raise NotImplementedError


def _other_dtype(x: Int32[Array, " N"], alpha: f32) -> Int32[Array, " N"]:
    raise NotImplementedError


def _two(x: Float32[Array, " N"], alpha: f32) -> Two:
    raise NotImplementedError


def _no_default(x: Float32[Array, " N"], alpha: f32, *, width: int) -> Float32[Array, " N"]:
    raise NotImplementedError


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (_other_name, 'argument 0 of \'_other_name\' differs.\n  given      y: "N"\n  allowed    x: "N"'),
        (_fewer, "argument 1 of '_fewer' differs.\n  given      nothing\n  allowed    alpha: scalar float32"),
        (_more, "argument 2 of '_more' differs"),
        (_other_axes, "argument 0 of '_other_axes' differs"),
        (_other_dtype, "'_other_dtype' takes no dtype of 'x' that 'f' takes"),
        (_two, "the outputs of '_two' differ."),
        (_no_default, "'_no_default' has a parameter 'width' that no call can give"),
    ],
)
def test_a_variant_with_other_arguments_is_refused(function: Any, message: str) -> None:
    """Named, with both sides of the difference."""
    other = specialize(Inline(KERNEL % ("{{ width }}" if function is _no_default else "")))(function)
    with pytest.raises(DeclarationError) as caught:
        declared(other)
    assert f"f: variants=: {message}" in str(caught.value)


def test_a_variant_that_could_never_run_is_refused() -> None:
    """It lacks a parameter that every call has to give."""
    with pytest.raises(DeclarationError, match="'strided' would never run: it lacks 'tile', which every call gives"):

        @specialize(Inline(KERNEL % "{{ tile }}"), variants=[strided])
        def f(x: Float32[Array, " N"], *, tile: int) -> Float32[Array, " N"]:
            raise NotImplementedError


def test_other_mutated_arrays_are_refused() -> None:
    """What a kernel writes is part of what it is called for."""

    @specialize(Inline(KERNEL % ""), mutates="x")
    def other(x: Float32[Array, " N"], y: Float32[Array, " N"]) -> None:
        raise NotImplementedError

    with pytest.raises(DeclarationError, match="mutates= of 'other' differ"):

        @specialize(Inline(KERNEL % ""), mutates="y", variants=[other])
        def f(x: Float32[Array, " N"], y: Float32[Array, " N"]) -> None:
            raise NotImplementedError


@pytest.mark.parametrize("wrong", [[len], ["strided"], [lambda x: x], 3, strided], ids=range(5))
def test_variants_are_specialized_functions(wrong: Any) -> None:
    """Nothing else, and in a list."""
    with pytest.raises(DeclarationError, match="variants= lists functions"):

        @specialize(Inline(KERNEL % ""), variants=wrong)
        def f(x: Float32[Array, " N"]) -> Float32[Array, " N"]:
            raise NotImplementedError


def test_variants_of_variants_are_refused_so_there_is_no_cycle() -> None:
    """A function that has variants is nobody's variant; nor is one there twice."""
    with pytest.raises(DeclarationError, match="the variant 'chosen' has variants of its own"):

        @specialize(Inline(KERNEL % ""), variants=[chosen])
        def f(x: Float32[Array, " N"]) -> Float32[Array, " N"]:
            raise NotImplementedError

    with pytest.raises(DeclarationError, match="two functions are called 'strided'"):

        @specialize(Inline(KERNEL % ""), variants=[strided, strided])
        def g(x: Float32[Array, " N"]) -> Float32[Array, " N"]:
            raise NotImplementedError


@pytest.mark.parametrize("when", ["tlie > 1", "n > 1", "y.aligned(16)", "N >"])
def test_a_wrong_name_in_when_is_an_error_at_decoration(when: str) -> None:
    """With the place and the names that there are."""
    with pytest.raises(ExpressionError, match=r"when\[0\]"):

        @specialize(Inline(KERNEL % "{{ tile }}"), when=when)
        def f(x: Float32[Array, " N"], *, tile: int = 1) -> Float32[Array, " N"]:
            raise NotImplementedError


def test_when_beside_variants_is_refused() -> None:
    """It would never be asked."""
    with pytest.raises(DeclarationError, match="when= is for a function among the variants of another"):

        @specialize(Inline(KERNEL % ""), variants=[strided], when="N > 1")
        def f(x: Float32[Array, " N"]) -> Float32[Array, " N"]:
            raise NotImplementedError


# calls ----------------------------------------------------------------------------------------------------------------


def kernels(gpu: Gpu) -> list[str]:
    """What was launched."""
    return [note.kernel for note in gpu.launches]


def test_calls_cold_warm_and_repeated_run_what_was_chosen(gpu: Gpu) -> None:
    """Each of several kinds by turns, with and without `out=`; the hot path takes all but the first of a kind."""
    x, y, short = gpu.array((400,)), gpu.array((401,)), gpu.array((10,))
    out = gpu.array((400,))
    wanted = []
    for _ in range(6):
        chosen(x), chosen(x, out=out), chosen(x, tile=1), chosen(y), chosen(short), chosen(x, mode="b", out=out)
        wanted += ["by_four", "by_four", "chosen", "strided", "chosen", "by_four"]
    assert kernels(gpu) == wanted
    walk = chosen.reload.__self__  # type: ignore[attr-defined]
    assert len(walk.hot.plans) == 5
    before = chosen.cache_info()
    for _ in range(3):
        chosen(x), chosen(x, tile=1), chosen(y), chosen(short)
    after = chosen.cache_info()
    assert after.hits == before.hits + 12 and after.compiles == before.compiles
    assert len(walk._ready) == 5  # nothing went the long way again


def test_the_default_given_and_left_out_are_two_kinds_of_call(gpu: Gpu) -> None:
    """On the hot path too, whichever comes first, by equal and by the same objects."""
    for first, second in (({}, {"tile": 1}), ({"tile": 1}, {})):
        chosen.cache_clear()
        gpu.log.clear()
        for given in (first, second, first, second, first, second):
            chosen(gpu.array((400,)), **given)
        x = gpu.array((400,))
        for given in (first, first, first, second, second, second, first):
            chosen(x, **given)
        name = {0: "by_four", 1: "chosen"}
        order = [first, second] * 3 + [first] * 3 + [second] * 3 + [first]
        assert kernels(gpu) == [name[len(given)] for given in order]


def test_alignment_that_a_variant_asks_for_is_told_apart_in_warm_calls(gpu: Gpu) -> None:
    """The function itself asks nothing, and yet the key has it."""
    memory = gpu.array((404,))
    for _ in range(3):
        chosen(memory[:400])
        chosen(memory[1:401])
    assert kernels(gpu) == ["by_four", "strided"] * 3


def test_the_hot_path_has_no_more_to_do(gpu: Gpu) -> None:
    """The generated code is that of the same function without variants, but for a default and one alignment."""

    @specialize(Inline(FILL % "{{ tile }} /* {{ mode }} */"))
    def plain(
        x: Float32[Array, " N"], *, tile: Literal[1, 2] = 1, mode: Literal["a", "b", "c"] = "a"
    ) -> Float32[Array, " N"]:
        raise NotImplementedError

    def text(function: Any) -> str:
        return "".join(linecache.getlines(function.__code__.co_filename)).replace(function.__name__, "f")

    x = gpu.array((400,))
    chosen(x), plain(x)
    with_variants, without = text(chosen), text(plain)
    assert "_plans[" in without and with_variants != without
    restored = with_variants.replace(", (_p_x := x.data.ptr) % 16 == 0", "").replace("out, x, _p_x)", "out, x)")
    assert with_variants.count("(_p_x := x.data.ptr) % 16 == 0") == 1  # the launch is given the address
    assert (
        restored.replace("tile=_missing", "tile=_default_tile").replace("mode=_missing", "mode=_default_mode")
        == without
    )


def test_views_go_the_general_path_to_the_variant_that_reads_them(gpu: Gpu) -> None:
    """A stride of two."""
    memory = gpu.array((400,))
    chosen(memory[::2])
    assert kernels(gpu) == ["strided"]
    with pytest.raises(LayoutError):
        chosen(memory[:40:2])


def test_events_tell_which_variant_runs(gpu: Gpu) -> None:
    """Look-ups in memory, loads and launches are of the function that was called; renders and compiles of who runs."""
    heard: list[Event] = []
    x = gpu.array((400,))
    with cuplate.subscribe(heard.append):
        chosen(x)
        chosen(x)
    told = {(e.kind, e.tier): e for e in heard}
    for kind in (("miss", "memory"), ("load", None), ("hit", "memory"), ("launch", None)):
        assert told[kind].function == "chosen" and told[kind].detail["variant"] == "by_four"
    assert told["render", None].function == "by_four"
    heard.clear()
    with cuplate.subscribe(heard.append):
        strided(x)
    assert all("variant" not in e.detail for e in heard)


def test_a_variant_and_the_function_share_one_loaded_kernel(gpu: Gpu) -> None:
    """Called by its own name it renders alike: one load."""
    x = gpu.array((400,))
    by_four(x), chosen(x)
    assert kernels(gpu) == ["by_four"] * 2 and len(gpu.notes("load")) == 1


def test_counts_and_clearing_cover_the_variants(gpu: Gpu) -> None:
    """`cache_info` counts what calls of this function did; `cache_clear` forgets it, and lets the kernels go."""
    chosen.cache_clear()
    before = chosen.cache_info()
    chosen(gpu.array((400,))), chosen(gpu.array((401,))), chosen(gpu.array((10,)))
    info = chosen.cache_info()
    assert info.variants == 3 and info.misses - before.misses == 3
    assert len(gpu.notes("load")) == 3
    chosen.cache_clear()
    gc.collect()
    assert chosen.cache_info().variants == 0 and len(gpu.loaded) == 0
    chosen(gpu.array((400,)))
    assert len(gpu.notes("load")) == 4 and kernels(gpu)[-1] == "by_four"


def test_evicting_a_variants_kernel_drops_its_plans(gpu: Gpu) -> None:
    """The next call loads it again; the kernel was unloaded meanwhile."""
    before = cache.set_policy(CachePolicy(memory_kernels=1))
    try:
        x = gpu.array((400,))
        chosen(x), chosen(x)
        (loaded,) = [weakref.ref(one) for one in gpu.loaded]
        chosen(gpu.array((10,)))
        gc.collect()
        assert loaded() is None
        chosen(x)
        assert kernels(gpu)[-1] == "by_four" and len(gpu.notes("load")) == 3
    finally:
        cache.set_policy(before)


def test_a_capture_refuses_the_first_call_and_keeps_the_variants_kernel(gpu: Gpu) -> None:
    """As for any other function."""
    x, out = gpu.array((400,)), gpu.array((400,))
    gpu.capturing.add(7)
    with gpu.on_stream(7), pytest.raises(CaptureError):
        chosen(x, out=out)
    chosen(x, out=out)
    with gpu.on_stream(7):
        chosen(x, out=out)
    assert [one.kept for one in gpu.loaded] == [True] and kernels(gpu) == ["by_four"] * 2


def test_reload_reads_the_variants_templates_too(gpu: Gpu, tmp_path: Any) -> None:
    """Their files may have changed, and then so has what runs."""
    file = tmp_path / "k.cu.j2"
    file.write_text(KERNEL % "old")

    @specialize(file)
    def other(x: Float32[Array, " N"]) -> Float32[Array, " N"]:
        raise NotImplementedError

    @specialize(Inline(KERNEL % ""), variants=[other])
    def f(x: Float32[Array, " N"]) -> Float32[Array, " N"]:
        raise NotImplementedError

    assert "old" in f.inspect(ArraySpec((4,)), arch="sm_90").source
    x = gpu.array((4,))
    f(x), f(x)
    file.write_text(KERNEL % "new")
    assert "old" in f.inspect(ArraySpec((4,)), arch="sm_90").source
    f.reload()
    assert "new" in f.inspect(ArraySpec((4,)), arch="sm_90").source
    f(x)
    assert len(gpu.notes("load")) == 2


def test_a_call_that_checks_itself_chooses_alike(gpu: Gpu) -> None:
    """`CUPLATE_DEBUG=1`: the variant, with line info, and a wait; afterwards the plans of before."""
    x, out = gpu.array((400,)), gpu.array((400,))
    chosen(x, out=out)
    walk = chosen.reload.__self__  # type: ignore[attr-defined]
    with config.scope(debug=True):
        report = chosen.inspect(x)
        assert report.variant == "by_four" and "line_info" in report.options
        walk.hot.clear()
        chosen(x, out=out), chosen(x, out=out, tile=2)
        assert len(gpu.notes("wait")) == 4  # before and after each
    chosen(x, out=out)
    assert kernels(gpu) == ["by_four", "by_four", "chosen", "by_four"]
    assert "line_info" not in chosen.inspect(x).options


def test_compile_explain_and_reference_are_those_of_the_call() -> None:
    """`compile` stores what a call of this shape will want; `reference` is the decorated function's own."""
    x = ArraySpec((400,))
    cubin = chosen.compile(x, arch="sm_90")
    assert cubin.entry == cubin.function == "by_four"
    assert chosen.explain(x, arch="sm_90").startswith("chosen, by by_four: hit: stored as ")
    assert by_four.explain(x, arch="sm_90").startswith("by_four: hit: stored as ")
    assert chosen.explain(ArraySpec((10,)), arch="sm_90").startswith("chosen: ")
    assert chosen.reference.__doc__ == "What is left."  # type: ignore[attr-defined]


def test_a_wrong_parameter_is_an_error_before_any_choice() -> None:
    """What the function itself refuses no variant gets to see."""
    with pytest.raises(ParameterError, match="chosen: mode = 'd'"):
        variant(400, mode="d")


# host memory ----------------------------------------------------------------------------------------------------------


@specialize(Inline(FILL % "{{ level }}"), require="x.aligned(512)")
def levelled(x: Float32[Array, " N"], *, level: Literal[1, 2]) -> Float32[Array, " N"]:
    """A variant that cannot run here, the only one with a level."""
    raise NotImplementedError


@specialize(Inline(FILL % "0"), variants=[by_four, levelled], require="level == None")
def has_levels(x: Float32[Array, " N"], *, level: Literal[1, 2] | None = None) -> Float32[Array, " N"]:
    """What leaves a level to its variants."""
    raise NotImplementedError


def test_what_only_a_variant_could_do_is_refused_with_what_was_against_it() -> None:
    """Not with what lacks the parameter in any case, and not where it was not given."""
    with pytest.raises(ParameterError, match=r"has_levels: no variant that takes level = 2 runs this call\.") as caught:
        has_levels.inspect(ArraySpec((8,)), arch="sm_90", level=2)
    assert caught.value.passed_over == "levelled: 'x.aligned(512)' does not hold"
    assert "passed over levelled: " in str(caught.value)
    assert has_levels.inspect(ArraySpec((7,)), arch="sm_90").variant == "has_levels"


def test_a_variant_is_read_when_it_is_decorated(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not once more for each function that has it as a variant; `reload` reads all of them."""
    from cuplate import walk

    read: list[str] = []
    read_binding = walk.read_binding

    def noted(signature: Any, *args: Any, **keywords: Any) -> Any:
        read.append(signature.function)
        return read_binding(signature, *args, **keywords)

    def f(x: Float32[Array, " N"]) -> Float32[Array, " N"]:
        raise NotImplementedError

    monkeypatch.setattr(walk, "read_binding", noted)
    bound = specialize(Inline(FILL % "0"), variants=[by_four])(f)
    assert read == ["f"]
    bound.reload()
    assert read == ["f", "f", "by_four"]


def test_of_a_long_condition_its_values_are_told() -> None:
    """Nobody reads a formula of a line and more; it is a comparison, so its two sides say it."""
    long = " + ".join(f"{i} * N" for i in range(30))

    def never(x: Float32[Array, " N"]) -> Float32[Array, " N"]:
        raise NotImplementedError

    def taken(x: Float32[Array, " N"]) -> Float32[Array, " N"]:
        raise NotImplementedError

    variants = [specialize(Inline(FILL % "0"), when=f"{long} <= min(N, 9)")(never)]
    report = specialize(Inline(FILL % "0"), variants=variants)(taken).inspect(ArraySpec((10,)), arch="sm_90")
    ((name, reason),) = report.passed_over
    assert name == "never" and reason == f"{long[:60].rstrip() + ' ...'!r} does not hold: 4350 <= 9"


def test_what_all_refuse_is_told_once_and_equal_reasons_together() -> None:
    """A variant that makes the condition itself is none that the caller missed, whatever else was against it."""
    text, too_large = Inline(FILL % "{{ level }}"), "level < 5"

    def product(x: Float32[Array, " N"], *, level: int = 1) -> Float32[Array, " N"]:
        raise NotImplementedError

    def made(name: str, *require: str) -> Any:
        def copy(x: Float32[Array, " N"], *, level: int = 1) -> Float32[Array, " N"]:
            raise NotImplementedError

        copy.__name__ = copy.__qualname__ = name
        return specialize(text, require=require)(copy)

    variants = [made("one", "N % 4 == 0"), made("same", "N % 8 == 0", too_large), made("two", "N % 4 == 0")]
    f = specialize(text, variants=variants, require=too_large)(product)
    with pytest.raises(ParameterError, match="'level < 5' does not hold") as caught:
        f.inspect(ArraySpec((7,)), arch="sm_90", level=9)
    assert caught.value.passed_over == "one, two: 'N % 4 == 0' does not hold"


def test_arrays_in_host_memory_choose_for_the_cpu_backend() -> None:
    """`on_gpu` is False there; a warm call is found again, and a given default is another kind of call."""
    x, short = np.zeros(400, np.float32), np.zeros(10, np.float32)
    walk = chosen.reload.__self__  # type: ignore[attr-defined]
    walk.reload()
    for _ in range(3):
        assert (chosen(x) == 1).all()  # `strided`, which writes its stride
        assert (chosen(x, tile=2) == 2).all()
        assert (chosen(short) == 1).all()
        assert (chosen(short, tile=2) == 2).all()
    assert len(walk._host.plans) == 4
    assert chosen.inspect(x).variant == "strided" and chosen.inspect(short).variant == "chosen"
    assert chosen.inspect(x, arch="sm_90").variant == "by_four"
    heard: list[Event] = []
    with cuplate.subscribe(heard.append, "launch"):
        chosen(x), chosen(x, tile=2)
    assert [e.detail["variant"] for e in heard] == ["strided", "chosen"]
