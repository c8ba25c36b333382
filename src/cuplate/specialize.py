"""The decorator: binds a CUDA C++ template to a Python signature."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from cuplate import config
from cuplate.errors import DeclarationError
from cuplate.hints import named_keywords
from cuplate.signature import read_signature
from cuplate.walk import Walk

if TYPE_CHECKING:
    from cuplate.cache import CachePolicy
    from cuplate.options import Options
    from cuplate.template import Inline
    from cuplate.tensor_map import TensorMap
    from cuplate.typing import Specialized

__all__ = ["specialize"]

F = TypeVar("F", bound=Callable[..., Any])


@named_keywords(DeclarationError)
def specialize(
    template: str | Path | Inline,
    *,
    entry: str | None = None,
    args: str | None = None,
    options: Options | Mapping[str, Any] | None = None,
    tiles: Mapping[str, str | int] | None = None,
    block: str | int | tuple[str | int, ...] | None = None,
    grid: str | int | tuple[str | int, ...] | Callable[[Any], Any] | None = None,
    cluster: str | int | tuple[str | int, ...] | None = None,
    shared_bytes: str | int | None = None,
    cooperative: bool = False,
    static: str | Iterable[str] = (),
    mutates: str | Iterable[str] = (),
    zeroed: str | Iterable[str] = (),
    scratch: Mapping[str, tuple[str, str | int]] | None = None,
    tensor_maps: Mapping[str, TensorMap] | None = None,
    dtypes: Mapping[str, str] | None = None,
    require: str | Iterable[str] = (),
    when: str | Iterable[str] = (),
    variants: Iterable[Specialized[Any]] = (),
    policy: CachePolicy | None = None,
) -> Callable[[F], Specialized[F]]:
    """Turn a kernel template into a function.

    Array and scalar annotations before ``*`` are the kernel's *arguments*, keyword-only names after it are *parameters*
    (compile-time values that the template sees), the return annotation is the output, and the body, if there is one, is
    the reference: plain array code with the same meaning, never run by a call.

    Every string below, except in `args`, is an expression: Python integer and boolean arithmetic over axis sizes,
    parameters, array facts (``a.itemsize``, ``a.aligned(16)``) and device facts (``arch``, ``sm_count``,
    ``max_shared_bytes``, ``on_gpu``), with ``cdiv``, ``min``, ``max`` and ``abs``.

    Parameters
    ----------
    template : str, Path or Inline
        A name is looked up beside the module that decorates, then among the shipped templates.
    entry : str, optional
        The kernel's name in the rendered source, default the function's name. A C++ name expression of a template
        instance works too: ``"sgemm<{{ tile }}>"``.
    args : str, optional
        For a kernel that writes its own parameter list under other names: ours, in its order, ``"M N K a b out"``.
        An item may be an integer expression: ``a.stride(0)``. Without it such a list is matched by name.
    options : Options or mapping, optional
        What reaches the compiler.
    tiles : mapping of str to expression, optional
        ``{"N": "tile", "M": "tile"}``: grid x covers axis N in steps of `tile`, y covers M. A key may be an expression.
    block : expression or tuple of them, optional
        Threads in x, y, z; default 256.
    grid : expression, tuple of them, or callable, optional
        Blocks in x, y, z, instead of `tiles`. A callable gets all names as attributes of one object. With neither, one
        thread per element of the first output.
    cluster : expression or tuple of them, optional
        Blocks of a thread block cluster; must divide the grid.
    shared_bytes : expression, optional
        Dynamic shared memory a block, bytes.
    cooperative : bool
        Launch so that all blocks may synchronise; refused when they cannot all be resident.
    static : str or iterable of str
        Axes whose size is a constant in the source instead of a kernel argument.
    mutates : str or iterable of str
        Array arguments that the kernel writes.
    zeroed : str or iterable of str
        Outputs, mutated arrays or scratch to zero on the launch stream first.
    scratch : mapping of str to (str, expression), optional
        ``{"state": ("uint64", "cdiv(N, tile)")}``: memory that each call allocates for the kernel alone.
    tensor_maps : mapping of str to TensorMap, optional
        Arrays that the kernel takes as descriptors of the tensor memory accelerator, ``const __grid_constant__
        CUtensorMap``, instead of pointers, and scratch that it takes so beside its pointer (`TensorMap`'s `of`). Needs
        sm_90 and arrays that a descriptor can hold.
    dtypes : mapping of str to str, optional
        ``{"out": "out_dtype"}``: an array's dtype is the value of a parameter.
    require : str or iterable of str
        Conditions that a call must fulfil.
    when : str or iterable of str
        Conditions under which a function that has this one among its `variants` runs it.
    variants : iterable of specialized functions
        Other functions with the same arguments, tried in order: the first that a call fits, and whose `when` and
        `require` hold, runs it; this function runs what is left. A parameter that the caller gives and a variant lacks
        rules that one out. Chosen once for each plan.
    policy : CachePolicy, optional
        Where and how this function's kernels are kept; default the process's.

    Returns
    -------
    callable
        Decorator; what it returns is a plain function with the attributes of `Specialized`.

    Raises
    ------
    DeclarationError, ExpressionError, TemplateError
        At decoration, which needs neither a GPU nor a driver nor a writable disk.

    Examples
    --------
    >>> from cuplate import Array, Inline, f32, specialize
    >>> from jaxtyping import Float32
    >>> @specialize(Inline('''
    ... extern "C" __global__ void {{ kernel }}({{ args }})
    ... {
    ...     {{ index_t }} i = blockIdx.x * blockDim.x + threadIdx.x;
    ...     if (i < N) out[i] = alpha * x[i] + y[i];
    ... }
    ... '''))
    ... def saxpy(alpha: f32, x: Float32[Array, "N"], y: Float32[Array, "N"]) -> Float32[Array, "N"]:
    ...     return alpha * x + y
    >>> saxpy.inspect(arch="sm_90").cubin.resources.registers > 0
    True
    """
    if callable(template):
        raise DeclarationError(
            "@specialize needs a template.", given=f"{template!r:.60}", try_='@specialize("kernel.cu.j2")'
        )
    keywords = {
        "entry": entry, "args": args, "options": options, "tiles": tiles, "block": block, "grid": grid,
        "cluster": cluster, "shared_bytes": shared_bytes, "cooperative": cooperative, "static": static,
        "mutates": mutates, "zeroed": zeroed, "scratch": scratch, "tensor_maps": tensor_maps, "require": require,
        "when": when, "policy": policy,
    }  # fmt: skip
    scope = sys._getframe(2).f_locals  # string annotations may name classes of the function that decorates

    def decorate(function: F) -> Specialized[F]:
        if not callable(function) or not hasattr(function, "__code__"):
            raise DeclarationError("@specialize decorates a function.", given=f"{function!r:.60}")
        signature = read_signature(function, dtypes=dtypes or {}, locals_=scope)
        others = _walks(variants, when, signature.function)
        if (file := config.settings("record").record) is not None:
            from cuplate.record import follow

            follow(file)
        walk = Walk(signature, function, template, _anchor(function), keywords, others)
        return cast("Specialized[F]", _dress(walk, function))

    return decorate


def _walks(variants: Any, when: Any, function: str) -> list[Walk]:
    """The walks behind ``variants=``; a function that has variants itself is refused, so there can be no cycle."""
    if not isinstance(variants, Iterable):
        raise DeclarationError("variants= lists functions.", function=function, given=f"{variants!r:.60}")
    others = []
    for variant in variants:
        walk = getattr(getattr(variant, "reload", None), "__self__", None)
        if not isinstance(walk, Walk):
            raise DeclarationError(
                "variants= lists functions that @specialize returned.", function=function, given=f"{variant!r:.60}"
            )
        if walk.others:
            raise DeclarationError(
                f"the variant {walk.name!r} has variants of its own.",
                function=function,
                given=", ".join(other.name for other in walk.others),
                try_="all of them in one list",
            )
        others.append(walk)
    if others and when not in ((), [], None):
        raise DeclarationError(
            "when= is for a function among the variants of another, and this one has variants.",
            function=function,
            given=f"when={when!r:.60}",
            try_="require=, or the function without variants=",
        )
    return others


def _anchor(function: Any) -> Path | None:
    """Folder of the file that defines `function`; None for standard input, ``exec`` and notebooks."""
    path = Path(function.__code__.co_filename)
    return path.resolve().parent if path.is_file() else None


def _dress(walk: Walk, function: Any) -> Any:
    """The dispatcher with the user's name, doc and signature, and the attributes of `Specialized`."""
    dressed = functools.wraps(function)(walk.hot.function)
    attributes = {
        "reference": function,
        "template": walk.variants.binding.template.name,
        "inspect": walk.inspection.inspect,
        "compile": walk.inspection.compile,
        "explain": walk.inspection.explain,
        "wanted": walk.inspection.wanted,
        "tune": walk.tune,
        "tuning": walk.inspection.tuning,
        "cache_info": walk.cache_info,
        "cache_clear": walk.cache_clear,
        "cache_policy": walk.variants.cache_policy,
        "reload": walk.reload,
        "torch_op": walk.torch_op,
        # What torch.compile looks for: not to trace a launch, and what to say where it has to.
        "_torchdynamo_disable": True,
        "_torchdynamo_disable_msg": f"a launch cannot be traced: register {walk.name}.torch_op('library::name')",
    }
    dressed.__dict__.update(attributes)
    return dressed
