"""One call -> Plan: what is rendered, the grid, and how the kernel's arguments are made. Pure; needs no device."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType, SimpleNamespace
from typing import Any

from cuplate.arguments import Described, packed_strides, product
from cuplate.binding import Binding
from cuplate.dtypes import DTYPES, SAME_SIZE
from cuplate.errors import ArgumentError, CuplateError, DeviceError, LaunchError, TemplateError
from cuplate.expression import Expression
from cuplate.grid import Grid, Limits, Tile, check_block, cover, tile_index
from cuplate.parameters import check_require
from cuplate.signature import ArrayArgument
from cuplate.solve import Solved
from cuplate.specialization import ArrayFacts, AxisFacts, Slot, Specialization
from cuplate.structs import Struct
from cuplate.tensor_map import CTYPE, BoundMap, MapLayout, lay_out, padded_strides

__all__ = ["Plan", "Recipe", "check_maps", "known_values", "make_plan", "make_recipes", "match_slots"]

# A 32-bit index must survive being rounded up to a whole tile past the last element, so the switch to 64 bits comes
# well before 2**31. It is taken on bytes, as a reader of the C text may compute byte offsets.
INDEX_32_BYTES = 2**31 - 2**24
INT_MAX = 2**31 - 1

MAPS_ARCH = 90  # the tensor memory accelerator
FRESH_ALIGNMENT = 256  # bytes: what cudaMalloc promises, and every pool on top of it

# What a hand-written parameter list may say for an integer of ours: any integer of 4 or 8 bytes, widths are checked
# against the loaded kernel.
_INTEGERS = ("int", "long long", "unsigned int", "long", "unsigned long", "unsigned long long")


@dataclass(frozen=True, slots=True)
class Recipe:
    """How one kernel argument is made at a call.

    Attributes
    ----------
    kind : str
        ``"array"`` (pointer of `name`), ``"map"`` (a descriptor of it, of the table `value` by pointer), ``"scalar"``
        (encoded value of `name`), ``"int"`` (the constant `value`).
    name : str
        For messages too: ``"a.stride(0)"``.
    value : int or mapping
        For ``"int"`` and ``"map"``.
    """

    kind: str
    name: str
    value: Any = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that follows from one call's parameters, dtypes, shapes, strides, alignment and device.

    Attributes
    ----------
    specialization : Specialization
    grid : Grid or None
        None when sizes are unknown (an `ArraySpec` without a shape).
    integers : mapping of str to int
        What a parameter list may pass by value: axis sizes, and the expressions of ``args=``.
    outputs : tuple of (str, tuple of int, str)
        (name, shape, dtype) to allocate.
    scratch : tuple of (str, int, str)
        (name, elements, dtype) to allocate.
    zeroed : tuple of str
        Arrays to zero on the launch stream first.
    empty : bool
        True when there is nothing to launch: every written array is empty.
    elements : int
        Of the largest array.
    maps : mapping of str to MapLayout
        Descriptors, their addresses apart.
    """

    specialization: Specialization
    grid: Grid | None
    integers: Mapping[str, int]
    outputs: tuple[tuple[str, tuple[int, ...], str], ...]
    scratch: tuple[tuple[str, int, str], ...]
    zeroed: tuple[str, ...]
    empty: bool
    elements: int = 0
    maps: Mapping[str, MapLayout] = field(default_factory=dict)


def make_plan(
    binding: Binding,
    solved: Solved,
    parameters: tuple[tuple[str, Any], ...],
    *,
    arch: str,
    limits: Limits,
    called_as: str,
) -> Plan:
    """Plan one call.

    Parameters
    ----------
    binding : Binding
    solved : Solved
        Sizes and dtypes of this call.
    parameters : tuple of (str, object)
        Checked compile-time values.
    arch : str
        ``"sm_90"``.
    limits : Limits
        Of the device, or of the architecture where there is no device.
    called_as : str
        The call, for messages.

    Raises
    ------
    ParameterError
        A ``require=`` condition does not hold.
    LaunchError
        The grid or the block is beyond a limit.
    """
    return _Planner(binding, solved, parameters, arch, limits, called_as).plan()


def known_values(
    binding: Binding, solved: Solved, parameters: tuple[tuple[str, Any], ...], *, arch: str, limits: Limits
) -> dict[str, object]:
    """What every expression of a call may read: sizes, parameters, arrays, and facts of the device.

    A size or a fact that is not known here (an `ArraySpec` without a shape, no device) is left out.

    Parameters
    ----------
    binding, solved, parameters, arch, limits
        As for `make_plan`.
    """
    return _Planner(binding, solved, parameters, arch, limits, "").values


def check_maps(
    binding: Binding, solved: Solved, parameters: tuple[tuple[str, Any], ...], *, arch: str, limits: Limits
) -> None:
    """Refuse a call whose arrays the kernel's tensor maps cannot hold, or a device that has none.

    Raises
    ------
    LayoutError, DeviceError, ParameterError
    """
    if binding.maps:
        planner = _Planner(binding, solved, parameters, arch, limits, "")
        planner.check_mappable()
        planner.maps()


def fold(array: Described, argument: ArrayArgument) -> Described:
    """`array` with the axes of a leading ``*name`` as one: as the kernel indexes it."""
    axes, shape = argument.axes, array.shape
    if shape is None or not axes or not axes[0].folded or len(shape) == len(axes):
        return array
    lead = len(shape) - len(axes) + 1
    folded = (product(shape[:lead]), *shape[lead:])
    return replace(array, shape=folded, strides=packed_strides(folded))  # check_layout took packed ones only


class _Planner:
    def __init__(
        self,
        binding: Binding,
        solved: Solved,
        parameters: tuple[tuple[str, Any], ...],
        arch: str,
        limits: Limits,
        called_as: str,
    ) -> None:
        self.binding = binding
        self.solved = solved
        self.parameters = parameters
        self.arch = arch
        self.limits = limits
        self.called_as = called_as
        self.function = binding.signature.function
        self.arrays = self._all_arrays()
        self.values = self._values()
        written = [a for n in binding.written if (a := self.arrays.get(n)) is not None]
        self.empty = not solved.partial and all(a.size == 0 for a in written)

    def plan(self) -> Plan:
        b = self.binding
        self._check_static()
        self.check_mappable()
        check_require(b.require, self.values, self.function, self.called_as)
        block = check_block(self._integers(b.block), self.limits, self.function)
        scratch = self._scratch()
        grid, tiles = self._grid(block)
        specialization = self._specialization(block, grid, tiles, scratch)
        outputs = tuple((o.name, self.solved.output_shapes.get(o.name, ()), self.solved.dtypes[o.name])
                        for o in b.signature.outputs)  # fmt: skip
        zeroed = tuple(n for n in b.zeroed if self._is_passed(n))
        elements = max((a.size for a in self._shaped()), default=0)
        maps = {} if self.empty else self.maps()
        return Plan(specialization, grid, self._list_integers(), outputs, scratch, zeroed, self.empty, elements, maps)

    def _shaped(self) -> list[Described]:
        return [a for a in self.arrays.values() if a is not None and a.shape is not None]

    def _check_static(self) -> None:
        for name in sorted(self.binding.static):
            if self.solved.partial and name not in self.solved.sizes:
                raise ArgumentError(
                    f"axis {name!r} is static: the text depends on its size.",
                    function=self.function,
                    try_='an array, or an ArraySpec with a shape: ArraySpec((64, 64), "float32")',
                )

    # tensor maps -----------------------------------------------------------------------------------------------------

    def check_mappable(self) -> None:
        """Refuse tensor maps where nothing can follow them, at the line of the template that takes them."""
        if not self.binding.maps or (self.limits.on_gpu and self.limits.arch >= MAPS_ARCH):
            return
        name, names = self.binding.maps[0].name, self.binding.template.names
        raise DeviceError(
            f"the kernel takes {name!r} as a tensor map, which only a GPU from sm_{MAPS_ARCH} on can follow.",
            function=self.function,
            template=names.get("args") or names.get(name) or self.binding.template.name,
            given=self.arch if self.limits.on_gpu else "arrays in host memory: the CPU backend has no tensor maps",
            allowed=f"sm_{MAPS_ARCH} or later",
        )

    def maps(self) -> dict[str, MapLayout]:
        """The descriptors of this call, their addresses apart."""
        if self.solved.partial:
            return {}
        found = {}
        for bound in self.binding.maps:
            array = self._scratch_array(bound) if bound.shape else self.arrays[bound.name]
            if array is not None:
                found[bound.name] = lay_out(array, bound, self._integers(bound.box), self.function)
        return found

    def _scratch_array(self, bound: BoundMap) -> Described:
        """Scratch as the map of it says that it is laid out: in padded rows, and no longer than it was declared."""
        (scratch,) = (s for s in self.binding.scratch if s.name == bound.memory)
        shape = self._integers(bound.shape)
        if min(shape) < 0:
            raise LaunchError(f"tensor map {bound.name!r} would have the shape {shape}.", function=self.function)
        strides = padded_strides(shape, DTYPES[scratch.dtype].itemsize)
        needed, size = strides[0] * shape[0], scratch.size.integer(self.values)
        if needed > size:
            raise LaunchError(
                f"scratch {bound.memory!r} is shorter than its tensor map {bound.name!r}.",
                function=self.function,
                given=f"{size} elements: {scratch.size.text}",
                allowed=f"{needed} or more: shape {shape}, each row from a multiple of 16 bytes on",
            )
        return Described(bound.memory, FRESH_ALIGNMENT, scratch.dtype, shape, strides, None)

    # what expressions see --------------------------------------------------------------------------------------------

    def _all_arrays(self) -> dict[str, Described | None]:
        """Arguments, and outputs that are yet to be allocated (fresh memory is aligned to 256 bytes)."""
        arrays = dict(self.solved.arrays)
        for argument in (*self.binding.signature.arrays, *self.binding.signature.outputs):
            array = arrays.get(argument.name)
            if array is not None:
                arrays[argument.name] = fold(array, argument)
        for output in self.binding.signature.outputs:
            if arrays.get(output.name) is None:
                shape = self.solved.output_shapes.get(output.name)
                dtype = self.solved.dtypes[output.name]
                fresh = Described(output.name, FRESH_ALIGNMENT, dtype, shape, packed_strides(shape or ()), None)
                arrays[output.name] = fold(fresh, output)
        return arrays

    def _values(self) -> dict[str, object]:
        device: dict[str, int] = {
            "arch": arch_number(self.arch),
            "max_shared_bytes": self.limits.shared_memory_bytes,
            "on_gpu": self.limits.on_gpu,
        }
        if self.limits.sm_count is not None:
            device["sm_count"] = self.limits.sm_count
        return {**self.parameters_map, **self.solved.sizes, **self.arrays, **device}

    @property
    def parameters_map(self) -> dict[str, Any]:
        return dict(self.parameters)

    def _list_integers(self) -> dict[str, int]:
        if self.solved.partial:
            return {}
        tokens = {token: e.integer(self.values) for token, e in self.binding.arguments or () if e is not None}
        return {**self.solved.sizes, **tokens}

    def _integers(self, expressions: tuple[Expression, ...]) -> tuple[int, ...]:
        return tuple(e.integer(self.values) for e in expressions)

    # grid ------------------------------------------------------------------------------------------------------------

    def _grid(self, block: tuple[int, int, int]) -> tuple[Grid | None, tuple[Tile, ...]]:
        b = self.binding
        tiles = tuple(
            Tile(size.text, 1 if self.solved.partial else size.integer(self.values), tile.integer(self.values))
            for size, tile in b.tiles
        )
        if self.solved.partial or self._needs_device():
            return None, tiles
        folded = False
        if tiles:
            blocks, folded = cover(tiles, limits=self.limits, may_fold=self._may_fold(), function=self.function)
        elif self.empty:  # nothing will be launched: no reason to divide by a number of tiles that is 0
            blocks = (1, 1, 1)
        else:
            blocks = _three(self._given_grid(block))
        shared = b.shared_bytes.integer(self.values) if b.shared_bytes else 0
        cluster = None if b.cluster is None else _three(self._integers(b.cluster))
        # A size of 0 must not make an invalid launch: a kernel that sums over nothing still writes its 0.
        x, y, z = (1 if n == 0 else n for n in blocks)
        return Grid((x, y, z), block, cluster, shared, b.cooperative, folded), tiles

    def _needs_device(self) -> bool:
        """Whether the grid follows from a device that is not there: `inspect` for an architecture knows no sm_count."""
        grid = self.binding.grid
        return self.limits.sm_count is None and isinstance(grid, tuple) and any("sm_count" in e.names for e in grid)

    def _given_grid(self, block: tuple[int, int, int]) -> tuple[int, ...]:
        """Blocks of ``grid=``, or one thread per element of the first written array."""
        b = self.binding
        if callable(b.grid):
            return self._called_grid(b.grid)
        if b.grid is not None:
            return self._integers(b.grid)
        name = b.signature.outputs[0].name if b.signature.outputs else b.mutates[0]
        first = self.arrays[name]
        tile = Tile(name, first.size if first is not None else 0, block[0] * block[1] * block[2])
        return cover([tile], limits=self.limits, may_fold=False, function=self.function)[0]

    def _called_grid(self, grid: Any) -> tuple[int, ...]:
        try:
            result = grid(SimpleNamespace(**self.values))
        except CuplateError:
            raise
        except Exception as error:
            raise LaunchError(
                f"grid= raised {type(error).__name__}: {error}.",
                function=self.function,
                allowed="attributes " + ", ".join(sorted(self.values)),
                called_as=self.called_as,
            ) from error
        result = result if isinstance(result, tuple) else (result,)
        if not 1 <= len(result) <= 3 or not all(type(n) is int for n in result):
            raise LaunchError(
                f"grid= returned {result!r}.",
                function=self.function,
                allowed="one to three integers, blocks in x, y, z",
            )
        return result

    def _may_fold(self) -> bool:
        """Only a template that asks for its tile, and never for its block, can run on a folded grid."""
        t = self.binding.template
        if any(isinstance(value, str) and "blockIdx" in value for _, value in self.parameters):
            return False
        return (
            not t.reads_block_index and all(size.is_name for size, _ in self.binding.tiles) and self._reads_tile_index()
        )

    def _reads_tile_index(self) -> bool:
        attributes = self.binding.template.attributes
        return any("tile_index" in attributes.get(size.text, ()) for size, _ in self.binding.tiles)

    # what the template sees ------------------------------------------------------------------------------------------

    def _specialization(
        self,
        block: tuple[int, int, int],
        grid: Grid | None,
        tiles: tuple[Tile, ...],
        scratch: tuple[tuple[str, int, str], ...],
    ) -> Specialization:
        b = self.binding
        index_type = self._index_type(scratch)
        arrays = tuple(self._array_facts(name) for name in self._array_names())
        arrays += tuple(ArrayFacts(name, dtype, 1, True) for name, _, dtype in scratch)
        dtypes = {name: dtype for name, _, dtype in scratch}
        arrays += tuple(ArrayFacts(m.name, dtypes[m.memory], len(m.shape), False, mapped=True)
                        for m in b.maps if m.shape)  # fmt: skip
        axes = self._axes(tiles, grid is not None and grid.folded, index_type)
        scalars = tuple((s.name, s.struct or s.dtype) for s in b.signature.scalars)
        entry = b.entry
        shown = Specialization(
            self.function, entry, self.parameters, arrays, scalars, axes, index_type, self.arch, block, None
        )
        if b.template.writes_args or b.arguments is not None:
            own_list = b.arguments is not None
            names = [token for token, _ in b.arguments] if b.arguments is not None else self._standard_order()
            slots = tuple(make_slot(n, shown, own_list=own_list) for n in names if self._is_passed(n))
            return replace(shown, slots=slots)
        return shown

    def _array_names(self) -> list[str]:
        return [*(a.name for a in self.binding.signature.arrays), *(o.name for o in self.binding.signature.outputs)]

    def _standard_order(self) -> list[str]:
        signature = self.binding.signature
        axes = [a for a in signature.axes if a not in self.binding.static]
        return [
            *(a.name for a in signature.arguments),
            *(o.name for o in signature.outputs),
            *(s.name for s in self.binding.scratch),
            *(m.name for m in self.binding.maps if m.shape),
            *axes,
        ]

    def _is_passed(self, name: str) -> bool:
        return name not in self.arrays or self.arrays[name] is not None

    def _index_type(self, scratch: tuple[tuple[str, int, str], ...]) -> str:
        if any(size * DTYPES[dtype].itemsize >= INDEX_32_BYTES for _, size, dtype in scratch):
            return "long long"
        for array in self._shaped():
            low, high = array.extent()
            if max(high - low, array.size) >= INDEX_32_BYTES:  # a broadcast view has more elements than bytes
                return "long long"
        return "long long" if any(n > INT_MAX - 2**24 for n in self.solved.sizes.values()) else "int"

    def _array_facts(self, name: str) -> ArrayFacts:
        array = self.arrays[name]
        argument = self._argument(name)
        mutable = name in self.binding.written
        if array is None:
            return ArrayFacts(name, "", 0, mutable, present=False)
        ndim = len(argument.axes)
        read = [f for f in self.binding.template.facts if f.array == name]
        strides = sorted(f.value for f in read if f.name == "stride" and f.value is not None)
        if strides and array.shape is None:
            raise ArgumentError(
                f"the template reads {name}.stride({strides[0]}), and nothing says it.",
                function=self.binding.signature.function,
                argument=name,
                given="no shape",
                try_=f"{name}=cuplate.ArraySpec({tuple(range(64, 64 + ndim))}, {array.dtype!r}), with your sizes",
            )
        return ArrayFacts(
            name,
            array.dtype,
            ndim,
            mutable,
            order=array.order if any(f.name == "order" for f in read) else None,
            strides=tuple((axis, array.stride(axis)) for axis in strides),
            aligned=tuple(sorted((f.value, array.aligned(f.value)) for f in read if f.name == "aligned" and f.value)),
            mapped=any(m.name == name for m in self.binding.maps),
        )

    def _argument(self, name: str) -> ArrayArgument:
        return next(a for a in (*self.binding.signature.arrays, *self.binding.signature.outputs) if a.name == name)

    def _axes(self, tiles: tuple[Tile, ...], folded: bool, index_type: str) -> tuple[AxisFacts, ...]:
        static = self.binding.static
        attributes = self.binding.template.attributes
        texts = [(str(self.solved.sizes.get(t.label, 0)) if t.label in static else t.label, str(t.tile)) for t in tiles]
        position = {size.text: i for i, (size, _) in enumerate(self.binding.tiles) if size.is_name}
        result = []
        for name in self.binding.signature.axes:
            index = None
            if name in position and "tile_index" in attributes.get(name, ()):
                index = tile_index(position[name], texts, folded, index_type)
            size = self.solved.sizes.get(name) if name in static else None
            result.append(AxisFacts(name, size, index))
        return tuple(result)

    def _scratch(self) -> tuple[tuple[str, int, str], ...]:
        result = []
        for s in self.binding.scratch:
            size = 0 if self.solved.partial else s.size.integer(self.values)
            if size < 0:
                raise LaunchError(f"scratch {s.name!r} would have {size} elements.", function=self.function)
            result.append((s.name, size, s.dtype))
        return tuple(result)


# parameter lists ------------------------------------------------------------------------------------------------------


def make_slot(name: str, specialization: Specialization, *, own_list: bool) -> Slot:
    """The entry of a parameter list for `name`: an array, a scalar, an axis, or an expression of ``args=``.

    Parameters
    ----------
    own_list : bool
        True for a kernel that writes its own list: its spelling of constness and integer width is its own affair.
    """
    for array in specialization.arrays:
        if array.name == name:
            if not array.present:
                return Slot(name, "null", f"const void* {name}", ())
            if array.mapped:
                return Slot(name, "map", f"const __grid_constant__ {CTYPE} {name}", (CTYPE,))
            ctype = DTYPES[array.dtype].ctype
            if array.mutable:
                return Slot(name, "array", f"{ctype}* __restrict__ {name}", (f"{ctype}*", "void*"))
            types = (f"const {ctype}*", f"{ctype}*", "const void*", "void*")
            return Slot(name, "array", f"const {ctype}* __restrict__ {name}", types)
    for scalar, dtype in specialization.scalars:
        if scalar == name:
            if isinstance(dtype, Struct):
                return Slot(name, "scalar", f"{dtype.name} {name}", (dtype.name,), dtype)
            ctype = DTYPES[dtype].ctype
            return Slot(name, "scalar", f"{ctype} {name}", (ctype, *SAME_SIZE.get(ctype, ())))
    kind = "axis" if name.isidentifier() else "stride"
    integers = tuple(dict.fromkeys((specialization.index_type, *_INTEGERS)))
    return Slot(name, kind, f"{specialization.index_type} {name}", integers if own_list else integers[:1])


def match_slots(plan: Plan, names: Collection[str] | None, source_name: str) -> tuple[Slot, ...]:
    """Slots for a kernel that writes its own parameter list, matched by name.

    Raises
    ------
    TemplateError
        The list cannot be read, names something unknown, or leaves out an array.
    """
    s = plan.specialization
    present = [a.name for a in s.arrays if a.present]
    known = [*(a.name for a in s.arrays), *(n for n, _ in s.scalars), *(a.name for a in s.axes)]
    if names is None:
        raise TemplateError(
            "the kernel's parameter list cannot be read from its text (is it made by a macro?).",
            function=s.function,
            template=source_name,
            try_='args="' + " ".join(known) + "\" in the kernel's own order, or {{ args }} in the template",
        )
    unknown = [n for n in names if n not in known]
    missing = [n for n in (*present, *(n for n, _ in s.scalars)) if n not in names]
    if unknown or missing:
        what = f"{unknown[0]!r}, which is no name of the signature" if unknown else f"no {missing[0]!r}"
        raise TemplateError(
            f"the kernel's own parameter list has {what}.",
            function=s.function,
            template=source_name,
            given=", ".join(names),
            allowed=", ".join(known),
            try_='args="..." with these names in the kernel\'s own order',
        )
    return tuple(make_slot(n, s, own_list=True) for n in names)


def make_recipes(
    slots: tuple[Slot, ...], integers: Mapping[str, int], maps: Mapping[str, tuple[str, Any]] = MappingProxyType({})
) -> tuple[Recipe, ...]:
    """How each entry of a parameter list is made at a call; integers are constants of the plan.

    An absent array that the kernel lists all the same is a null pointer. `maps` are the tables of descriptors, each
    behind the name of the memory that it describes.
    """
    return tuple(
        Recipe(slot.kind, *maps.get(slot.name, (slot.name, 0)))
        if slot.kind in ("array", "map", "scalar")
        else Recipe("int", slot.name, 0 if slot.kind == "null" else integers[slot.name])
        for slot in slots
    )


def _three(values: tuple[int, ...]) -> tuple[int, int, int]:
    x, y, z = (*values, 1, 1)[:3]
    return x, y, z


def arch_number(arch: str) -> int:
    """90 for ``"sm_90a"``."""
    match = re.fullmatch(r"sm_(\d+)[af]?", arch)
    if match is None:
        raise LaunchError(f"{arch!r} is no architecture.", allowed='"sm_90" and the like')
    return int(match[1])
