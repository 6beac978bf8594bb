"""The opcodes of the pickles inside .pt files: what each does to the machine that reads them.

``STEPS`` has a function for each of the 256. It is called with the machine and the position after
the opcode, and returns the position of the next one. Malformed bytes raise ``ValueError``,
``IndexError``, ``KeyError`` or ``struct.error``, which ``torch_objects`` turns into our errors.

No number from a file is ever hashed. Python hashes numbers, and tuples of them, by a public rule,
so a file could choose numbers that all collide, and every lookup would visit all of them. Keys of
dicts are kept as text, whose hash is different in every process, and the memo is a list.
"""

import struct
from collections.abc import Callable
from typing import NoReturn

from ndfeed.errors import LimitError, TruncatedError, UnsupportedError
from ndfeed.formats.torch_globals import (
    GLOBALS,
    Bytes,
    Dtype,
    Foreign,
    Global,
    Ndarray,
    Value,
    foreign,
    persistent,
)

_MOST_MARKS = 512
_MOST_INTEGER = 255
_MOST_NAME = 256
_MOST_STRANGERS = 100
_HEAD = 16
_FLOAT = struct.Struct(">d")
_ENCODE = Global("_codecs.encode")
_SET = foreign("builtins", "set")


class Machine:
    """A stack for each open mark, and the memo."""

    __slots__ = ("at", "below", "data", "memo", "places", "stack", "strangers")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0  # the position of the last step that was not inlined
        self.stack: list[Value] = []
        self.below: list[list[Value]] = []  # the stacks under the open marks
        self.memo: list[Value] = []
        # Where each text is stored, as it may turn out to be bytes; then those bytes.
        self.places: dict[str, int | Bytes] = {}
        self.strangers: list[Foreign] = []

    def store(self, index: int) -> None:
        """Remember the last value. Writers number what they store from 0, without gaps."""
        if index > len(self.memo):
            raise ValueError(f"expected values stored in order, {len(self.memo)} before {index}")
        self.memo[index : index + 1] = [self.stack[-1]]

    def look_up(self, module: Value, name: Value) -> Value:
        """Return what a name stands for."""
        if type(module) is not str or type(name) is not str:
            raise ValueError("expected a name")
        if len(module) > _MOST_NAME or len(name) > _MOST_NAME:
            raise ValueError(f"expected names of at most {_MOST_NAME} characters")
        found = GLOBALS.get((module, name))
        if found is not None:
            return found
        if (module, name) == ("_codecs", "encode"):
            return _ENCODE
        if len(self.strangers) == _MOST_STRANGERS:
            raise UnsupportedError("", f"holds {self.strangers[0].what} and much else", self.at)
        self.strangers.append(foreign(module, name))
        return self.strangers[-1]

    def call(self, function: Value, args: Value) -> Value:
        """Return the description of what ``function(*args)`` would return."""
        if type(args) is not tuple:
            raise ValueError("expected a tuple of arguments")
        if type(function) is Global and function.build is not None:
            return function.build(args)
        if type(function) is Foreign:
            # A private helper that makes objects has their class first, which tells more.
            helper = "._" in function.what and args and type(args[0]) is Foreign
            return args[0] if helper else function
        if function is _ENCODE:
            return self.encoded(args)
        raise ValueError("expected a function")

    def encoded(self, args: tuple[Value, ...]) -> Bytes:
        """Return text as bytes: protocol 2 has no bytes and writes one character for each."""
        if len(args) != 2 or type(args[0]) is not str or args[1] != "latin1":
            raise ValueError("expected text to be encoded as latin1")
        text, place = args[0], self.places[args[0]]
        if isinstance(place, int):
            decoded, stored = text.encode("latin-1"), len(text.encode())
            place = Bytes(place, stored, len(decoded), not text.isascii(), decoded[:_HEAD])
            self.places[text] = place
        return place


# Steps: each begins after its opcode and returns the position of the next one.
Step = Callable[[Machine, int], int]


def _unknown(machine: Machine, at: int) -> NoReturn:
    code = machine.data[at - 1]
    raise UnsupportedError("", f"opcode 0x{code:02x} is none that torch.save writes", at - 1)


def _recursive(machine: Machine, at: int) -> NoReturn:
    raise UnsupportedError("", "holds a tuple that contains itself", at - 1, remedy="save a tree")


def _protocol(machine: Machine, at: int) -> int:
    version = machine.data[at]
    if version > 5:
        raise UnsupportedError("", f"expected pickle protocol 2 to 5, found {version}", at)
    return at + 1


def _mark(machine: Machine, at: int) -> int:
    if len(machine.below) == _MOST_MARKS:
        raise LimitError("", f"expected marks nested at most {_MOST_MARKS} deep", at)
    machine.below.append(machine.stack)
    machine.stack = []
    return at


def _push(make: Callable[[], Value]) -> Step:
    def step(machine: Machine, at: int) -> int:
        machine.stack.append(make())
        return at

    return step


def _integer(width: int, signed: bool) -> Step:
    def step(machine: Machine, at: int) -> int:
        end = at + width
        machine.stack.append(int.from_bytes(machine.data[at:end], "little", signed=signed))
        return end

    return step


def _sized(width: int, take: Callable[[Machine, int, int], None]) -> Step:
    """Make a step over a length and that many bytes; ``take`` gets their start and end."""

    def step(machine: Machine, at: int) -> int:
        start = at + width
        end = start + int.from_bytes(machine.data[at:start], "little")
        if end > len(machine.data):
            present = len(machine.data)
            raise TruncatedError("", f"expected a pickle of {end} bytes, found {present}", at)
        take(machine, start, end)
        return end

    return step


def _text(machine: Machine, at: int, end: int) -> None:
    raw = machine.data[at:end]
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        raw.decode(errors="surrogatepass")  # everything pickle accepts; raises for the rest
        machine.stack.append(raw.decode(errors="backslashreplace"))
        return
    machine.places.setdefault(text, at)
    machine.stack.append(text)


def _raw(machine: Machine, at: int, end: int) -> None:
    head = machine.data[at : min(at + _HEAD, end)]
    machine.stack.append(Bytes(at, end - at, end - at, False, head))


def _long(machine: Machine, at: int, end: int) -> None:
    if end - at > _MOST_INTEGER:
        raise LimitError("", f"expected a number of at most {_MOST_INTEGER} bytes", at)
    machine.stack.append(int.from_bytes(machine.data[at:end], "little", signed=True))


def _float(machine: Machine, at: int) -> int:
    machine.stack.append(_FLOAT.unpack_from(machine.data, at)[0])
    return at + 8


def _marked(take: Callable[[Machine, list[Value]], None]) -> Step:
    """Make a step that passes everything above the last mark to ``take``."""

    def step(machine: Machine, at: int) -> int:
        items = machine.stack
        machine.stack = machine.below.pop()
        take(machine, items)
        return at

    return step


def _last(count: int, take: Callable[[Machine, list[Value]], None]) -> Step:
    """Make a step that passes the last ``count`` values to ``take``."""

    def step(machine: Machine, at: int) -> int:
        stack = machine.stack
        if len(stack) < count:
            raise IndexError
        items = stack[-count:]
        del stack[-count:]
        take(machine, items)
        return at

    return step


def _tuple(machine: Machine, at: int) -> int:
    items = tuple(machine.stack)
    machine.stack = machine.below.pop()
    machine.stack.append(items)
    return at


def _tuple1(machine: Machine, at: int) -> int:
    machine.stack[-1] = (machine.stack[-1],)
    return at


def _tuple2(machine: Machine, at: int) -> int:
    stack = machine.stack
    second = stack.pop()
    stack[-1] = (stack[-1], second)
    return at


def _tuple3(machine: Machine, at: int) -> int:
    stack = machine.stack
    third, second = stack.pop(), stack.pop()
    stack[-1] = (stack[-1], second, third)
    return at


def _add(machine: Machine, items: list[Value]) -> None:
    target = machine.stack[-1]
    if type(target) is list:
        target += items
    elif type(target) is not Foreign:
        raise ValueError("expected a list to append to")


def _set(machine: Machine, items: list[Value]) -> None:
    target = machine.stack[-1]
    keys = items[::2]
    for key in keys:
        if type(key) is not str and type(key) is not int:
            problem = "holds a dict with keys that are neither text nor whole numbers"
            raise UnsupportedError("", problem, machine.at, remedy="save it with text as keys")
    if len(items) % 2:
        raise ValueError("a key without a value")
    if type(target) is dict:
        expected = len(target) + len(keys)
        target.update(zip(map(str, keys), items[1::2], strict=True))
        if len(target) < expected:
            problem = "two arrays have one name: keys of a dict are written alike, as 1 and '1'"
            raise UnsupportedError("", problem, machine.at, remedy="rename a key before torch.save")
    elif type(target) is not Foreign:
        raise ValueError("expected a dict to set items of")


def _add_to_set(machine: Machine, items: list[Value]) -> None:
    if type(machine.stack[-1]) is not Foreign:
        raise ValueError("expected a set to add to")


def _frozen_set(machine: Machine, items: list[Value]) -> None:
    machine.stack.append(_SET)


def _global(machine: Machine, at: int) -> int:
    data = machine.data
    middle = data.find(b"\n", at, at + _MOST_NAME) + 1
    end = data.find(b"\n", middle, middle + _MOST_NAME) + 1
    if not middle or not end:
        raise ValueError("expected a name on two lines")
    machine.stack.append(
        machine.look_up(data[at : middle - 1].decode(), data[middle : end - 1].decode())
    )
    return end


def _stack_global(machine: Machine, at: int) -> int:
    name = machine.stack.pop()
    machine.stack[-1] = machine.look_up(machine.stack[-1], name)
    return at


def _reduce(machine: Machine, at: int) -> int:
    stack = machine.stack
    args = stack.pop()
    stack[-1] = machine.call(stack[-1], args)
    return at


def _new_object(machine: Machine, at: int) -> int:
    args = machine.stack.pop()
    if type(machine.stack[-1]) is not Foreign or type(args) is not tuple:
        raise ValueError("an object of an unexpected class")
    return at  # the value keeps its kind, whatever its arguments


def _new_object_ex(machine: Machine, at: int) -> int:
    machine.stack.pop()  # keyword arguments
    return _new_object(machine, at)


def _build(machine: Machine, at: int) -> int:
    state = machine.stack.pop()
    target = machine.stack[-1]
    if type(target) in (Dtype, Ndarray):
        target.set_state(state)
    elif type(target) not in (Foreign, dict):  # attributes of an OrderedDict are not data
        raise ValueError("expected a value that takes a state")
    return at


def _persistent(machine: Machine, at: int) -> int:
    machine.stack[-1] = persistent(machine.stack[-1])
    return at


def _put(machine: Machine, at: int) -> int:
    machine.store(int.from_bytes(machine.data[at : at + 4], "little"))
    return at + 4


def _get(machine: Machine, at: int) -> int:
    machine.stack.append(machine.memo[int.from_bytes(machine.data[at : at + 4], "little")])
    return at + 4


STEPS: list[Step] = [_unknown] * 256
for _code, _step in {
    b"\x80": _protocol, b"\x95": lambda machine, at: at + 8, b"(": _mark,
    b"0": _recursive, b"1": _recursive, b"N": _push(lambda: None), b"\x88": _push(lambda: True),
    b"\x89": _push(lambda: False), b")": _push(tuple), b"]": _push(list), b"}": _push(dict),
    b"\x8f": _push(lambda: _SET), b"\x90": _marked(_add_to_set), b"\x91": _marked(_frozen_set),
    b"J": _integer(4, signed=True), b"M": _integer(2, signed=False), b"\x8a": _sized(1, _long),
    b"\x8b": _sized(4, _long), b"G": _float, b"X": _sized(4, _text), b"\x8c": _sized(1, _text),
    b"\x8d": _sized(8, _text), b"B": _sized(4, _raw), b"C": _sized(1, _raw),
    b"\x8e": _sized(8, _raw), b"\x96": _sized(8, _raw), b"\x85": _tuple1, b"\x86": _tuple2,
    b"\x87": _tuple3, b"t": _tuple, b"a": _last(1, _add), b"e": _marked(_add),
    b"s": _last(2, _set), b"u": _marked(_set), b"c": _global, b"\x93": _stack_global,
    b"R": _reduce, b"\x81": _new_object, b"\x92": _new_object_ex, b"b": _build,
    b"Q": _persistent, b"r": _put, b"j": _get,
}.items():  # fmt: skip
    STEPS[_code[0]] = _step
