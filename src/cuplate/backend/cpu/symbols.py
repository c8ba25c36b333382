"""Reads what a kernel's shared object says about itself: variables, and the source line of an instruction.

A small reader of ELF-64 symbols and DWARF 4 (`.debug_line`, `.debug_info`), for images that `build` made: one unit of
kernel code with debug data, linked with a runtime that has none. Nothing is read before it is asked for.

Source: System V ABI (ELF-64 object file format); DWARF Debugging Information Format, version 4.
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

__all__ = ["Image", "Variable"]

_TLS, _OBJECT = 6, 1  # symbol types
_WRITE, _ALLOC, _THREAD = 0x1, 0x2, 0x400  # section flags
# What a form of debug data that is not known here ends in: the unit is left out, and its lines are not known.
_UNREADABLE = (ValueError, IndexError, KeyError, struct.error)
_LITERAL = re.compile(r"L[a-z]n?$")  # before the digits of a literal in a mangled name
_OURS = "cuplate"  # in the (mangled) name of whatever is the runtime's own


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable of static storage in the kernel's source.

    Attributes
    ----------
    name : str
        As the source has it: ``"tile"``, also inside functions and templates.
    offset : int
        Bytes from the start of the image, or of its thread-local storage.
    size_bytes : int
    shared : bool
        It is ``__shared__``: thread-local.
    guard : bool
        The compiler's own: whether an array of a class has been constructed.
    """

    name: str
    offset: int
    size_bytes: int
    shared: bool
    guard: bool = False


@dataclass(frozen=True, slots=True)
class _Section:
    name: str
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int


@dataclass(slots=True)
class _Entry:
    """A debugging information entry."""

    offset: int
    tag: int
    attributes: dict[int, int | bytes | str]
    children: list[_Entry] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Row:
    address: int
    file: str
    line: int
    column: int = 0


class Image:
    """What is known of one shared object.

    Parameters
    ----------
    data : bytes
        The whole file.

    Raises
    ------
    ValueError
        It is not a little-endian ELF-64 file.
    """

    def __init__(self, data: bytes) -> None:
        if data[:6] != b"\x7fELF\x02\x01":
            raise ValueError("not a little-endian ELF-64 image")
        self._data = data

    @functools.cached_property
    def _sections(self) -> dict[str, _Section]:
        data = self._data
        (table,) = struct.unpack_from("<Q", data, 40)
        size, count, names = struct.unpack_from("<HHH", data, 58)
        rows = [struct.unpack_from("<IIQQQQIIQQ", data, table + size * i) for i in range(count)]
        texts = rows[names][4] if count else 0
        found = {}
        for name, kind, flags, address, offset, length, link, *_ in rows:
            text = _text(data, texts + name)
            found[text] = _Section(text, kind, flags, address, offset, length, link)
        return found

    def _content(self, name: str) -> bytes:
        section = self._sections.get(name)
        if section is None or section.kind == 8:  # no bits in the file
            return b""
        return self._data[section.offset : section.offset + section.size]

    def _symbols(self) -> Iterator[tuple[str, int, int, int]]:
        """Name, type, value and size of each defined symbol."""
        texts = self._content(".strtab")
        for name, info, _, section, value, size in struct.iter_unpack("<IBBHQQ", self._content(".symtab")):
            if section:
                yield _text(texts, name), info & 15, value, size

    @functools.cached_property
    def anchor(self) -> int:
        """Offset in thread-local storage of the variable by which the checker finds where that storage is."""
        return next(
            (value for name, kind, value, _ in self._symbols() if name == "cuplate_tls_anchor" and kind == _TLS), 0
        )

    @functools.cached_property
    def writable(self) -> tuple[int, int]:
        """First and one past the last offset of data that a kernel could write."""
        wanted = _WRITE | _ALLOC
        found = [s for s in self._sections.values() if s.flags & wanted == wanted and not s.flags & _THREAD]
        return min((s.address for s in found), default=0), max((s.address + s.size for s in found), default=0)

    @functools.cached_property
    def variables(self) -> tuple[Variable, ...]:
        """Variables of the source: ``__shared__`` ones, and others that can be written."""
        low, high = self.writable
        found = []
        for name, kind, value, size in self._symbols():
            if not size or _OURS in name or name.startswith((".", "__")):
                continue
            if kind == _TLS:
                found.append(Variable(source_name(name), value, size, True, name.startswith("_ZGV")))
            elif kind == _OBJECT and low <= value < high:
                found.append(Variable(source_name(name), value, size, False))
        return tuple(sorted(found, key=lambda v: (not v.shared, v.offset)))

    def layout(self, variable: Variable) -> tuple[int, tuple[int, ...]] | None:
        """Bytes of an element and extents of an array variable, from the debug data: ``(4, (16, 17))``.

        A variable that is no array has extents ``()``; None where the debug data does not say.
        """
        entry = self._located.get((variable.shared, variable.offset))
        return None if entry is None else self._shape(entry.attributes.get(_TYPE))

    def line(self, pc: int, shim: str = "") -> tuple[str, int]:
        """File and line of the instruction at offset ``pc``, ``("", 0)`` if unknown.

        Parameters
        ----------
        pc : int
            Offset in the image. For a call: of the instruction after it, less one.
        shim : str
            Part of the names of files that are not the kernel's: the line is that of the call which was inlined there.
        """
        file, line = self._row(pc)
        if not shim or shim not in file:
            return file, line
        for call_file, call_line in self._calls_at(pc):
            if shim not in call_file:
                return call_file, call_line
        return file, line

    def column(self, pc: int, shim: str = "") -> int:
        """Column of the instruction at offset ``pc``, from 1; 0 if unknown, or if it was inlined from such a file."""
        index = bisect.bisect_right(self._addresses, pc) - 1
        row = self._lines[index] if index >= 0 else None
        return 0 if row is None or not row.line or (shim and shim in row.file) else row.column

    def arrays_at(self, pc: int) -> dict[str, tuple[int, ...]]:
        """Array variables in scope at the instruction at offset ``pc``: extents by name, innermost scope first."""
        found: dict[str, tuple[int, ...]] = {}
        for scope in (*self._scopes_at(pc)[::-1], *self._units):
            for entry in (*scope.children, *self._origin_of(scope).children):
                name = self._origin_of(entry).attributes.get(_NAME)
                if entry.tag != _VARIABLE or not isinstance(name, str):
                    continue
                shape = self._shape(self._origin(entry).attributes.get(_TYPE))
                if shape is not None and shape[1]:
                    found.setdefault(name, shape[1])
        return found

    # --------------------------------------------------------------------------------------------- lines

    @functools.cached_property
    def _lines(self) -> list[_Row]:
        """Rows of the line table by address; line 0 ends a sequence."""
        rows: list[_Row] = []
        data = self._content(".debug_line")
        at = 0
        while at + 6 <= len(data):
            length, version = struct.unpack_from("<IH", data, at)
            end = at + 4 + length
            if version == 4:
                with contextlib.suppress(*_UNREADABLE):
                    rows += list(_LineProgram(data, at, end).rows())
            at = end
        # Stable: at one address the last row that was written holds.
        rows.sort(key=lambda row: row.address)
        return rows

    @functools.cached_property
    def _addresses(self) -> list[int]:
        return [row.address for row in self._lines]

    def _row(self, pc: int) -> tuple[str, int]:
        index = bisect.bisect_right(self._addresses, pc) - 1
        if index < 0:
            return "", 0
        row = self._lines[index]
        return (row.file, row.line) if row.line else ("", 0)

    # --------------------------------------------------------------------------------------------- entries

    @functools.cached_property
    def _units(self) -> list[_Entry]:
        info, abbreviations = self._content(".debug_info"), self._content(".debug_abbrev")
        strings = self._content(".debug_str")
        units = []
        at = 0
        while at + 11 <= len(info):
            length, version = struct.unpack_from("<IH", info, at)
            if version == 4:
                with contextlib.suppress(*_UNREADABLE):
                    (table,) = struct.unpack_from("<I", info, at + 6)
                    units.append(_read_unit(info, at, _read_abbreviations(abbreviations, table), strings))
            at += 4 + length
        return units

    @functools.cached_property
    def _entries(self) -> dict[int, _Entry]:
        found = {}
        pending = list(self._units)
        while pending:
            entry = pending.pop()
            found[entry.offset] = entry
            pending += entry.children
        return found

    @functools.cached_property
    def _located(self) -> dict[tuple[bool, int], _Entry]:
        """Variables by where they are: (thread-local, offset)."""
        found = {}
        for entry in self._entries.values():
            place = entry.attributes.get(_LOCATION)
            if entry.tag != _VARIABLE or not isinstance(place, bytes) or len(place) < 9:
                continue
            (value,) = struct.unpack_from("<Q", place, 1)
            if place[0] == 0x0E and len(place) == 10 and place[9] in (0xE0, 0x9B):  # const8u, then "of this thread"
                found[True, value] = self._origin(entry)
            elif place[0] == 0x03 and len(place) == 9:  # addr
                found[False, value] = self._origin(entry)
        return found

    def _origin(self, entry: _Entry) -> _Entry:
        for attribute in (_ABSTRACT, _SPECIFICATION):
            target = entry.attributes.get(attribute)
            if _TYPE not in entry.attributes and isinstance(target, int) and target in self._entries:
                return self._origin(self._entries[target])
        return entry

    def _shape(self, reference: object) -> tuple[int, tuple[int, ...]] | None:
        """Element size and extents of a type."""
        extents: list[int] = []
        for _ in range(64):  # a chain of types has an end
            entry = self._entries.get(reference) if isinstance(reference, int) else None
            if entry is None:
                return None
            size = entry.attributes.get(_BYTE_SIZE)
            if entry.tag == _ARRAY:
                extents += [_extent(child) for child in entry.children if child.tag == _SUBRANGE]
            elif isinstance(size, int):
                return size, tuple(extents)
            elif entry.tag == _POINTER:
                return 8, tuple(extents)
            reference = entry.attributes.get(_TYPE)
        return None

    def _scopes_at(self, pc: int) -> list[_Entry]:
        """Functions, inlined calls and blocks whose code has ``pc``, the outermost first."""
        found: list[_Entry] = []
        for unit in self._units:
            level = unit.children
            while level:
                below: list[_Entry] = []
                for entry in level:
                    if entry.tag == _NAMESPACE:
                        below = below + entry.children
                    elif entry.tag in (_SUBPROGRAM, _INLINED, _BLOCK) and self._covers(unit, entry, pc):
                        found.append(entry)
                        below = entry.children
                        break
                level = below
        return found

    def _calls_at(self, pc: int) -> list[tuple[str, int]]:
        """Calls whose inlined code has ``pc``, the innermost first."""
        calls = []
        for scope in self._scopes_at(pc)[::-1]:
            index, line = scope.attributes.get(_CALL_FILE), scope.attributes.get(_CALL_LINE)
            if scope.tag == _INLINED and isinstance(index, int) and isinstance(line, int):
                calls.append((self._files(self._unit_of(scope)).get(index, ""), line))
        return calls

    def _unit_of(self, entry: _Entry) -> _Entry:
        return [unit for unit in self._units if unit.offset <= entry.offset][-1]

    def _origin_of(self, entry: _Entry) -> _Entry:
        """The entry that has what is said once for all copies of a function."""
        target = entry.attributes.get(_ABSTRACT)
        return self._entries.get(target, entry) if isinstance(target, int) else entry

    def _files(self, unit: _Entry) -> dict[int, str]:
        at = unit.attributes.get(_STATEMENTS)
        if not isinstance(at, int):
            return {}
        data = self._content(".debug_line")
        (length,) = struct.unpack_from("<I", data, at)
        return dict(enumerate(_LineProgram(data, at, at + 4 + length).files, 1))

    def _covers(self, unit: _Entry, entry: _Entry, pc: int) -> bool:
        low, high = entry.attributes.get(_LOW), entry.attributes.get(_HIGH)
        if isinstance(low, int) and isinstance(high, int):
            # A high end of class "constant" is a length; of class "address" it is beyond the low end anyway.
            return low <= pc < (high if high > low else low + high)
        ranges = entry.attributes.get(_RANGES)
        if not isinstance(ranges, int):
            return entry.tag == _BLOCK and low is None
        base = unit.attributes.get(_LOW, 0)
        start = int(base) if isinstance(base, int) else 0
        data = self._content(".debug_ranges")
        for at in range(ranges, len(data) - 15, 16):
            first, last = struct.unpack_from("<QQ", data, at)
            if first == last == 0:
                break
            if first == 0xFFFFFFFFFFFFFFFF:
                start = last
            elif start + first <= pc < start + last:
                return True
        return False


def source_name(symbol: str) -> str:
    """The name of a variable in the source, of its symbol.

    >>> source_name("_ZZ3redIfLi16EET_S0_E3buf")
    'buf'
    >>> source_name("_ZZL3inliE2ib_0")
    'ib'
    >>> source_name("lut")
    'lut'
    """
    if not symbol.startswith("_Z"):
        return symbol.split(".")[0]
    name, at = symbol, 2
    while at < len(symbol):
        if not symbol[at].isdigit():
            at += 1
            continue
        end = at
        while end < len(symbol) and symbol[end].isdigit():
            end += 1
        text = symbol[end : end + int(symbol[at:end])]
        # A literal (Li16E, Lin2E) has digits too; no identifier follows those.
        if not _LITERAL.search(symbol, 0, at) and text.isidentifier() and len(text) == int(symbol[at:end]):
            name, at = text, end + len(text)
        else:
            at = end
    return name


# ------------------------------------------------------------------------------------------------------- line programs


class _LineProgram:
    """One line-number program of `.debug_line`."""

    def __init__(self, data: bytes, at: int, end: int) -> None:
        self._data, self._end = data, end
        (header,) = struct.unpack_from("<I", data, at + 6)
        self._start = at + 10 + header
        self._minimum, _, _, self._base, self._range, self._first = struct.unpack_from("<BBBbBB", data, at + 10)
        at += 16
        self._lengths = data[at : at + self._first - 1]
        at += self._first - 1
        directories = [""]
        while data[at]:
            text = _text(data, at)
            directories.append(text)
            at += len(text.encode()) + 1
        at += 1
        self.files: list[str] = []
        while data[at]:
            text = _text(data, at)
            at += len(text.encode()) + 1
            directory, at = _unsigned(data, at)
            _, at = _unsigned(data, at)
            _, at = _unsigned(data, at)
            folder = directories[directory] if directory < len(directories) else ""
            self.files.append(text if text.startswith("/") or not folder else f"{folder}/{text}")

    def rows(self) -> Iterator[_Row]:
        data, at = self._data, self._start
        address, file, line, column = 0, 1, 1, 0
        while at < self._end:
            code = data[at]
            at += 1
            if code >= self._first:
                code -= self._first
                address += code // self._range * self._minimum
                line += self._base + code % self._range
                yield self._row(address, file, line, column)
            elif code == 0:
                length, at = _unsigned(data, at)
                extended = data[at]
                if extended == 1:
                    yield _Row(address, "", 0)
                    address, file, line, column = 0, 1, 1, 0
                elif extended == 2:
                    (address,) = struct.unpack_from("<Q", data, at + 1)
                at += length
            elif code == 1:
                yield self._row(address, file, line, column)
            elif code == 2:
                step, at = _unsigned(data, at)
                address += step * self._minimum
            elif code == 3:
                step, at = _signed(data, at)
                line += step
            elif code == 4:
                file, at = _unsigned(data, at)
            elif code == 5:
                column, at = _unsigned(data, at)
            elif code == 8:
                address += (255 - self._first) // self._range * self._minimum
            elif code == 9:
                address += struct.unpack_from("<H", data, at)[0]
                at += 2
            else:
                for _ in range(self._lengths[code - 1]):
                    _, at = _unsigned(data, at)

    def _row(self, address: int, file: int, line: int, column: int) -> _Row:
        return _Row(address, self.files[file - 1] if 0 < file <= len(self.files) else "", line, column)


# ------------------------------------------------------------------------------------------------------- debug entries

# Tags and attributes by their numbers in the standard.
_ARRAY, _BLOCK, _POINTER, _INLINED, _SUBRANGE, _SUBPROGRAM, _VARIABLE, _NAMESPACE = (
    0x01,
    0x0B,
    0x0F,
    0x1D,
    0x21,
    0x2E,
    0x34,
    0x39,
)
_LOCATION, _NAME, _BYTE_SIZE, _STATEMENTS, _LOW, _HIGH, _UPPER, _ABSTRACT = (
    0x02,
    0x03,
    0x0B,
    0x10,
    0x11,
    0x12,
    0x2F,
    0x31,
)
_COUNT, _SPECIFICATION, _TYPE, _RANGES, _CALL_FILE, _CALL_LINE = 0x37, 0x47, 0x49, 0x55, 0x58, 0x59

_FIXED = {
    0x01: 8,
    0x05: 2,
    0x06: 4,
    0x07: 8,
    0x0B: 1,
    0x0C: 1,
    0x11: 1,
    0x12: 2,
    0x13: 4,
    0x14: 8,
    0x17: 4,
    0x10: 4,
    0x20: 8,
}
_RELATIVE = {0x11, 0x12, 0x13, 0x14, 0x15}  # references, counted from the unit
_BLOCKS = {0x0A: "<B", 0x03: "<H", 0x04: "<I"}


def _read_abbreviations(data: bytes, at: int) -> dict[int, tuple[int, bool, list[tuple[int, int]]]]:
    found = {}
    while at < len(data) and data[at]:
        code, at = _unsigned(data, at)
        tag, at = _unsigned(data, at)
        has_children = bool(data[at])
        at += 1
        pairs = []
        while True:
            name, at = _unsigned(data, at)
            form, at = _unsigned(data, at)
            if not name and not form:
                break
            pairs.append((name, form))
        found[code] = (tag, has_children, pairs)
    return found


def _read_unit(
    info: bytes, begin: int, abbreviations: dict[int, tuple[int, bool, list[tuple[int, int]]]], strings: bytes
) -> _Entry:
    end = begin + 4 + struct.unpack_from("<I", info, begin)[0]
    at = begin + 11
    root: _Entry | None = None
    parents: list[_Entry] = []
    while at < end:
        offset = at
        code, at = _unsigned(info, at)
        if code == 0:
            if parents:
                parents.pop()
            if not parents:
                break
            continue
        tag, has_children, pairs = abbreviations[code]
        entry = _Entry(offset, tag, {})
        for name, form in pairs:
            value, at = _read_value(info, at, form, begin, strings)
            entry.attributes[name] = value
        if parents:
            parents[-1].children.append(entry)
        root = root or entry
        if has_children:
            parents.append(entry)
    if root is None:
        raise ValueError("an empty unit of debug data")
    return root


def _read_value(info: bytes, at: int, form: int, unit: int, strings: bytes) -> tuple[int | bytes | str, int]:
    if form in _FIXED:
        size = _FIXED[form]
        value = int.from_bytes(info[at : at + size], "little")
        return value + unit if form in _RELATIVE else value, at + size
    if form == 0x0E:  # an offset into the strings
        return _text(strings, struct.unpack_from("<I", info, at)[0]), at + 4
    if form == 0x08:
        end = info.index(0, at)
        return info[at:end].decode(errors="replace"), end + 1
    if form == 0x19:  # a flag that is there
        return 1, at
    if form == 0x0D:
        return _signed(info, at)
    if form in (0x0F, 0x15):
        value, at = _unsigned(info, at)
        return value + unit if form in _RELATIVE else value, at
    if form in _BLOCKS:
        size = struct.calcsize(_BLOCKS[form])
        (length,) = struct.unpack_from(_BLOCKS[form], info, at)
        return info[at + size : at + size + length], at + size + length
    if form in (0x09, 0x18):
        length, at = _unsigned(info, at)
        return info[at : at + length], at + length
    raise ValueError(f"debug data has a form that is not read here: {form:#x}")


def _extent(subrange: _Entry) -> int:
    count, upper = subrange.attributes.get(_COUNT), subrange.attributes.get(_UPPER)
    if isinstance(count, int):
        return count
    return upper + 1 if isinstance(upper, int) else 0


# ------------------------------------------------------------------------------------------------------- bytes


def _text(data: bytes, at: int) -> str:
    return data[at : data.index(0, at)].decode(errors="replace")


def _unsigned(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def _signed(data: bytes, at: int) -> tuple[int, int]:
    begin = at
    value, at = _unsigned(data, at)
    bits = 7 * (at - begin)
    return value - (1 << bits) if value >> (bits - 1) & 1 else value, at
