"""Make a dataset again from other files: those there are now, or some of those it has.

A dataset remembers how it was made: a function and its arguments, among them other datasets and
tables of files. Functions that are ``repeatable`` are called again with these replaced. Others
have a way of their own (``remade_by``), or none: a view that names rows would name other ones.
"""

import os
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from ndfeed.dataset.stored import Stored
from ndfeed.index.open import Opened

F = TypeVar("F", bound=Callable[..., Any])
S = TypeVar("S", bound=Stored)
Change = Callable[[Opened], Opened]
# Gets what changes the files, and the arguments of the function that made the dataset.
Way = Callable[..., Any]

_WAYS: dict[Callable[..., Any], Way] = {}
_FIXED: dict[Callable[..., Any], str] = {}


def repeatable(function: F) -> F:
    """Declare that ``function`` makes the same kind of dataset of any files."""

    def repeat(change: Change, *args: object) -> object:
        return function(*(_replace_files(one, change) for one in args))

    _WAYS[function] = repeat
    return function


def remade_by(way: Way) -> Callable[[F], F]:
    """Declare that ``way`` does what a function does, with other files."""

    def declare(function: F) -> F:
        _WAYS[function] = way
        return function

    return declare


def fixed(what: str) -> Callable[[F], F]:
    """Declare that what a function makes cannot follow its files; ``what`` is its name."""

    def declare(function: F) -> F:
        _FIXED[function] = what
        return function

    return declare


def _replace_files(one: object, change: Change) -> Any:  # noqa: ANN401 - the same kind of object
    """Return an argument with its files changed, if it has any."""
    if isinstance(one, Opened):
        return change(one)
    return remake(one, change) if isinstance(one, Stored) else one


def remake(ds: S, change: Change) -> S:
    """Return the dataset as it would be if its sources had been opened with other files."""
    function, args = ds._made
    way = _WAYS.get(function)
    if way is None:
        raise not_growing(_FIXED.get(function, "this view"))
    made: S = way(change, *args)
    return made


def once(change: Change) -> Change:
    """Return a function that changes every table once, however many views share it."""
    changed: dict[int, tuple[Opened, Opened]] = {}  # by id, after the one it was made from

    def change_once(opened: Opened) -> Opened:
        if id(opened) not in changed:
            changed[id(opened)] = opened, change(opened)
        return changed[id(opened)][1]

    return change_once


def not_growing(what: str) -> ValueError:
    """Return the error for a view that cannot follow its files."""
    return ValueError(
        f"a dataset cannot grow after {what}, which is fixed when it is made; refresh the dataset "
        "of the files first, then make the view again"
    )


class Given:
    """What a caller gave to make a view, kept to make it again.

    Other processes get it only where it is short and they can import it; elsewhere it is ``None``.
    """

    def __init__(self, values: tuple[Any, ...] | None) -> None:
        self.values = values

    def __reduce__(self) -> "tuple[type[Given], tuple[tuple[Any, ...] | None]]":
        known = self.values is not None and all(map(_can_travel, self.values))
        return Given, (self.values if known else None,)


def _can_travel(value: object) -> bool:
    if value is None or isinstance(value, str | os.PathLike):
        return True
    if isinstance(value, tuple):
        return all(map(_can_travel, value))
    name = getattr(value, "__qualname__", "")
    return bool(name) and getattr(sys.modules.get(value.__module__), name, None) is value
