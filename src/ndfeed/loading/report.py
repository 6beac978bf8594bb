"""What a loader did, where the time went, and in one sentence where the bottleneck is."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ndfeed.dataset.dataset import Dataset
from ndfeed.dataset.samples import size
from ndfeed.files import platform_calls
from ndfeed.loading.options import Options
from ndfeed.loading.runtime import Runtime
from ndfeed.loading.timing import Timing
from ndfeed.order.rank_share import Share

_CONSUMER = 0.1  # below this share of waiting, the consumer is the bottleneck
_FROM_DISK = 0.3  # above this share of the bytes, the disk is busy

_STAGES = {
    "order": "computing the order",
    "ahead": "prefetching",
    "read": "reading files",
    "inflate": "decompressing",
    "copy": "copying into batches",
    "transform": "your transform",
}


@dataclass(frozen=True, slots=True)
class Report:
    """The current pass of a loader, or its last one.

    ``stages`` are seconds of all threads together; ``waiting_for_consumer`` is how long threads
    were idle, ``consumer_waiting`` how long the consumer waited for a batch.
    """

    order: str
    seconds: float = 0.0
    batches: int = 0
    rows: int = 0
    nbytes: int = 0
    stages: dict[str, float] = field(default_factory=dict)
    waiting_for_consumer: float = 0.0
    consumer_waiting: float = 0.0
    threads: int = 0
    processes: int = 0
    ready: int = 0  # batches ready to be taken
    depth: int = 0  # most batches that may be in progress
    batch_bytes: int = 0
    memory: int = 0
    buffers: int = 0  # buffers allocated for batches so far
    buffers_idle: int = 0  # bytes of those that are not in use
    decoded: int = 0  # bytes of decoded streams that are cached
    streams: int = 0  # streams decoded whole
    from_disk: int | None = None  # bytes that came from the disk, where known
    disk_peak: float = 0.0  # the highest rate seen, in bytes per second
    skipped: int = 0
    way: str = ""  # how batches get to where they are used
    limit: str = "nothing was read yet"

    @property
    def rows_per_second(self) -> float:
        """Samples delivered per second."""
        return self.rows / self.seconds if self.seconds else 0.0

    @property
    def bytes_per_second(self) -> float:
        """Bytes of batches delivered per second."""
        return self.nbytes / self.seconds if self.seconds else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return asdict(self) | {
            "rows_per_second": self.rows_per_second,
            "bytes_per_second": self.bytes_per_second,
        }

    def __str__(self) -> str:
        lines = [f"ndfeed.Loader: {self.order}, {self._workers()}"]
        if self.batches:
            lines.append(
                f"  {self.rows:,} rows in {self.batches:,} batches, {self.seconds:.2f} s: "
                f"{self.rows_per_second:,.0f} rows/s, {size(self.bytes_per_second)}/s"
            )
            busy = sum(self.stages.values()) or 1.0
            shares = [
                f"{_STAGES[name]} {seconds / busy:.0%}"
                for name, seconds in self.stages.items()
                if seconds / busy >= 0.005
            ]
            lines.append(f"  time: {', '.join(shares)}")
            lines.append(
                f"  your loop waited {self.consumer_waiting:.2f} s; "
                f"loader threads idled {self.waiting_for_consumer:.2f} s"
            )
            lines.append(
                f"  memory: limit {size(self.memory)}; at most {self.depth} batches of "
                f"{size(self.batch_bytes)} in flight, {self.ready} ready, "
                f"{size(self.decoded)} of decompressed data"
            )
        if self.way:
            lines.append(f"  transfer: {self.way}")
        if self.skipped:
            lines.append(f"  {self.skipped:,} samples skipped: loader.skipped lists them")
        lines.append(f"  bottleneck: {self.limit}")
        return "\n".join(lines)

    def _workers(self) -> str:
        threads = f"{self.threads} thread{'s' * (self.threads != 1)}"
        if not self.processes:
            return threads
        return f"{threads}, {self.processes} process{'es' * (self.processes != 1)}"


def make_report(
    ds: Dataset, options: Options, order: str, machines: Sequence[Runtime], share: Share
) -> Report:
    """Make the report of a loader."""
    if not machines:
        found = Report(order, threads=options.threads or 0, memory=options.memory)
        return found if share.batches() else replace(found, limit=_no_batches(share))
    machine = machines[0]
    ever = machine.clock()
    done = ever - machine.before
    batches, rows = machine.delivered()
    if options.on_error == "skip":
        rows = min(rows, done.rows)  # without those that were skipped
    seconds = (machine.ended or time.perf_counter()) - machine.began
    found = Report(
        order,
        seconds=seconds,
        batches=batches,
        rows=rows,
        nbytes=round(ever.nbytes * rows / max(ever.rows, 1)),
        stages={name: getattr(done, name) for name in _STAGES},
        waiting_for_consumer=done.idle,
        consumer_waiting=machine.engine.starved - machine.starved_before,
        threads=machine.engine.threads,
        processes=options.processes,
        ready=machine.engine.ready,
        depth=machine.depth(),
        batch_bytes=machine.filler.batch_bytes,
        memory=options.memory,
        buffers=machine.pool.made,
        buffers_idle=machine.pool.idle,
        decoded=machine.decoded.held,
        streams=done.streams,
        from_disk=machine.disk.since,
        disk_peak=machine.disk.peak,
        skipped=machine.skipped.count,
        way=machine.adapter.describe(),
    )
    return replace(found, limit=_limit(found, ds, machine, done, share))


def _no_batches(share: Share) -> str:
    if not share.n:
        return "there are no samples"
    return (
        f"drop_last leaves no batches: {share.n:,} samples are fewer than {share.together:,}; "
        "lower batch_size"
    )


def _limit(report: Report, ds: Dataset, machine: Runtime, done: Timing, share: Share) -> str:
    """Say in one sentence what the bottleneck is and what to do about it."""
    if not report.batches:
        return "nothing was read yet" if share.batches() else _no_batches(share)
    waited = report.consumer_waiting / max(report.seconds, 1e-9)
    if waited < _CONSUMER:
        return f"your code: batches were ready, it waited for them only {waited:.0%} of the time"
    busy = {name: seconds for name, seconds in report.stages.items() if seconds > 0}
    if not busy:
        return "nothing was read yet"
    stage = max(busy, key=lambda name: busy[name])
    share_of = busy[stage] / sum(busy.values())
    if report.from_disk and report.from_disk > _FROM_DISK * _stored(done, ds):
        return _disk(report, ds)
    return _of_stage(stage, share_of, report, ds, machine)


def _stored(done: Timing, ds: Dataset) -> float:
    """Estimate how many bytes in the files the delivered rows take."""
    return done.rows * (ds.nbytes / max(len(ds), 1))


def _disk(report: Report, ds: Dataset) -> str:
    rate = (report.from_disk or 0) / max(report.seconds, 1e-9)
    best = max(report.disk_peak, rate)
    text = f"waiting for the disk: {size(rate)}/s of the {size(best)}/s it reached at best"
    if ds.nbytes < platform_calls.memory_bytes() // 2:
        return f"{text}; later epochs will read from memory"
    return f"{text}; the data does not fit in memory: shuffle=Blocks() reads longer runs"


def _of_stage(stage: str, part: float, report: Report, ds: Dataset, machine: Runtime) -> str:
    if stage == "transform":
        if not ds.steps:
            return f"collating ragged samples takes {part:.0%} of the time"
        if report.processes:
            more = (
                f"processes={report.processes + 1}"
                if report.processes < platform_calls.cores()
                else ""
            )
            remedy = f"try {more}" if more else "make it cheaper, or do it once and save the result"
        else:
            remedy = f"try processes={max(platform_calls.cores(), 2)}"
        return f"your transform takes {part:.0%} of the time; {remedy}"
    if stage == "inflate":
        needed = machine.plan.window
        if machine.decoded.large is None and needed > machine.decoded.limit:
            return (
                f"the same data is decompressed again and again: the order needs {size(needed)} "
                f"of it at a time; raise memory to {size(needed + report.memory)}"
            )
        return f"decompressing takes {part:.0%} of the time; ndfeed pack does it only once"
    if stage == "read":
        return f"opening and reading files takes {part:.0%} of the time; ndfeed pack merges them"
    if stage == "copy":
        return (
            f"copying from memory at {size(report.bytes_per_second)}/s takes {part:.0%} of the "
            "time; use smaller dtypes, fewer fields or a larger batch_size"
        )
    return f"{_STAGES[stage]} takes {part:.0%} of the time; raise batch_size"
