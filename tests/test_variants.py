"""What one function has been rendered to: once for equal values, counted, and told when it gets many."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

import pytest
from jaxtyping import Float32

from cuplate import Array, ArraySpec, Inline, VariantWarning, cache, specialize
from cuplate import variants as variants_module
from tests.doubles import Gpu, install

KERNEL = 'extern "C" __global__ void {{ kernel }}({{ args }}) { out[0] = %s; }'


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    """A recording GPU."""
    yield install(monkeypatch)


def two_parameters() -> Any:
    """A fresh function of two parameters."""

    @specialize(Inline(KERNEL % "{{ tile }} * {{ rate }}"))
    def f(x: Float32[Array, " N"], *, tile: int = 1, rate: float = 1.0) -> Float32[Array, " N"]:
        raise NotImplementedError

    return f


def rendered(function: Any, count: int, **given: Any) -> list[warnings.WarningMessage]:
    """Warnings of `count` values of `tile`; rendering needs no compiler run."""
    variants = function.inspect.__self__.variants
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for value in range(count):
            function.inspect.__self__._described((), {"tile": value, **given}, "sm_90")
    assert variants._contents
    return caught


def test_the_64th_variant_names_the_parameter_that_varies_b57() -> None:
    """B57: once, with the function, the parameter, how many values it took, and what to do."""
    f = two_parameters()
    assert rendered(f, 63) == []
    f.inspect.__self__._described((), {"tile": 1}, "sm_90")
    (told,) = rendered(f, 200)
    assert told.category is VariantWarning
    assert str(told.message) == (
        "cuplate: f has been rendered in 64 variants: the parameter 'tile' has taken 64 values. A value that changes "
        "from call to call belongs before the *, as a run-time argument."
    )


def test_a_manifest_may_have_as_many_as_it_likes() -> None:
    """What is asked for by name is no parameter that varies."""
    f = two_parameters()
    inspection, entry = f.inspect.__self__, f.wanted(tile=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for tile in range(65):
            parameters = tuple({**dict(entry.parameters), "tile": tile}.items())
            _, content = inspection.prepared(replace(entry, parameters=parameters), "sm_90")
    assert "64" in content.parameters_text


def test_static_sizes_that_vary_are_told_as_sizes() -> None:
    """A function without parameters has variants through `static=`."""

    @specialize(Inline(KERNEL % "{{ N }}"), static="N")
    def f(x: Float32[Array, " N"]) -> Float32[Array, " N"]:
        raise NotImplementedError

    with pytest.warns(VariantWarning, match="its sizes vary"):
        for n in range(1, 65):
            f.inspect.__self__._described((ArraySpec((n,)),), {}, "sm_90")


def test_equal_renders_are_one_variant(gpu: Gpu) -> None:
    """Two spellings of one text: two renders, one key, one compile, one load."""

    @specialize(Inline(KERNEL % "{% if relu or mode == 'relu' %}1{% else %}0{% endif %}"))
    def f(x: Float32[Array, " N"], *, relu: bool = False, mode: Literal["relu"] | None = None) -> Float32[Array, " N"]:
        raise NotImplementedError

    x = gpu.array(4)
    before = cache.stats().compile.compiles
    for _ in range(2):
        f(x, relu=True)
        f(x, mode="relu")
        f(x, mode="relu", relu=True)
    assert f.cache_info().variants == 1 and len(gpu.notes("load")) == 1
    assert cache.stats().compile.compiles - before == 1
    info = f.cache_info()
    assert (info.hits, info.misses, info.compiles, info.disk_hits) == (3, 3, 1, 0)


def test_rendered_texts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dropped whole at the limit."""
    monkeypatch.setattr(variants_module, "CONTENTS", 8)
    f = two_parameters()
    rendered(f, 30)
    variants = f.inspect.__self__.variants
    assert 0 < len(variants._contents) <= 8 and len(variants) <= 8


@pytest.mark.parametrize("values", [(1, True), (True, 1), (0.0, -0.0), (-0.0, 0.0), (1, 1.0), ((1,), (True,))], ids=str)
def test_a_text_is_that_of_its_own_value(values: tuple[Any, Any]) -> None:
    """Python takes these for equal, a C++ compiler does not: the second render is not the first one's."""

    @specialize(Inline(KERNEL % "0; auto v = {{ value }}"))
    def f(x: Float32[Array, " N"], *, value: Any) -> Float32[Array, " N"]:
        raise NotImplementedError

    contents = [f.inspect.__self__._described((), {"value": v}, "sm_90").content for v in values]
    assert contents[0].source.text != contents[1].source.text
    assert [c.parameters_text for c in contents] == [f"value={v!r}" for v in values]


def test_a_lock_held_at_a_fork_or_by_an_interrupted_call_stops_nobody(gpu: Gpu) -> None:
    """A handler of a signal calls while this thread holds it; a child gets a new one."""
    variants = two_parameters().inspect.__self__.variants
    with variants._lock:
        assert variants.debugged().debug
    before = variants._lock
    variants.after_fork(child=False)
    assert variants._lock is before
    variants.after_fork(child=True)
    assert variants._lock is not before


def test_every_call_is_a_hit_or_a_miss(gpu: Gpu) -> None:
    """A call of new sizes walks to the plan, though the kernel is loaded; one that has come before does not."""
    f = two_parameters()
    for size in (1, 2, 3, 4, 2, 3):
        f(gpu.array((size,)))
    info = f.cache_info()
    assert (info.hits, info.misses, info.variants, info.compiles) == (2, 4, 1, 1)
