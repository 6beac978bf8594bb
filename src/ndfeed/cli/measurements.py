"""Measures for ``ndfeed bench``: the stages of a loader on the user's data, and remedies.

Everything is measured by running loaders: the rate of a stage comes from their own reports.
"""

import math
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import ndfeed
from ndfeed.cli import diagnosis, throughput
from ndfeed.cli.diagnosis import OrderTrial, Remedy, Stage, Trial
from ndfeed.cli.order_trials import Subject, try_orders
from ndfeed.cli.throughput import Ran, run
from ndfeed.dataset.column import columns_of
from ndfeed.errors import SchemaError, SpaceError
from ndfeed.files import platform_calls
from ndfeed.formats.manifest import NAME
from ndfeed.loading.coded import Coded
from ndfeed.loading.options import Options, Shuffle
from ndfeed.loading.process_choice import choose_processes

_SAMPLE = 256 << 20  # bytes of the sample at most, decoded
_ON_DISK = 20_000  # rows read from the disk at most
_LEAST_BATCHES = 8
_SHORT = 0.04  # share of the time for a choice between two
_ENOUGH = 5.0  # seconds in all, for processes to start and to show what they can do
_WARM_UP = 0.02  # share of the time that is not measured, whenever a loader begins

Function = Callable[..., Mapping[str, Any]]
Ints = NDArray[np.int64]


class Uncut(NamedTuple):
    """What random crops are cut from, and how: crops that are kept would not be drawn anew."""

    whole: ndfeed.Dataset
    cut: Callable[[ndfeed.Dataset], ndfeed.Dataset]


@dataclass(frozen=True, slots=True)
class Case:
    """What to measure: the data as it is stored, the user's loader, and for how long."""

    path: str
    packing: str  # the command that packs it
    ds: ndfeed.Dataset
    function: Function | None
    batch_size: int
    shuffle: Shuffle
    seconds: float
    cold: bool
    threads: int | None = None
    processes: int = 0
    uncut: Uncut | None = None  # of random crops

    def stored(self, sample: ndfeed.Dataset) -> Uncut:
        """Return what can be stored of a sample of the data, and what makes samples of it."""
        if self.uncut is None:
            return Uncut(sample, lambda ds: ds)
        whole = self.uncut.whole
        return self.uncut._replace(
            whole=whole.take(slice(-(-len(sample) * len(whole) // len(self.ds))))
        )

    def loader(self, ds: ndfeed.Dataset) -> ndfeed.Loader:
        """Make the loader that the user would have, over these samples."""
        mapped = ds if self.function is None else ds.map(self.function)
        return ndfeed.loader(
            mapped,
            self.batch_size,
            shuffle=self.shuffle,
            threads=self.threads,
            processes=self.processes,
        )


@dataclass(slots=True)
class Findings:
    """All measurements, and the verdict.

    ``loader`` is a run over all of the data, cached or not as it was found. ``stages`` and ``idle``
    are those of a run in memory; disk and device are measured by themselves.
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
    orders: list[OrderTrial] = field(default_factory=list)  # the usual one first

    @property
    def limit(self) -> str | None:
        """The bottleneck, where the measurements agree on one."""
        return diagnosis.find_bottleneck(self.stages, disk=self.disk_counts, idle=self.idle)

    @property
    def disk_passes(self) -> bool:
        """Does only the first epoch wait for the disk?"""
        return not self.disk_counts and any(one.name == "disk" for one in self.stages)

    @property
    def later(self) -> float:
        """Rows per second of the run that the stages belong to."""
        rates = [one.loader for one in self.stages if one.share is not None]
        return rates[0] if rates else self.base.rows_per_second

    @property
    def remedies(self) -> list[Remedy]:
        """The two best remedies."""
        return diagnosis.choose_remedies(self.trials, self.base)


@dataclass(slots=True)
class _Disk:
    """Rows per second from the disk, where it could be measured."""

    cold: float | None = None
    cold_in_a_row: float | None = None
    row_bytes: float = 0.0  # in files


def examine(case: Case, begin: Callable[[str], None]) -> Findings:
    """Measure the stages and try the remedies; ``begin`` is told what comes next."""
    notes: list[str] = []
    begin("the disk")
    # The disk first: files that are mapped cannot be dropped from the page cache.
    disk = _measure_disk(case, notes)
    case = _choose_processes(case, begin)
    begin("the loader")
    with case.loader(case.ds) as loader:
        # With a cold disk the first batches count as well.
        warm_up = _WARM_UP * case.seconds if disk.cold is None else 0.0
        whole = run(loader, 0.15 * case.seconds, warm_up)
        order, report = f"{loader.order}", loader.report()
        if case.processes:  # perhaps some were still starting
            report = replace(report, processes=case.processes)
    stored = disk.row_bytes * len(case.ds)
    counts = diagnosis.disk_counts(round(stored), _free_memory(), cold=disk.cold is not None)
    sample = case.ds.take(slice(_choose_sample_size(case, whole)))
    begin("every stage")
    if disk.cold is not None:  # read ahead: a slow disk takes longer than the loader would run
        throughput.read(
            throughput.locate_pieces(sample, np.arange(len(sample))),
            0.3 * case.seconds,
            throughput.THREADS,
        )
    base_run = _run_warm(case, case.loader(sample))
    stages, idle = _measure_stages(disk, whole, base_run)
    bus, to_device = _measure_device(case, notes, begin)
    if bus:
        there = to_device.rows_per_second if to_device else 0.0
        stages.append(Stage("device", bus / max(whole.row_bytes, 1), None, there))
    if to_device and to_device.rows_per_second > base_run.rows_per_second * diagnosis.WORTH:
        notes.append("the device reads the files directly, without copying them into batches first")
    notes += diagnosis.list_doubts(stages, disk=counts, idle=idle)
    disk_rate = (disk.cold or math.inf) if counts else math.inf
    trials = [*_try_remedies(case, sample, base_run, disk_rate, notes, begin)]
    known = whole.rows_per_second if disk.cold is None else None
    subject = _choose_subject(case, sample, disk, known, counts=counts)
    orders = try_orders(subject, notes, begin) if case.shuffle else []
    begin("as it is, again")
    # Twice, before and after the trials: a moment in which the machine was busy is no remedy.
    again = _run_warm(case, case.loader(sample)).rows_per_second
    base = Trial("as it is", "", max(base_run.rows_per_second, again), disk_rate)
    if counts and disk.cold_in_a_row:
        how = "shuffle=ndfeed.Blocks()"
        trials.append(Trial("blocks", how, base.rows_per_second, disk.cold_in_a_row))
    return Findings(
        order, whole, report, len(sample), base, stages, trials, counts, idle, to_device, notes,
        orders,
    )  # fmt: skip


def _choose_subject(
    case: Case, sample: ndfeed.Dataset, disk: _Disk, known: float | None, *, counts: bool
) -> Subject:
    """Choose what other orders are tried on: all of the data, or a sample if the disk counts."""

    def loader(ds: ndfeed.Dataset, shuffle: Shuffle) -> ndfeed.Loader:
        return replace(case, shuffle=shuffle).loader(ds)

    if not counts:
        return Subject(case.ds, case.ds, loader, case.seconds, math.inf, math.inf, known)
    limits = disk.cold or math.inf, disk.cold_in_a_row or math.inf
    return Subject(case.ds, sample, loader, case.seconds, *limits, known)


def _choose_processes(case: Case, begin: Callable[[str], None]) -> Case:
    """Decide between threads and processes, as a loader does in its first seconds."""
    mapped = case.ds if case.function is None else case.ds.map(case.function)
    decodes = any(Coded(group).columns for group in mapped.groups)
    number = choose_processes(mapped, Options(), decodes=decodes).processes
    if not number or case.seconds < _ENOUGH:
        return case
    begin("threads or processes")
    rates = [
        run(one.loader(case.ds), _SHORT * case.seconds, _SHORT * case.seconds).rows_per_second
        for one in (case, replace(case, processes=number))
    ]
    return replace(case, processes=number) if rates[1] > rates[0] * diagnosis.WORTH else case


def _measure_stages(disk: _Disk, whole: Ran, sampled: Ran) -> tuple[list[Stage], float]:
    """Return the rate of each stage, and the share of time that threads were idle.

    All are of one run, so that they add up: over the whole data if it is in memory, otherwise over
    a sample that was read into memory.
    """
    ran = whole if disk.cold is None else sampled
    stages = diagnosis.compute_stages(ran.stages, ran.idle, ran.rows_per_second)
    if disk.cold is not None:
        stages.insert(0, Stage("disk", disk.cold, None, whole.rows_per_second))
    return stages, diagnosis.idle_share(ran.stages, ran.idle)


def _free_memory() -> int:
    """Return how many bytes of files fit into memory."""
    free = platform_calls.free_memory()
    return platform_calls.memory_bytes() // 2 if free is None else free


def _choose_sample_size(case: Case, whole: Ran) -> int:
    """Choose the size of the sample: about a tenth of the time, and not too much memory."""
    row = max(case.ds.nbytes // max(len(case.ds), 1), 1)
    wanted = round(whole.rows_per_second * 0.1 * case.seconds)
    least = min(_LEAST_BATCHES * case.batch_size, max(_SAMPLE // row, 1))
    return min(max(min(wanted, _SAMPLE // row), least), len(case.ds))


def _run_warm(case: Case, loader: ndfeed.Loader) -> Ran:
    """Run a loader for a tenth of the time, after a short run that fills the page cache."""
    return run(loader, 0.1 * case.seconds, _WARM_UP * case.seconds)


def _measure_disk(case: Case, notes: list[str]) -> _Disk:
    """Measure the disk: for rows as a shuffle picks them, and for consecutive rows."""
    scattered, together = _choose_rows(case)
    picked, in_a_row = (
        throughput.locate_pieces(case.ds, scattered),
        throughput.locate_pieces(case.ds, together),
    )
    if not picked:
        return _Disk()
    if case.cold:
        throughput.drop(picked)
        throughput.drop(in_a_row)
    found = _Disk(row_bytes=throughput.count_bytes(picked) / len(scattered))
    if throughput.is_cold(picked):
        found.cold = _measure_rate(case, picked, len(scattered))
        if throughput.is_cold(in_a_row):
            found.cold_in_a_row = _measure_rate(case, in_a_row, len(together))
    elif case.cold:
        notes.append(
            "the files could not be dropped from the page cache: the disk was not measured"
        )
    else:
        notes.append("the files are in the page cache: use --cold to measure the disk, too")
    return found


def _choose_rows(case: Case) -> tuple[Ints, Ints]:
    """Choose rows all over the data as an exact shuffle picks them, and consecutive rows."""
    count = len(case.ds)
    most = _SAMPLE * count // max(2 * case.ds.nbytes, 1)
    some = min(max(most, 1), _ON_DISK, count)
    first = (count - some) // 2
    together = np.arange(first, first + some)
    by_row = all(column.plain for column in columns_of(case.ds.groups))
    if not case.shuffle or not by_row or 4 * some > count:
        return together, together
    # Not among the consecutive ones: those will be in the page cache.
    rows = np.random.default_rng(0).choice(count - some, some, replace=False)
    return np.sort(np.where(rows < first, rows, rows + some)), together


def _measure_rate(case: Case, pieces: list[throughput.Piece], rows: float) -> float:
    """Read pieces of files, and return the rate in rows per second."""
    done = throughput.read(pieces, 0.05 * case.seconds, throughput.THREADS)
    return rows * done.nbytes / max(throughput.count_bytes(pieces), 1) / max(done.seconds, 1e-9)


def _measure_device(
    case: Case, notes: list[str], begin: Callable[[str], None]
) -> tuple[float | None, Ran | None]:
    """Measure bytes per second to the device, and a loader there; a failure becomes a note."""
    if not throughput.may_have_device():
        return None, None
    from ndfeed.cli import torch_runs  # noqa: PLC0415 - not everybody has torch

    if not torch_runs.has_device():
        return None, None
    begin("the device")
    mapped = case.ds if case.function is None else case.ds.map(case.function)
    bus = None
    try:
        bus = torch_runs.copy_rate()
        seconds = 0.15 * case.seconds
        return bus, torch_runs.run_on_device(mapped, case.batch_size, case.shuffle, seconds)
    # A dtype that torch lacks, a device that is full, or one that another process uses alone.
    except (ndfeed.Error, RuntimeError, TypeError, ValueError) as error:
        notes.append(f"loading to the device was not measured: {str(error).splitlines()[0]}")
        return bus, None


def _try_remedies(
    case: Case,
    sample: ndfeed.Dataset,
    base: Ran,
    disk_rate: float,
    notes: list[str],
    begin: Callable[[str], None],
) -> Iterator[Trial]:
    """Try every remedy that makes sense for this data, each on the sample."""

    def rate(ds: ndfeed.Dataset, tried: Case = case) -> float:
        return _run_warm(case, tried.loader(ds)).rows_per_second

    yield from _try_storing(case, sample, disk_rate, notes, begin)
    for threads in sorted({1, platform_calls.cores(), 2 * platform_calls.cores()} - {base.threads}):
        begin(f"threads={threads}")
        yield Trial(
            "threads", f"threads={threads}", rate(sample, replace(case, threads=threads)), disk_rate
        )
    larger = 4 * case.batch_size
    if 4 * larger <= len(sample):
        how = f"batch_size={larger}"
        begin(how)
        yield Trial("batch size", how, rate(sample, replace(case, batch_size=larger)), disk_rate)
    if case.function is not None and not case.processes:
        number = max(platform_calls.cores(), 2)
        how = f"processes={number}"
        begin(how)
        yield Trial("processes", how, rate(sample, replace(case, processes=number)), disk_rate)


def _try_storing(
    case: Case,
    sample: ndfeed.Dataset,
    disk_rate: float,
    notes: list[str],
    begin: Callable[[str], None],
) -> Iterator[Trial]:
    """Try other ways to store the data: packed, and in memory."""
    if not os.path.exists(os.path.join(os.fsencode(case.path), NAME)):
        begin("packing a sample")
        try:
            yield _try_packing(case, sample, disk_rate)
        except SpaceError as error:
            notes.append(f"packing was not tried: {error}")
        except SchemaError:
            if case.uncut is None:
                raise
            problem = "samples of different sizes have no crops once they are packed"
            notes.append(f"packing was not tried: {problem}")
    stored = case.stored(sample)
    if (case.uncut.whole if case.uncut else case.ds).nbytes < _free_memory() // 2:
        begin("ds.in_memory()")
        how = "ds.in_memory()" + " before crops()" * (case.uncut is not None)
        ran = _run_warm(case, case.loader(stored.cut(stored.whole.in_memory())))
        yield Trial("memory", how, ran.rows_per_second)


def _try_packing(case: Case, sample: ndfeed.Dataset, disk_rate: float) -> Trial:
    """Pack the sample into a temporary folder, and measure a loader of that."""
    stored = case.stored(sample)
    with tempfile.TemporaryDirectory(prefix="ndfeed-bench-") as folder:
        packed = ndfeed.pack(stored.whole, os.path.join(folder, "packed"))
        smaller = _count_stored(stored.whole) / max(_count_stored(packed), 1)
        ran = _run_warm(case, case.loader(stored.cut(packed.select(*stored.whole.fields))))
        del packed  # some systems do not remove mapped files
        return Trial("pack", case.packing, ran.rows_per_second, disk_rate * smaller)


def _count_stored(ds: ndfeed.Dataset) -> int:
    """Count the bytes of samples in files."""
    return throughput.count_bytes(throughput.locate_pieces(ds, np.arange(len(ds))))
