"""How well the order of a loader mixes its dataset: measured on the files, when somebody asks."""

from functools import partial
from typing import cast

import numpy as np

from ndfeed.dataset.dataset import Dataset
from ndfeed.dataset.row_selection import select_rows
from ndfeed.loading.coded import Coded
from ndfeed.loading.plan import Plan
from ndfeed.order.epoch import Share
from ndfeed.order.mixing import Measured, Mixes, Mixing, Parts, alike, choose_batches, measure
from ndfeed.order.permutation import Ints
from ndfeed.order.protocol import Order, OrderInUse

_COMPARED = 1 << 14  # rows of a view that show how many rows of it each file has


def order_in_use(plan: Plan, ds: Dataset, share: Share, seed: int) -> OrderInUse:
    """Return the order of a plan with its mixing, which is measured when it is first read.

    It refers to the dataset and not to the plan, which keeps it for the next request.
    """
    key = share, seed
    if plan.in_use is None or plan.in_use[0] != key:
        order = plan.order
        if isinstance(order, Mixes):
            order = order.with_mixing(partial(measure_order, order, plan.counts, ds, share, seed))
        plan.in_use = key, cast(OrderInUse, order)
    return plan.in_use[1]


def measure_order(
    order: Order, counts: Ints | None, ds: Dataset, share: Share, seed: int
) -> Mixing:
    """Measure how well an order mixes a dataset; ``counts`` are as in ``Plan``."""
    n = share.n
    batch = min(share.together, n, order.cut(share, seed, 0).n)
    files = _find_files(ds) if counts is None else Parts.listed("file", counts)
    rows = _read_batches(order, counts, share, batch, seed)
    measured = [(_measure(order, n, rows, one), one) for one in _list_parts(order, files, n, batch)]
    found, parts = min(measured, key=lambda one: one[0].ratio)
    by_file = None if parts.name == "file" else files
    reach = 1.0 if order.traits.shuffled else 0.0
    if order.traits.by_part:
        windows = max(len(order.lanes([0], 1)), 1)
        reach = order.traits.open_parts * windows / max(parts.number, 1)
    return Mixing(
        f"{order}",
        rows=n,
        batch=batch,
        ranks=share.world,
        ratio=found.ratio,
        part=parts.name,
        parts=parts.number,
        drawn=found.drawn,
        reach=min(max(reach, batch / max(n, 1)), 1.0),
        error=found.error,
        by_file=measure(n, rows, by_file).ratio if by_file and rows else None,
        batches=len(rows),
    )


def _list_parts(order: Order, files: Parts | None, n: int, batch: int) -> list[Parts]:
    """Return what may be alike: what the order goes by, or else files and neighbours."""
    own = order.find_parts(n, batch) if isinstance(order, Mixes) else None
    if own is not None:
        return [own]
    neighbours = Parts.equal("run", n, max(batch, 1))
    if files is None or not order.traits.shuffled:
        return [neighbours]
    return [files] if order.traits.by_part else [files, neighbours]


def _measure(order: Order, n: int, rows: list[Ints], parts: Parts) -> Measured:
    """Count in batches how often two of their rows are of the same part."""
    if not rows:
        return Measured(1.0, 0.0, 0.0)
    if order.traits.shuffled and not order.traits.by_part:
        # An order may choose: it is compared with a true shuffle of what it chooses.
        drawn = np.unique(parts.find(np.concatenate(rows)), return_counts=True)[1]
        parts = parts._replace(alike=alike(drawn))
    return measure(n, rows, parts)


def _read_batches(
    order: Order, counts: Ints | None, share: Share, batch: int, seed: int
) -> list[Ints]:
    """Return the rows of some batches of the first epochs, which may have fewer positions."""
    found, length = [], min(share.n, order.cut(share, seed, 0).n)
    for epoch, positions in choose_batches(length, batch, order.traits.open_parts):
        begun = order.begin(share.n, seed, epoch, counts)
        found += [begun.rows(position, position + batch) for position in positions]
    return found


def _find_files(ds: Dataset) -> Parts | None:
    """Return the files of a dataset; ``None`` if all samples are in one, or each in its own."""
    several = [one for one in map(Coded, ds.groups) if 1 < len(one.parts) < int(one.counts.sum())]
    if not several or not len(ds):
        return None
    most = max(several, key=lambda one: len(one.parts))

    def find(rows: Ints) -> Ints:
        return most.locate(select_rows(ds.rows, rows))

    if ds.rows is None and most.group.rows is None:
        return Parts("file", int(np.count_nonzero(most.counts)), alike(most.counts), find)
    rows = np.random.default_rng(0).integers(0, len(ds), _COMPARED)
    if len(ds) <= _COMPARED:
        rows = np.arange(len(ds))
    amounts = np.unique(find(rows), return_counts=True)[1]
    return Parts("file", len(amounts), alike(amounts), find) if len(amounts) > 1 else None
