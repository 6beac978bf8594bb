"""What functions given to map refer to, and whether they change it.

A function in another process has that process's variables: what it changes there is not seen here.
So before functions are run elsewhere without having been asked for, the variables they refer to are
looked at twice, with some batches in between: those of their modules and closures, arguments'
defaults, attributes of objects, classes and modules, to a small depth; of large arrays some of
the elements. What is deeper, or changes rarely, is not noticed.
"""

import contextlib
import functools
import io
import itertools
import os
import random
import sys
import zlib
from collections import deque
from collections.abc import Collection, Iterator, Reversible, Sequence
from types import CodeType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ndfeed.dataset.map_steps import Step, all_maps

# A path keeps what it has worked out in its attributes, which is no change.
_PLAIN = (int, float, complex, str, bytes, type(None), os.PathLike)
_CONTAINERS = (list, tuple, set, frozenset, dict, deque, bytearray)
_DEEP = 3  # levels of objects in objects
_LOOKED_AT = 64  # elements at each end of a container
_BYTES = 1 << 16  # of an array, spread over it
_MOST_FUNCTIONS = 256

State = dict[str, object]


def observe(steps: Sequence[Step]) -> State:
    """Return what the functions of these steps refer to, in a form that can be compared."""
    found: State = {}
    seen: set[int] = set()
    todo: deque[tuple[str, Any]] = deque(("", step.function) for step in all_maps(steps))
    while todo and len(seen) < _MOST_FUNCTIONS:
        name, value = todo.popleft()
        if id(value) in seen:
            continue
        seen.add(id(value))
        for own, one in _refer(value, name):
            if isinstance(one, FunctionType | MethodType | functools.partial):
                todo.append((own, one))
            elif not isinstance(one, ModuleType):
                found[own] = _describe(one)
    return found


def find_changed(before: State, after: State) -> str:
    """Return the name of something that has changed; empty if nothing has."""
    return next((name for name in before if after.get(name) != before[name]), "")


def _refer(value: object, prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield the names and values that something callable refers to."""
    if isinstance(value, functools.partial):
        yield f"{prefix}func", value.func
        yield from ((f"{prefix}argument {i}", one) for i, one in enumerate(value.args))
        yield from value.keywords.items()
    elif isinstance(value, MethodType):
        yield from _attributes(value.__self__)
        yield value.__func__.__name__, value.__func__
    elif isinstance(value, FunctionType):
        yield from _refer_of_function(value)
    else:
        yield from _attributes(value)
        yield type(value).__name__, getattr(type(value), "__call__", None)  # noqa: B004


def _refer_of_function(function: FunctionType) -> Iterator[tuple[str, Any]]:
    code, names = function.__code__, list_names(function.__code__)
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
        with contextlib.suppress(ValueError):  # of an empty cell
            yield name, cell.cell_contents
    for name in names & function.__globals__.keys():
        value = function.__globals__[name]
        yield name, value
        if isinstance(value, ModuleType):
            own = vars(value)
            some = [one for one in names & own.keys() if not callable(own[one])]
            yield from ((f"{name}.{one}", own[one]) for one in some)
    yield from vars(function).items()
    yield from ((f"default {i}", one) for i, one in enumerate(function.__defaults__ or ()))
    yield from (function.__kwdefaults__ or {}).items()


def _attributes(value: object) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of an object, and those of its class that are no functions."""
    yield from ((f"self.{name}", one) for name, one in get_own(value).items())
    for name, one in list(vars(type(value)).items()):
        if not (name.startswith("__") or callable(one) or hasattr(one, "__get__")):
            yield f"self.{name} of the class", one


def get_own(value: object) -> dict[str, Any]:
    """Return the attributes of an object itself, wherever it has them."""
    found = dict(getattr(value, "__dict__", {}))
    for kind in type(value).__mro__:
        own = vars(kind)
        for name, one in own.items() if "__slots__" in own else ():  # as private ones are stored
            if isinstance(one, MemberDescriptorType) and hasattr(value, name):
                found[name] = getattr(value, name)
    return found


def list_names(code: CodeType) -> set[str]:
    """Return the names that a function and those defined in it use."""
    found = set(code.co_names)
    for one in code.co_consts:
        if isinstance(one, CodeType):
            found |= list_names(one)
    return found


def _describe(value: Any, deep: int = _DEEP) -> object:  # noqa: ANN401 - whatever there is
    """Describe a value so that most changes of it are seen."""
    if isinstance(value, _PLAIN):
        return repr(value)  # not the number: NaN is not equal to itself
    if isinstance(value, np.ndarray):
        return value.shape, _sum_up(value)
    if hasattr(value, "data_ptr"):  # a tensor, which counts its changes
        return value.data_ptr(), getattr(value, "_version", 0)
    if isinstance(value, _CONTAINERS):
        some = [_describe(one, deep - 1) for one in _some(value)] if deep else []
        return type(value).__name__, len(value), some
    if isinstance(value, io.IOBase):
        try:
            return value.tell()
        except (OSError, ValueError):
            return None
    own = get_own(value) if deep else {}
    if own and not isinstance(value, type | ModuleType):
        return id(value), [(name, _describe(one, deep - 1)) for name, one in own.items()]
    return id(value), repr(value)[:200] if isinstance(value, Iterator) else ""


def _sum_up(array: NDArray[Any]) -> int:
    """Return a checksum of an array's elements, of some of them if there are many."""
    if array.dtype.hasobject:
        return 0
    step = max(array.nbytes // _BYTES, 1)
    return zlib.crc32(array.reshape(-1)[::step].tobytes())


def _some(values: Collection[Any]) -> list[Any]:
    """Return the first and last elements of a container, of a dict its items."""
    every = values.items() if isinstance(values, dict) else values
    found = list(itertools.islice(every, _LOOKED_AT))
    if len(values) > _LOOKED_AT and isinstance(every, Reversible):
        found += itertools.islice(reversed(every), _LOOKED_AT)
    return found


def observe_generators() -> tuple[object, ...]:
    """Return the states of the global random generators, which other processes do not share."""
    torch = sys.modules.get("torch")
    drawn = getattr(torch, "default_generator", None)
    return (
        random.getstate(),
        repr(np.random.get_state()),  # noqa: NPY002 - the one that maps may use
        None if drawn is None else drawn.get_state().numpy().tobytes(),
    )
