"""The keywords of `specialize`, held against the signature and the template, at decoration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jaxtyping import Float, Float32, Int32

from cuplate import (
    Array,
    ArraySpec,
    CachePolicy,
    DeclarationError,
    ExpressionError,
    Inline,
    TemplateError,
    f32,
    specialize,
)
from cuplate.errors import CuplateError
from cuplate.specialization import Fact

OURS = Inline('extern "C" __global__ void {{ kernel }}({{ args }}) {}')
GENERIC = Inline("template<int Q> __global__ void k(const float* x, float* out, int N) {}")
THEIRS = Inline('extern "C" __global__ void f(float* c, const float* a, const float* b, float k, int m, int n) {}')


def bind(template: Any = OURS, **keywords: Any) -> Any:
    """A function of two arrays, a scalar and two parameters under the keywords, all names of which are used."""
    keywords.setdefault("require", ("tile > 0", "p > 0"))

    @specialize(template, **keywords)
    def f(
        x: Float32[Array, " N"], y: Float32[Array, " M"], s: f32, *, tile: int = 32, p: int = 1
    ) -> Float32[Array, "N M"]:
        raise NotImplementedError

    return f


def binding(function: Any) -> Any:
    """What `specialize` has made of its keywords."""
    return function.inspect.__self__.variants.binding


def refused(error: type[CuplateError] = DeclarationError, /, **keywords: Any) -> str:
    """The text of the refusal."""
    with pytest.raises(error) as caught:
        bind(**keywords)
    assert str(caught.value).startswith("f: ")
    return str(caught.value)


def test_a_lone_value_stands_for_a_sequence_of_one() -> None:
    """`block="tile"`, `static="N"`, `zeroed="out"`, `require="..."` need no tuple."""
    b = binding(bind(block="tile", static="N", zeroed="out", require="tile * p > 0"))
    assert [e.text for e in b.block] == ["tile"] and b.static == {"N"} and b.zeroed == ("out",)
    assert [e.text for e in b.require] == ["tile * p > 0"]


def test_every_keyword_has_its_place() -> None:
    """All of them at once, on a kernel that writes its own list."""
    b = binding(
        bind(
            THEIRS,
            entry="f",
            args="out, x y s M N*2",
            options={"std": "c++20"},
            grid=("N", "M", 1),
            block=("tile", 2),
            cluster=(2, 1),
            shared_bytes="tile * x.itemsize",
            cooperative=True,
            scratch=None,
        )
    )
    assert [t for t, _ in b.arguments] == ["out", "x", "y", "s", "M", "N*2"]
    assert [e is None for _, e in b.arguments] == [True] * 5 + [False]
    assert [e.text for e in b.grid] == ["N", "M", "1"] and b.cooperative and len(b.cluster) == 2
    assert b.options.canonical() == ("std=c++20",)


def test_facts_of_expressions_are_facts_of_the_binding() -> None:
    """What a grid or a list asks of an array decides the plan as what the template asks does."""
    template = Inline('extern "C" __global__ void {{ kernel }}({{ args }}) { /* {{ x.order }} */ }')
    b = binding(bind(template, shared_bytes="64 if y.aligned(16) else 0", block="min(y.stride(0), tile)"))
    assert b.facts == {Fact("x", "order"), Fact("y", "aligned", 16), Fact("y", "stride", 0)}


@pytest.mark.parametrize(
    ("keywords", "says"),
    [
        ({"tiles": ["N"]}, "tiles= maps one to three axes"),
        ({"tiles": {}}, "tiles= maps one to three axes"),
        ({"tiles": {"N": 1, "M": 1, "N*M": 1, "2": 1}}, "tiles= maps one to three axes"),
        ({"tiles": {"N": 1}, "grid": 1}, "tiles= and grid= both give the grid"),
        ({"block": (1, 2, 3, 4)}, "block= has 4 dimensions"),
        ({"block": ()}, "block= has 0 dimensions"),
        ({"grid": ()}, "grid= has 0 dimensions"),
        ({"cluster": (1, 1, 1, 1)}, "cluster= has 4 dimensions"),
        ({"cooperative": "yes"}, "cooperative= is True or False"),
        ({"static": "K"}, "static= names 'K'"),
        ({"static": "x"}, "static= names 'x'"),
        ({"mutates": "z"}, "mutates= names 'z'"),
        ({"mutates": "out"}, "mutates= names 'out'"),
        ({"mutates": "s"}, "mutates= names 's'"),
        ({"zeroed": "x"}, "zeroed= names 'x'"),
        ({"zeroed": "s"}, "zeroed= names 's'"),
        ({"scratch": [("t", "uint64", 1)]}, "scratch= maps names"),
        ({"scratch": {"t": ["uint64", 1]}}, "is not (dtype, size)"),
        ({"scratch": {"t": ("u64", 1)}}, "is not (dtype, size)"),
        ({"scratch": {"x": ("uint64", 1)}}, "the scratch name 'x' is taken"),
        ({"scratch": {"s": ("uint64", 1)}}, "the scratch name 's' is taken"),
        ({"scratch": {"tile": ("uint64", 1)}}, "the scratch name 'tile' is taken"),
        ({"scratch": {"out": ("uint64", 1)}}, "the scratch name 'out' is taken"),
        ({"scratch": {"int": ("uint64", 1)}}, "the scratch name 'int' is taken"),
        ({"scratch": {"a b": ("uint64", 1)}}, "the scratch name 'a b' is no name"),
        ({"scratch": {"_t": ("uint64", 1)}}, "the scratch name '_t' is no name"),
        ({"scratch": {3: ("uint64", 1)}}, "the scratch name 3 is no name"),
        ({"entry": ""}, "entry= is the kernel's name"),
        ({"entry": 3}, "entry= is the kernel's name"),
        ({"args": 3}, "args= lists names"),
        ({"args": "x y s out"}, "args= is for a kernel that writes its own"),
        ({"template": THEIRS, "args": "x y s"}, "args= leaves out the array 'out'"),
        ({"template": THEIRS, "args": "x y out N M"}, "args= leaves out the scalar 's'"),
        ({"template": THEIRS, "args": "x y s out tile"}, "args= names the parameter 'tile'"),
        ({"shared_bytes": "x.stride(1)"}, "x.stride(1) is read, and 'x' has 1 axes"),
        ({"policy": 3}, "policy= is a CachePolicy"),
        ({"dtypes": "out"}, "dtypes= maps arrays to parameters"),
    ],
    ids=str,
)  # fmt: skip
def test_a_wrong_keyword_is_refused_at_decoration(keywords: dict[str, Any], says: str) -> None:
    """With the function, the keyword and what was given."""
    assert says in refused(**{"grid": None if "tiles" in keywords else 1, **keywords}).splitlines()[0]


@pytest.mark.parametrize("keyword", ["block", "grid", "cluster", "shared_bytes", "require", "tiles", "scratch"])
def test_a_wrong_name_in_an_expression_is_refused_at_decoration(keyword: str) -> None:
    """Each keyword that takes expressions, with the nearest name."""
    value: Any = {"tiles": {"N": "tlie"}, "scratch": {"t": ("uint64", "tlie")}}.get(keyword, "tlie")
    text = refused(ExpressionError, **{**({} if keyword in ("grid", "tiles") else {"grid": 1}), keyword: value})
    assert "unknown name 'tlie'" in text and text.splitlines()[-1].split() == ["try", "tile"]


def test_nearest_names_are_given() -> None:
    """`mutates=`, `static=`, `zeroed=`: what is allowed, and what was meant."""

    def g(input_array: Float32[Array, " rows"]) -> None: ...

    for keyword, value, near in [("mutates", "input_aray", "input_array"), ("static", "row", "rows")]:
        with pytest.raises(DeclarationError) as caught:
            specialize(OURS, **{"mutates": "input_array", keyword: value})(g)  # type: ignore[arg-type]
        assert caught.value.facts["try_"] == repr(near)


def test_a_kernel_without_output_is_refused() -> None:
    """`-> None` needs `mutates=`."""

    def g(x: Float32[Array, " N"]) -> None: ...

    with pytest.raises(DeclarationError, match="the kernel has no output"):
        specialize(OURS)(g)
    specialize(OURS, mutates="x")(g)


def test_the_default_grid_is_refused_where_it_is_a_bad_guess() -> None:
    """An input axis that nothing written has: of an output, or of an array that is mutated."""

    def reduce(x: Float32[Array, "N K"]) -> Float32[Array, " N"]: ...

    def count(x: Int32[Array, " N"], bins: Int32[Array, " B"]) -> None: ...

    def valid(x: Float32[Array, " N"], w: Float32[Array, " K"]) -> Float32[Array, " N-K+1"]: ...

    with pytest.raises(DeclarationError, match="axis 'K' of 'x' is in no output"):
        specialize(OURS)(reduce)
    with pytest.raises(DeclarationError, match="axis 'N' of 'x' is in no output"):
        specialize(OURS, mutates="bins")(count)
    specialize(OURS, mutates=("x", "bins"))(count)
    specialize(OURS)(valid)
    specialize(OURS, grid="N")(reduce)


def test_a_cplusplus_keyword_is_no_kernels_name() -> None:
    """`def double(x)` needs `entry=`."""

    def double(x: Float32[Array, " N"]) -> Float32[Array, " N"]: ...

    with pytest.raises(DeclarationError, match="'double' is a C\\+\\+ keyword") as caught:
        specialize(OURS)(double)
    assert caught.value.facts["try_"] == "entry="
    assert "void twice(" in specialize(OURS, entry="twice")(double).inspect(arch="sm_90").source


def test_names_are_strict_in_both_directions_b48() -> None:
    """B48: an unknown name in the template, with its line; a parameter that nothing uses."""

    def g(x: Float32[Array, " N"], *, relu: bool = False) -> Float32[Array, " N"]: ...

    text = 'extern "C" __global__ void {{ kernel }}({{ args }}) {\n{% if rleu %}{% endif %}\n}'
    with pytest.raises(TemplateError) as caught:
        specialize(Inline(text))(g)
    assert "`rleu`" in str(caught.value) and caught.value.facts["template"] == "<inline>:2"
    assert "relu" in caught.value.facts["try_"]
    with pytest.raises(TemplateError, match="relu"):
        specialize(OURS)(g)


@pytest.mark.parametrize(
    "keywords",
    [
        {"block": "q"},
        {"grid": "q"},
        {"tiles": {"N": "q"}},
        {"require": "q > 0"},
        {"shared_bytes": "q"},
        {"entry": "k<{{ q }}>", "template": GENERIC},
        {"grid": lambda call: call.q},
        {"dtypes": {"out": "q"}},
    ],
    ids=lambda k: ",".join(k),
)  # fmt: skip
def test_a_parameter_may_be_used_outside_the_template(keywords: dict[str, Any]) -> None:
    """In a keyword's expression, the entry, a callable grid, `dtypes=`: each counts as used."""
    template = keywords.pop("template", OURS)

    @specialize(template, **keywords)
    def k(x: Float[Array, " N"], *, q: Any = 1) -> Float[Array, " N"]:
        raise NotImplementedError

    assert callable(k)


def test_a_function_may_have_its_own_policy() -> None:
    """`policy=` decides where this function's kernels are kept."""
    f = bind(grid=1, policy=CachePolicy(disk=False))
    f.compile(arch="sm_90")
    assert "nothing is stored" in f.explain(arch="sm_90")


def test_static_axes_are_constants_of_the_text() -> None:
    """Not in the list of arguments; a text for each size; without a size there is no text."""

    @specialize(
        Inline('extern "C" __global__ void {{ kernel }}({{ args }}) { float v[{{ C }}]; out[0] = v[0]; }'), static="C"
    )
    def f(x: Float32[Array, "N C"]) -> Float32[Array, "N C"]:
        raise NotImplementedError

    source = f.inspect(ArraySpec((5, 7)), arch="sm_90").source
    assert "float v[7]" in source and "int C" not in source and "int N" in source
    with pytest.raises(CuplateError, match="axis 'C' is static: the text depends on its size"):
        f.inspect(arch="sm_90")


def test_a_template_is_found_beside_the_module_or_by_path(tmp_path: Path) -> None:
    """A Path as it is; a name that nobody has is refused with where it was looked for."""
    file = tmp_path / "mine.cu.j2"
    file.write_text(str(OURS.text))
    assert bind(file, grid=1).template == "mine.cu.j2"
    with pytest.raises(TemplateError, match=r"mime\.cu\.j2"):
        bind("mime.cu.j2", grid=1)


def test_scratch_is_an_argument_of_the_kernel() -> None:
    """By its name, mutable, with its dtype."""
    f = bind(grid=1, scratch={"state": ("uint64", "cdiv(N, tile)")})
    assert "unsigned long long* __restrict__ state" in f.inspect(arch="sm_90").source
    assert np.dtype("uint64").itemsize == 8


@pytest.mark.parametrize(
    "keywords",
    [
        {"scratch": {"lambda": ("uint64", 1)}},
        {"scratch": {"s": ([], 1)}},
        {"require": object()},
        {"zeroed": object()},
        {"static": 1.5},
        {"args": [None]},
    ],
    ids=lambda keywords: next(iter(keywords)),
)
def test_nonsense_is_refused_by_its_keyword(keywords: dict[str, Any]) -> None:
    """What is no name, no string or no sequence is a DeclarationError, and never Python's own."""
    assert next(iter(keywords)) in refused(**keywords)
