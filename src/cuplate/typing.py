"""What type checkers see: `Array`, the type variable of signatures, and `Specialized`, what `@specialize` returns.

Importing this module loads the standard library's ``typing`` and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

if TYPE_CHECKING:
    from cuplate.autotune.tuned import Tuned
    from cuplate.cache.policy import EffectivePolicy
    from cuplate.cache.stats import CacheInfo
    from cuplate.cubin import Cubin
    from cuplate.report import Report
    from cuplate.wanted import Wanted

__all__ = ["Array", "ArrayLike", "Specialized"]


class ArrayLike(Protocol):
    """What NumPy, CuPy and PyTorch arrays have in common, as far as a reference in a function's body needs it.

    Operators give the array's own type, so that ``return alpha * x + y`` is a ``return`` of the declared type. What the
    libraries type differently is ``Any``: a requirement that one of them misses would refuse its arrays at every call.

    NumPy's functions accept such an array, but their stubs promise an ``ndarray`` or ``Any``, never the type that came
    in: end a reference with an operator or a method (``c.clip(0)``, not ``np.maximum(c, 0)``), which also runs on all
    three libraries.
    """

    @property
    def shape(self) -> Any:
        """Sizes, elements."""
        ...

    @property
    def dtype(self) -> Any:
        """Element type, in the library's own terms."""
        ...

    @property
    def ndim(self) -> int:
        """Number of axes."""
        ...

    @property
    def T(self) -> Any:
        """The transposed view."""
        ...

    # The signature that NumPy's stubs look for; without it every `np.f(x)` in a reference is an error.
    def __array__(self) -> Any: ...
    def __len__(self) -> int: ...
    def __getitem__(self, key: Any, /) -> Any: ...
    def __setitem__(self, key: Any, value: Any, /) -> None: ...
    def __add__(self, other: Any, /) -> Self: ...
    def __radd__(self, other: Any, /) -> Self: ...
    def __sub__(self, other: Any, /) -> Self: ...
    def __rsub__(self, other: Any, /) -> Self: ...
    def __mul__(self, other: Any, /) -> Self: ...
    def __rmul__(self, other: Any, /) -> Self: ...
    def __truediv__(self, other: Any, /) -> Self: ...
    def __rtruediv__(self, other: Any, /) -> Self: ...
    def __matmul__(self, other: Any, /) -> Self: ...
    def __pow__(self, other: Any, /) -> Self: ...
    def __neg__(self) -> Self: ...
    def __abs__(self) -> Self: ...

    def clip(self, low: Any, /) -> Self:
        """Each element, or ``low`` where it is smaller."""
        ...

    def sum(self) -> Any:
        """The sum of all elements."""
        ...


Array = TypeVar("Array", bound=ArrayLike)
"""The array type of a signature: in ``Float32[Array, "M N"]`` it is CuPy's for CuPy arrays, torch's for torch's."""

_Function = TypeVar("_Function", bound=Callable[..., Any])


class Specialized(Protocol[_Function]):
    """A function that ``@specialize`` returned: called like the function it was written as.

    At run time it is a plain Python function with these attributes. For type checkers a call is a call of the decorated
    function, type variables and all: CuPy arrays in, a CuPy array out. `out=` and `stream=` are accepted by every
    specialized function; type checkers know them where the signature lists them.
    """

    __name__: str
    __qualname__: str
    __module__: str
    # An attribute, not a method: so both mypy and pyright bind the type variables of a generic function at each call.
    __call__: _Function

    reference: _Function
    """The function as written: plain array code with the kernel's meaning."""

    @property
    def template(self) -> str:
        """Name of the template, as given to `specialize`; ``"<inline>"`` for an inline one."""
        ...

    def inspect(self, *args: object, arch: str | None = None, **kwargs: object) -> Report:
        """One receipt of what a call with these arguments runs; nothing is launched.

        Parameters
        ----------
        *args, **kwargs : object
            A call's arguments; arrays may be given as `cuplate.ArraySpec`, and then no GPU is needed.
        arch : str, optional
            Architecture to compile for, ``"sm_90a"``, or ``"host"`` for the CPU backend; default the arrays' device.
        """
        ...

    def compile(self, *args: object, arch: str | None = None, **kwargs: object) -> Cubin:
        """The cubin of a call with these arguments, from the cache or from the compiler; nothing is launched."""
        ...

    def explain(self, *args: object, arch: str | None = None, **kwargs: object) -> str:
        """In one line: hit, or which ingredient of the key differs from the nearest stored entry."""
        ...

    def wanted(self, *args: object, **kwargs: object) -> Wanted:
        """The specialization of a call with these arguments, for any architecture: an entry of a manifest.

        Parameters
        ----------
        *args, **kwargs : object
            As for `inspect`. Sizes that decide nothing are left out of the result.
        """
        ...

    def tune(self, *args: object, executor: Any = None, sets: int | None = None, **kwargs: object) -> Tuned:
        """Measure the candidates of the tuned parameters for calls like this one, whatever is known already.

        The winner is kept, in this process and in the disk cache. Nothing that the arguments hold is changed.

        Parameters
        ----------
        *args, **kwargs : object
            A call's arguments; a tuned parameter that is given stays as it is.
        executor : concurrent.futures.Executor, optional
            Its workers compile and measure, a set of the candidates each; see ``docs/autotune.md`` for what is assumed
            of them.
        sets : int, optional
            In how many sets the candidates travel; default one for each worker that the executor tells of, else four.

        Returns
        -------
        Tuned
            Every candidate with its time, or with what was against it; ``print`` shows a table.

        Raises
        ------
        TuneError
            None of the candidates can run the call.
        ArgumentError
            There is nothing to tune.
        """
        ...

    def tuning(self, *args: object, **kwargs: object) -> Tuned:
        """What has been tried for calls like this one, or the default; nothing is measured, compiled or launched."""
        ...

    def cache_info(self) -> CacheInfo:
        """Hits, misses and compiles of this function."""
        ...

    def cache_clear(self) -> None:
        """Forget this function's plans and loaded kernels; what is on disk stays."""
        ...

    def cache_policy(self) -> EffectivePolicy:
        """The cache policy of this function, every value decided; printed, each has its source beside it."""
        ...

    def torch_op(self, name: str) -> Any:
        """The function as an operator of torch, which works under ``torch.compile`` without a graph break.

        Schema and fake outputs follow from the signature: arrays are tensors, scalars and parameters numbers, strings
        and dtypes; a parameter that is an Enum takes a member's name. What ``mutates=`` names is written in place.

        Parameters
        ----------
        name : str
            ``"library::name"``, once a process.

        Returns
        -------
        torch.library.CustomOpDef
            To be called in the place of the function; it has ``register_autograd`` and ``register_vmap``. Several
            outputs come as a plain tuple. ``out=`` and ``stream=`` are not part of it.

        Raises
        ------
        DeclarationError
            The signature has what no schema can say: no array argument, a struct, a parameter of any kind.
        """
        ...

    def reload(self) -> None:
        """Read the template again; what an unchanged text has compiled stays."""
        ...
