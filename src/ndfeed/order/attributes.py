"""What tells an object from others of its class: its attributes, as a short text.

A state holds this text for an order that somebody else wrote, so that a run cannot resume with
other parameters. Numbers and short texts are written out; arrays and containers become a digest of
all they hold, and so do dataclasses and other orders. Everything else, such as a generator or an
open file, counts by the name of its type alone: ``find_opaque`` says what.
"""

import dataclasses
import hashlib
import os
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from enum import Enum
from types import FunctionType

import numpy as np

_MOST_SHOWN = 40  # characters of a value that is written out
_MOST_TEXT = 400  # characters of all attributes; if there are more, they become one digest
_MOST_DEPTH = 8  # of values within values
_AT_ONCE = 1 << 20  # elements of an array

_NUMBERS_AND_TEXTS = None.__class__ | bool | int | float | complex | str | bytes
_WRITTEN_OUT = (range, slice, Enum, np.dtype, os.PathLike)  # their repr says everything


def describe_attributes(value: object) -> str:
    """Return a text that differs if an attribute does; empty if there are none.

    >>> class Strided:
    ...     def __init__(self, step):
    ...         self.step = step
    >>> describe_attributes(Strided(3)), describe_attributes(Strided(4))
    ('step=3', 'step=4')
    """
    words = (f"{name}={_show(one)}" for name, one in _list_attributes(value))
    text = ", ".join(words)
    return text if len(text) <= _MOST_TEXT else _digest([text.encode("utf-8", "replace")])


def find_opaque(value: object) -> tuple[str, str] | None:
    """Return the first attribute that cannot be told from others, and the type that is to blame."""
    for name, one in _list_attributes(value):
        opaque: list[str] = []
        _digest(_spell(one, opaque, 0))
        if opaque:
            return name, opaque[0]
    return None


def _list_attributes(value: object) -> list[tuple[str, object]]:
    """Return the attributes of an object by name, not those of its class.

    What a named tuple contains counts as an attribute.
    """
    found = dict(getattr(value, "__dict__", {}))
    for cls in type(value).__mro__:
        slots = vars(cls).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            private = name.startswith("__") and not name.endswith("__")
            full = f"_{cls.__name__.lstrip('_')}{name}" if private else name
            if full not in ("__dict__", "__weakref__") and hasattr(value, full):
                found[full] = getattr(value, full)
    if isinstance(value, tuple):
        found["items"] = tuple(value)
    return sorted(found.items())


def _show(value: object) -> str:
    """Return a number or a short text as it is, and a digest of everything else."""
    spelled = list(_spell_plain(value))
    text = spelled[-1].decode() if spelled else ""
    return text if 0 < len(text) <= _MOST_SHOWN else _digest(_spell(value, [], 0))


def _digest(parts: Iterator[bytes] | list[bytes]) -> str:
    made = hashlib.blake2b(digest_size=8)
    for part in parts:
        made.update(b"%d:" % len(part))
        made.update(part)
    return made.hexdigest()


def _spell(value: object, opaque: list[str], depth: int) -> Iterator[bytes]:
    """Yield bytes that differ if the value does; add the type of what has none to ``opaque``."""
    plain = list(_spell_plain(value))
    if plain:
        yield from plain
        return
    name = f"{type(value).__module__}.{type(value).__qualname__}"
    yield name.encode("utf-8", "replace")
    if isinstance(value, np.generic):
        value = np.asarray(value)
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        yield f"{value.dtype!r} {value.shape}".encode()
        flat = np.ascontiguousarray(value).reshape(-1)
        yield from (flat[at : at + _AT_ONCE].tobytes() for at in range(0, len(flat), _AT_ONCE))
        return
    inner = _list_inner(value)
    if inner is None or depth >= _MOST_DEPTH:
        opaque.append(type(value).__qualname__)
        return
    made = [_digest(_spell(one, opaque, depth + 1)).encode() for one in inner]
    yield from sorted(made) if isinstance(value, Mapping | AbstractSet) else made


def _list_inner(value: object) -> list[object] | None:
    """Return the values that a value is made of; ``None`` if nobody can tell."""
    if isinstance(value, np.ndarray):
        return [value.shape, *value.reshape(-1).tolist()]
    if isinstance(value, Mapping):
        return list(value.items())
    if isinstance(value, list | tuple | AbstractSet):
        return list(value)
    if dataclasses.is_dataclass(value) or _is_an_order(value):
        return list(_list_attributes(value))
    return None


def _spell_plain(value: object) -> Iterator[bytes]:
    """Yield bytes for a value that a short text can tell from others, and nothing for the rest."""
    if isinstance(value, np.generic) and not isinstance(value, np.void):
        value = value.item()
    if isinstance(value, int) and value.bit_length() > 128:
        yield hex(value).encode()  # Python refuses to write very long ones in decimal
    elif isinstance(value, (_NUMBERS_AND_TEXTS, *_WRITTEN_OUT)):
        yield repr(value).encode("utf-8", "replace")
    elif isinstance(value, type | FunctionType) and "<" not in value.__qualname__:
        yield f"{value.__module__}.{value.__qualname__}".encode("utf-8", "replace")


def _is_an_order(value: object) -> bool:
    return not isinstance(value, type) and hasattr(value, "length") and hasattr(value, "rows")
