"""What one signature says, and every way in which it can be wrong: at decoration, with no GPU and no compiler."""

from __future__ import annotations

import copy
import enum
import inspect
import os
import pickle
import pydoc
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import pytest
from jaxtyping import Float, Float32, Float64, Int, Int32, Shaped

from cuplate import Array, DeclarationError, Inline, f16, f32, i8, specialize, u64
from cuplate.errors import CuplateError
from cuplate.signature import RESERVED, read_signature

SRC = Path(__file__).parents[1] / "src"
NOTHING = Inline('extern "C" __global__ void {{ kernel }}({{ args }}) {}')


class Mode(enum.Enum):
    FAST = 1
    EXACT = 2


class Two(NamedTuple):
    value: Float32[Array, " N"]
    place: Int32[Array, " N"]


def read(function: Any, **dtypes: str) -> Any:
    """The signature of a function."""
    return read_signature(function, dtypes=dtypes)


def refused(function: Any, **dtypes: str) -> str:
    """The text of the refusal."""
    with pytest.raises(DeclarationError) as caught:
        read(function, **dtypes)
    assert caught.value.function == function.__name__
    assert caught.value.facts["declared_at"].startswith(__file__)
    return str(caught.value)


def test_each_part_of_a_signature_is_one_thing() -> None:
    """Before * stand arrays and scalars, after it parameters; the return annotation is the output `out`."""

    def f(
        a: Float32[Array, "M K"], alpha: f32, n: int, x: float, flag: bool, *, tile: Literal[16, 32] = 16
    ) -> Float32[Array, "M K"]:
        raise NotImplementedError

    s = read(f)
    assert [a.name for a in s.arrays] == ["a"]
    assert [(c.name, c.dtype) for c in s.scalars] == [
        ("alpha", "float32"),
        ("n", "int64"),
        ("x", "float64"),
        ("flag", "bool"),
    ]
    assert [(p.name, p.kind, p.allowed, p.default) for p in s.parameters] == [("tile", "literal", (16, 32), 16)]
    assert [o.name for o in s.outputs] == ["out"] and s.axes == ("M", "K")


def test_annotated_scalars_carry_their_dtype() -> None:
    """`cuplate.f16` and its kind, and any Annotated with a NumPy scalar class or a dtype's name."""

    def f(a: f16, b: i8, c: u64, d: Annotated[float, "float32"], x: Float32[Array, " N"]) -> Float32[Array, " N"]:
        raise NotImplementedError

    assert [s.dtype for s in read(f).scalars] == ["float16", "int8", "uint64", "float32"]


def test_a_namedtuple_names_several_outputs() -> None:
    """A NamedTuple class gives the outputs' names, and is what a call returns."""

    def f(x: Float32[Array, " N"]) -> Two:
        raise NotImplementedError

    s = read(f)
    assert [o.name for o in s.outputs] == ["value", "place"] and s.result_type is Two

    def plain(x: Float32[Array, " N"]) -> tuple[Float32[Array, " N"], Float32[Array, " N"]]: ...

    assert "class Result(NamedTuple)" in refused(plain)


def test_local_classes_are_found() -> None:
    """String annotations may name classes of the scope that decorates, and these may have string annotations too."""

    class Local(NamedTuple):
        high: Float32[Array, " N"]
        low: Float32[Array, " N"]

    class Kind(enum.Enum):
        A = 1

    @specialize(Inline('extern "C" __global__ void {{ kernel }}({{ args }}) { /* {{ kind.value }} */ }'))
    def split(x: Float32[Array, " N"], *, kind: Kind = Kind.A) -> Local:
        raise NotImplementedError

    assert "float* __restrict__ low" in split.inspect(arch="sm_90").source


def test_axes_are_names_numbers_expressions_and_one_leading_fold() -> None:
    """`M`, `3`, `name=3`, `*name` first, and expressions of the other axes and the parameters."""

    def f(
        a: Float32[Array, "*batch M 3 c=4"],
        b: Float32[Array, " M+1"],
        *,
        k: int = 2,
    ) -> Float32[Array, "*batch M-1 2*k"]:
        raise NotImplementedError

    s = read(f)
    a, b = s.arrays
    assert [(x.name, x.size, x.folded) for x in a.axes] == [
        ("batch", None, True),
        ("M", None, False),
        (None, 3, False),
        ("c", 4, False),
    ]
    assert b.axes[0].expression.text == "M+1" and s.folded == {"batch"}
    assert s.outputs[0].axes[2].expression.names == {"k"}


def test_equal_unions_are_one_family_in_any_order() -> None:
    """`A | B` and `B | A` stand for one dtype a call."""

    def f(a: Float32[Array, " N"] | Float64[Array, " N"], b: Float64[Array, " N"] | Float32[Array, " N"]) -> None:
        raise NotImplementedError

    a, b = read(f).arrays
    assert a.family == b.family == ("float32", "float64")


def test_families_keep_the_dtypes_that_a_kernel_can_name() -> None:
    """`Float` and `Int` list ours only; `Shaped` is every dtype."""

    def f(a: Float[Array, " N"], b: Int[Array, " N"], c: Shaped[Array, " N"]) -> None:
        raise NotImplementedError

    a, b, c = read(f).arrays
    assert {"float16", "bfloat16", "float32", "float64"} <= set(a.dtypes) and "int32" not in a.dtypes
    assert "int64" in b.dtypes and "complex64" in c.dtypes and "bool" in c.dtypes


def test_an_optional_array_says_so() -> None:
    """`X | None = None` is an optional array."""

    def f(a: Float32[Array, " N"], b: Float32[Array, " N"] | None = None) -> Float32[Array, " N"]:
        raise NotImplementedError

    assert [a.optional for a in read(f).arrays] == [False, True]


@pytest.mark.parametrize(
    ("annotation", "kind", "nullable"),
    [
        (bool, "bool", False),
        (int, "int", False),
        (float, "float", False),
        (str, "str", False),
        (Mode, "enum", False),
        (list[int], "list", False),
        (tuple[int, ...], "list", False),
        (np.dtype, "dtype", False),
        (Any, "any", False),
        (Literal["a", "b"], "literal", False),
        (bool | None, "bool", True),
        (Literal[1] | None, "literal", True),
        (Annotated[float, "seconds"], "float", False),
    ],
)
def test_parameter_kinds(annotation: Any, kind: str, nullable: bool) -> None:
    """Every annotation that can be enforced, and `X | None`."""

    def f(a: Float32[Array, " N"], *, p: Any) -> Float32[Array, " N"]:
        raise NotImplementedError

    f.__annotations__["p"] = annotation
    (p,) = read(f).parameters
    assert (p.kind, p.nullable) == (kind, nullable)


# what is refused ------------------------------------------------------------------------------------------------------


def test_a_missing_annotation_is_refused() -> None:
    """An argument without an annotation is named, with what it could be."""

    def f(a, b: f32) -> Float32[Array, " N"]:  # type: ignore[no-untyped-def]
        raise NotImplementedError

    message = refused(f)
    assert message.startswith("f: argument 'a' has no annotation.") and "cuplate.f32" in message


def test_a_missing_return_annotation_is_refused() -> None:
    """Without one nobody knows what to allocate."""

    def f(a: Float32[Array, " N"]):  # type: ignore[no-untyped-def]
        raise NotImplementedError

    assert "the return annotation is missing" in refused(f)


def test_an_unknown_annotation_name_is_refused() -> None:
    """A name that exists for type checkers only is named."""

    def f(a: Float23[Array, " N"]) -> None:  # type: ignore[name-defined] # noqa: F821
        raise NotImplementedError

    assert "'Float23' is not defined" in refused(f)


def test_an_annotation_that_fails_is_refused() -> None:
    """Whatever an annotation raises becomes a DeclarationError, with the cause behind it."""

    def f(a: np.float23) -> None:  # type: ignore[name-defined]
        raise NotImplementedError

    assert "an annotation cannot be evaluated" in refused(f)


@pytest.mark.parametrize("name", ["block", "args", "kernel", "index_t", "arch", "double", "threadIdx", "range", "_x"])
def test_reserved_names_are_refused_everywhere(name: str) -> None:
    """As argument, parameter and axis: names that the template, C++ or CUDA have taken."""
    assert name in RESERVED or name.startswith("_")
    module: dict[str, Any] = {**globals()}
    for signature in (f"{name}: f32", f"x: f32, *, {name}: int = 1", f"x: Float32[Array, '{name}']"):
        exec(f"def f({signature}) -> None: ...", module)
        with pytest.raises(DeclarationError, match=f"'{name}' is a reserved name"):
            read(module["f"])


@pytest.mark.parametrize("name", ["out", "stream"])
def test_out_and_stream_may_be_listed_for_type_checkers_only(name: str) -> None:
    """After *, with the default None; anywhere else they are reserved."""
    module: dict[str, Any] = {**globals()}
    exec(f"def f(x: Float32[Array, 'N'], *, {name}: Any = None) -> Float32[Array, 'N']: ...", module)
    assert read(module["f"]).parameters == ()
    for signature in (f"{name}: f32", f"x: f32, *, {name}: Any", f"x: f32, *, {name}: Any = 1"):
        exec(f"def f({signature}) -> None: ...", module)
        with pytest.raises(DeclarationError, match=f"'{name}' is reserved"):
            read(module["f"])


def test_a_name_is_one_thing() -> None:
    """An axis, an argument, a parameter, an output: two of them under one name are named both."""

    def axis_and_argument(N: int, x: Float32[Array, " N"]) -> None: ...

    def axis_and_parameter(x: Float32[Array, " N"], *, N: int = 1) -> None: ...

    def size_of_the_output(x: Float32[Array, " N"], *, bins: int = 256) -> Float32[Array, " bins"]: ...

    def argument_and_output(value: Float32[Array, " N"]) -> Two: ...

    assert "'N' is an argument and an axis" in refused(axis_and_argument)
    assert "'N' is a parameter and an axis" in refused(axis_and_parameter)
    assert '"(bins)" where its value is the size' in refused(size_of_the_output)
    assert "'value' is an argument and an output" in refused(argument_and_output)


def test_defaults_of_run_time_values_are_refused() -> None:
    """A scalar or a required array with a default would be a constant that looks like an argument."""

    def scalar(x: Float32[Array, " N"], alpha: f32 = 1.0) -> None: ...

    def array(x: Float32[Array, " N"] = None) -> None: ...  # type: ignore[assignment]

    def optional(x: Float32[Array, " N"] | None) -> None: ...

    assert "the scalar argument 'alpha' cannot have a default" in refused(scalar)
    assert "the array 'x' cannot have a default" in refused(array)
    assert "the optional array 'x' needs the default None" in refused(optional)


def test_a_default_outside_its_annotation_is_refused_at_decoration() -> None:
    """Every call would be refused, so the import is."""
    with pytest.raises(DeclarationError, match="the default of parameter 'tile' is outside") as caught:

        @specialize(Inline('extern "C" __global__ void {{ kernel }}({{ args }}) { /* {{ tile }} */ }'))
        def f(x: Float32[Array, " N"], *, tile: Literal[16, 32] = 8) -> Float32[Array, " N"]:  # type: ignore[assignment]
            raise NotImplementedError

    assert caught.value.facts["given"] == "tile: Literal[16, 32] = 8" and caught.value.facts["allowed"] == "16, 32"


def test_a_default_of_none_needs_the_annotation_to_say_so() -> None:
    """`relu: bool = None` is what people write; the message has the annotation that they mean."""
    with pytest.raises(DeclarationError) as caught:

        @specialize(Inline('extern "C" __global__ void {{ kernel }}({{ args }}) { /* {{ relu }} */ }'))
        def f(x: Float32[Array, " N"], *, relu: bool = None) -> Float32[Array, " N"]:  # type: ignore[assignment] # noqa: RUF013
            raise NotImplementedError

    assert caught.value.facts["try_"] == "bool | None"


def test_an_argument_that_is_neither_array_nor_scalar_is_refused() -> None:
    """A string before * is most likely a parameter in the wrong place."""

    def f(x: Float32[Array, " N"], mode: str) -> None: ...

    message = refused(f)
    assert "argument 'mode' has an annotation that is neither" in message and "move it after *" in message


def test_parameters_that_cannot_be_enforced_are_refused() -> None:
    """A union, an array, an arbitrary class, a C type: no Python value is a float32."""

    def union(x: Float32[Array, " N"], *, p: int | str = 1) -> None: ...

    def array(x: Float32[Array, " N"], *, p: Float32[Array, " N"]) -> None: ...

    def other(x: Float32[Array, " N"], *, p: Path) -> None: ...

    def narrow(x: Float32[Array, " N"], *, p: f32) -> None: ...

    assert "parameter 'p' is a union" in refused(union)
    assert "parameter 'p' is annotated as an array" in refused(array)
    assert "parameter 'p' is annotated as float32" in refused(narrow)
    assert "parameter 'p' has an annotation that cannot be enforced" in refused(other)


def test_star_arguments_are_refused() -> None:
    """A kernel has a fixed list."""

    def args(x: Float32[Array, " N"], *more: Any) -> None: ...

    def kwargs(x: Float32[Array, " N"], **more: Any) -> None: ...

    assert "*more" in refused(args).splitlines()[0] and "**more" in refused(kwargs).splitlines()[0]


@pytest.mark.parametrize(
    ("axes", "says"),
    [
        ("...", "'...' of x is not supported"),
        ("_", "'_' of x is not supported"),
        ("#N", "'#N' of x is not supported"),
        ("N *B", "'*B' of x must stand first"),
        ("N K+J", "J"),
    ],
)
def test_axes_without_a_size_are_refused(axes: str, says: str) -> None:
    """A kernel needs every size."""

    def f(x: Any, k: Float32[Array, " K"]) -> None: ...

    f.__annotations__["x"] = Float32[Array, axes]
    with pytest.raises(DeclarationError) as caught:
        read(f)
    assert says in str(caught.value)


def test_an_output_axis_must_come_from_an_argument() -> None:
    """An output's axis that no argument has is named, with the nearest."""

    def f(x: Float32[Array, " rows"]) -> Float32[Array, " row"]: ...

    message = refused(f)
    assert "axis 'row' of the output is not an axis of any argument" in message and "'rows'" in message


def test_an_axis_of_an_optional_array_alone_is_refused() -> None:
    """Its size would be unknown in half of the calls."""

    def f(x: Float32[Array, " N"], b: Float32[Array, " M"] | None = None) -> Float32[Array, " N"]: ...

    assert "axis 'M' is only known from the optional array 'b'" in refused(f)


def test_one_name_is_not_both_one_axis_and_several() -> None:
    """`*B` here and `B` there would be one size, and two shapes."""

    def f(x: Float32[Array, "*B N"], y: Float32[Array, " B"]) -> Float32[Array, "*B N"]: ...

    def g(y: Float32[Array, " B"]) -> Float32[Array, "*B"]: ...

    assert "axis 'B' is several axes elsewhere (*B), and one in 'y'" in refused(f)
    assert "axis 'B'" in refused(g)


def test_an_open_output_dtype_is_refused() -> None:
    """An output of a family that no argument has needs a dtype from somewhere."""

    def f(x: Int32[Array, " N"]) -> Float[Array, " N"]: ...

    message = refused(f)
    assert "the dtype of output 'out' is open" in message and 'dtypes={"out": "<parameter>"}' in message


def test_dtypes_names_an_array_and_a_parameter() -> None:
    """`dtypes=` that names nothing is refused, with what there is."""

    def f(x: Float32[Array, " N"], *, kind: str = "float32") -> Float[Array, " N"]: ...

    assert "dtypes= names 'y', which is no array" in refused(f, y="kind")
    assert "dtypes= names 'sort', which is no parameter" in refused(f, out="sort")
    assert read(f, out="kind").outputs[0].dtype_parameter == "kind"


def test_a_method_is_refused_as_a_method() -> None:
    """Not as an argument `self` that lacks an annotation."""

    class Holder:
        def scale(self, x: Float32[Array, " N"]) -> Float32[Array, " N"]: ...

    assert "is a method" in refused(Holder.scale)


def test_a_lambda_and_a_class_are_refused() -> None:
    """A kernel needs a name, and a signature."""
    with pytest.raises(DeclarationError, match="<lambda> has no name"):
        specialize(NOTHING)(lambda x: x)
    with pytest.raises(DeclarationError, match="decorates a function"):
        specialize(NOTHING)(Mode)


# what survives --------------------------------------------------------------------------------------------------------


@specialize(Inline('extern "C" __global__ void {{ kernel }}({{ args }}) { /* {{ tile }} */ }'))
def survivor(x: Float32[Array, " N"], *, tile: Literal[16, 32] = 16) -> Float32[Array, " N"]:
    """The doc that users read."""
    return x + tile


def test_a_function_stays_a_function_b61() -> None:
    """B61: name, doc, module, annotations and signature are the user's, for every tool that asks."""
    assert survivor.__name__ == survivor.__qualname__ == "survivor"
    assert survivor.__module__ == __name__ and survivor.__doc__ == "The doc that users read."
    assert list(inspect.signature(survivor).parameters) == ["x", "tile"]
    assert inspect.signature(survivor).parameters["tile"].default == 16
    assert survivor.__annotations__["tile"] == "Literal[16, 32]"
    assert inspect.isfunction(survivor) and not inspect.isclass(survivor)
    assert "survivor(x:" in pydoc.render_doc(survivor, renderer=pydoc.plaintext)
    assert survivor.reference(1.0, tile=2) == 3.0


def test_a_function_pickles_and_copies_by_reference() -> None:
    """As every plain function does."""
    module = sys.modules.setdefault(
        __name__, sys.modules.get(__name__) or inspect.getmodule(survivor)
    )  # importlib mode
    assert getattr(module, "survivor", survivor) is survivor
    assert copy.copy(survivor) is survivor and copy.deepcopy(survivor) is survivor
    assert pickle.loads(pickle.dumps(survivor)) is survivor


# where code comes from ------------------------------------------------------------------------------------------------

BODY = """
{future}
import os, sys
from jaxtyping import Float32
from cuplate import Array, Inline, specialize

@specialize(Inline('extern "C" __global__ void {{{{ kernel }}}}({{{{ args }}}}) {{}}'))
def k(x: Float32[Array, "N"]) -> Float32[Array, "N"]:
    "doc"
    raise NotImplementedError

assert k.__doc__ == "doc" and k.__module__ == "__main__", k.__module__
assert not [m for m in sys.modules if m.split(".")[0] in ("cuda", "cupy", "torch")], "decorating loaded CUDA"
assert not os.path.exists(os.environ["CUPLATE_CACHE_DIR"]), "decorating touched the disk"
import inspect
assert str(inspect.signature(k)).startswith("(x:")
print("decorated")
"""


@pytest.mark.parametrize("future", ["", "from __future__ import annotations"])
@pytest.mark.parametrize("way", ["file", "stdin", "-c", "exec", "notebook"])
def test_decorating_works_wherever_code_comes_from_b63(way: str, future: str, tmp_path: Path) -> None:
    """B63, B14: a file, standard input, -c, exec, a notebook; no driver, no CUDA, no writable place is needed."""
    body = BODY.format(future=future)
    env = {**os.environ, "PYTHONPATH": str(SRC), "CUPLATE_CACHE_DIR": "/proc/nowhere", "CUDA_VISIBLE_DEVICES": ""}
    command, given = [sys.executable, "-W", "error"], None
    if way == "file":
        (tmp_path / "user.py").write_text(body)
        command.append(str(tmp_path / "user.py"))
    elif way == "stdin":
        command.append("-")
        given = body
    elif way == "-c":
        command += ["-c", body]
    elif way == "exec":
        command += ["-c", f"exec({body!r}, {{'__name__': '__main__'}})"]
    else:  # a notebook's cells: a __main__ without a file, code names that are no files
        no_file = "import sys; del sys.modules['__main__'].__dict__['__file__']"
        cell = f"{no_file}\nexec(compile({body!r}, '<ipython-input-1>', 'exec'))"
        (tmp_path / "kernel.py").write_text(cell)
        command.append(str(tmp_path / "kernel.py"))
    done = subprocess.run(command, input=given, env=env, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "decorated"), done.stderr


def test_exec_without_a_module_name_works() -> None:
    """Bare globals, as a template engine or a test runner may give them; NamedTuple outputs of theirs too."""
    scope: dict[str, Any] = {}
    exec(
        "from __future__ import annotations\n"
        "from typing import NamedTuple\nfrom jaxtyping import Float32\nfrom cuplate import Array, Inline, specialize\n"
        "class Pair(NamedTuple):\n    a: Float32[Array, 'N']\n    b: Float32[Array, 'N']\n"
        "@specialize(Inline('extern \"C\" __global__ void {{ kernel }}({{ args }}) {}'))\n"
        "def k(x: Float32[Array, 'N']) -> Pair: ...\n",
        scope,
    )
    assert "float* __restrict__ b" in scope["k"].inspect(arch="sm_90").source


def test_every_refusal_is_one_of_ours() -> None:
    """DeclarationError is a CuplateError and a TypeError, so that both kinds of handler see it."""
    assert issubclass(DeclarationError, CuplateError) and issubclass(DeclarationError, TypeError)


async def later(x: Float32[Array, " N"]) -> Float32[Array, " N"]:
    """A coroutine."""
    raise NotImplementedError


def some(x: Float32[Array, " N"]) -> Any:
    """A generator."""
    yield x


@pytest.mark.parametrize("function", [later, some])
def test_coroutines_and_generators_are_refused(function: Any) -> None:
    """A call returns arrays, so what promises something else is no reference."""
    with pytest.raises(DeclarationError, match="coroutine or generator"):
        read_signature(function, dtypes={})
