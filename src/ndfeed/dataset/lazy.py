"""Properties computed when they are first asked for, and kept."""

from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar, overload

T = TypeVar("T")


class lazy(Generic[T]):
    """A property that is computed once for each object, or by two threads at once twice.

    ``functools.cached_property`` without its lock: up to Python 3.11 there is one for all objects
    together, and a child forked while another thread holds it would wait for it for ever.
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
