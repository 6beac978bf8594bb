"""Your own order: any object with two functions, and the check that it keeps its promises.

    class Backwards:
        def length(self, n):
            return n

        def rows(self, positions, n, seed, epoch):
            return n - 1 - positions

    ndfeed.check_order(Backwards())
    loader = ndfeed.loader(ds, 64, shuffle=Backwards())

- ``length(n)`` is how many positions an epoch of ``n`` samples has. It may be any number from 1 on.
- ``rows(positions, n, seed, epoch)`` returns the sample at each position: an array of integers in
  ``[0, n)``, as long as ``positions``, which are ascending and in ``[0, length(n))``. There may be
  no positions at all. ``seed`` is the loader's, modulo ``2**62``; or that of a source of a mixture.
- Both depend on their arguments and the object alone. They are called from several threads, for
  some positions at a time, in any order.
- A state refuses to resume with an object of another class or with other attributes. ``spec()``, if
  there is one, returns what counts in place of the attributes: a dict of whole numbers and short
  texts, 256 at most. An order needs it if it keeps what it has computed, or an attribute that
  cannot be told from another one, such as a generator.
- The object can be pickled, if the loader is.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple, Protocol, TypeGuard

import numpy as np
from numpy.typing import NDArray

from ndfeed.errors import OrderError, ResumeError
from ndfeed.order.attributes import describe_attributes, find_opaque
from ndfeed.order.epoch import Cut, Epoch, ScatteredWalk, Share, WalkEpoch
from ndfeed.order.permutation import LARGEST, Ints
from ndfeed.order.protocol import Data, Plain, Progress, Spec, check_length, check_positive

_MOST_TEXT, _MOST_VALUES, _MOST_DEPTH, _MOST_BITS = 1000, 256, 3, 255
_CHECKED = 1 << 20  # positions of a long epoch that a check looks at


class OwnOrder(Protocol):
    """What your own order has; see the top of this module for what each must keep to."""

    def length(self, n: int, /) -> int:
        """Return how many positions an epoch of ``n`` samples has."""
        ...

    def rows(self, positions: Ints, n: int, seed: int, epoch: int, /) -> NDArray[Any]:
        """Return the sample at each of some positions."""
        ...


def is_own(value: object) -> TypeGuard[OwnOrder]:
    """Has this the two functions of an order?"""
    return not isinstance(value, type) and not list_lacking(value)


def list_lacking(value: object) -> list[str]:
    """Return the functions that an object lacks to be an order."""
    return [f"{name}()" for name in ("length", "rows") if not callable(getattr(value, name, None))]


@dataclass(frozen=True)
class Own(Plain):
    """An order that somebody else wrote; what it returns is checked before it is used."""

    order: OwnOrder

    def __repr__(self) -> str:
        return f"{self.order!r}"

    def bind(self, data: Data) -> "Own":
        """Return the same order, if its length and its ``spec`` are as they should be."""
        self.count(data.n)
        self.spec()
        return self

    def cut(self, share: Share, seed: int, epoch: int) -> Cut:
        """Cut the positions of an epoch into batches of one size."""
        return replace(share, n=self.count(share.n))

    def begin(self, n: int, seed: int, epoch: int, counts: Ints | None = None) -> Epoch:
        """Make one epoch."""
        return WalkEpoch(_OwnWalk(self, check_length(n), seed, epoch))

    def count(self, n: int) -> int:
        """Return the positions of an epoch of ``n`` samples."""
        made: object = self.order.length(n)
        if isinstance(made, bool) or not isinstance(made, int | np.integer):
            raise self.make_error(f"length({n}) returned {_show(made)}", "return an int")
        if not (0 if n == 0 else 1) <= made <= LARGEST:
            remedy = "return a number from 1 on"
            raise self.make_error(f"length({n}) returned {made}", remedy)
        return int(made)

    def spec(self) -> Spec:
        """Say which order this is, for JSON; compared on resume."""
        kind = type(self.order)
        made: Spec = {"kind": "own", "class": f"{kind.__module__}.{kind.__qualname__}"}
        own = getattr(self.order, "spec", None)
        if not callable(own):
            return {**made, "attributes": self.attributes} if self.attributes else made
        found = own()
        try:
            plain = _as_plain(found, 0)
        except ValueError:
            plain = None
        if not isinstance(plain, dict) or _count(plain) > _MOST_VALUES:
            raise self.make_error(
                f"spec() returned {_show(found)}",
                "return a dict of whole numbers and short texts",
            )
        return {**made, "spec": plain}

    @functools.cached_property
    def attributes(self) -> str:
        """The order's attributes as they were before its first epoch."""
        return describe_attributes(self.order)

    def resume(self, found: Progress) -> tuple["Own", int] | None:
        """Return this order, if it is the same one; says so if only attributes differ."""
        own = self.spec()
        if found.order == own:
            return self, found.samples
        if "spec" in own or {**found.order, "attributes": 0} != {**own, "attributes": 0}:
            return None
        before, now = (one.get("attributes", "none") for one in (found.order, own))
        raise ResumeError(
            f"the state belongs to an order {type(self.order).__qualname__} with other attributes: "
            f"{before}, but this one has {now}",
            "pass an order with the same ones, or write spec() if the difference does not matter",
        )

    def make_error(self, problem: str, remedy: str) -> OrderError:
        """Make the error for an order that does not keep to the rules."""
        return OrderError(f"order {type(self.order).__qualname__}: {problem}", remedy)


class _OwnWalk(ScatteredWalk):
    """The walk of one epoch, which checks every row."""

    def __init__(self, own: Own, n: int, seed: int, epoch: int) -> None:
        self.n = own.count(n)
        # A source of a mixture has a seed of 64 bits; positions could not be added to that.
        self._own, self._place = own, (n, seed % LARGEST, epoch)

    def at(self, positions: Ints) -> Ints:
        own, n = self._own, self._place[0]
        asked = positions.copy()  # it may write to them
        try:
            made: object = own.order.rows(asked, *self._place)
        except Exception as error:
            raise own.make_error(
                f"rows() raised {type(error).__name__} for {len(positions)} positions: {error}",
                "return a row for each position"
                if len(positions)
                else "return an empty array if there are no positions",
            ) from error
        rows = made if isinstance(made, np.ndarray) else np.asarray(None)
        if rows.shape != positions.shape or rows.dtype.kind not in "iu":
            raise own.make_error(
                f"rows() returned {_show(made)} for {len(positions)} positions",
                "return an array with one integer for each position",
            )
        if len(rows) and not (rows.min() >= 0 and rows.max() < n):
            wrong = (rows < 0) | (rows >= n)
            at = int(np.argmax(wrong))
            raise own.make_error(
                f"rows() returned {rows[at]} for position {positions[at]}, of {n:,} samples",
                f"return rows in [0, {n})",
            )
        return rows.astype(np.int64)


class CheckedOrder(NamedTuple):
    """What ``check_order`` found in the first epoch: nothing of it is wrong.

    ``repeated`` are samples that come more than once, ``missing`` those that do not come at all;
    ``None`` if the epoch was too long to look at all of it.
    """

    length: int
    repeated: int | None
    missing: int | None


def check_order(order: OwnOrder, n: int = 1000, *, seed: int = 0, epochs: int = 3) -> CheckedOrder:
    """Check that an order of your own keeps to the rules, for ``n`` samples.

    Raises ``ndfeed.OrderError``, which says what is wrong and what to do. Epochs may differ, and
    samples may come several times or not at all: the result says how many. Of epochs with more than
    1,048,576 positions, only those at the beginning and the end are looked at.
    """
    if not is_own(order):
        raise TypeError(
            "an order has the functions length(n) and rows(positions, n, seed, epoch), got "
            f"{_show(order)}"
        )
    check_positive("n", n)
    own = Own(order)
    length = own.count(n)
    if own.count(n) != length:
        remedy = "return the same for the same n"
        raise own.make_error(f"length({n}) returned {length}, then {own.count(n)}", remedy)
    if own.spec() != own.spec():
        raise own.make_error("spec() returns something else each time", "return what is constant")
    copy = _copy(own)
    half = _CHECKED // 2
    spans = [(0, half), (length - half, length)] if length > _CHECKED else [(0, length)]
    positions = np.concatenate([np.arange(*span, dtype=np.int64) for span in spans])
    wholes = []
    for epoch in range(check_positive("epochs", epochs)):
        walk = _OwnWalk(own, n, seed, epoch)
        wholes.append(walk.at(positions))
    for epoch, whole in enumerate(wholes):
        _check_pure(_OwnWalk(own, n, seed, epoch), positions, whole)
        _check_pure(_OwnWalk(copy, n, seed, epoch), positions, whole)
    _check_attributes(own)
    if length > _CHECKED:
        return CheckedOrder(length, None, None)
    times = np.bincount(wholes[0], minlength=n)
    return CheckedOrder(length, int((times > 1).sum()), int((times == 0).sum()))


def _copy(own: Own) -> Own:
    """Return a pickled copy, as another process would get it."""
    try:
        order = ForkingPickler.loads(ForkingPickler.dumps(own.order))
    except Exception as error:  # noqa: BLE001 - whatever its own code raises
        raise own.make_error(
            f"it cannot be pickled: {error}", "define its class at the top of a module"
        ) from None
    if Own(order).spec() != own.spec():
        raise own.make_error("a pickled copy has another spec()", "pickle what it depends on")
    return Own(order)


def _check_attributes(own: Own) -> None:
    """Refuse attributes by which a state cannot tell whether the order is the same."""
    if "spec" in own.spec():
        return
    opaque = find_opaque(own.order)
    if opaque is not None:
        raise own.make_error(
            f"a state cannot tell its attribute {opaque[0]!r} from another one: it is or holds an "
            f"object of type {opaque[1]}",
            "write spec(), which returns a dict of what the order depends on",
        )
    now = describe_attributes(own.order)
    if now != own.attributes:
        raise own.make_error(
            f"its attributes change in rows(): {own.attributes or 'none'}, then {now or 'none'}; a "
            "state would refuse to resume with it",
            "write spec(), which returns a dict of what the order depends on",
        )


def _check_pure(walk: _OwnWalk, positions: Ints, whole: Ints) -> None:
    """Ask for the same rows in pieces, backwards, every third, and from several threads."""
    sizes = (1, 7, 64, max(len(positions) // 3, 1))
    spans = [slice(at, at + size) for size in sizes for at in _starts(len(positions), size)]
    spans += [slice(begin, None, 3) for begin in range(min(3, len(positions)))]

    def is_same(span: slice) -> bool:
        return bool(np.array_equal(walk.at(positions[span]), whole[span]))

    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - slow to import

    with ThreadPoolExecutor(4) as pool:
        found = [*map(is_same, reversed(spans)), *pool.map(is_same, spans)]
    if not all(found):
        raise walk._own.make_error(
            "rows() returned other rows for the same positions, seed and epoch",
            "compute them from its arguments alone",
        )


def _starts(length: int, size: int) -> list[int]:
    """Some places where a piece of that size may begin."""
    return sorted({at * size for at in (0, 1, 2, 5)} | {max(length - size, 0)})


def _as_plain(value: object, depth: int) -> Any:  # noqa: ANN401 - what JSON makes of it
    """Return what a state holds of a value: tuples become lists, as JSON makes them."""
    if depth <= _MOST_DEPTH:
        if isinstance(value, Mapping):
            return {_as_text(key): _as_plain(one, depth + 1) for key, one in value.items()}
        if isinstance(value, list | tuple):
            return [_as_plain(one, depth + 1) for one in value]
        if isinstance(value, str):
            return _as_text(value)
        if type(value) is int and value.bit_length() <= _MOST_BITS:
            return value
    raise ValueError("not for a state")


def _as_text(value: object) -> str:
    if isinstance(value, str) and len(value) <= _MOST_TEXT:
        return str(value)
    raise ValueError("not for a state")


def _count(value: object) -> int:
    """Return how many values there are, those that hold others included."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(map(_count, parts))


def _show(value: object) -> str:
    """Show a value that somebody else's code returned, in short."""
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape} and dtype {value.dtype}"
    text = repr(value)
    return text if len(text) <= 60 else f"a {type(value).__name__}"
