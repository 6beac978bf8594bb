"""Measures for ``ndfeed bench`` what other orders than ``shuffle=True`` would cost and gain.

An order that reads neighbouring rows together may be faster, and its batches are less well mixed;
one that mixes more files at a time may be slower. Both numbers are measured on the user's data: the
rate like every other, the mixing as in ``loader.order.mixing``.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

import ndfeed
from ndfeed.cli.console import format_rate
from ndfeed.cli.diagnosis import OrderTrial, choose_better_mixed, choose_order, orders_differ
from ndfeed.cli.throughput import run
from ndfeed.loading.coded import Coded
from ndfeed.loading.options import Shuffle
from ndfeed.order.mixing import Mixing
from ndfeed.order.protocol import Order, OrderInUse

_SMALL = 4096  # bytes of a row up to which it matters whether neighbouring rows are read together
_BLOCK = 4 << 20  # bytes of a block at most
_WINDOW = 32  # blocks mixed at a time
_WIDER = 4  # times as many files mixed at a time
_LEAST_ROWS = 4  # rows of a block
_SHARE = 0.08  # share of the time for each order
_WARM_UP = 0.02
_TOO_LONG = 0.2  # share of the time that an order may take for its first batch


@dataclass(frozen=True, slots=True)
class Subject:
    """What orders are tried on.

    ``loader`` makes a loader of a dataset in an order. Rates are those of ``sample``, which is
    ``ds`` unless every epoch reads from the disk: then the sample is in memory, and the disk limits
    rates to ``scattered`` or ``in_a_row`` rows per second. ``known`` is the rate of
    ``shuffle=True`` on all of the data, if it was measured already.
    """

    ds: ndfeed.Dataset
    sample: ndfeed.Dataset
    loader: Callable[[ndfeed.Dataset, Shuffle], ndfeed.Loader]
    seconds: float
    scattered: float
    in_a_row: float
    known: float | None


def try_orders(
    subject: Subject, notes: list[str], begin: Callable[[str], None]
) -> list[OrderTrial]:
    """Measure the order that ``shuffle=True`` means, and others where they may make a difference.

    The first is that of ``shuffle=True``. Empty if there is nothing to compare with it.
    """
    ds = subject.ds
    coded = [one for one in map(Coded, ds.groups) if one.columns]
    if not coded and ds.nbytes > _SMALL * len(ds) and subject.in_a_row <= subject.scattered:
        return []
    if coded:  # what the disk delivers is compressed: measure both together
        subject = replace(subject, sample=ds, scattered=math.inf, in_a_row=math.inf)
    usual = subject.loader(ds, True).order
    others = [one for one in _list_others(ds, usual, decodes=bool(coded)) if one != usual]
    if not others:
        return []
    rate = subject.known
    if rate is None:
        begin(f"{usual}")
        rate = _try_order(subject, True, "shuffle=True").rows_per_second
    found = [*_try_others(replace(subject, known=rate), others, coded, notes, begin)]
    if not found:
        return []
    begin(f"{usual}, again")
    base = _try_order(subject, True, "shuffle=True")
    # Before and after the others: a moment in which the machine was busy is no gain.
    return [replace(base, rows_per_second=max(base.rows_per_second, rate)), *found]


def _try_others(
    subject: Subject,
    orders: Sequence[Order],
    coded: Sequence[Coded],
    notes: list[str],
    begin: Callable[[str], None],
) -> Iterator[OrderTrial]:
    """Try orders, except those that would take too long or need more memory than there is."""
    for order in orders:
        begin(f"{order}")
        how, wait = f"shuffle=ndfeed.{order}", 0.0
        try:
            if coded:
                mixing = subject.loader(subject.ds, order).order.mixing
                wait = _estimate_start(mixing, coded, subject.known or 0.0)
            if wait <= _TOO_LONG * subject.seconds:
                yield _try_order(subject, order, how)
            else:
                notes.append(f"{how} was not tried: its first batch would take about {wait:.1f} s")
        except ndfeed.Error as error:
            notes.append(f"{how} was not tried: {error}")


def _list_others(ds: ndfeed.Dataset, usual: OrderInUse, *, decodes: bool) -> Iterator[Order]:
    """List orders that mix worse and may be faster, or the other way round."""
    if decodes:
        yield ndfeed.Exact()
        if isinstance(usual, ndfeed.Windows):
            yield ndfeed.Windows(files=min(_WIDER * usual.files, usual.mixing.parts))
        return
    rows, size = 4096, max(ds.nbytes // max(len(ds), 1), 1)
    while rows > 1 and (rows * size > _BLOCK or 2 * rows * _WINDOW > len(ds)):
        rows //= 2
    if rows >= _LEAST_ROWS:
        yield ndfeed.Blocks(rows=rows, window=_WINDOW)


def _try_order(subject: Subject, shuffle: Shuffle, how: str) -> OrderTrial:
    order = subject.loader(subject.ds, shuffle).order
    loader = subject.loader(subject.sample, shuffle)
    ran = run(loader, _SHARE * subject.seconds, _WARM_UP * subject.seconds)
    disk = subject.in_a_row if order.traits.by_part else subject.scattered
    return OrderTrial(how, f"{order}", min(ran.rows_per_second, disk), order.mixing)


def _estimate_start(mixing: Mixing, coded: Sequence[Coded], rate: float) -> float:
    """Estimate the seconds until the first batch, by the files that are decoded for it.

    ``rate`` is that of an order which decodes every file once.
    """
    rows = max(int(one.counts.sum()) / max(len(one.counts), 1) for one in coded)  # of a file
    files = mixing.drawn if mixing.part == "file" else 1.0
    return min(files * rows, mixing.rows) / max(rate, 1e-9)


def describe_orders(trials: Sequence[OrderTrial]) -> dict[str, Any]:
    """Return everything, for JSON."""
    best = choose_order(trials)
    return {
        "tried": [
            {
                "how": one.how,
                "order": one.order,
                "rows_per_second": round(one.rows_per_second, 1),
                "gain": round(one.gain_over(trials[0]), 2),
                "mixing": one.mixing.as_dict(),
            }
            for one in trials
        ],
        "recommended": None if best is None else best.how,
    }


def make_orders_table(trials: Sequence[OrderTrial]) -> Table | None:
    """Make a table of the orders, or none where they make no difference worth showing."""
    if not orders_differ(trials):
        return None
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("shuffle=")
    for name in ("rows/s", "speed", "mixing", "a batch is worth"):
        table.add_column(name, justify="right")
    for one in trials:
        mixing = one.mixing
        table.add_row(
            one.order if one is not trials[0] else f"True: {one.order}",
            format_rate(one.rows_per_second),
            f"{one.gain_over(trials[0]):.1f}×",
            f"{mixing.ratio:.2f}",
            f"{mixing.worth:,} of {mixing.batch:,}",
        )
    return table


def list_advice(trials: Sequence[OrderTrial]) -> list[str]:
    """Say how to read the table, and which order to choose: for speed, or if files are sorted."""
    lines = ["mixing: 1.00 is a true shuffle; less counts if the rows of a file or block are alike"]
    best = choose_order(trials)
    if best is not None:
        gain = best.gain_over(trials[0])
        lines.append(f"{best.how} is {gain:.1f}× as fast: {best.mixing}")
    mixed = choose_better_mixed(trials)
    if mixed is not None and mixed is not best:
        lines.append(
            f"if your files are sorted, by class for instance: {mixed.how} mixes better "
            f"({mixed.mixing.ratio:.2f}) at {mixed.gain_over(trials[0]):.1f}× the speed, or mix "
            "the rows once with ndfeed pack --shuffle 0"
        )
    return lines
