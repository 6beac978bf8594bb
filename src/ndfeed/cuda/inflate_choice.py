"""Decides whether deflated files are inflated on the device.

Decoding there takes multiprocessors from training, and leaves processors to everything else. Some
samples are decoded both ways before the first batch, and the device does it if it is faster than
all processors of this process would be, as far as reading the files leaves room for that.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from ndfeed.cuda.driver import Refused
from ndfeed.cuda.inflate import Inflater, Library
from ndfeed.cuda.side import MOST_AHEAD, Side
from ndfeed.dataset.coded_streams import ALIGNED, list_coded, with_streams
from ndfeed.dataset.column import columns_of
from ndfeed.dataset.dataset import Dataset
from ndfeed.dataset.map_steps import Batch
from ndfeed.dataset.readahead import spread
from ndfeed.dataset.row_selection import Drawn
from ndfeed.errors import Error
from ndfeed.files.platform_calls import share_of_cores
from ndfeed.loading.batch_builder import BatchBuilder
from ndfeed.loading.buffer_pool import Bytes, Pool
from ndfeed.loading.coded import make_stream_cache
from ndfeed.loading.host_source import HostSource
from ndfeed.loading.options import Options
from ndfeed.loading.timing import Timing
from ndfeed.order.permutation import Ints

_FEW = 64  # samples that are decoded on a processor, for the comparison
_LONGEST = 0.5  # seconds that the comparison takes about, if files are slow to read
_MEASURED = 64 << 20  # bytes of them, decoded
_LARGEST = 1 << 30  # bytes of a batch


class Rates(NamedTuple):
    """Samples a second: inflated on the device, and on all processors of this process."""

    device: float
    processors: float


def is_faster(rates: Rates) -> bool:
    """Is the device faster?"""
    return rates.device > rates.processors


class Device(NamedTuple):
    """Where samples may be inflated, by what, and how memory is allocated that it copies from.

    ``least`` is how many bytes a dataset has, inflated, for which it is worth to look, and
    ``samples`` how many of them are decoded on the device for the comparison.
    """

    side: Side
    load: Callable[[], Library]
    prefer: Callable[[Rates], bool]
    allocate: Callable[[int], Bytes]
    least: int
    samples: int


class Way(NamedTuple):
    """How batches are read: what reads them on the device if anything does, and why."""

    inflater: Inflater | None
    ds: Dataset  # as it is read
    options: Options
    why: str  # empty where nothing could be inflated


def choose_way(
    ds: Dataset,
    options: Options,
    batch_bytes: int,
    kept: Sequence[str],
    device: Device,
) -> Way:
    """Choose how to read a dataset; fields ``kept`` are not inflated on the device."""
    names = [c.field.name for g in ds.groups for c in list_coded(g) if c.field.name not in kept]
    plain = Way(None, ds, options, "")
    if ds.steps or not names or ds.nbytes < max(device.least, 1):
        return plain
    problem = _why_not(ds, names, options, batch_bytes)
    if problem:
        return plain._replace(why=problem)
    packed = replace(options, ragged="packed", pads={}, memory=_limit(options, batch_bytes))
    inflater: Inflater | None = None
    try:
        library = device.load()
        if ALIGNED % library.alignment:
            raise Refused(f"nvCOMP wants streams at multiples of {library.alignment} bytes")
        coded = with_streams(ds, tuple(names))
        inflater = Inflater(ds, names, kept, device.side, library)
        inflater.set_batch(batch_bytes)
        builders = _builder(coded, packed, device), _builder(ds, options, device)
        rates = measure(inflater, builders, ds, device.samples)
    except (Refused, Error, MemoryError, RuntimeError) as error:
        # A file that cannot be read is named in its batch.
        unread = "some of the files cannot be read"
        why = unread if isinstance(error, Error) else f"{error}".split("\n")[0]
        if inflater is not None:
            inflater.close()
        return plain._replace(why=why)
    found = f"about {rates.device:,.0f} samples a second, {rates.processors:,.0f} on the CPU"
    if device.prefer(rates):
        return Way(inflater, coded, packed, found)
    inflater.close()
    return plain._replace(why=f"inflating them on the GPU is no faster ({found})")


def _why_not(ds: Dataset, names: Sequence[str], options: Options, batch_bytes: int) -> str:
    if options.on_error == "skip":
        return "samples that cannot be read are looked for on the CPU"
    if isinstance(ds.rows, Drawn):
        return "samples are drawn anew in every epoch"
    if any(f"{name}_offsets" in ds.names for name in names):
        return f"a field has the name of another with _offsets: {', '.join(names)}"
    for group in ds.groups:
        if not group.by_file and not all(column.plain for column in group.columns):
            return "other rows are compressed or converted"
    if any(column.field.ragged for column in columns_of(ds.groups)):
        return "samples differ in shape"
    if batch_bytes > _LARGEST:
        return "batches are too large"
    return ""


def _limit(options: Options, batch_bytes: int) -> int:
    """Return a memory limit with which few decoded batches wait on the device."""
    return min(options.memory, max(MOST_AHEAD, 4 * batch_bytes))


def _builder(ds: Dataset, options: Options, device: Device) -> BatchBuilder:
    pool = Pool(1, device.allocate)
    cache = make_stream_cache([], 0, 0, forward=False)
    return BatchBuilder(ds, options, pool, HostSource(ds, options, pool, cache))


Builders: TypeAlias = tuple[BatchBuilder, BatchBuilder]  # of compressed bytes, and of decoded ones


def measure(inflater: Inflater, builders: Builders, ds: Dataset, most: int) -> Rates:
    """Decode some samples both ways, at most so many on the device.

    In a thread of its own, whose work on the device goes to our stream.
    """
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(_measure, inflater, builders, ds, most).result()


def _measure(inflater: Inflater, builders: Builders, ds: Dataset, most: int) -> Rates:
    def build(builder: BatchBuilder, rows: Ints) -> tuple[float, Batch]:
        began = time.perf_counter()
        made = builder.build(rows, None, Timing())
        return (time.perf_counter() - began) / len(rows), made

    coded, plain = builders
    few = spread(len(ds), min(_FEW, most))
    both, _ = build(plain, few)
    fits = _MEASURED // max(ds.nbytes // len(ds), 1)
    many = spread(len(ds), max(min(int(_LONGEST / both), fits, most), len(few)))
    reading, made = build(coded, many)
    inflater.read(made, many)  # loads the library's code, and allocates memory
    began = time.perf_counter()
    inflater.read(made, many)
    decoding = (time.perf_counter() - began) / len(many)
    cores = share_of_cores()
    return Rates(min(1 / decoding, cores / reading), cores / both)
