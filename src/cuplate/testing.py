"""Kernel against reference on drawn calls, and what kernels take on each architecture: for tests, no GPU needed.

from cuplate.testing import check, resources

check(saxpy)
resources(saxpy, arch=["sm_80", "sm_90"])["sm_90"].registers
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from cuplate.binding import Binding
from cuplate.draw import Drawer, Example, Random, Replayed, with_gaps
from cuplate.errors import ArgumentError, CuplateError
from cuplate.hints import named_keywords
from cuplate.inspection import Inspection
from cuplate.signature import ArrayArgument, Signature

if TYPE_CHECKING:
    from cuplate.cubin import Resources
    from cuplate.report import Report

__all__ = ["CheckError", "Checked", "check", "reports", "resources"]

Draw = Callable[[np.random.Generator, tuple[int, ...], str], Any]
"""Makes the data of one argument from a generator, a shape and a dtype's name."""

__tracebackhide__ = True  # pytest shows the line that asked, and the message

_ENGINES = ("hypothesis", "random")
_LARGE_SHARE = 0.25  # of integer arrays that have large elements, and of these among the others


class CheckError(CuplateError, AssertionError):
    """A kernel and its reference disagree.

    Attributes
    ----------
    example : int or str
    seed : int
        Repeat it with ``check(f, seed=seed, example=example)`` and the other arguments of the check.
    sizes, parameters : dict
        As drawn.
    array : str
        Name of the output or mutated array.
    index : tuple of int or None
        First element that differs; None when shape or dtype do.
    got, wanted : object
        There: the kernel's value, and the reference's.
    largest_error : float
        Over the whole array; NaN where one side is not finite.
    """


@dataclass(frozen=True, slots=True)
class Checked:
    """What a check has run; ``str()`` says it in one line.

    Attributes
    ----------
    function : str
    examples : int
        How many ran, all of them right.
    seed : int
    largest_share : float
        Largest error, as a share of what was allowed: 1 is the limit.
    drawn : tuple of str
        The calls, one line each.
    device : str
        ``"cuda"`` or ``"cpu"``: where the arrays were, and so where the kernel ran.
    engine : str
        ``"hypothesis"`` or ``"random"``: what drew the calls.
    """

    function: str
    examples: int
    seed: int
    largest_share: float
    drawn: tuple[str, ...]
    device: str
    engine: str

    def __str__(self) -> str:
        where = {"cuda": "a GPU", "cpu": "the CPU backend"}[self.device]
        return (
            f"{self.function}: {self.examples} calls right on {where}, largest error {self.largest_share:.2g} of what "
            f"is allowed (drawn by {self.engine}, seed {self.seed})"
        )


@named_keywords(ArgumentError)
def check(
    f: Any,
    *,
    examples: int = 20,
    seed: int = 0,
    example: int | str | None = None,
    sizes: Mapping[str, Any] | None = None,
    minimum: int | Mapping[str, int] = 0,
    parameters: Mapping[str, Any] | None = None,
    data: Mapping[str, Draw] | None = None,
    arrays: Any = None,
    rtol: float | None = None,
    atol: float | None = None,
    launch: Callable[..., Any] | None = None,
    engine: str | None = None,
) -> Checked:
    """Call a specialized function on drawn arguments and compare with its reference.

    The reference runs on NumPy copies in double precision (integers as int64), so it is the better of the two; of an
    integer that the output's dtype cannot hold, its value modulo 2**bits counts, which CUDA C++ and NumPy give. Sizes
    are ragged, at the edges of tiles, now and then 1 and 0. Where the kernel reads an array's order or strides, arrays
    of such layouts are drawn too. On the CPU backend its checker looks on, and what it finds fails the check as well.

    Parameters
    ----------
    f : specialized function
        With a reference in its body.
    examples : int
        How many calls.
    seed : int, 0 or more
        Equal seeds draw equal examples: with the engine ``"random"`` everywhere and whatever `examples` is, with
        ``"hypothesis"`` in one environment.
    example : int or str, optional
        Run only this one, to repeat a failure, as its message says it.
    sizes : mapping of str to int or sequence of int, optional
        Axis name to its size, or sizes to choose from; for a folded ``*batch`` a list of tuples.
    minimum : int or mapping of str to int
        Smallest size of every axis, or of those named; 1 keeps empty arrays out.
    parameters : mapping of str to object or sequence, optional
        Parameter to its value, or to a list of values to choose from. Without it ``Literal``, ``bool`` and ``Enum``
        parameters are drawn (as ``require=`` allows), and the others keep their default.
    data : mapping of str to callable, optional
        Argument name to ``draw(generator, shape, dtype)``; default standard normal floats, and
        integers up to 100, in one array of four some up to the largest whose sum its dtype holds. An array whose values
        are indices, or of a smaller range, needs its own.
    arrays : str, module or callable, optional
        ``"cupy"``, ``"torch"`` (on its GPU), ``"numpy"`` (on the CPU backend), a module with ``asarray``, or a function
        from a NumPy array to one of the library's. Default ``"cupy"`` where CuPy and a GPU are there, else ``"numpy"``.
    rtol, atol : float, optional
        An element may be off by ``atol + rtol * |wanted|``. When neither is given, by
        ``4 * eps * (4 + sqrt(n)) * scale`` for floats of the output's dtype, where n bounds the terms of a sum (largest
        axis, or elements read for one written) and scale is the largest magnitude among inputs and result; 64 instead
        of 4 with ``fast_math``. Integers and bools must be equal.
    launch : callable, optional
        What is called instead of `f`, with the same arguments: another route to the same kernel.
    engine : str, optional
        ``"hypothesis"`` (default where it is installed) goes on from a failure to the simplest call that fails.
        ``"random"`` draws by itself, and stops at the first.

    Returns
    -------
    Checked

    Raises
    ------
    CheckError
        A result differs; says where, by how much, and how to repeat it.
    KernelError
        The CPU backend's checker found what no kernel may do.
    ArgumentError
        `f` is no specialized function, has no reference, or its arguments cannot be drawn.

    Examples
    --------
    >>> check(saxpy, sizes={"N": range(1, 5000)}).examples  # doctest: +SKIP
    20
    """
    binding = _binding(f)
    engine = _engine(engine, example)
    drawer = Drawer(binding, sizes or {}, minimum, parameters or {})
    asked: dict[str, Any] = {"sizes": sizes, "minimum": minimum or None, "parameters": parameters, "data": data}
    asked |= {"rtol": rtol, "atol": atol}
    runner = _Runner(binding, f.reference, launch or f, _library(arrays), data or {}, rtol, atol, _written(asked))
    run = _Run(runner, seed)
    if isinstance(example, str):
        run(_replayed(drawer, example))
    elif engine == "hypothesis":
        from cuplate.search import search

        search(drawer, run, examples=examples, seed=seed)
    else:
        for number in range(examples) if example is None else [example]:
            run(drawer.draw(Random(seed, number)))
    return Checked(binding.signature.function, len(run.drawn), seed, run.share, tuple(run.drawn), run.device, engine)


class _Run:
    """Runs examples, and remembers those that were right."""

    def __init__(self, runner: _Runner, seed: int) -> None:
        self._runner, self._seed = runner, seed
        self.drawn: list[str] = []
        self.share = 0.0
        self.device = "cpu"

    def __call__(self, example: Example) -> None:
        share, self.device = self._runner.run(example, self._seed)
        self.share = max(self.share, share)
        self.drawn.append(str(example))


def _engine(engine: str | None, example: int | str | None) -> str:
    """Who draws: a number names a call of ``"random"``, a text one of ``"hypothesis"``."""
    if engine not in (None, *_ENGINES):
        raise ArgumentError("engine= is none.", given=repr(engine), allowed=", ".join(map(repr, _ENGINES)))
    if example is not None:
        return "random" if isinstance(example, int) else "hypothesis"
    return engine or ("hypothesis" if find_spec("hypothesis") else "random")


def _written(asked: Mapping[str, Any]) -> str:
    """What decides a drawn call beside seed and name, as it was given; ``...`` for what has no short text."""
    given = {name: repr(value) for name, value in asked.items() if value is not None}
    return "".join(f", {name}={text if '<' not in text else '...'}" for name, text in given.items())


def _replayed(drawer: Drawer, name: str) -> Example:
    try:
        example = drawer.attempt(Replayed(name))
    except ValueError:
        example = None
    if example is None:
        raise ArgumentError(
            "example= is of another function, or of a check with other arguments.",
            function=drawer.function,
            given=repr(name),
        )
    return example


def resources(f: Any, /, *args: Any, arch: str | Iterable[str], **parameters: Any) -> dict[str, Resources]:
    """What a kernel takes on each of several architectures: registers, spills, stack, shared memory.

    Parameters
    ----------
    f : specialized function
    *args, **parameters
        As for ``f.compile``: arrays may be left out, or be `cuplate.ArraySpec`.
    arch : str or iterable of str
        ``["sm_80", "sm_90"]``; compiled for each, which needs no GPU.

    Returns
    -------
    dict of str to Resources
        By architecture, in the order given.

    Raises
    ------
    CompileError, ToolchainError
        With a note that says for which architecture.

    Examples
    --------
    >>> from cuplate.kernels import matmul_epilogue
    >>> used = resources(matmul_epilogue, "float32", arch=["sm_80", "sm_90"], tile=16)
    >>> {arch: r.static_shared_bytes for arch, r in used.items()}
    {'sm_80': 2048, 'sm_90': 2048}
    """
    return {arch: report.cubin.resources for arch, report in reports(f, *args, arch=arch, **parameters).items()}


def reports(f: Any, /, *args: Any, arch: str | Iterable[str], **parameters: Any) -> dict[str, Report]:
    """``f.inspect`` for each of several architectures; see `resources`."""
    _inspection(f, "resources")
    made: dict[str, Report] = {}
    for one in [arch] if isinstance(arch, str) else arch:
        try:
            made[one] = f.inspect(*args, arch=one, **parameters)
        except CuplateError as error:
            error.add_note(f"compiling for {one}")
            raise
    if not made:
        raise ArgumentError("arch= names no architecture.", function=f.__name__, try_='arch=["sm_80", "sm_90"]')
    return made


def _inspection(f: Any, what: str) -> Inspection:
    inspection = getattr(getattr(f, "inspect", None), "__self__", None)
    if not isinstance(inspection, Inspection):
        raise ArgumentError(
            f"{what} takes a specialized function.", given=f"{f!r:.60}", try_=f"{what}(f), @specialize over f"
        )
    return inspection


def _binding(f: Any) -> Binding:
    """The binding behind a specialized function."""
    binding = _inspection(f, "check").variants.binding
    if not binding.signature.arrays:
        raise ArgumentError("no array argument gives sizes to draw.", function=binding.signature.function)
    return binding


def _library(arrays: Any) -> Callable[[Any], Any]:
    """A function from a NumPy array to an array that the call takes."""
    if arrays is None:
        arrays = "cupy" if _has_gpu() else "numpy"
    if arrays == "cupy":
        import cupy

        return cupy.asarray  # type: ignore[no-any-return]
    if arrays == "torch":
        import torch

        return lambda host: torch.as_tensor(host, device="cuda")
    if arrays == "numpy":
        return np.array
    if hasattr(arrays, "asarray"):
        return arrays.asarray  # type: ignore[no-any-return]
    if callable(arrays):
        return arrays  # type: ignore[no-any-return]
    raise ArgumentError(
        "arrays= is no array library.",
        given=repr(arrays),
        allowed='"cupy", "torch", "numpy", a module with asarray, or a function from a NumPy array',
    )


def _has_gpu() -> bool:
    """Whether CuPy is there, and a GPU that it can use."""
    if find_spec("cupy") is None:
        return False
    try:
        import cupy

        return bool(cupy.cuda.runtime.getDeviceCount())
    except Exception:  # its own error for no driver or no device, ImportError for a library that it lacks
        return False


# running --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Runner:
    binding: Binding
    reference: Callable[..., Any]
    launch: Callable[..., Any]
    put: Callable[[Any], Any]
    data: Mapping[str, Draw]
    rtol: float | None
    atol: float | None
    asked: str

    @property
    def signature(self) -> Signature:
        return self.binding.signature

    def run(self, example: Example, seed: int) -> tuple[float, str]:
        """Run one example; the largest error as a share of what is allowed, and the device.

        Raises
        ------
        CheckError
        """
        try:
            host = self._make_data(example, seed)
            wanted = self._call_reference(host, example)
            got, device = self._call(host, example)
        except Exception as error:
            error.add_note(f"in cuplate.testing.check, {self._repeat(example, seed)}: {example}")
            raise
        shares = [self._compare(name, got[name], wanted[name], host, example, seed) for name in wanted]
        return max(shares, default=0.0), device

    def _repeat(self, example: Example, seed: int) -> str:
        return f"check({self.signature.function}, seed={seed}, example={example.name!r}{self.asked})"

    def _make_data(self, example: Example, seed: int) -> dict[str, Any]:
        """Host arrays and scalars by argument name; None for an absent optional array."""
        rng = np.random.default_rng([seed, example.data, 1])
        host: dict[str, Any] = {}
        for argument in self.signature.arguments:
            name = argument.name
            if isinstance(argument, ArrayArgument):
                shape = example.shapes.get(name)
                host[name] = None if shape is None else self._draw(rng, name, shape, example.dtypes[name])
            else:
                host[name] = self._draw(rng, name, (), argument.dtype).item()
        return host

    def _draw(self, rng: np.random.Generator, name: str, shape: tuple[int, ...], dtype: str) -> Any:
        drawn = self.data[name](rng, shape, dtype) if name in self.data else _random(rng, shape, dtype)
        array = np.asarray(drawn, dtype=dtype)
        if array.shape != shape:
            raise ArgumentError(
                f"data[{name!r}] made an array of shape {array.shape}, not {shape}.", function=self.signature.function
            )
        return array

    def _call_reference(self, host: Mapping[str, Any], example: Example) -> dict[str, Any]:
        values = {name: _wide(v) if isinstance(v, np.ndarray) else v for name, v in host.items()}
        try:
            result = self.reference(*values.values(), **example.parameters)
        except NotImplementedError as error:
            raise ArgumentError(
                "there is no reference to compare with.",
                function=self.signature.function,
                try_="a body that says the same with arrays: return alpha * x + y",
            ) from error
        return {n: np.asarray(v) for n, v in (self._outputs(result) | self._mutated(values)).items()}

    def _call(self, host: Mapping[str, Any], example: Example) -> tuple[dict[str, Any], str]:
        values = {
            name: self._placed(v, example.layouts[name]) if isinstance(v, np.ndarray) else v for name, v in host.items()
        }
        result = self.launch(*values.values(), **example.parameters)
        on_gpu = any(hasattr(v, "__cuda_array_interface__") for v in values.values())
        got = {n: _to_host(v) for n, v in (self._outputs(result) | self._mutated(values)).items()}
        return got, "cuda" if on_gpu else "cpu"

    def _outputs(self, result: Any) -> dict[str, Any]:
        outputs = self.signature.outputs
        if self.signature.result_type is None:
            return {outputs[0].name: result} if outputs else {}
        return {o.name: value for o, value in zip(outputs, result, strict=True)}

    def _mutated(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {name: values[name] for name in self.binding.mutates if values[name] is not None}

    def _placed(self, host: Any, layout: str) -> Any:
        """The library's own copy of an array, in a layout."""
        if layout == "F":
            return self.put(host.T.copy()).T
        if layout == "C":
            return self.put(host.copy())
        index = tuple(slice(n) for n in host.shape) if host.ndim > 1 else (slice(None, None, 2),)
        base = np.full(with_gaps(host.shape), 77, host.dtype)  # what a kernel must not read
        base[index] = host
        return self.put(base)[index]

    def _compare(self, name: str, got: Any, wanted: Any, host: Mapping[str, Any], example: Example, seed: int) -> float:
        shape, dtype = (
            example.outputs[name] if name in example.outputs else (example.shapes[name], example.dtypes[name])
        )
        if (got.shape, got.dtype.name) != (shape, dtype) or wanted.shape != shape:
            raise self._error(
                f"{name} is {got.dtype.name}{list(got.shape)} from the kernel, {wanted.dtype.name}{list(wanted.shape)} "
                f"from the reference, and {dtype}{list(shape)} by the annotation.",
                example, seed, _array=name, _index=None, _got=got.shape, _wanted=wanted.shape, _largest_error=math.nan,
            )  # fmt: skip
        errors = _errors(got, wanted)
        allowed = self._allowed(got, wanted, host)
        wrong = ~(errors <= allowed)  # NaN is wrong
        if wrong.any():
            raise self._mismatch(name, got, wanted, errors, allowed, wrong, example, seed)
        with np.errstate(divide="ignore", invalid="ignore"):
            shares = np.where(errors == 0, 0.0, errors / allowed)
        return float(shares.max(initial=0.0))

    def _allowed(self, got: Any, wanted: Any, host: Mapping[str, Any]) -> Any:
        """Largest error of each element."""
        if got.dtype.kind not in "fc":
            return np.zeros(got.shape)
        size = np.abs(np.where(np.isfinite(wanted), wanted, 0)).astype(np.float64)
        if self.rtol is not None or self.atol is not None:
            return (self.atol or 0.0) + (self.rtol or 0.0) * size
        inputs = [v for v in host.values() if isinstance(v, np.ndarray)]
        finite = [np.abs(np.where(np.isfinite(v), v, 0)).max(initial=0) for v in inputs if v.dtype.kind != "b"]
        scale = max([float(size.max(initial=0)), *map(float, finite)])
        terms = max([1, *(n for v in inputs for n in v.shape), *(v.size // max(1, got.size) for v in inputs)])
        factor = 64 if self.binding.options.fast_math else 4
        return np.full(got.shape, factor * float(np.finfo(got.dtype).eps) * (4 + math.sqrt(terms)) * scale)

    def _mismatch(
        self, name: str, got: Any, wanted: Any, errors: Any, allowed: Any, wrong: Any, example: Example, seed: int
    ) -> CheckError:
        index = tuple(int(i) for i in np.argwhere(wrong)[0])
        place = f"{name}[{', '.join(map(str, index))}]" if index else name
        worst = tuple(int(i) for i in np.unravel_index(np.argmax(np.where(wrong, errors, -1)), got.shape))
        largest = float(errors[worst]) if np.isfinite(errors).all() else math.nan
        return self._error(
            f"{place} is {got[index].item()!r}, the reference says {wanted[index].item()!r}.",
            example,
            seed,
            mismatches=f"{int(wrong.sum())} of {got.size} elements, largest error {largest:.3g} at {list(worst)}, "
            f"allowed {float(allowed[worst]):.3g}",
            _array=name,
            _index=index,
            _got=got[index].item(),
            _wanted=wanted[index].item(),
            _largest_error=largest,
        )

    def _error(self, summary: str, example: Example, seed: int, **facts: Any) -> CheckError:
        sizes = ", ".join(f"{n} = {s}" for n, s in example.sizes.items())
        return CheckError(
            summary,
            function=self.signature.function,
            given=str(example),
            axes=sizes or None,
            repeat=self._repeat(example, seed),
            _example=example.name,
            _seed=seed,
            _sizes=dict(example.sizes),
            _parameters=dict(example.parameters),
            **facts,
        )


def _random(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Any:
    kind = np.dtype(dtype).kind
    if kind == "b":
        return rng.random(shape) < 0.5
    if kind in "iu":
        values = rng.integers(0 if kind == "u" else -100, 101, size=shape).astype(dtype)
        return _with_large(rng, values) if shape and rng.random() < _LARGE_SHARE else values
    if kind == "c":
        return rng.standard_normal(shape) + 1j * rng.standard_normal(shape)
    return rng.standard_normal(shape)


def _with_large(rng: np.random.Generator, values: Any) -> Any:
    """Some of the integers large, so that what loses bits is found, and none so large that their sum overflows."""
    limit = np.iinfo(values.dtype).max // max(1, values.size)
    if limit <= 100:
        return values
    low = 0 if values.dtype.kind == "u" else -limit
    large = rng.integers(low, limit, size=values.shape, dtype=values.dtype, endpoint=True)
    return np.where(rng.random(values.shape) < _LARGE_SHARE, large, values)


def _wide(array: Any) -> Any:
    """A copy in the widest dtype of its kind; uint64 stays, as int64 cannot hold it."""
    if array.dtype.kind in "iu" and array.dtype != np.uint64:
        return array.astype(np.int64)
    wide = {"f": np.float64, "c": np.complex128}.get(array.dtype.kind, array.dtype)
    return array.astype(wide)


def _to_host(array: Any) -> Any:
    """A NumPy array of what a call returned: CuPy's, torch's or any other library's."""
    if hasattr(array, "get"):
        return array.get()
    if hasattr(array, "detach"):
        return array.detach().cpu().numpy()
    return np.asarray(array)


def _errors(got: Any, wanted: Any) -> Any:
    """Distance of each element, 0 where both are the same infinity or NaN, else NaN where one is not finite."""
    if got.dtype.kind not in "fc":
        return _exact_errors(got, wanted)
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = wanted.astype(got.dtype)
        wanted = np.where(np.isinf(rounded), rounded, wanted)  # past the dtype's largest value
        wide = got.astype(np.complex128 if got.dtype.kind == "c" else np.float64)
        same = (wide == wanted) | (np.isnan(wide) & np.isnan(wanted))
        distance = np.abs(wide - wanted)
    return np.where(same, 0.0, np.where(np.isfinite(distance), distance, np.nan))


def _exact_errors(got: Any, wanted: Any) -> Any:
    """Distance of each integer or bool, 0 where they are equal and never else.

    The reference's integers are wider than the kernel's. What does not fit the output counts modulo its 2**bits, as it
    is in CUDA C++ and in NumPy: there is no better answer.
    """
    if {got.dtype.kind, wanted.dtype.kind} <= set("iu"):
        wrong = got != wanted.astype(got.dtype)
    else:
        wrong = got.astype(object) != wanted.astype(object)  # Python's numbers: compared without rounding
        wrong = np.asarray(wrong, dtype=bool)
    distance = np.abs(got[wrong].astype(object) - wanted[wrong].astype(object)).astype(np.float64)
    errors = np.zeros(got.shape)
    errors[wrong] = np.where(distance == 0, 1.0, distance)  # an integer less a float is rounded
    return errors
