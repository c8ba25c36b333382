"""What a signature may leave to tuning, and which candidates follow from it."""

from __future__ import annotations

import copy
import enum
import inspect
import pickle
from typing import Any, Literal

import pytest
from jaxtyping import Float, Float32

from cuplate import Array, ArraySpec, DeclarationError, ExpressionError, Inline, specialize, tune
from cuplate.autotune.space import MOST
from cuplate.autotune.tunable import UNSAID, Tunable
from cuplate.draw import Drawer, Random
from cuplate.testing import resources

KERNEL = 'extern "C" __global__ void {{ kernel }}({{ args }}) { /* %s */ }'
X = Float32[Array, " N"]


class Order(enum.Enum):
    """Of a walk."""

    ROWS = 1
    COLUMNS = 2


def bound(names: str, function: Any, **keywords: Any) -> Any:
    """`function`, specialized over a template that reads these parameters."""
    return specialize(Inline(KERNEL % " ".join(f"{{{{ {n} }}}}" for n in names.split())), **keywords)(function)


def candidates(function: Any, size: int = 100, **given: Any) -> list[dict[str, Any]]:
    """What may be chosen for an array of a size, the default first."""
    inspection = function.inspect.__self__
    chosen = inspection._chosen(inspection._call((ArraySpec((size,)),), given), "sm_90")[0]
    found = [dict(c) for c in chosen.candidates]
    assert not found or dict(chosen.parameters) in found
    return sorted(found, key=lambda c: c != dict(chosen.parameters))


def test_the_annotation_lists_the_candidates() -> None:
    """The values of a Literal, the members of an Enum, False and True; None where it may be; every combination."""

    def f(
        x: X,
        *,
        tile: Literal[16, 32] = tune(),
        order: Order = tune(),
        vector: bool = tune(),
        width: Literal[1] | None = tune(),
    ) -> X:
        raise NotImplementedError

    found = candidates(bound("tile order.value vector width", f))
    assert len(found) == 2 * 2 * 2 * 2
    assert found[0] == {"tile": 16, "order": Order.ROWS, "vector": False, "width": 1}
    assert {c["width"] for c in found} == {1, None}


def test_require_leaves_out_combinations_for_each_call() -> None:
    """A condition may read sizes: other calls have other candidates, and where none is left the call is refused."""

    def f(x: X, *, tile: Literal[16, 32, 64] = tune(), stages: Literal[1, 2] = tune()) -> X:
        raise NotImplementedError

    f = bound("tile stages", f, require=("N % tile == 0", "tile * stages <= 64"))
    assert candidates(f, 64) == [
        {"tile": 16, "stages": 1},
        {"tile": 16, "stages": 2},
        {"tile": 32, "stages": 1},
        {"tile": 32, "stages": 2},
        {"tile": 64, "stages": 1},
    ]
    assert candidates(f, 16) == [{"tile": 16, "stages": 1}, {"tile": 16, "stages": 2}]
    assert candidates(f, 64, stages=2) == [{"tile": 16, "stages": 2}, {"tile": 32, "stages": 2}]
    assert candidates(f, 64, stages=2, tile=16) == []
    with pytest.raises(Exception, match="does not hold"):
        f.compile(ArraySpec((17,)), arch="sm_90")


def test_configs_tie_parameters_together() -> None:
    """The combinations that are listed and no others; a value that is given keeps those that have it."""
    pairs = [{"tile": 16, "stages": 2}, {"tile": 32, "stages": 3}, {"tile": 32, "stages": 4}]

    def listed_once(x: X, *, tile: int = tune(configs=pairs), stages: int = tune(), vector: bool = tune()) -> X:
        raise NotImplementedError

    both = tune(configs=pairs, default={"tile": 32, "stages": 3})

    def one_object(x: X, *, tile: int = both, stages: int = both, vector: bool = False) -> X:
        raise NotImplementedError

    f = bound("tile stages vector", listed_once)
    assert [(c["tile"], c["stages"], c["vector"]) for c in candidates(f)] == [
        (p["tile"], p["stages"], v) for p in pairs for v in (False, True)
    ]
    assert [(c["tile"], c["stages"]) for c in candidates(f, tile=32, vector=True)] == [(32, 3), (32, 4)]
    # A value that no config has: the others keep their default.
    assert [(c["tile"], c["stages"], c["vector"]) for c in candidates(f, tile=64)] == [(64, 2, False), (64, 2, True)]
    g = bound("tile stages vector", one_object)
    assert [(c["tile"], c["stages"]) for c in candidates(g)] == [(32, 3), (16, 2), (32, 4)]


def test_values_narrow_and_a_default_comes_first() -> None:
    """Values in one spelling each, none twice; the default is the one that runs where nothing is measured."""

    def f(x: X, *, tile: int = tune(values=[16, 32, 16], default=32), rate: float = tune(values=[1, 2.0])) -> X:
        raise NotImplementedError

    f = bound("tile rate", f)
    assert candidates(f) == [
        {"tile": 32, "rate": 1.0},
        {"tile": 16, "rate": 1.0},
        {"tile": 16, "rate": 2.0},
        {"tile": 32, "rate": 2.0},
    ]
    report = f.inspect(ArraySpec((8,)), arch="sm_90")
    assert report.called_as == "f(x=float32[8], tile=32, rate=1.0)"
    assert "  tuned      tile=32, rate=1.0, by default, not measured" in str(report).splitlines()
    assert str(report.tuned).startswith("f: not measured on sm_90, no device for N <= 8\n")


def test_a_default_that_require_refuses_gives_way_to_the_next() -> None:
    """What runs untuned can run."""

    def f(x: X, *, tile: Literal[16, 32, 64] = tune(default=64)) -> X:
        raise NotImplementedError

    f = bound("tile", f, require="N >= tile")
    assert [c["tile"] for c in candidates(f, 100)] == [64, 16, 32]
    assert [c["tile"] for c in candidates(f, 40)] == [16, 32]


def refused(function: Any, names: str = "tile", **keywords: Any) -> str:
    """The error of a decoration."""
    with pytest.raises((DeclarationError, ExpressionError)) as caught:
        bound(names, function, **keywords)
    return str(caught.value)


def test_what_cannot_be_chosen_from_is_refused_at_decoration() -> None:
    """With the parameter, what was given, and what to write."""

    def open_(x: X, *, tile: int = tune()) -> X:
        raise NotImplementedError

    def outside(x: X, *, tile: Literal[16, 32] = tune(values=[16, 48])) -> X:
        raise NotImplementedError

    def no_candidate(x: X, *, tile: Literal[16, 32] = tune(default=64)) -> X:
        raise NotImplementedError

    def untuned(x: X, *, tile: int = tune(configs=[{"tile": 1, "stages": 2}]), stages: int = 2) -> X:
        raise NotImplementedError

    def unnamed(x: X, *, tile: int = tune(configs=[{"stages": 2}]), stages: int = tune()) -> X:
        raise NotImplementedError

    def twice(x: X, *, tile: bool = tune(key="N"), stages: bool = tune(key="N")) -> X:
        raise NotImplementedError

    def key(x: X, *, tile: bool = tune(key="M")) -> X:
        raise NotImplementedError

    def itself(x: X, *, tile: bool = tune(key="tile")) -> X:
        raise NotImplementedError

    def many(x: X, *, tile: int = tune(values=range(MOST + 1))) -> X:
        raise NotImplementedError

    assert "lists no values to choose from" in refused(open_)
    assert "tile: int = tune(values=[...])" in refused(open_)
    assert "tile = 48 (int) is not allowed" in refused(outside)
    assert "the default of tune() is none of its candidates" in refused(no_candidate)
    assert "name 'stages', whose default is not tune()" in refused(untuned, "tile stages")
    assert "do not name 'tile'" in refused(unnamed, "tile stages")
    assert "tune(key=...) is given 2 times" in refused(twice, "tile stages")
    assert "'M'" in refused(key)
    assert "'tile'" in refused(itself)
    assert f"{MOST + 1} candidates" in refused(many)


def test_a_result_may_not_depend_on_what_is_chosen() -> None:
    """Results of candidates are compared: shapes and dtypes must be the call's own."""

    def shape(x: X, *, tile: Literal[16, 32] = tune()) -> Float32[Array, " N//tile"]:
        raise NotImplementedError

    def dtype(x: X, *, tile: Literal["float32", "float64"] = tune()) -> Float[Array, " N"]:
        raise NotImplementedError

    assert "'out' depends on 'tile', which is tuned" in refused(shape, tiles={"N": 1})
    assert "'out' depends on 'tile', which is tuned" in refused(dtype, dtypes={"out": "tile"})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"values": [1], "configs": [{"a": 1}]}, "not both"),
        ({"values": []}, "nothing to choose from"),
        ({"values": "abc"}, "is a list"),
        ({"configs": {"a": 1}}, "is a list"),
        ({"configs": [{"a": 1}, {"b": 1}]}, "the same parameters"),
        ({"size_class": "log"}, "power of two"),
        ({"rtol": -1}, "at least 0"),
    ],
)
def test_tune_refuses_what_never_can_be(given: dict[str, Any], said: str) -> None:
    """At the line that says it."""
    with pytest.raises(DeclarationError, match=said):
        tune(**given)


def test_signatures_show_and_copy_what_is_tuned() -> None:
    """As it was written; a copy of it means the same, and "unsaid" stays the one object."""
    shown = tune(values=[1, 2], default=2, key="N")
    assert repr(shown) == "tune(values=[1, 2], default=2, key=['N'])"
    assert repr(tune()) == "tune()"

    def f(x: X, *, tile: Literal[16, 32] = tune()) -> X:
        """A kernel."""
        raise NotImplementedError

    signature = inspect.signature(bound("tile", f))
    assert str(signature.parameters["tile"]) == "tile: 'Literal[16, 32]' = tune()"
    again = pickle.loads(pickle.dumps(tune()))
    assert isinstance(again, Tunable) and again.default is UNSAID and copy.deepcopy(tune()).default is UNSAID


def test_resources_of_a_tuned_function_are_those_of_its_default() -> None:
    """What needs no device compiles the default, and what is given."""

    def f(x: X, *, tile: Literal[16, 32] = tune()) -> X:
        raise NotImplementedError

    shared = "__shared__ float s[{{ tile }}]; s[threadIdx.x % {{ tile }}] = x[0]; out[0] = s[1];"
    f = specialize(Inline(KERNEL.replace("/* %s */", shared)))(f)
    assert resources(f, arch="sm_90")["sm_90"].static_shared_bytes == 64
    assert resources(f, arch="sm_90", tile=32)["sm_90"].static_shared_bytes == 128


def test_an_operator_of_torch_leaves_out_what_is_tuned() -> None:
    """In its schema a tuned parameter is optional: None leaves it to tuning."""
    from cuplate.backend.custom_op import schema

    def f(x: X, *, tile: Literal[16, 32] = tune(), order: Order = tune(), relu: bool = False) -> X:
        raise NotImplementedError

    f = bound("tile order.value relu", f)
    text = schema(f.reload.__self__.signature, ())
    assert text == "(Tensor x, *, SymInt? tile=None, str? order=None, bool relu=False) -> Tensor"


def test_check_draws_candidates_and_tied_ones_together() -> None:
    """Each is checked, and no combination that no call would choose; a value that is given to check is taken."""
    configs = [{"tile": 16, "stages": 2}, {"tile": 32, "stages": 3}]

    def f(x: X, *, tile: int = tune(configs=configs), stages: int = tune(), odd: bool = tune()) -> X:
        raise NotImplementedError

    f = bound("tile stages odd", f, require="odd == (tile == 16)")
    binding = f.reload.__self__.variants.binding
    drawn = [Drawer(binding, {}, 0, {}).draw(Random(0, n)).parameters for n in range(40)]
    assert {(d["tile"], d["stages"], d["odd"]) for d in drawn} == {(16, 2, True), (32, 3, False)}
    given = [Drawer(binding, {}, 0, {"tile": 16}).draw(Random(0, n)).parameters for n in range(20)]
    assert {d["tile"] for d in given} == {16}
