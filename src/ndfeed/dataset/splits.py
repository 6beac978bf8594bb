"""Assign samples to parts: at random, group by group, or with the same share of every class.

Everything here is arithmetic on row numbers and codes; nothing is read. A code is a small number
that stands for a value of a field: its place among the distinct values in sorted order.

    plain         a random permutation, cut at the rounded cumulative fractions
    groups        groups in random order, each to the part that still needs the most samples
    classes       the counts of every class are rounded up or down so that each part has the size
                  that it would have without classes; which samples these are is random
    both          groups in random order, each to the part that needs the most samples of all and
                  of the class that most samples of the group have

The results for a seed are fixed: trainings rely on them.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ndfeed.index.table import Ints

Codes = NDArray[np.unsignedinteger]

_MOST_INT32 = (1 << 31) - 1
_EXACT = 1e-6  # products of fractions that are whole numbers but for rounding count as such


def encode(name: str, batches: Iterable[NDArray[Any]], count: int) -> tuple[Codes, NDArray[Any]]:
    """Return the code of each of the ``count`` values of ``name``, and the values that differ.

    Takes one batch at a time, and of each keeps small numbers and its distinct values only.
    """
    local: list[Codes] = []
    distinct: list[NDArray[Any]] = []
    for batch in batches:
        values, codes = _distinct(name, batch)
        distinct.append(values)
        local.append(_shrink(codes, len(values)))
    if not local:
        return np.zeros(0, np.uint8), np.zeros(0)
    values, places = _distinct(name, np.concatenate(distinct))
    ends = np.cumsum([len(one) for one in distinct])[:-1]
    own = np.split(_shrink(places, len(values)), ends)
    made = np.empty(count, own[0].dtype)
    at = 0
    for place, one in zip(own, local, strict=True):
        made[at : at + len(one)] = place[one]
        at += len(one)
    return made, values


def _distinct(name: str, values: NDArray[Any]) -> tuple[NDArray[Any], Ints]:
    """Return the distinct values in sorted order, and the place of each value among them."""
    if values.dtype.kind in "iu" and len(values):
        low, high = int(values.min()), int(values.max())
        if high - low < len(values):  # a table instead of sorting
            first = values.dtype.type(low)
            # Differences may not fit the type itself, but its unsigned counterpart.
            shifted = (values - first).view(f"u{values.dtype.itemsize}")
            present = np.zeros(high - low + 1, bool)
            present[shifted] = True
            distinct = np.flatnonzero(present).astype(values.dtype) + first
            return distinct, (np.cumsum(present) - 1)[shifted]
    try:
        return np.unique(values, return_inverse=True)
    except TypeError as error:  # Python objects of several types, or bytes of no type
        raise TypeError(f"the values of {name} must be numbers or text: {error}") from None


def _shrink(codes: NDArray[np.integer], count: int) -> Codes:
    return codes.astype(np.min_scalar_type(max(count - 1, 0)), copy=False)


def split_plain(count: int, fractions: Sequence[float], seed: int) -> Codes:
    """Assign every row of ``count`` to one of several parts at random."""
    # The same swaps as permutation(count) makes, in half the memory.
    order = np.arange(count, dtype=np.int32 if count <= _MOST_INT32 else np.int64)
    _generator(seed, count).shuffle(order)
    part = _no_parts(count, fractions)
    for which, (start, stop) in enumerate(pairwise(_cuts(count, fractions))):
        part[order[start:stop]] = which
    return part


def split_groups(
    groups: Codes, fractions: Sequence[float], seed: int, classes: Codes | None
) -> Codes:
    """Assign every row to one of several parts, all rows of a group to the same.

    No part gets more than its fraction by as much as the largest group has. There must be as many
    groups as fractions above zero; each of these parts gets a group.
    """
    sizes = np.bincount(groups)
    label = np.zeros(len(sizes), np.int64) if classes is None else _majority(groups, classes)
    total = math.fsum(fractions)
    shares = [fraction / total for fraction in fractions]
    needed = [share * len(groups) for share in shares]
    needed_of = [[share * int(n) for share in shares] for n in np.bincount(label, sizes)]
    open_parts = [part for part, share in enumerate(shares) if share]
    empty = set(open_parts)
    chosen = np.zeros(len(sizes), np.min_scalar_type(len(fractions)))
    for done, group in enumerate(_generator(seed, len(groups)).permutation(len(sizes)).tolist()):
        own, size = needed_of[label[group]], int(sizes[group])
        # The last groups are kept for parts that have none.
        allowed = sorted(empty) if len(sizes) - done <= len(empty) else open_parts
        part = max(allowed, key=lambda one: own[one] + needed[one])
        own[part] -= size
        needed[part] -= size
        empty.discard(part)
        chosen[group] = part
    return chosen[groups]


def _majority(groups: Codes, classes: Codes) -> Ints:
    """Return the class that most samples of each group have; the first of several."""
    count = int(classes.max()) + 1
    pairs, sizes = np.unique(groups.astype(np.int64) * count + classes, return_counts=True)
    order = np.lexsort((-pairs, sizes))  # by size; the last one written below stays
    found = np.zeros(int(groups.max()) + 1, np.int64)
    found[pairs[order] // count] = pairs[order] % count
    return found


def split_classes(classes: Codes, fractions: Sequence[float], seed: int) -> Codes:
    """Assign every row to one of several parts, with the fractions of every class in each."""
    count = len(classes)
    rng = _generator(seed, count)
    sizes = np.bincount(classes)
    totals = np.diff(_cuts(count, fractions))
    counts = _round_table(sizes, fractions, totals, rng)
    order = rng.permutation(count)
    order = order[np.argsort(classes[order], kind="stable")]  # by class, at random within each
    part = _no_parts(count, fractions)
    which = np.tile(np.arange(len(fractions), dtype=part.dtype), len(sizes))
    part[order] = np.repeat(which, counts.reshape(-1))
    return part


def _round_table(
    sizes: Ints, fractions: Sequence[float], totals: Ints, rng: np.random.Generator
) -> Ints:
    """Return how many samples of each class each part gets.

    Every count is the exact one, rounded up or down; those of a class add up to its size and, as
    far as that allows, those of a part to ``totals``. The largest remainders are rounded up.
    """
    exact = sizes[:, None] * (np.asarray(fractions) / math.fsum(fractions))
    counts = np.floor(exact + _EXACT).astype(np.int64)
    rows, columns = sizes - counts.sum(axis=1), totals - counts.sum(axis=0)
    up, inexact = np.zeros(counts.shape, bool), exact - counts > _EXACT
    order = rng.permutation(counts.size)  # which of equal remainders comes first
    order = order[np.argsort((counts - exact).reshape(-1)[order], kind="stable")]
    left, room = rows.tolist(), columns.tolist()
    for at in order.tolist():
        row, column = divmod(at, len(room))
        if left[row] > 0 and room[column] > 0 and inexact[row, column]:
            up[row, column] = True
            left[row] -= 1
            room[column] -= 1
    for row in [row for row, more in enumerate(left) for _ in range(more)]:
        _round_up_one_more(up, inexact, row, room)
    return counts + up


def _round_up_one_more(
    up: NDArray[np.bool_], inexact: NDArray[np.bool_], row: int, room: list[int]
) -> None:
    """Round up one more count of a class, in a part that has no room for it as things are.

    Other classes give way: one that was rounded up in this part is rounded up in another instead,
    and so on, up to a part with room. Without such a path this part gets one sample too many.
    """
    # Per part: the class that is rounded up there now, and the part where it no longer is.
    reached = {int(column): (row, -1) for column in np.flatnonzero(inexact[row] & ~up[row])}
    queue = list(reached)
    for column in queue:  # grows
        if room[column] > 0:
            break
        for other in [other for other in range(len(room)) if other not in reached]:
            movable = up[:, column] & inexact[:, other] & ~up[:, other]
            if movable.any():
                reached[other] = int(np.argmax(movable)), column
                queue.append(other)
    else:
        column = queue[0]
    room[column] -= 1
    while column >= 0:
        taker, given_up = reached[column]
        up[taker, column] = True
        if given_up >= 0:
            up[taker, given_up] = False
        column = given_up


def _generator(seed: int, count: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, count])))


def _cuts(count: int, fractions: Sequence[float]) -> list[int]:
    # Cumulative rounding, so that all rows are used; the last part takes the rest.
    ends = [round(math.fsum(fractions[: i + 1]) * count) for i in range(len(fractions) - 1)]
    return [0, *(min(end, count) for end in ends), count]


def _no_parts(count: int, fractions: Sequence[float]) -> Codes:
    return np.zeros(count, np.min_scalar_type(len(fractions)))
