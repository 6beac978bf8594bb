"""The structure of a batch: which fields it holds, and in which nest of tuples, lists and dicts.

    fields=None                             {"x": x, "y": y, ...}: a dict of all fields
    fields="x"                              x
    fields=("x", "y")                       (x, y)
    fields=({"a": "x", "b": "z"}, "y")      ({"a": x, "b": z}, y)

Everything below the adapters handles dicts of field name to array. An adapter picks the fields
that are needed, converts them, and builds what the consumer gets: only there do tuples exist.
"""

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AnySet
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import Any

from ndfeed.errors import FieldError

Fields = str | Sequence["Fields"] | Mapping[str, "Fields"]

_EXPECTED = (
    "fields must be a tuple of names, or a name, a list or a dict of them, nested in any way "
    'such as ({"a": "x", "b": "z"}, "y")'
)


@dataclass(frozen=True, slots=True)
class Structure:
    """A nest of field names, checked; by default all fields as a dict.

    ``names`` are the fields in it, each once, in the order of the nest; ``None`` means all.
    ``flat`` is the nest itself where it is a plain tuple of names.
    """

    nest: Any = None
    names: tuple[str, ...] | None = field(init=False)
    flat: tuple[str, ...] | None = field(init=False)
    _build: Callable[[Any], Any] | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        nest = None if self.nest is None else _checked(self.nest, self.nest)
        names = None if nest is None else tuple(dict.fromkeys(_leaves(nest)))
        if names == ():
            raise ValueError("fields must name at least one field")
        flat = nest if type(nest) is tuple and all(isinstance(n, str) for n in nest) else None
        for name, value in {"nest": nest, "names": names, "flat": flat}.items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "_build", None if nest is None else builder(nest))

    def pick(self, batch: dict[str, Any]) -> dict[str, Any]:
        """The parts of a batch that are in the nest, in its order."""
        if self.names is None:
            return batch
        try:
            return {name: batch[name] for name in self.names}
        except KeyError as error:  # a map may return other fields for some samples
            raise FieldError(error.args[0], list(batch)) from None

    def build(self, batch: dict[str, Any]) -> Any:  # noqa: ANN401 - any nest
        """The nest with each name replaced by that part of the batch."""
        build = self._build
        if build is None:
            return batch
        try:
            return build(batch)
        except KeyError as error:
            raise FieldError(error.args[0], list(batch)) from None

    def with_tuples(self) -> "Structure":
        """The same with a tuple for every list, for frameworks that take a list for an array."""
        return Structure(_without_lists(self.nest))


def builder(nest: Any) -> Callable[[Any], Any]:  # noqa: ANN401
    """A function that rebuilds a nest of keys with what it finds under each key."""
    if not isinstance(nest, tuple | list | dict):
        return itemgetter(nest)
    plain = not any(isinstance(one, tuple | list | dict) for one in nest)
    if type(nest) is tuple and plain and len(nest) > 1:
        return itemgetter(*nest)  # the common case: a tuple, made without any Python
    return partial(_rebuild, nest)


def _rebuild(nest: Any, parts: Any) -> Any:  # noqa: ANN401
    if isinstance(nest, dict):
        return {key: _rebuild(one, parts) for key, one in nest.items()}
    if isinstance(nest, tuple | list):
        return _like(nest, [_rebuild(one, parts) for one in nest])
    return parts[nest]


def _like(nest: tuple[Any, ...] | list[Any], items: list[Any]) -> Any:  # noqa: ANN401
    """The items in a tuple, named tuple or list as ``nest`` is."""
    if isinstance(nest, list):
        return items
    return type(nest)(*items) if hasattr(nest, "_fields") else tuple(items)


def _without_lists(nest: Any) -> Any:  # noqa: ANN401
    if isinstance(nest, dict):
        return {key: _without_lists(one) for key, one in nest.items()}
    if isinstance(nest, tuple | list):
        items = [_without_lists(one) for one in nest]
        return tuple(items) if isinstance(nest, list) else _like(nest, items)
    return nest


def _checked(nest: Any, fields: Any) -> Any:  # noqa: ANN401
    """A nest of plain containers out of what a caller wrote, which is ``fields``."""
    if isinstance(nest, str):
        return nest
    if isinstance(nest, AnySet):
        names = sorted(map(str, nest))
        written = repr(tuple(names)) if names else '("x", "y")'
        raise TypeError(f"fields must have an order, which a set has not; write {written}")
    if isinstance(nest, Mapping):
        if not all(isinstance(key, str) for key in nest):
            raise TypeError(f"{_EXPECTED}; a dict's keys are text, got {fields!r}")
        return {str(key): _checked(one, fields) for key, one in nest.items()}
    if isinstance(nest, Sequence) and not isinstance(nest, bytes | bytearray | memoryview | range):
        items = [_checked(one, fields) for one in nest]
        return _like(nest, items) if isinstance(nest, tuple) else items
    raise TypeError(f"{_EXPECTED}, got {fields!r}")


def _leaves(nest: Any) -> list[str]:  # noqa: ANN401
    if isinstance(nest, str):
        return [nest]
    parts = nest.values() if isinstance(nest, dict) else nest
    return [name for one in parts for name in _leaves(one)]
