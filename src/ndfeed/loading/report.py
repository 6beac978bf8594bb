"""What a loader did, where the time went, and in one sentence where the bottleneck is."""

from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ndfeed.dataset.dataset import Dataset
from ndfeed.errors import shown_size
from ndfeed.loading.options import Options
from ndfeed.loading.timing import Timing
from ndfeed.order.epoch import Share
from ndfeed.order.mixing import Mixing
from ndfeed.order.protocol import OrderInUse

_CONSUMER = 0.1  # below this share of waiting, the consumer is the bottleneck
_BUSY = 2  # files for each process: one that it decodes, one that is waited for or gathered from
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
    obstacle: str = ""
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
    tokens: int = 0  # lengths of the samples in padded batches, with their padding
    padding: float = 0.0  # the share of those that is padding
    way: str = ""  # how batches get to where they are used
    limit: str = "nothing was read yet"
    in_use: OrderInUse | None = field(default=None, repr=False, compare=False)

    @property
    def mixing(self) -> Mixing | None:
        """How far batches are from a true shuffle, if they are shuffled and not exactly.

        Measured when it is first read, and ``None`` in a report that was pickled.
        """
        if self.in_use is None or not (self.in_use.traits.shuffled and self.in_use.traits.by_part):
            return None
        found: Mixing | None = getattr(self.in_use, "mixing", None)
        return None if found is None or found.is_exact else found

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
        mixing = self.mixing
        known = asdict(replace(self, in_use=None))
        del known["in_use"]
        return known | {
            "mixing": None if mixing is None else mixing.as_dict(),
            "rows_per_second": self.rows_per_second,
            "bytes_per_second": self.bytes_per_second,
        }

    def __str__(self) -> str:
        lines = [f"ndfeed.Loader: {self.order}, {self.workers}"]
        if self.batches:
            lines.append(
                f"  {self.rows:,} rows in {self.batches:,} batches, {self.seconds:.2f} s: "
                f"{self.rows_per_second:,.0f} rows/s, {shown_size(self.bytes_per_second)}/s"
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
                f"  memory: limit {shown_size(self.memory)}; at most {self.depth} batches of "
                f"{shown_size(self.batch_bytes)} in flight, {self.ready} ready, "
                f"{shown_size(self.decoded)} of decompressed data"
            )
        if self.tokens:
            lines.append(f"  padding: {self.padding:.1%} of {_shown_count(self.tokens)} tokens")
        if self.obstacle:
            lines.append(f"  threads instead of processes: {self.obstacle}")
        if self.way:
            lines.append(f"  transfer: {self.way}")
        if (mixing := self.mixing) is not None:
            lines.append(f"  mixing: {mixing}")
        if self.skipped:
            lines.append(f"  {self.skipped:,} samples skipped: loader.skipped lists them")
        lines.append(f"  bottleneck: {self.limit}")
        return "\n".join(lines)

    @property
    def workers(self) -> str:
        """How many threads and processes make batches, in words."""
        threads = f"{self.threads} thread{'s' * (self.threads != 1)}"
        if not self.processes:
            return threads
        return f"{threads}, {self.processes} process{'es' * (self.processes != 1)}"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a runtime has measured by some moment of its current or last pass.

    ``done`` is the work of all threads in the pass, ``total`` that since the runtime was made; both
    include batches that were prefetched and not delivered yet.
    """

    seconds: float
    batches: int  # delivered
    rows: int  # of those
    done: Timing
    total: Timing
    consumer_waiting: float
    threads: int
    ready: int
    depth: int
    batch_bytes: int
    buffers: int
    buffers_idle: int
    decoded: int
    window: int  # bytes of decoded streams that the order needs at a time
    decodes_again: bool  # are streams decoded more than once, since memory does not hold those?
    from_disk: int | None
    disk_peak: float
    skipped: int
    transfer: str  # how batches get to where they are used
    cores: int
    machine_memory: int
    processes: int = 0  # that build batches now
    obstacle: str = ""  # why there are none, where they might help
    tried: bool = False  # was it measured whether processes are faster?
    ahead: tuple[int, int] = (0, 0)  # streams that fit beside that window, and bytes of each
    padded: tuple[int, int] = (0, 0)  # tokens of padded batches delivered, and those of padding


def make_report(
    order: str,
    ds: Dataset,
    options: Options,
    share: Share,
    found: Snapshot | None,
    batches: int = 1,
) -> Report:
    """Make the report of a loader from what its runtime measured, if there is one yet.

    ``batches`` is how many an epoch has.
    """
    if found is None:
        report = Report(order, threads=options.threads or 0, memory=options.memory)
        return report if batches else replace(report, limit=_no_batches(share))
    done, total, rows = found.done, found.total, found.rows
    tokens, padding = found.padded
    if options.on_error == "skip":
        rows = min(rows, done.rows)  # without those that were skipped
    report = Report(
        order,
        seconds=found.seconds,
        batches=found.batches,
        rows=rows,
        nbytes=round(total.nbytes * rows / max(total.rows, 1)),
        stages={name: getattr(done, name) for name in _STAGES},
        waiting_for_consumer=done.idle,
        consumer_waiting=found.consumer_waiting,
        threads=found.threads,
        processes=found.processes,
        obstacle=found.obstacle,
        ready=found.ready,
        depth=found.depth,
        batch_bytes=found.batch_bytes,
        memory=options.memory,
        buffers=found.buffers,
        buffers_idle=found.buffers_idle,
        decoded=found.decoded,
        streams=done.streams,
        from_disk=found.from_disk,
        disk_peak=found.disk_peak,
        skipped=found.skipped,
        tokens=tokens,
        padding=padding / max(tokens, 1),
        way=found.transfer,
    )
    if not report.batches and not batches:
        return replace(report, limit=_no_batches(share))
    return replace(report, limit=_find_bottleneck(report, ds, found))


def _shown_count(count: int) -> str:
    """Format a large number: 2.1 M for two million and a hundred thousand."""
    for unit, size in (("G", 10**9), ("M", 10**6)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:,}"


def _no_batches(share: Share) -> str:
    if not share.n:
        return "there are no samples"
    if share.tokens:
        return f"drop_last leaves no batches of {share.n:,} samples; lower tokens"
    return (
        f"drop_last leaves no batches: {share.n:,} samples are fewer than {share.together:,}; "
        "lower batch_size"
    )


def _find_bottleneck(report: Report, ds: Dataset, found: Snapshot) -> str:
    """Say in one sentence what the bottleneck is and what to do about it."""
    if not report.batches:
        return "nothing was read yet"
    waited = report.consumer_waiting / max(report.seconds, 1e-9)
    if waited < _CONSUMER:
        return f"your code: batches were ready, it waited for them only {waited:.0%} of the time"
    busy = {name: seconds for name, seconds in report.stages.items() if seconds > 0}
    if not busy:
        return "nothing was read yet"
    stored = found.done.rows * (ds.nbytes / max(len(ds), 1))  # bytes of those rows in the files
    if report.from_disk and report.from_disk > _FROM_DISK * stored:
        return _blame_disk(report, fits=ds.nbytes < found.machine_memory // 2)
    stage = max(busy, key=lambda name: busy[name])
    part = f"{busy[stage] / sum(busy.values()):.0%}"
    if stage == "transform":
        return _blame_transform(part, report, found, maps=bool(ds.steps))
    return _blame_stage(stage, part, report, found)


def _blame_disk(report: Report, *, fits: bool) -> str:
    rate = (report.from_disk or 0) / max(report.seconds, 1e-9)
    best = max(report.disk_peak, rate)
    reached = f"{shown_size(rate)}/s of the {shown_size(best)}/s it reached at best"
    text = f"waiting for the disk: {reached}"
    if fits:
        return f"{text}; later epochs will read from memory"
    return f"{text}; the data does not fit in memory: shuffle=Blocks() reads longer runs"


def _blame_transform(part: str, report: Report, found: Snapshot, *, maps: bool) -> str:
    if not maps:
        return f"collating ragged samples takes {part} of the time"
    processes = report.processes
    remedy = f"try processes={processes + 1 if processes else max(found.cores, 2)}"
    if processes >= found.cores or (found.tried and not report.obstacle):
        remedy = "make it cheaper, or do it once and save the result"
    return f"your transform takes {part} of the time; {remedy}"


def _blame_stage(stage: str, part: str, report: Report, found: Snapshot) -> str:
    if stage == "inflate" and found.decodes_again:
        return (
            f"the same data is decompressed again and again: the order needs "
            f"{shown_size(found.window)} of it at a time; raise memory to "
            f"{shown_size(found.window + report.memory)}"
        )
    count, size = found.ahead
    if stage == "inflate" and size and count < _BUSY * report.processes:
        more = report.memory + (_BUSY * report.processes - count) * size
        return (
            f"decompressing takes {part} of the time, and memory holds too few files to keep "
            f"{report.processes} processes busy; raise memory to {shown_size(more)}"
        )
    if stage == "inflate":
        return f"decompressing takes {part} of the time; ndfeed pack does it only once"
    if stage == "read":
        return f"opening and reading files takes {part} of the time; ndfeed pack merges them"
    if stage == "copy":
        return (
            f"copying from memory at {shown_size(report.bytes_per_second)}/s takes {part} of the "
            "time; use smaller dtypes, fewer fields or a larger batch_size"
        )
    return f"{_STAGES[stage]} takes {part} of the time; raise batch_size"
