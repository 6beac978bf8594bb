"""Which order ``shuffle=`` means for a dataset, or for each source of a mixture.

Where rows are compressed together that depends on the files: a window goes by those that have most
to decode. A source of a mixture is a stretch of the dataset's rows, with parts of its own.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ndfeed.dataset.dataset import Dataset
from ndfeed.dataset.proportions import Proportions
from ndfeed.dataset.row_selection import select_rows
from ndfeed.loading.coded import Coded
from ndfeed.loading.options import Shuffle
from ndfeed.order.mixture import Mixture
from ndfeed.order.orders import Exact, Sequential, Windows
from ndfeed.order.own import Own, is_own, list_lacking
from ndfeed.order.permutation import Ints
from ndfeed.order.protocol import Order, is_order
from ndfeed.order.streams import Source
from ndfeed.order.weighted import Weighted

# Decoded bytes of all files of a window: an eighth of all, within these bounds. It depends on the
# data alone, since an order is fixed by data and seed, never by the machine; and it fits if a
# loader's memory limit is a quarter of the size of the data.
_OF_ALL = 8
_LEAST, _MOST = 4 << 20, 128 << 20
_LEAST_FILES = 2


class Places:
    """Maps the rows of an order to those of the dataset, where they are not the same.

    A window over files needs the rows of each file side by side; a view of a dataset may have
    them in any order.
    """

    def __init__(self, sorted_rows: Ints | None) -> None:
        self._rows = sorted_rows

    @property
    def plain(self) -> bool:
        """Are they the same?"""
        return self._rows is None

    def are_plain(self, rows: range) -> bool:
        """Are some of them the same?"""
        if self._rows is None:
            return True
        return np.array_equal(self._rows[rows.start : rows.stop], np.arange(rows.start, rows.stop))

    def __call__(self, rows: Ints) -> Ints:
        """Return rows of the dataset."""
        return rows if self._rows is None else self._rows[rows]


class Stretch(NamedTuple):
    """Some consecutive rows of a dataset, and the parts of a group that they lie in."""

    coded: Coded
    rows: range
    parts: slice

    @property
    def sizes(self) -> Ints:
        """Bytes of the streams of each part."""
        return self.coded.sizes[self.parts]

    @property
    def total(self) -> int:
        """Bytes of all streams."""
        return int(self.sizes.sum())

    def count_bytes(self, order: Order) -> int:
        """Return the bytes of streams that an order needs at a time, of the largest there are."""
        sizes = np.sort(self.sizes)[::-1]
        rows = int(self.coded.counts[self.parts].sum()) // max(len(sizes), 1)
        return int(sizes[: order.parts_in_use(len(sizes), rows)].sum())


def choose_order(shuffle: Shuffle, stretches: Sequence[Stretch]) -> Order:
    """Return the order that a caller means for rows in these streams."""
    if is_order(shuffle):
        return shuffle
    if is_own(shuffle):
        return Own(shuffle)
    if isinstance(shuffle, Mapping):
        raise TypeError(
            "shuffle as a dict gives an order to each source of a mixture, and this dataset is none"
            "; pass one order, or use ndfeed.mix"
        )
    if not isinstance(shuffle, bool | np.bool_):
        raise _make_shuffle_error(shuffle)
    if not shuffle:
        return Sequential()
    if not stretches:
        return Exact()
    sizes = find_largest(stretches).sizes
    used = sizes[sizes > 0]
    window = min(max(int(used.sum()) // _OF_ALL, _LEAST), _MOST)
    fitting = window // max(int(used.mean()), 1)
    return Windows(files=max(min(fitting, len(sizes)), _LEAST_FILES))


def _make_shuffle_error(given: object, name: str = "shuffle") -> TypeError:
    """Make the error for something that is no order, with what its user may have meant."""
    shown, remedy = f"a value of type {type(given).__name__}", ""
    if isinstance(given, type):
        shown = f"the class {given.__qualname__}"
        remedy = f"; pass an object of the class: {given.__qualname__}(…)"
    elif isinstance(given, list | tuple | range) or hasattr(given, "__array__"):
        remedy = "; pass rows to ds.take(rows) to get them in that order, and weights to "
        remedy += "ndfeed.Weighted(weights)"
    elif given is None or isinstance(given, str | int | float):
        shown = repr(given)
    else:
        lacking = " and ".join(list_lacking(given))
        remedy = f", which lacks {lacking}; an order of your own has length(n) and rows(positions, "
        remedy += "n, seed, epoch)"
    example = "an order such as ndfeed.Exact() or ndfeed.Blocks(rows=4096)"
    return TypeError(f"{name} must be True, False, or {example}, got {shown}{remedy}")


def check_weights(orders: Iterable[Order], classes: Mapping[str, Sequence[str]]) -> None:
    """Refuse the numbers of classes as weights: the first class would never be drawn."""
    for order in orders:
        field = order.weights if isinstance(order, Weighted) else None
        if isinstance(field, str) and field in classes:
            raise ValueError(
                f"field {field!r} has the number of one of {len(classes[field])} classes, not a "
                f"weight; use ndfeed.Balanced({field!r})"
            )


def find_largest(stretches: Sequence[Stretch]) -> Stretch:
    """Return the streams whose files a window goes by: those with most to decode."""
    return max(stretches, key=lambda one: one.total)


def cover_all(ds: Dataset, coded: Sequence[Coded]) -> list[Stretch]:
    """Return all rows of a dataset, for each of the groups that are decoded."""
    return [Stretch(one, range(len(ds)), slice(0, len(one.parts))) for one in coded]


def count_by_file(
    ds: Dataset, stretches: Sequence[Stretch], rows: range
) -> tuple[Ints, Ints | None]:
    """Return the rows of each file, and where a view has them if not in that order."""
    if not stretches:
        stretches = [_locate_rows(ds, Coded(ds.groups[0]), rows)]
    coded, _, parts = find_largest(stretches)
    if ds.rows is None and coded.group.rows is None:
        counts = coded.counts[parts]
        if int(counts.sum()) == len(rows):
            return counts, None
        # Of a mixture in memory, which is one file: another source has some rows of a part.
        bounds = np.concatenate(([0], np.cumsum(coded.counts)))[parts.start : parts.stop + 1]
        return np.diff(bounds.clip(rows.start, rows.stop)), None
    part = coded.locate(select_rows(ds.rows, np.arange(rows.start, rows.stop))) - parts.start
    counts = np.bincount(part, minlength=parts.stop - parts.start).astype(np.int64)
    if (part[1:] >= part[:-1]).all():
        return counts, None
    return counts, np.argsort(part, kind="stable")


def _locate_rows(ds: Dataset, coded: Coded, rows: range) -> Stretch:
    """Find the parts that consecutive rows of a dataset lie in."""
    if not rows:
        return Stretch(coded, rows, slice(0, 0))
    wanted = np.arange(rows.start, rows.stop)
    if ds.rows is None and coded.group.rows is None:
        wanted = wanted[[0, -1]]
    part = coded.locate(select_rows(ds.rows, wanted))
    return Stretch(coded, rows, slice(int(part.min()), int(part.max()) + 1))


def _find_files(ds: Dataset, rows: range) -> Stretch:
    """Find the files of a source, none of which is decoded: fields of others are constant in it."""
    found = [_locate_rows(ds, Coded(group), rows) for group in ds.groups]
    return max(found, key=lambda one: one.parts.stop - one.parts.start)


class MixturePlan(NamedTuple):
    """The order of a mixture, the rows of each file, and the bytes of streams it needs."""

    order: Mixture
    counts: Ints | None
    places: Places
    window: int


def plan_mixture(
    ds: Dataset, mixture: Proportions, shuffle: Shuffle, coded: Sequence[Coded]
) -> MixturePlan:
    """Choose an order for each source of a mixture."""
    ends = np.cumsum(mixture.rows).tolist()
    spans = [range(end - count, end) for end, count in zip(ends, mixture.rows, strict=True)]
    found = [[s for one in coded if (s := _locate_rows(ds, one, span)).total] for span in spans]
    orders = _choose_orders(mixture, shuffle, found)
    window = sum(
        stretch.count_bytes(order)
        for order, own in zip(orders, found, strict=True)
        for stretch in own
    )
    if isinstance(shuffle, Mixture):
        order = shuffle
    else:
        prints = mixture.prints or [""] * len(orders)
        named = zip(mixture.names, mixture.rows, orders, prints, strict=True)
        sources = tuple(Source(name, rows, one, data=data) for name, rows, one, data in named)
        order = Mixture(sources, mixture.stages, mixture.end, asked=shuffle)
    if not order.traits.by_file:
        return MixturePlan(order, None, Places(None), window)
    counts: list[Ints] = []
    places: list[Ints | None] = []
    for own, span, source in zip(found, spans, orders, strict=True):
        by_file = source.traits.by_file
        files = own or [_find_files(ds, span)]
        one = count_by_file(ds, files, span) if by_file else (np.array([len(span)]), None)
        counts.append(one[0])
        places.append(one[1])
    return MixturePlan(order, np.concatenate(counts), _join_places(places, spans), window)


def _choose_orders(
    mixture: Proportions, shuffle: Shuffle, found: Sequence[Sequence[Stretch]]
) -> list[Order]:
    """Return the order of each source."""
    if isinstance(shuffle, Mixture):
        names = tuple(source.name for source in shuffle.sources)
        rows = tuple(source.rows for source in shuffle.sources)
        if (names, rows) != (mixture.names, mixture.rows):
            raise ValueError(
                f"shuffle is the order of another mixture, of {', '.join(map(repr, names))}; pass "
                "True, or an order for the rows of each source"
            )
        return [source.in_use for source in shuffle.sources]
    if not isinstance(shuffle, Mapping):
        return [choose_order(shuffle, own) for own in found]
    _check_by_name(mixture, shuffle)
    return [
        choose_order(shuffle[name], own) for name, own in zip(mixture.names, found, strict=True)
    ]


def _check_by_name(mixture: Proportions, shuffle: Mapping[str, object]) -> None:
    """Refuse orders for other sources than those of a mixture, and what is no order."""
    for name, own in shuffle.items():
        if name not in mixture.names:
            raise ValueError(
                f"shuffle has an order for {name!r}, which is no source of the mixture; sources "
                f"are {', '.join(map(repr, mixture.names))}"
            )
        if not (isinstance(own, bool | np.bool_) or is_order(own) or is_own(own)):
            raise _make_shuffle_error(own, f"shuffle[{name!r}]")
    for name in mixture.names:
        if name not in shuffle:
            raise ValueError(
                f"shuffle has no order for source {name!r}; add it: True, False or one"
            )


def _join_places(places: Sequence[Ints | None], spans: Sequence[range]) -> Places:
    if all(one is None for one in places):
        return Places(None)
    own = [
        np.arange(span.start, span.stop) if one is None else one + span.start
        for one, span in zip(places, spans, strict=True)
    ]
    return Places(np.concatenate(own))
