"""Edges of buckets: which lengths are batched together.

Edges that nobody gave are chosen such that padding every sample to the edge of its bucket adds as
little as possible. They are found exactly among at most ``_CANDIDATES`` lengths, by dynamic
programming over how many buckets end at each of them. A bucket holds enough samples for several
batches, or the same samples would meet in every epoch.
"""

import itertools
from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from ndfeed.order.permutation import LARGEST, Ints

MOST_EDGES = 1 << 12
_MOST = 64  # buckets that are chosen
_CANDIDATES = 512
_LEAST_BATCHES = 3  # global batches of a bucket
_COUNTED = 1 << 20  # lengths up to here are counted in a table, others by sorting


def check_edges(edges: Iterable[int]) -> tuple[int, ...]:
    """Return edges that a caller gave, or refuse them."""
    if isinstance(edges, str | bytes) or not hasattr(edges, "__iter__"):
        raise TypeError(f"edges must be lengths that rise, such as (64, 128, 256), got {edges!r}")
    found = tuple(edges)
    if not found:
        raise ValueError("edges must hold at least one length; leave them out to have them chosen")
    if len(found) > MOST_EDGES:
        raise ValueError(f"edges must be at most {MOST_EDGES:,} lengths, got {len(found):,}")
    lengths = tuple(map(_check_edge, found))
    for one, other in itertools.pairwise(lengths):
        if one >= other:
            raise ValueError(f"edges must rise, got {one} before {other}; sort them")
    return lengths


def _check_edge(edge: object) -> int:
    if isinstance(edge, bool) or not isinstance(edge, int | np.integer):
        raise TypeError(f"edges must be integers, got {edge!r}")
    if edge < 0:
        raise ValueError(f"edges are lengths, which are not negative, got {edge}")
    if edge > LARGEST:
        raise ValueError(f"edges are lengths of at most 2**62, got {edge}")
    return int(edge)


def choose_edges(lengths: Ints, batch_of: Callable[[Ints], Ints]) -> tuple[int, ...]:
    """Choose edges by the lengths of all samples; the last edge is the longest of them.

    ``batch_of`` gives the samples of a global batch for each longest length.
    """
    if not len(lengths):
        return (0,)
    values, counts = _count_lengths(lengths)
    ends, samples, total = _choose_candidates(values, counts)
    # What padding adds to a bucket of the lengths after candidate i, up to candidate j.
    bounds = np.concatenate(([0], samples)).astype(np.float64)
    real = np.concatenate(([0], total)).astype(np.float64)
    held = bounds[None, 1:] - bounds[:-1, None]
    cost = held * ends[None, :] - (real[None, 1:] - real[:-1, None])
    cost[held < _LEAST_BATCHES * batch_of(ends)[None, :]] = np.inf
    cost[np.tril_indices(len(ends), -1)] = np.inf
    cost[0, -1] = bounds[-1] * ends[-1] - real[-1]  # one bucket for all is always possible
    chosen = _find_cheapest(cost)
    return tuple(ends[chosen].tolist())


def _count_lengths(lengths: Ints) -> tuple[Ints, Ints]:
    """Return the lengths that occur, rising, and how often each does."""
    if int(lengths.max()) > _COUNTED:
        values, counts = np.unique(lengths, return_counts=True)
        return values.astype(np.int64), counts.astype(np.int64)
    table = np.bincount(lengths)
    values = np.flatnonzero(table)
    return values.astype(np.int64), table[values].astype(np.int64)


def _choose_candidates(values: Ints, counts: Ints) -> tuple[Ints, Ints, Ints]:
    """Return lengths that may become edges, with the samples up to each and their total length.

    Half of them divide the samples evenly, half of them the total length, which gives more of them
    to long samples.
    """
    samples, total = np.cumsum(counts), np.cumsum(counts * values)
    at = np.arange(len(values))
    if len(values) > _CANDIDATES:
        steps = np.arange(1, _CANDIDATES // 2 + 1)
        last = len(steps)
        by_samples = np.searchsorted(samples, steps * int(samples[-1]) // last)
        by_length = np.searchsorted(total, steps * int(total[-1]) // last)
        at = np.unique(np.concatenate((by_samples, by_length, [len(values) - 1])))
        at = at[at < len(values)]
    return values[at], samples[at], total[at]


def _find_cheapest(cost: NDArray[np.float64]) -> list[int]:
    """Return the ends of buckets that cost least, where ``cost[i, j]`` is for ``[i, j]``."""
    best, came_from = cost[0].copy(), []
    for _ in range(min(_MOST, len(cost)) - 1):
        through = best[:-1, None] + cost[1:, :]
        start = np.argmin(through, axis=0)
        found = through[start, np.arange(len(cost))]
        better = found < best
        came_from.append(np.where(better, start, -1))
        if not better.any():
            break
        best = np.minimum(best, found)
    ends = [len(cost) - 1]
    for start in reversed(came_from):
        if start[ends[-1]] >= 0:
            ends.append(int(start[ends[-1]]))
    return ends[::-1]
