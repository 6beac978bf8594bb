"""Check the arguments that callers write, and compute properties on first use."""

import functools
import math
import operator
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, Self, TypeVar, cast, overload

import numpy as np
from numpy.typing import DTypeLike

from ndfeed.errors import shown
from ndfeed.files import platform_calls
from ndfeed.formats.dtypes import named
from ndfeed.index.table import Table

_MOST_MEMORY = 2 << 30
_UNITS = {"": 1, "K": 1000, "M": 1000**2, "G": 1000**3, "T": 1000**4}
_BINARY = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def as_bytes(memory: int | str | None) -> int:
    """Parse ``2_000_000_000``, ``"2GB"``, ``"512MiB"``; default: an eighth of all, up to 2 GiB."""
    if memory is None:
        return min(platform_calls.memory_bytes() // 8, _MOST_MEMORY)
    if isinstance(memory, str):
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?\s*", memory, re.IGNORECASE)
        if found is None or (found[3] and not found[2]):
            raise ValueError(
                f'memory must be bytes or text such as "2GB" or "512MiB", got {memory!r}'
            )
        units = _BINARY if found[3] else _UNITS
        memory = int(float(found[1]) * units[found[2].upper()])
    if isinstance(memory, bool) or not hasattr(memory, "__index__"):
        raise TypeError(f'memory must be bytes or text such as "2GB", got {memory!r}')
    if memory < 1:
        raise ValueError(f"memory must be at least 1 byte, got {memory}")
    return operator.index(memory)


def as_count(name: str, value: int, least: int, most: int) -> int:
    """Check an integer in [least, most]."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be a whole number, got {value!r}")
    number = operator.index(value)
    if not least <= number <= most:
        raise ValueError(f"{name} must be in [{least}, {most}], got {number}")
    return number


def as_fractions(given: Sequence[object]) -> tuple[float, ...]:
    """Check fractions that sum to 1, given as arguments or as one list.

    A single one is followed by the remainder.
    """
    one = given[0] if len(given) == 1 else None
    if not isinstance(one, str | bytes) and isinstance(one, Iterable):
        given = tuple(one)
    if not given:
        raise TypeError("fractions must be numbers such as 0.8, 0.1, 0.1, got none")
    found: list[float] = []
    for one in given:
        if isinstance(one, str | bytes) or not hasattr(one, "__float__"):
            raise TypeError(f"fractions must be numbers such as 0.8, 0.1, 0.1, got {one!r}")
        found.append(float(one))
        if not 0 <= found[-1] <= 1:
            raise ValueError(f"fraction must be in [0, 1], got {one}")
    if len(found) == 1:
        return found[0], 1 - found[0]
    total = math.fsum(found)
    if not math.isclose(total, 1, abs_tol=1e-6):
        raise ValueError(
            f"fractions must sum to 1, got {' + '.join(map(str, found))} = {total:.6g}; "
            f"add a fraction for the rest"
        )
    return tuple(found)


def is_masked(given: object) -> bool:
    """Does an array have masked values?"""
    # Not before somebody made such an array: until then, NumPy has not imported its module.
    return "numpy.ma" in sys.modules and bool(np.ma.is_masked(given))


def check_unmasked(name: str, given: object) -> None:
    """Refuse a masked array, whose mask would be lost."""
    if is_masked(given):
        raise ValueError(
            f"{name} must not have masked values, which would be used as if they were not masked; "
            "replace them with filled()"
        )


def check_arguments(source: object, on_error: object, **flags: object) -> None:
    """Refuse arguments that nothing else would check."""
    if isinstance(source, np.lib.npyio.NpzFile):
        raise TypeError(
            "a source must be a path, got an open .npz; pass the path instead of np.load()"
        )
    if on_error not in ("raise", "skip"):
        raise ValueError(f'on_error must be "raise" or "skip", got {on_error!r}')
    for name, value in flags.items():
        if not isinstance(value, bool | np.bool_):
            more = "; the folder of the index is set by XDG_CACHE_HOME" if name == "cache" else ""
            raise TypeError(f"{name} must be True or False, got {value!r}{more}")


def as_names(fields: object) -> tuple[str, ...] | None:
    """Check the field names that the caller chose, in order."""
    if fields is None or isinstance(fields, str):
        return None if fields is None else (fields,)
    if not isinstance(fields, Sequence):
        raise TypeError(f"fields must be a list or tuple of names, got {type(fields).__name__}")
    if not all(isinstance(name, str) for name in fields):
        raise TypeError(
            f"fields of open must be names, got {fields!r}; a loader's fields= nests them"
        )
    return tuple(fields)


def as_casts(dtype: object) -> object:
    """Return the caller's ``dtype``; a dict of fields as one of names that pickles."""
    if not isinstance(dtype, Mapping):
        return dtype
    if {"names", "formats"} <= dtype.keys():  # NumPy's own dict for a structured dtype
        return np.dtype(cast("DTypeLike", dict(dtype)))
    found: dict[str, str] = {}
    for name, wanted in dtype.items():
        try:
            found[name] = named(wanted)
        except (TypeError, ValueError) as error:
            raise ValueError(f"dtype of {name!r}: {error}") from None
    return found


_MOST_FILES = 8
_DIGITS = re.compile(r"\d+")


def suggest_field_dict(table: Table) -> str:
    """Suggest the call that opens a few .npy files of different names as fields of one dataset.

    Empty where there are many files, or they are numbered: those are of one kind.
    """
    if not 2 <= table.files <= _MOST_FILES or table.names != ("",):
        return ""
    paths = [os.fsdecode(path) for path in table.paths_of(np.arange(table.files))]
    stems = [os.path.basename(path).partition(".")[0] for path in paths]
    if len({_DIGITS.sub("", stem) for stem in stems}) < len(stems):
        return ""
    # X_train and y_train are "x" and "y", and belong apart from X_test and y_test.
    rest = stems[0].partition("_")[2]
    chosen = {
        stem.partition("_")[0].lower(): path
        for stem, path in zip(stems, paths, strict=True)
        if stem.partition("_")[2] == rest
    }
    if len(chosen) < 2:
        chosen = dict(zip(stems, paths, strict=True))
    fields = ", ".join(f'"{shown(name)}": "{shown(path)}"' for name, path in chosen.items())
    return f"if each file is a field, write ndfeed.open({{{fields}}})"


S = TypeVar("S")
T = TypeVar("T")


class lazy(Generic[T]):
    """A property that is computed once for each object, or twice if two threads race.

    ``functools.cached_property`` without its lock: up to Python 3.11 all objects share one, and a
    child forked while another thread holds it would wait for ever.
    """

    def __init__(self, function: Callable[[Any], T]) -> None:
        self._function = function
        self.__doc__ = function.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...

    @overload
    def __get__(self, instance: object, owner: type) -> T: ...

    def __get__(self, instance: object | None, owner: type) -> Self | T:
        if instance is None:
            return self
        # Into the object's dict: it is found there first from now on, frozen or not.
        value: T = self._function(instance)
        instance.__dict__[self._name] = value
        return value


def computed_once(function: Callable[[S], T]) -> Callable[[S], T]:
    """Compute a function of one object once for each object, like ``lazy`` outside of its class."""
    key = f"{function.__module__}.{function.__qualname__}"  # no attribute has such a name

    @functools.wraps(function)
    def compute(instance: S) -> T:
        known = instance.__dict__
        if key not in known:
            known[key] = function(instance)
        value: T = known[key]
        return value

    return compute
