"""The position of a loader: a few hundred bytes of JSON from which another run resumes.

    version  1
    seed     of the order and of the maps' generators
    epoch    the one in progress
    samples  how many of its samples were delivered, to all ranks together
    order    which order, with its parameters
    rows     samples of the dataset
    data     the dataset's fingerprint
    more     what else the order says about the position, if anything

Batch size, ranks, threads and memory are not part of it: they may change.
"""

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ndfeed.errors import ResumeError
from ndfeed.errors import shown as printable

_SHOWN = 4  # values that an error lists
_SHOWN_NAMES = 8  # names of sources

VERSION = 1
LARGEST_SEED = 1 << 255
LARGEST_EPOCH = 1 << 62
_MOST_TEXT, _MOST_SHOWN = 1000, 200
_MOST_PARAMETERS = 4096
_MOST_DEPTH = 5  # an order of your own in a mixture: its spec has three more
_OTHER = "load what state_dict() returned, or start over"


def check_alike(found: Sequence[Mapping[str, Any]], many: str, where: str, remedy: str) -> None:
    """Refuse facts, one mapping from each of ``many``, that are not the same everywhere."""
    for name in found[0]:
        values = [one.get(name) for one in found]
        others = [at for at, value in enumerate(values) if value != values[0]]
        if others:
            named = [f"{values[at]} {where} {at}" for at in (0, *others[: _SHOWN - 1])]
            more = len(others) - len(named) + 1
            listed = ", ".join(named) + (f" and {more} more" if more else "")
            raise RuntimeError(f"{many} must agree on {name}, found {listed}; {remedy}")


class Before(NamedTuple):
    """Data that there were in an epoch: rows, samples delivered when others came, and fingerprint.

    ``more`` is what the order said about its position.
    """

    rows: int
    samples: int
    data: str
    more: Mapping[str, Any]


def _parse_before(found: object) -> Before:
    """Parse what a state has for data that there were before it grew."""
    if isinstance(found, list | tuple) and len(found) in (3, 4):
        rows, samples, data, more = [*found, {}][:4]
        if [type(one) for one in found[:3]] == [int, int, str] and isinstance(more, Mapping):
            return Before(rows, samples, data, more)
    raise ResumeError.of_damage("its data did not grow as it says")


@dataclass(frozen=True, slots=True)
class State:
    """A position in the order of an epoch."""

    seed: int
    epoch: int
    samples: int
    order: Mapping[str, Any]
    rows: int
    data: str
    more: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return what ``json.dumps`` takes."""
        made = {
            "version": VERSION,
            "seed": self.seed,
            "epoch": self.epoch,
            "samples": self.samples,
            "order": dict(self.order),
            "rows": self.rows,
            "data": self.data,
        }
        return made | {"more": dict(self.more)} if self.more else made

    @classmethod
    def of(cls, state: object) -> "State":
        """Parse a state and check every value of it: it may come from anywhere."""
        if not isinstance(state, Mapping):
            raise ResumeError(f"a state is a dict, got {type(state).__name__}", _OTHER)
        version = state.get("version")
        if type(version) is not int or version != VERSION:
            raise ResumeError(
                f"expected a state of version {VERSION}, found {_format_value(version)}", _OTHER
            )
        data = state.get("data")
        if not isinstance(data, str) or len(data) > _MOST_TEXT:
            raise ResumeError.of_damage("it has no fingerprint of its data")
        numbers: dict[str, int] = {}
        for name in ("seed", "epoch", "samples", "rows"):
            value = state.get(name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise ResumeError.of_damage(f"{name} is {_format_value(value)}")
            most = LARGEST_EPOCH - 1 if name == "epoch" else LARGEST_SEED  # there is a next one
            if not (-LARGEST_SEED if name == "seed" else 0) <= value <= most:
                raise ResumeError.of_damage(f"{name} is out of bounds")
            numbers[name] = value
        order = _check_values("order", state.get("order"))
        if not order:
            raise ResumeError.of_damage("it has no order")
        return cls(
            order=order, data=data, more=_check_values("more", state.get("more", {})), **numbers
        )

    def check_data(self, data: str, rows: int) -> None:
        """Refuse to resume with other data."""
        if self.data != data or self.rows != rows:
            other = printable(self.data[:_MOST_SHOWN])
            raise ResumeError(
                f"the state belongs to other data: {other} with {self.rows:,} samples, but "
                f"this is {data} with {rows:,}",
                "open the same files, or start over"
                if self.rows >= rows
                else "open the same files, pass grown=True if there are more now, or start over",
            )

    def check_sources(self, data: str, order: Mapping[str, Any], grown: bool) -> None:
        """Refuse to resume a mixture with other sources; says which of them differ.

        If sources may have ``grown``, how many samples they have does not count.
        """
        was, now = _get_sources(self.order), _get_sources(order)
        if not was and not now:
            return
        known = "the state belongs to another order"
        if not was:
            listed = _list_names(now)
            raise ResumeError(
                f"{known}: that of a dataset which is not a mixture, but this is one of {listed}",
                "load it into a loader of that dataset, or start over",
            )
        if not now:
            raise ResumeError(
                f"{known}: mixture of {_list_names(was)}, but this dataset is not a mixture",
                "mix the same sources with ndfeed.mix, or start over",
            )
        if was.keys() != now.keys():
            gone = [name for name in was if name not in now]
            new = [name for name in now if name not in was]
            differ = [f"missing here: {_list_names(gone)}"] if gone else []
            differ += [f"not in the state: {_list_names(new)}"] if new else []
            raise ResumeError(
                f"{known}: mixture of other sources ({', '.join(differ)})",
                "give mix() the same names and datasets, or start over",
            )
        for name, rows in now.items():
            if was[name] != rows and not grown:
                raise ResumeError(
                    f"the state belongs to other data: source {name!r} had {was[name]} samples, "
                    f"and now has {rows}",
                    "open the same files for it, pass grown=True if there are more now, or start "
                    f"the next epoch: loader.epoch = {self.epoch + 1}",
                )
        if list(was) != list(now) and self.data != data:
            raise ResumeError(
                f"the state belongs to other data: its sources come in the order "
                f"{_list_names(was)}, but here in the order {_list_names(now)}",
                "give mix() the same sources in the order of the state",
            )

    def make_order_error(self, order: Mapping[str, Any]) -> ResumeError:
        """Make the error for a state of another order than the loader's."""
        return ResumeError(
            f"the state belongs to another order: {shown(self.order)}, but this is {shown(order)}",
            "pass the same shuffle=, or begin an epoch with this one: loader.epoch = "
            f"{self.epoch + (self.samples > 0)}",
        )

    def list_growth(self) -> list[Before]:
        """Return the data of the epoch before it grew."""
        before = self.more.get("grown", [])
        if not isinstance(before, list | tuple):
            raise ResumeError.of_damage("its data did not grow as it says")
        found = [_parse_before(one) for one in before]
        ends = [*found, self.as_before()] if found else []
        for one, other in itertools.pairwise([Before(0, 0, "", {}), *ends]):
            if one.rows > other.rows or one.samples > other.samples:
                raise ResumeError.of_damage("its data did not grow as it says")
        return found

    def as_before(self) -> Before:
        """Return the data of the state as those of an epoch that grows."""
        return Before(self.rows, self.samples, self.data, self.get_more())

    def get_more(self) -> dict[str, Any]:
        """Return what the order says about the position, without the data there were before."""
        return {name: value for name, value in self.more.items() if name != "grown"}

    def make_count_error(self, most: int) -> ResumeError:
        """Make the error for a state with more samples than an epoch has."""
        return ResumeError.of_damage(f"{self.samples} of {most} samples delivered")


def _check_values(name: str, found: object) -> dict[str, Any]:
    """Check a dict of numbers and short texts, which may be in lists and dicts of their own."""
    left = _MOST_PARAMETERS

    def is_sound(value: object, depth: int) -> bool:
        nonlocal left
        left -= 1
        if left < 0 or depth > _MOST_DEPTH:
            return False
        if isinstance(value, Mapping):
            texts = all(isinstance(key, str) and len(key) <= _MOST_TEXT for key in value)
            return texts and all(is_sound(one, depth + 1) for one in value.values())
        if isinstance(value, list | tuple):
            return all(is_sound(one, depth + 1) for one in value)
        if isinstance(value, str):
            return len(value) <= _MOST_TEXT
        return type(value) is int and abs(value) <= LARGEST_SEED

    if not isinstance(found, Mapping):
        raise ResumeError.of_damage(f"it has no {name}")
    if not is_sound(found, 0):
        raise ResumeError.of_damage(f"its {name} has something else than numbers and short texts")
    return dict(found)


def _get_sources(order: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the names of a mixture's sources and how many samples each has; empty if none."""
    rows = order.get("rows") if order.get("kind") == "mixture" else None
    return rows if isinstance(rows, Mapping) else {}


def _list_names(names: Collection[str]) -> str:
    """Format the names of some sources as text."""
    listed = ", ".join(repr(name) for name in itertools.islice(names, _SHOWN_NAMES))
    more = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
    return f"{listed[:_MOST_SHOWN]}{more}"


def _format_value(value: object) -> str:
    """Show a value in a message, if it is short. It may be anything, however large."""
    if value is None or isinstance(value, bool | float):
        return repr(value)
    if isinstance(value, int) and abs(value) <= LARGEST_SEED:
        return repr(int(value))
    if isinstance(value, str):
        return repr(value[:40])
    return f"a value of type {type(value).__name__}"


def shown(order: Mapping[str, Any]) -> str:
    """Format an order's parameters as text."""
    words = ", ".join(f"{name}={value}" for name, value in order.items() if name != "kind")
    return printable(f"{order.get('kind')}({words})"[:_MOST_SHOWN])
