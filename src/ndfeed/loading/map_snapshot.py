"""All that functions given to map refer to, so that two moments can be compared.

Processes that were forked from this one are used in the next epoch as well if the functions would
find nothing there that this process has changed. ``map_state`` looks for signs that functions
change something; here a single value that cannot be looked at means that nothing is known.

Followed are globals, closures, defaults, attributes and methods of the functions, and of whatever
they use in turn. What installed packages keep for themselves is not looked at, unless they define
one of the functions: their objects are, the variables of their modules are not. Noted besides are
the working folder and the variables of the environment.
"""

import functools
import gc
import logging
import os
import random
import re
import sys
import sysconfig
import threading
import zlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import date, time, timedelta
from pathlib import PurePath
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    MappingProxyType,
    MethodType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ndfeed.dataset.map_steps import Step, all_maps
from ndfeed.loading.map_state import get_own, list_names

_MOST_VALUES = 10_000
_MOST_BYTES = 4 << 20  # of arrays: reading more would take longer than forking

_PLAIN = (int, str, bytes, type(None), type(...), range, np.dtype, re.Pattern, PurePath, date)
_TIMES = (time, timedelta)
_NUMBERS = (float, complex)
_SEQUENCES = (list, tuple, set, frozenset, deque)
# What they do to a batch, if anything, does not depend on their state.
_NEUTRAL = (logging.Logger, type(threading.Lock()), type(threading.RLock()))
_SHARED_MODES = ("r", "r+")  # of mapped files in which every process sees what is written
_CONSTANTS = {("torch", name) for name in ("dtype", "device", "memory_format")}
_CONSTANTS |= {("types", "GenericAlias"), ("types", "UnionType")}
_CONSTANTS |= {("operator", "itemgetter"), ("operator", "attrgetter")}
_CONSTANTS |= {("ctypes", "_FuncPtr"), ("functools", "_lru_list_elem")}  # of a library; of a cache
# Functions that find variables by names that may be computed.
_BY_NAME = {"eval", "exec", "globals", "vars", "__import__", "import_module"}
_NO_VALUES = {"__dict__", "__weakref__", "__doc__", "__slots__", "__annotations__", "_abc_impl"}
_INSTALLED = tuple(
    {os.path.join(path, "") for name, path in sysconfig.get_paths().items() if "lib" in name}
)

Snapshot = list[object]


class _UnknownError(Exception):
    """A value that cannot be looked at completely."""


class _Same:
    """Equal to the very same object only."""

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.value is other.value

    __hash__ = None  # type: ignore[assignment]


def take_snapshot(steps: Sequence[Step]) -> Snapshot | None:
    """Return what the functions of these steps refer to; ``None`` if that cannot be told."""
    functions = [step.function for step in all_maps(steps)]
    walk = _Walk({_package(one) for one in functions})
    try:
        walk.add((os.getcwd(), dict(os.environ)))
        for function in functions:
            walk.add(function)
    except Exception:  # noqa: BLE001 - objects may do anything when they are looked at
        return None
    return walk.found


def _package(value: Any) -> str:  # noqa: ANN401 - whatever can be called
    while isinstance(value, functools.partial):
        value = value.func
    if isinstance(value, FunctionType):
        found = _module_of(value)
    else:
        found = getattr(value, "__module__", None) or type(value).__module__
    return f"{found}".partition(".")[0]


def _module_of(function: FunctionType) -> str | None:
    """Return where a function was defined: ``__module__`` may be that of another one it wraps."""
    found: str | None = function.__globals__.get("__name__")
    return found


class _Walk:
    """Goes through values, each once, and notes what is in them."""

    def __init__(self, own: set[str]) -> None:
        self.found: Snapshot = []
        self._own = own  # packages that are looked into although they are installed
        self._seen: dict[int, int] = {}
        self._alive: list[object] = []  # or another object could get the number of one
        self._bytes = _MOST_BYTES

    def add(self, value: Any) -> None:  # noqa: ANN401 - whatever there is
        """Note a value, and all that it refers to."""
        kind = type(value)
        own = self._is_own(kind.__module__)
        if isinstance(value, (*_PLAIN, *_TIMES, *_NUMBERS)) and not own:
            # Not the number itself: NaN is not equal to itself, and 0 is to -0.
            self.found.append((kind, repr(value) if isinstance(value, _NUMBERS) else value))
            return
        number = self._seen.get(id(value))
        self.found.append((kind, len(self._seen) if number is None else number))
        if number is not None:
            return
        self._seen[id(value)] = len(self._seen)
        self._alive.append(value)
        if len(self._seen) > _MOST_VALUES:
            raise _UnknownError
        self._add_new(value)
        if own:
            self.add(kind)

    def _add_new(self, value: Any) -> None:  # noqa: ANN401
        for kinds, look in self._LOOKS:
            if isinstance(value, kinds):
                look(self, value)
                return
        if isinstance(value, _NEUTRAL) or _is_constant(value):
            self.found.append(_Same(value))
        elif hasattr(value, "data_ptr"):
            self._add_tensor(value)
        elif _name_of(type(value)) == ("torch._C", "Generator"):
            self._add_generator_of_torch(value)
        elif _has_hidden_state(type(value)):
            raise _UnknownError
        else:
            self._add_attributes(value)

    def _add_array(self, value: NDArray[Any]) -> None:
        mapped = _name_of(type(value)) == ("numpy", "memmap")
        if mapped and getattr(value, "mode", "") in _SHARED_MODES:
            self.found.append(_Same(value))
            return
        self._bytes -= value.nbytes
        if value.dtype.hasobject or self._bytes < 0:
            raise _UnknownError
        checksum = zlib.crc32(np.ascontiguousarray(value).tobytes())
        self.found.append((value.shape, value.strides, value.dtype, checksum))
        if not mapped:
            self._add_attributes(value)  # a masked array has some

    def _add_scalar(self, value: Any) -> None:  # noqa: ANN401 - of NumPy
        self.found.append((value.dtype, value.tobytes()))

    def _add_tensor(self, value: Any) -> None:  # noqa: ANN401
        if value.device.type != "cpu":
            raise _UnknownError
        self._add_array(np.asarray(value.detach()))
        self.found.append(value.requires_grad)
        self._add_attributes(value)

    def _add_sequence(self, value: Any) -> None:  # noqa: ANN401
        self.found.append(len(value))
        for one in value:
            self.add(one)
        self._add_attributes(value)

    def _add_dict(self, value: Mapping[Any, Any]) -> None:
        self.found.append(len(value))
        for key, one in value.items():
            self.add(key)
            self.add(one)
        self.add(getattr(value, "default_factory", None))
        self._add_attributes(value)

    def _add_own_plain(self, value: object) -> None:
        self.found.append(_Same(value))
        self._add_attributes(value)

    def _add_bytes(self, value: bytearray) -> None:
        self.found.append(bytes(value))

    def _add_generator(self, value: np.random.Generator) -> None:
        self.add(value.bit_generator.state)

    def _add_old_generator(self, value: np.random.RandomState) -> None:
        self.add(value.get_state())

    def _add_generator_of_torch(self, value: Any) -> None:  # noqa: ANN401
        self.add(value.get_state())

    def _add_random(self, value: random.Random) -> None:
        self.add(value.getstate())

    def _add_partial(self, value: "functools.partial[Any]") -> None:
        for one in (value.func, value.args, value.keywords, value.__dict__):
            self.add(one)

    def _add_method(self, value: MethodType) -> None:
        self.add(value.__func__)
        self.add(value.__self__)

    def _add_wrapper(self, value: Any) -> None:  # noqa: ANN401 - of a class
        for name in ("__func__", "fget", "func"):
            self.add(getattr(value, name, None))

    def _add_cached(self, value: Any) -> None:  # noqa: ANN401 - a function with a cache
        for one in gc.get_referents(value):  # the function, and all results
            self.add(one)

    def _add_builtin(self, value: BuiltinFunctionType) -> None:
        owner = value.__self__
        if owner is None or isinstance(owner, type | ModuleType):
            self.found.append(_Same(value))
        else:
            self.add(owner)

    def _add_slice(self, value: slice) -> None:
        self.found.append(repr(value))

    def _add_module(self, value: ModuleType) -> None:
        """Note all variables of a module that is no global variable: any of them may be used."""
        self.found.append(_Same(value))
        if self._is_own(value.__name__):
            names = {name for name in vars(value) if not name.startswith("__")}
            for one in self._add_variables(value, names):
                self.add(one)

    def _add_class(self, value: type) -> None:
        self.found.append(_Same(value))
        if self._is_own(value.__module__):
            for one in value.__bases__:
                self.add(one)
            for name, one in list(vars(value).items()):
                if name not in _NO_VALUES:
                    self._add_member(one)

    def _add_member(self, one: object) -> None:
        """Note what a class has; slots and such are no values."""
        if not (hasattr(one, "__objclass__") and not isinstance(one, FunctionType)):
            self.add(one)

    def _add_function(self, value: FunctionType) -> None:
        self.found.append(_Same(value.__code__))
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        for one in (cells, value.__defaults__, value.__kwdefaults__, vars(value)):
            self.add(one)
        if self._is_own(_module_of(value)):
            self._add_names(list_names(value.__code__), value.__globals__)

    def _add_names(self, names: set[str], found: dict[str, Any]) -> None:
        """Note what names stand for: variables, and modules that a function may import."""
        if names & _BY_NAME:
            raise _UnknownError
        values = [found.get(name, sys.modules.get(name)) for name in sorted(names)]
        modules = [one for one in values if isinstance(one, ModuleType)]
        self.found += map(_Same, modules)
        for name in sorted(names & found.keys()):
            if not isinstance(found[name], ModuleType):
                self.add(found[name])
        done: set[str] = set()
        while modules:
            module = modules.pop()
            if module.__name__ not in done:
                done.add(module.__name__)
                if "getattr" in names:
                    self.add(module)
                modules += self._add_variables(module, names)

    def _add_variables(self, module: ModuleType, names: set[str]) -> list[ModuleType]:
        """Note the variables of a module that have such names; return modules within it."""
        own, within = self._is_own(module.__name__), []
        for name in sorted(names & vars(module).keys()):
            value = vars(module)[name]
            if isinstance(value, ModuleType):
                self.found.append(_Same(value))
                within.append(value)
            elif own or not callable(value):
                self.add(value)
        return within

    def _add_attributes(self, value: object) -> None:
        for name, one in get_own(value).items():
            self.found.append(name)
            self.add(one)

    def _is_own(self, module: str | None) -> bool:
        """Is a module looked into: one of the program, or of the package of a function?"""
        name = module or ""
        if name.partition(".")[0] in self._own:
            return True
        return not _is_installed(name)

    _LOOKS: ClassVar[tuple[tuple[Any, Callable[..., None]], ...]] = (
        (np.ndarray, _add_array),
        (np.generic, _add_scalar),
        ((dict, MappingProxyType), _add_dict),
        (_SEQUENCES, _add_sequence),
        (bytearray, _add_bytes),
        (slice, _add_slice),
        (FunctionType, _add_function),
        (MethodType, _add_method),
        (type(functools.cache(len)), _add_cached),
        (functools.partial, _add_partial),
        ((staticmethod, classmethod, property, functools.cached_property), _add_wrapper),
        (BuiltinFunctionType, _add_builtin),
        (type, _add_class),
        (ModuleType, _add_module),
        (np.random.Generator, _add_generator),
        (np.random.RandomState, _add_old_generator),
        (random.Random, _add_random),
        ((*_PLAIN, *_TIMES, *_NUMBERS), _add_own_plain),
        (SimpleNamespace, _add_attributes),
    )


def _is_constant(value: object) -> bool:
    """Is it a value that never changes, of a class that is not written in Python?"""
    if isinstance(value, CodeType | np.ufunc):
        return True
    return _name_of(type(value)) in _CONSTANTS


def _name_of(kind: type) -> tuple[str, str]:
    return kind.__module__, kind.__name__


def _has_hidden_state(kind: type) -> bool:
    """Do objects of a class have more in memory than what Python code has defined?"""
    size = object.__basicsize__
    for one in kind.__mro__:
        own = vars(one)
        slots = own.get("__slots__", ())
        slots = (slots,) if isinstance(slots, str) else tuple(slots)
        size += 8 * (len(set(slots) - {"__weakref__"}) + ("__weakref__" in own))
    return kind.__basicsize__ > size or kind.__itemsize__ > 0


@functools.cache
def _is_installed(name: str) -> bool:
    if name.partition(".")[0] in sys.stdlib_module_names and name != "__main__":
        return True
    path = getattr(sys.modules.get(name), "__file__", None) or ""
    return path.startswith(_INSTALLED) or "-packages" + os.sep in path
