"""Parse the pickles inside .pt files without running them, and list their arrays by name.

A small interpreter for the opcodes that ``torch.save`` writes with protocols 2 to 5. Its values
are plain containers, numbers, text and descriptions of arrays: names in the stream are looked up
in a list, never imported, and calls only build descriptions. Array bytes are not read here.

Refused: opcodes that no such pickle has (extensions, ids as text, instances as in protocol 0,
out-of-band buffers), keys that are neither text nor integers, and more than ``_MOST_OPCODES``
steps. A step makes at most one value, so the memo, the stack and the number of objects have the
same bound. Dict keys come out as text. Lists and dicts can still contain themselves, and tuples
share their parts: code that walks the result must limit its depth and count its steps.

The object is then flattened into a list of named arrays. Dict keys and positions in lists and
tuples are joined by "/"; a single tensor has the name "". Numbers become arrays of rank 0, bytes
become arrays of ``|u1``. Text, None, types and devices are remarks. Anything else is refused, with
its key. A list of similar items (same keys, types and numbers of dimensions) is a list of rows:
every name then occurs once per item, and ``Plan.rows`` is true.

Each tensor is checked against the size its storage claims; the caller checks that the archive has
that much. The result depends on the pickle alone, so files with identical pickles can share it, and
errors have no path.
"""

import math
import struct
from collections.abc import Callable
from typing import NamedTuple, NoReturn

from ndfeed.errors import FormatError, LimitError, TruncatedError, UnsupportedError, shown
from ndfeed.formats.description import (
    BARE,
    INLINE,
    LATIN1,
    MOST_BYTES,
    NO_CRC,
    RAW,
    Array,
    Wanted,
    bare,
    c_strides,
    fortran_strides,
    is_wanted,
)
from ndfeed.formats.dtypes import EXTENDED, itemsize
from ndfeed.formats.torch_globals import (
    Bytes,
    Dtype,
    Foreign,
    Global,
    Ndarray,
    Storage,
    Tensor,
    Value,
)
from ndfeed.formats.torch_opcodes import STEPS, Machine

_MOST_OPCODES = 2_000_000
_STOP, _BINPUT, _MEMOIZE, _BINGET, _BININT1 = b".q\x94hK"


def parse_pickle(data: bytes) -> tuple[Value, list[Foreign]]:
    """Return the object in ``data``, and all names in it that are not supported."""
    machine = Machine(data)
    try:
        _run(machine)
    except FormatError:
        raise
    except IndexError:
        problem = "the pickle ends early, or lacks a value that it uses"
        raise FormatError("", problem, machine.at) from None
    except KeyError:
        raise FormatError("", "the pickle recalls what it never stored", machine.at) from None
    except (ValueError, struct.error) as error:
        raise FormatError("", f"the pickle is malformed: {error}", machine.at) from None
    if len(machine.stack) != 1 or machine.below:
        raise FormatError("", "the pickle stops in the middle of a value", machine.at)
    return machine.stack[0], machine.strangers


def _run(machine: Machine) -> None:
    """Run until the pickle's stop opcode."""
    data, memo, stack = machine.data, machine.memo, machine.stack
    at = 0
    for _ in range(_MOST_OPCODES):
        code = data[at]
        # The four opcodes that make up half of every pickle are inlined: a call costs more.
        if code == _BINPUT:
            if data[at + 1] == len(memo):
                memo.append(stack[-1])
            else:
                machine.store(data[at + 1])
            at += 2
        elif code == _BININT1:
            stack.append(data[at + 1])
            at += 2
        elif code == _BINGET:
            stack.append(memo[data[at + 1]])
            at += 2
        elif code == _MEMOIZE:
            memo.append(stack[-1])
            at += 1
        elif code == _STOP:
            return
        else:
            machine.at = at
            at = STEPS[code](machine, at + 1)
            stack = machine.stack
    raise LimitError("", f"expected a pickle of at most {_MOST_OPCODES} steps", at)


_DEEPEST = 64
_MOST_STEPS = 100_000
_MOST_NAME = 512
_MOST_NOTES = 50
_SPARE = 1024  # unused bytes of a storage that are not worth a remark
_WIDE, _TIMES = 1 << 30, 1000  # an expanded tensor that exceeds both is a decompression bomb
_READ = "only tensors, arrays, numbers and text in dicts, lists and tuples are read"


class View(NamedTuple):
    """A tensor as a view of a storage. ``held`` is how many bytes the storage must have."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    key: str
    held: int
    skip: int
    strides: tuple[int, ...] | None


class Plan(NamedTuple):
    """The arrays of a pickle in its own order. Offsets of ``Array`` count from its start."""

    arrays: tuple[View | Array, ...]
    notes: tuple[str, ...]
    rows: bool  # are they the items of a list, one after another?
    narrowed: bool = False  # were unreadable values left out that are not wanted?


def flatten_object(pickle: bytes, big: bool, wanted: Wanted | None = None) -> Plan:
    """List the arrays of ``pickle``, whose storages are big-endian or little-endian.

    Values that cannot be read are refused, unless they are not ``wanted``. Errors have no path,
    and offsets count from the start of the pickle.
    """
    value, strangers = parse_pickle(pickle)
    walk = _Walk(big, wanted)
    walk.visit(value, "", 0)
    if strangers and not walk.narrowed:  # not reached by a key: an argument or an attribute
        _refuse(strangers[0], "")
    names = {array.name for array in walk.arrays}
    if len(names) != len(walk.arrays):
        problem = "two arrays have one name once their keys are joined by '/'"
        raise UnsupportedError("", problem, remedy="rename a key before torch.save")
    notes = walk.notes + walk.waste()
    more = len(notes) - _MOST_NOTES
    if more > 0:
        notes = [*notes[:_MOST_NOTES], f"… and {more:,} more remarks"]
    rows = _rows(value, walk.arrays) if type(value) is list else None
    return Plan(tuple(rows or walk.arrays), tuple(notes), rows is not None, walk.narrowed)


def _rows(items: list[Value], arrays: list[View | Array]) -> list[View | Array] | None:
    """Return the arrays of a list's items, named within their item; ``None`` if items differ."""
    count = len(arrays) // len(items) if items else 0
    if not count or len(arrays) != count * len(items):
        return None
    rows: list[View | Array] = []
    expected: list[tuple[str, str, int]] = []
    for i in range(len(items)):
        key = str(i)
        for k, array in enumerate(arrays[i * count : (i + 1) * count]):
            position, _, name = array.name.partition("/")
            kind = name, array.dtype, len(array.shape)
            if position != key or (i and kind != expected[k]):
                return None
            if not i:
                expected.append(kind)
            rows.append(array._replace(name=name))
    return rows


def _refuse(value: Foreign, name: str) -> NoReturn:
    where = f" at {_quote(name)}" if name else ""
    raise UnsupportedError("", f"holds {value.what}{where}", remedy=f"{_READ}; {value.remedy}")


def _quote(name: str) -> str:
    return f"key {shown(name[:100])!r}" if name else "the saved object"


class _Walk:
    """Collects arrays and remarks while it descends. Steps and depth are bounded."""

    def __init__(self, big: bool, wanted: Wanted | None = None) -> None:
        self.big = big
        self.wanted = wanted
        self.narrowed = False
        self.steps = 0
        self.arrays: list[View | Array] = []
        self.notes: list[str] = []
        self.used: dict[str, int] = {}

    def visit(self, value: Value, name: str, depth: int) -> None:
        self.steps += 1
        if self.steps > _MOST_STEPS:
            problem = f"expected at most {_MOST_STEPS:,} values, found more"
            raise LimitError("", problem, remedy="save lists of numbers as tensors")
        if depth > _DEEPEST:
            raise LimitError(
                "",
                f"expected containers nested at most {_DEEPEST} deep",
                remedy="one may contain itself",
            )
        kind = type(value)
        if kind is dict:
            for key, item in value.items():
                self.visit(item, self.below(name, str(key)), depth + 1)
        elif kind is list or kind is tuple:
            for i, item in enumerate(value):
                self.visit(item, self.below(name, str(i)), depth + 1)
        else:
            self.leaf(value, name)

    def leaf(self, value: Value, name: str) -> None:
        try:
            _LEAVES[type(value)](self, value, name)
        except UnsupportedError as error:
            if self._is_wanted(name):
                raise
            self.narrowed = True
            self.notes.append(f"{_quote(name)} is left out: {error.problem}"[:200])

    def _is_wanted(self, name: str) -> bool:
        """Return whether ``name`` was requested. Fields of list items have no position in it."""
        position, _, within = name.partition("/")
        listed = position.isdecimal() and is_wanted(within or BARE, self.wanted)
        return listed or is_wanted(name, self.wanted)

    def below(self, name: str, key: str) -> str:
        if len(name) + len(key) > _MOST_NAME:
            raise LimitError("", f"expected keys of at most {_MOST_NAME} characters")
        return bare(name, key)

    def tensor(self, value: Tensor, name: str) -> None:
        size = itemsize(value.dtype)
        storage = value.storage
        held = storage.elements * (itemsize(storage.dtype) if storage.dtype else 1)
        whole, contiguous = size, True
        for n, step in zip(value.shape[::-1], value.strides[::-1], strict=True):
            if step * size != whole and n != 1:  # not C order; axes of length 1 do not matter
                contiguous = False
            whole *= n
        skip, strides = value.start * size, None
        if not 0 < whole < MOST_BYTES:
            _logical(value.shape, size)
            skip = extent = 0  # an empty slice may start after the end
        elif contiguous:
            extent = whole
        else:
            steps = [
                (step if n > 1 else 1) * size
                for n, step in zip(value.shape, value.strides, strict=True)
            ]
            strides = tuple(steps)
            extent = size + sum((n - 1) * step for n, step in zip(value.shape, steps, strict=True))
            if whole > _WIDE and whole > _TIMES * extent:
                raise LimitError(
                    "", f"{_quote(name)} expands {extent:,} bytes to {whole:,}: a bomb"
                )
        if skip + extent > held:
            raise FormatError(
                "", f"{_quote(name)} ends at byte {skip + extent} of a storage of {held}"
            )
        self.used[storage.key] = self.used.get(storage.key, 0) + extent
        dtype = self.ordered(value.dtype, name) if self.big else value.dtype
        self.arrays.append(View(name, dtype, value.shape, storage.key, held, skip, strides))

    def ordered(self, dtype: str, name: str) -> str:
        """Return the big-endian counterpart of ``dtype``."""
        if EXTENDED.get(dtype, 1) > 1:
            problem = f"{_quote(name)} is big-endian {dtype}, which is not read"
            raise UnsupportedError("", problem, remedy="save it on a little-endian machine")
        return dtype.replace("<", ">")

    def storage(self, value: Storage, name: str) -> None:
        self.tensor(Tensor(value, value.dtype or "|u1", 0, (value.elements,), (1,)), name)

    def ndarray(self, value: Ndarray, name: str) -> None:
        unread = value.unread or value.dtype.unread
        if unread is not None:
            _refuse(unread, name)
        try:
            dtype = value.dtype.name()
        except ValueError as error:
            raise UnsupportedError("", f"{_quote(name)}: {error}", remedy=_READ) from None
        size = itemsize(dtype)
        data = value.data
        whole = _logical(value.shape, size)
        if whole > data.size:
            raise TruncatedError(
                "", f"{_quote(name)} promises {whole} bytes, found {data.size}", data.at
            )
        if whole < data.size:
            raise FormatError("", f"{_quote(name)} needs {whole} bytes, found {data.size}", data.at)
        if not value.shape and size <= 8:
            bits = int.from_bytes(data.head.ljust(8, b"\0"), "little", signed=True)
            self.arrays.append(Array(name, dtype, (), bits, 0, coding=INLINE))
            return
        shape, strides = _laid_out(value, size)
        self.arrays.append(_array(name, dtype, shape, data, strides))

    def bytes(self, value: Bytes, name: str) -> None:
        self.arrays.append(_array(name, "|u1", (value.size,), value, None))

    def number(self, value: bool | int | float, name: str) -> None:
        if type(value) is bool:
            dtype, bits = "|b1", int(value)
        elif type(value) is int:
            dtype, bits = "<i8", value
        else:
            dtype, bits = "<f8", struct.unpack("<q", struct.pack("<d", value))[0]
        if -MOST_BYTES <= bits < MOST_BYTES:
            self.arrays.append(Array(name, dtype, (), bits, 0, coding=INLINE))
        else:
            self.notes.append(f"{_quote(name)} is a number of over 64 bits: left out")

    def text(self, value: str, name: str) -> None:
        cut = value if len(value) <= 100 else f"{value[:99]}…"
        self.notes.append(f"{_quote(name)} is text: {shown(cut)}"[:200])

    def remark(self, value: Value, name: str) -> None:
        what = value.name if type(value) is Global else value
        if type(value) is Dtype:
            what = "a NumPy dtype"
        self.notes.append(f"{_quote(name)} is {what}: left out")

    def waste(self) -> list[str]:
        """Return a remark for each storage of which tensors leave most unused."""
        notes = []
        for view in self.arrays:
            if not isinstance(view, View) or view.key not in self.used:
                continue
            used = self.used.pop(view.key)
            if view.held > 2 * used + _SPARE:
                notes.append(
                    f"{_quote(view.name)} uses {used:,} of {view.held:,} bytes of its storage; "
                    f"clone() before torch.save makes the file smaller"
                )
        return notes


_LEAVES: dict[type, Callable[[_Walk, Value, str], None]] = {
    Tensor: _Walk.tensor,
    Storage: _Walk.storage,
    Ndarray: _Walk.ndarray,
    Bytes: _Walk.bytes,
    bool: _Walk.number,
    int: _Walk.number,
    float: _Walk.number,
    str: _Walk.text,
    complex: _Walk.remark,
    type(None): _Walk.remark,
    Global: _Walk.remark,
    Dtype: _Walk.remark,
    Foreign: lambda walk, value, name: _refuse(value, name),
}


def _logical(shape: tuple[int, ...], size: int) -> int:
    """Return the bytes of all elements, if that is possible; empty arrays are checked, too."""
    whole = size * math.prod(shape)
    if (whole or size * math.prod(n for n in shape if n)) >= MOST_BYTES:
        raise LimitError("", f"expected a shape of fewer than 2**63 bytes, found {shape!r:.80}")
    return whole


def _array(
    name: str, dtype: str, shape: tuple[int, ...], data: Bytes, strides: tuple[int, ...] | None
) -> Array:
    if data.text:
        place = (data.at, data.stored, 0, LATIN1, strides, NO_CRC, data.size)
        return Array(name, dtype, shape, *place)
    return Array(name, dtype, shape, data.at, data.stored, 0, RAW, strides)


def _laid_out(value: Ndarray, size: int) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    """Return the shape and the strides in bytes of a NumPy array."""
    if value.axes is None:
        return value.shape, fortran_strides(value.shape, size) if value.fortran else None
    steps = c_strides(value.shape, size)
    shape = tuple(value.shape[axis] for axis in value.axes)
    strides = tuple(steps[axis] for axis in value.axes)
    return shape, None if 0 in shape else strides
