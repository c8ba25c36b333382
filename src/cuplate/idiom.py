"""How generated code asks the arrays of one library: text for each fact, and the names that the text uses.

The hot path of `dispatch.py` is the same for every library that has one. What differs is how an array tells its dtype
or its address, what else has to be asked before its memory may be read, and how an output is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from cuplate.signature import ArrayArgument

__all__ = ["CUPY", "IDIOMS", "TORCH", "Idiom"]


class Idiom(Protocol):
    """The words of one library; each gives Python text, or lines of it.

    Attributes
    ----------
    name : str
        Of the library, as its `Owner` has it.
    unfit : str
        Errors of arrays that cannot answer a question of the plan key.
    current_device : str
        Name of what tells the number of the current GPU.
    """

    name: str
    unfit: str
    current_device: str

    def facts(self, argument: ArrayArgument, *, several_devices: bool, first: bool, ordered: bool) -> str:
        """What the plan key holds of an array: all that its plan depends on; `ordered`: it may lie by columns too."""
        ...

    def pointer(self, name: str) -> str:
        """The address of an array's first element."""
        ...

    def addresses(self, present: Sequence[str], pairs: Sequence[str], known: Sequence[str]) -> list[str]:
        """Ask each call's arrays for what no key can hold, then set ``_p_{name}`` of each but the `known` ones.

        `pairs` are complex.
        """
        ...

    def may_make(self) -> list[str]:
        """Whether a fresh array would be what it is to be."""
        ...

    def make(self, name: str, target: str) -> list[str]:
        """Allocate the array `name` of the plan as `target`."""
        ...

    def sized(self, name: str) -> list[str]:
        """Fields of a plan that `make` needs."""
        ...

    def given_out(self, name: str, other_shape: str, *, several_devices: bool, like: str, pair: bool) -> list[str]:
        """Where ``out`` is what the plan expects set ``_p_{name}``, else go back; `like` is an array of the call."""
        ...

    def stream(self, *, several_devices: bool) -> tuple[str, str]:
        """The pointer of the current stream, and whether that stream, by now ``_stream_pointer``, is captured."""
        ...

    def wrote(self, names: str) -> list[str]:
        """Tell the library that a kernel has written arrays of the caller's."""
        ...


class _Cupy:
    """CuPy: dtype, size and memory of an array stay as they are for life."""

    name = "cupy"
    unfit = "_absent"
    current_device = "_current_device"

    def facts(self, argument: ArrayArgument, *, several_devices: bool, first: bool, ordered: bool) -> str:
        # Only CuPy's arrays have `_c_contiguous`, so any other library's fails here.
        n = argument.name
        facts = f"{n}.dtype, {self._shape(argument)}, {n}._c_contiguous"
        facts += f", {n}._f_contiguous" if ordered else ""
        if several_devices:
            facts += f", {n}.data.device_id"
        return f"{n}.__class__, {facts}" if first else facts

    def _shape(self, argument: ArrayArgument) -> str:
        """What stands for a shape.

        CuPy makes a tuple at each ``.shape``. Of an array with one or two axes that is not empty, rank, length and size
        say as much in two thirds of the time; empty arrays never enter the hot path.
        """
        n = argument.name
        if any(axis.folded for axis in argument.axes) or len(argument.axes) not in (1, 2):
            return f"{n}.shape"
        return f"{n}.ndim, {n}.size" if len(argument.axes) == 1 else f"{n}.ndim, len({n}), {n}.size"

    def pointer(self, name: str) -> str:
        return f"{name}.data.ptr"

    def addresses(self, present: Sequence[str], pairs: Sequence[str], known: Sequence[str]) -> list[str]:
        return [f"_p_{n} = {n}.data.ptr" for n in present if n not in known]

    def may_make(self) -> list[str]:
        return []

    def make(self, name: str, target: str) -> list[str]:
        return [f"{target} = _empty(_shape_{name}, _dtype_{name})", f"_p_{name} = {target}.data.ptr"]

    def sized(self, name: str) -> list[str]:
        return [f"_shape_{name}", f"_dtype_{name}", f"_bytes_{name}"]

    def given_out(self, name: str, other_shape: str, *, several_devices: bool, like: str, pair: bool) -> list[str]:
        elsewhere = " or out.data.device_id != _current_device()" if several_devices else ""
        return [
            f"elif (out.__class__ is not _owner_class or out.dtype is not _dtype_{name} or {other_shape}",
            f"        or not out._c_contiguous{elsewhere}):",
            "    return _again",
            "else:",
            f"    _p_{name} = out.data.ptr",
        ]

    def stream(self, *, several_devices: bool) -> tuple[str, str]:
        return f"_current_stream({'' if several_devices else 0}).ptr", "_is_capturing(_stream_pointer)"

    def wrote(self, names: str) -> list[str]:
        return []


class _Torch:
    """torch: a tensor may become another one in place, and its memory may hold other values than the tensor.

    So nothing but class, dtype, shape, packedness and device is in the key, and the rest is asked in each call. What
    is not dense fails at one of ``shape``, ``is_contiguous()``, ``stride()`` and ``data_ptr()``; what torch.func has
    wrapped and what has no memory, at ``data_ptr()`` or with the address 0.
    """

    name = "torch"
    unfit = "_refused"
    current_device = "_tensor_device"

    def facts(self, argument: ArrayArgument, *, several_devices: bool, first: bool, ordered: bool) -> str:
        n = argument.name
        # Where there is one GPU, a tensor of CUDA is on it; an index alone could be another kind of device's.
        where = f"{n}.device" if several_devices else f"{n}.is_cuda"
        layout = f"{n}.stride()" if ordered else f"{n}.is_contiguous()"
        return f"{n}.__class__, {n}.dtype, {n}.shape, {layout}, {where}"

    def pointer(self, name: str) -> str:
        return f"{name}.data_ptr()"

    def addresses(self, present: Sequence[str], pairs: Sequence[str], known: Sequence[str]) -> list[str]:
        lazy = " or ".join([*(f"{n}.is_neg()" for n in present), *(f"{n}.is_conj()" for n in pairs)])
        graded = " or ".join(f"{n}.requires_grad" for n in present)
        return [
            "try:",
            # At a level of forward mode any of them may carry a tangent; a mode of torch's dispatcher (fake tensors,
            # make_fx) or a trace would not see the launch.
            f"    if _modes() or _trace() or _forward._current_level >= 0 or {lazy} or _grads() and ({graded}):",
            "        return _again",
            *(f"    _p_{n} = {n}.data_ptr()" for n in present if n not in known),
            "except _refused:",
            "    return _again",
            f"if not ({' and '.join(f'_p_{n}' for n in present)}):",
            "    return _again",
        ]

    def may_make(self) -> list[str]:
        # A transform of torch.func would have its own output.
        return ["if _transform() is not None:", "    return _again"]

    def make(self, name: str, target: str) -> list[str]:
        return [
            f"{target} = _empty_tensor(_shape_{name}, _strides_{name}, _dtype_{name})",
            f"_p_{name} = {target}.data_ptr()",
        ]

    def sized(self, name: str) -> list[str]:
        return [f"_shape_{name}", f"_dtype_{name}", f"_bytes_{name}", f"_strides_{name}"]

    def given_out(self, name: str, other_shape: str, *, several_devices: bool, like: str, pair: bool) -> list[str]:
        elsewhere = f"out.device != {like}.device" if several_devices else "not out.is_cuda"
        lazy = "out.is_neg() or out.is_conj()" if pair else "out.is_neg()"
        return [
            "else:",
            "    try:",
            f"        if (out.__class__ not in _tensors or out.dtype is not _dtype_{name}",
            f"                or out.shape != _shape_{name} or not out.is_contiguous() or {elsewhere}",
            f"                or {lazy} or _grads() and out.requires_grad):",
            "            return _again",
            f"        _p_{name} = out.data_ptr()",
            "    except _refused:",
            "        return _again",
            f"    if not _p_{name}:",
            "        return _again",
        ]

    def stream(self, *, several_devices: bool) -> tuple[str, str]:
        return f"_raw_stream({f'{self.current_device}()' if several_devices else 0})", "_tensor_captured()"

    def wrote(self, names: str) -> list[str]:
        return [f"_increment(({names},))"]


CUPY: Idiom = _Cupy()
TORCH: Idiom = _Torch()
IDIOMS = {idiom.name: idiom for idiom in (CUPY, TORCH)}
