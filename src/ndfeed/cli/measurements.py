"""What ``ndfeed bench`` measures: stages on a sample of the user's data, and remedies tried on it.

Everything is measured by running loaders: what a stage could give comes from their own reports.
"""

import math
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

import ndfeed
from ndfeed.cli import diagnosis, throughput
from ndfeed.cli.diagnosis import Remedy, Stage, Trial
from ndfeed.cli.throughput import Ran, run
from ndfeed.errors import SpaceError
from ndfeed.files import platform_calls
from ndfeed.formats.manifest import NAME

_SAMPLE = 256 << 20  # bytes of the sample at most, decoded
_ON_DISK = 20_000  # rows read from the disk at most
_LEAST_BATCHES = 8
_WARM_UP = 0.02  # share of the time that is not measured, whenever a loader begins

Function = Callable[..., Mapping[str, Any]]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Case:
    """What is to be measured: data as it is stored, what is done to it, and for how long."""

    path: str
    packing: str  # the command that packs it
    ds: ndfeed.Dataset
    function: Function | None
    batch_size: int
    shuffle: bool
    seconds: float
    cold: bool

    def loader(self, ds: ndfeed.Dataset, **words: Any) -> ndfeed.Loader:
        """The loader that the user would have, over these samples, with words changed."""
        mapped = ds if self.function is None else ds.map(self.function)
        chosen = {"batch_size": self.batch_size, "shuffle": self.shuffle} | words
        return ndfeed.loader(mapped, **chosen)


@dataclass(slots=True)
class Findings:
    """All that was measured, and the verdict.

    ``loader`` ran over all of the data, as it lay when it began. ``stages`` are those of a run in
    memory, from which ``idle`` is as well, and of the disk and the device by themselves.
    """

    order: str
    loader: Ran
    report: ndfeed.Report
    sample: int
    base: Trial
    stages: list[Stage]
    trials: list[Trial]
    disk_counts: bool
    idle: float = 0.0  # share of the threads' time
    to_device: Ran | None = None  # where there is one
    notes: list[str] = field(default_factory=list)

    @property
    def limit(self) -> str | None:
        """The stage that limits, where the measurements agree on one."""
        return diagnosis.limiting(self.stages, disk=self.disk_counts, idle=self.idle)

    @property
    def disk_passes(self) -> bool:
        """Does only the first epoch wait for the disk?"""
        return not self.disk_counts and any(one.name == "disk" for one in self.stages)

    @property
    def later(self) -> float:
        """Rows a second of the run that the stages are of."""
        rates = [one.loader for one in self.stages if one.share is not None]
        return rates[0] if rates else self.base.rows_per_second

    @property
    def remedies(self) -> list[Remedy]:
        """The two best."""
        return diagnosis.remedies(self.trials, self.base)


@dataclass(slots=True)
class _Disk:
    """Rows a second from the disk, where it could be measured."""

    cold: float | None = None
    cold_in_a_row: float | None = None
    row_bytes: float = 0.0  # in files


def examine(case: Case, begin: Callable[[str], None]) -> Findings:
    """Measure, try, and judge; says what it begins with."""
    notes: list[str] = []
    begin("the disk")
    # First: what is mapped later cannot be dropped from memory any more.
    given = _disk(case, notes)
    begin("the loader")
    with case.loader(case.ds) as loader:
        # What waits for a cold disk is measured from its first batch on.
        warm_up = _WARM_UP * case.seconds if given.cold is None else 0.0
        whole = run(loader, 0.15 * case.seconds, warm_up)
        order, report = f"{loader.order}", loader.report()
    stored = given.row_bytes * len(case.ds)
    counts = diagnosis.disk_counts(round(stored), _room(), cold=given.cold is not None)
    sample = case.ds.take(slice(_sample_size(case, whole)))
    begin("every stage")
    if given.cold is not None:  # a slow disk takes longer than the loader would be given
        throughput.read(
            throughput.pieces(sample, np.arange(len(sample))), 0.3 * case.seconds, throughput.ASKING
        )
    base_run = _warm(case, case.loader(sample))
    stages, idle = _stages(given, whole, base_run)
    bus, to_device = _device(case, notes, begin)
    if bus:
        there = to_device.rows_per_second if to_device else 0.0
        stages.append(Stage("device", bus / max(whole.row_bytes, 1), None, there))
    if to_device and to_device.rows_per_second > base_run.rows_per_second * diagnosis.WORTH:
        notes.append("the device reads the files directly, without copying them into batches first")
    notes += diagnosis.doubts(stages, disk=counts, idle=idle)
    through = (given.cold or math.inf) if counts else math.inf
    trials = [*_tried(case, sample, base_run, through, notes, begin)]
    begin("as it is, again")
    # Twice, before and behind: other programs run, too, and what was slow once is no remedy's due.
    again = _warm(case, case.loader(sample)).rows_per_second
    base = Trial("as it is", "", max(base_run.rows_per_second, again), through)
    if counts and given.cold_in_a_row:
        how = "shuffle=ndfeed.Blocks()"
        trials.append(Trial("blocks", how, base.rows_per_second, given.cold_in_a_row))
    return Findings(
        order, whole, report, len(sample), base, stages, trials, counts, idle, to_device, notes
    )


def _stages(given: _Disk, whole: Ran, sampled: Ran) -> tuple[list[Stage], float]:
    """What each stage could give, and the share of their time that threads were idle.

    They are of one run, or they would not add up: of the whole data if it is in memory, otherwise
    of a sample that has been brought there.
    """
    ran = whole if given.cold is None else sampled
    stages = diagnosis.stages_of(ran.stages, ran.idle, ran.rows_per_second)
    if given.cold is not None:
        stages.insert(0, Stage("disk", given.cold, None, whole.rows_per_second))
    return stages, diagnosis.idle_share(ran.stages, ran.idle)


def _room() -> int:
    """Bytes that files may have in memory."""
    free = platform_calls.free_memory()
    return platform_calls.memory_bytes() // 2 if free is None else free


def _sample_size(case: Case, whole: Ran) -> int:
    """Rows that take about a tenth of the time, and not too much memory."""
    row = max(case.ds.nbytes // max(len(case.ds), 1), 1)
    wanted = round(whole.rows_per_second * 0.1 * case.seconds)
    least = min(_LEAST_BATCHES * case.batch_size, max(_SAMPLE // row, 1))
    return min(max(min(wanted, _SAMPLE // row), least), len(case.ds))


def _warm(case: Case, loader: ndfeed.Loader) -> Ran:
    """A tenth of the time, behind a short run that brings everything into memory."""
    return run(loader, 0.1 * case.seconds, _WARM_UP * case.seconds)


# The disk.


def _disk(case: Case, notes: list[str]) -> _Disk:
    """What the disk gives for rows as a shuffle picks them, and for rows that lie together."""
    scattered, together = _chosen(case)
    picked, in_a_row = throughput.pieces(case.ds, scattered), throughput.pieces(case.ds, together)
    if not picked:
        return _Disk()
    if case.cold:
        throughput.drop(picked)
        throughput.drop(in_a_row)
    found = _Disk(row_bytes=throughput.nbytes(picked) / len(scattered))
    if throughput.is_cold(picked):
        found.cold = _rows(case, picked, len(scattered))
        if throughput.is_cold(in_a_row):
            found.cold_in_a_row = _rows(case, in_a_row, len(together))
    elif case.cold:
        notes.append(
            "the files could not be dropped from the page cache: the disk was not measured"
        )
    else:
        notes.append("the files are in the page cache: use --cold to measure the disk, too")
    return found


def _chosen(case: Case) -> tuple[Ints, Ints]:
    """Rows all over the data as an exact shuffle picks them, and rows side by side."""
    count = len(case.ds)
    most = _SAMPLE * count // max(2 * case.ds.nbytes, 1)
    some = min(max(most, 1), _ON_DISK, count)
    first = (count - some) // 2
    together = np.arange(first, first + some)
    by_row = all(column.plain for group in case.ds.groups for column in group.columns)
    if not case.shuffle or not by_row or 4 * some > count:
        return together, together
    # Not those side by side: what was read once is in memory.
    rows = np.random.default_rng(0).choice(count - some, some, replace=False)
    return np.sort(np.where(rows < first, rows, rows + some)), together


def _rows(case: Case, pieces: list[throughput.Piece], rows: float) -> float:
    """Rows a second of what was read."""
    given = throughput.read(pieces, 0.05 * case.seconds, throughput.ASKING)
    return rows * given.nbytes / max(throughput.nbytes(pieces), 1) / max(given.seconds, 1e-9)


# The device.


def _device(
    case: Case, notes: list[str], begin: Callable[[str], None]
) -> tuple[float | None, Ran | None]:
    """Bytes a second to the device, and the loader that delivers there; what fails is a note."""
    if not throughput.seen():
        return None, None
    begin("the device")
    mapped = case.ds if case.function is None else case.ds.map(case.function)
    bus = None
    try:
        bus = throughput.rate()
        return bus, throughput.fed(mapped, case.batch_size, case.shuffle, 0.15 * case.seconds)
    # A field that torch has no type for, a device that is full, or in use by another alone.
    except (ndfeed.Error, RuntimeError, TypeError, ValueError) as error:
        notes.append(f"loading to the device was not measured: {str(error).splitlines()[0]}")
        return bus, None


# Remedies.


def _tried(
    case: Case,
    sample: ndfeed.Dataset,
    base: Ran,
    through: float,
    notes: list[str],
    begin: Callable[[str], None],
) -> Iterator[Trial]:
    """Everything that makes sense for this data, each measured on the sample."""
    rate = partial(_rate, case)
    if not os.path.exists(os.path.join(os.fsencode(case.path), NAME)):
        begin("packing a sample")
        with tempfile.TemporaryDirectory(prefix="ndfeed-bench-") as folder:
            try:
                packed = ndfeed.pack(sample, os.path.join(folder, "packed"))
            except SpaceError as error:
                notes.append(f"packing was not tried: {error}")
            else:
                disk_rate = through * _stored(sample) / max(_stored(packed), 1)
                packed = packed.select(*sample.fields)
                yield Trial("pack", case.packing, rate(packed), disk_rate)
                del packed
    if case.ds.nbytes < _room() // 2:
        begin("ds.in_memory()")
        yield Trial("memory", "ds.in_memory()", rate(sample.in_memory()))
    for threads in sorted({1, platform_calls.cores(), 2 * platform_calls.cores()} - {base.threads}):
        begin(f"threads={threads}")
        yield Trial("threads", f"threads={threads}", rate(sample, threads=threads), through)
    larger = 4 * case.batch_size
    if 4 * larger <= len(sample):
        how = f"batch_size={larger}"
        begin(how)
        yield Trial("batch size", how, rate(sample, batch_size=larger), through)
    if case.function is not None:
        number = max(platform_calls.cores(), 2)
        how = f"processes={number}"
        begin(how)
        yield Trial("processes", how, rate(sample, processes=number), through)


def _rate(case: Case, ds: ndfeed.Dataset, **words: Any) -> float:
    return _warm(case, case.loader(ds, **words)).rows_per_second


def _stored(ds: ndfeed.Dataset) -> int:
    """Bytes that samples have in files."""
    return throughput.nbytes(throughput.pieces(ds, np.arange(len(ds))))
