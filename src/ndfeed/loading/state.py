"""The position of a loader: a few hundred bytes of JSON from which another run resumes.

    version  1
    seed     of the order and of the maps' generators
    epoch    the one in progress
    samples  how many of its samples were delivered, to all ranks together
    order    which order, with its parameters
    rows     samples of an epoch
    data     the dataset's fingerprint

Batch size, ranks, threads and memory are not part of it: they may change.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ndfeed.errors import ResumeError
from ndfeed.errors import shown as printable

_SHOWN = 4  # values that an error lists

VERSION = 1
LARGEST_SEED = 1 << 255
LARGEST_EPOCH = 1 << 62
_MOST_TEXT, _MOST_SHOWN = 1000, 200
_MOST_PARAMETERS = 64
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


@dataclass(frozen=True, slots=True)
class State:
    """A position in the order of an epoch."""

    seed: int
    epoch: int
    samples: int
    order: Mapping[str, int | str]
    rows: int
    data: str

    def as_dict(self) -> dict[str, Any]:
        """Return what ``json.dumps`` takes."""
        return {
            "version": VERSION,
            "seed": self.seed,
            "epoch": self.epoch,
            "samples": self.samples,
            "order": dict(self.order),
            "rows": self.rows,
            "data": self.data,
        }

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
            raise _make_damage_error("it has no fingerprint of its data")
        numbers: dict[str, int] = {}
        for name in ("seed", "epoch", "samples", "rows"):
            value = state.get(name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise _make_damage_error(f"{name} is {_format_value(value)}")
            most = LARGEST_EPOCH - 1 if name == "epoch" else LARGEST_SEED  # there is a next one
            if not (-LARGEST_SEED if name == "seed" else 0) <= value <= most:
                raise _make_damage_error(f"{name} is out of bounds")
            numbers[name] = value
        made = cls(order=_check_order(state.get("order")), data=data, **numbers)
        if made.samples > made.rows:
            raise _make_damage_error(f"{made.samples} of {made.rows} samples delivered")
        return made

    def check(self, data: str, rows: int, order: Mapping[str, int | str]) -> None:
        """Refuse to resume with other data or in another order."""
        if self.data != data or self.rows != rows:
            other = printable(self.data[:_MOST_SHOWN])
            raise ResumeError(
                f"the state belongs to other data: {other} with {self.rows:,} samples, but "
                f"this is {data} with {rows:,}",
                "open the same files, or start over",
            )
        if dict(self.order) != dict(order):
            raise ResumeError(
                f"the state belongs to another order: {shown(self.order)}, but this is "
                f"{shown(order)}",
                "pass the same shuffle=",
            )


def _check_order(found: object) -> dict[str, int | str]:
    """Check the parameters of an order: a few names, each with a number or a short text."""
    if not isinstance(found, Mapping) or not 0 < len(found) <= _MOST_PARAMETERS:
        raise _make_damage_error("it has no order")
    for name, value in found.items():
        sound = type(value) is int and abs(value) <= LARGEST_SEED
        sound = sound or (isinstance(value, str) and len(value) <= _MOST_TEXT)
        if not isinstance(name, str) or len(name) > _MOST_TEXT or not sound:
            raise _make_damage_error("its order has something else than numbers and short texts")
    return dict(found)


def _format_value(value: object) -> str:
    """Show a value in a message, if it is short. It may be anything, however large."""
    if value is None or isinstance(value, bool | float):
        return repr(value)
    if isinstance(value, int) and abs(value) <= LARGEST_SEED:
        return repr(int(value))
    if isinstance(value, str):
        return repr(value[:40])
    return f"a value of type {type(value).__name__}"


def _make_damage_error(problem: str) -> ResumeError:
    return ResumeError(f"the state is damaged: {problem}", _OTHER)


def shown(order: Mapping[str, int | str]) -> str:
    """Format an order's parameters as text."""
    words = ", ".join(f"{name}={value}" for name, value in order.items() if name != "kind")
    return printable(f"{order.get('kind')}({words})"[:_MOST_SHOWN])
