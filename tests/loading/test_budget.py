"""How memory is divided: every number follows from the arguments, and all stay within the limit.

Conversions take memory too, which counts as any other that a loader takes.
"""

import sys

import numpy as np
import pytest
from children import run
from hypothesis import given
from hypothesis import strategies as st

from ndfeed.loading.budget import make_budget

sizes = st.integers(0, 1 << 40)
shares = st.builds(
    dict,
    decodes=st.booleans(),
    splits=st.booleans(),
    group_bytes=st.integers(0, 1 << 30),
    growth=st.floats(0, 8),
    held=st.integers(0, 1 << 36),
)


@given(sizes, sizes, shares)
def test_nothing_is_counted_twice_and_nothing_is_lost(memory, batch, options):
    """Batches and streams together have what the framework does not hold, or a single batch."""
    budget = make_budget(memory, batch, **options)

    assert budget.batches + budget.streams == max(memory - options["held"], budget.batch_bytes)
    assert budget.batches >= budget.batch_bytes
    assert budget.streams == 0 or options["decodes"]


@given(sizes, sizes, shares, sizes, st.integers(1, 256))
def test_batches_in_progress_and_the_consumers_fit(memory, batch, options, largest, threads):
    """A single batch is always in progress, or nothing would be; more only within the memory."""
    budget = make_budget(memory, batch, **options)
    depth = budget.depth(largest, threads)

    assert depth >= 1
    assert depth == 1 or (depth + 1) * largest <= budget.batches
    assert depth <= budget.depth(largest // 2, threads)
    assert depth <= budget.depth(largest, threads + 1)


@given(sizes, sizes, shares)
def test_a_group_takes_a_quarter_of_the_batches_memory(memory, batch, options):
    """The others are being made or delivered meanwhile."""
    budget = make_budget(memory, batch, **options)

    assert budget.group_bytes <= min(options["group_bytes"], budget.batches // 4)
    assert 1 <= budget.group <= 64
    assert budget.group == 1 or budget.group * budget.batch_bytes <= budget.group_bytes
    assert budget.group == 1 or options["splits"]


@given(sizes, sizes, sizes, shares)
def test_more_memory_never_means_less_of_anything(memory, more, batch, options):
    """Whoever raises memory= must not get fewer batches ahead, or fewer decoded streams."""
    small, large = (make_budget(m, batch, **options) for m in (memory, memory + more))

    assert small.batches <= large.batches
    assert small.streams <= large.streams
    assert small.group <= large.group
    assert small.depth(batch, 4) <= large.depth(batch, 4)


@given(sizes, sizes, shares, st.integers(0, 1 << 20))
def test_a_disk_is_asked_for_a_few_batches_at_least(memory, batch, options, scattered):
    """And for no less than one group, which is read at a time; scattered rows cost a page each."""
    budget = make_budget(memory, batch, **options)
    ahead = budget.readahead(batch, scattered)

    assert ahead >= max(4, budget.group)
    assert ahead <= budget.readahead(batch)
    assert ahead == max(4, budget.group) or ahead * max(batch, 4096 * scattered) <= 64 << 20


@given(st.integers(0, 1 << 40), st.floats(0, 8))
def test_what_an_adapter_allocates_is_counted(nbytes, growth):
    """The largest batch so far is compared with the expected one, so both count the same."""
    budget = make_budget(0, nbytes, decodes=False, growth=growth)

    assert budget.count(nbytes) == budget.batch_bytes >= nbytes


@pytest.mark.parametrize(
    ("memory", "batch", "batches"),
    [
        (1 << 30, 1 << 20, 32 << 20),  # small batches: room for many
        (1 << 30, 16 << 20, 128 << 20),  # eight batches
        (1 << 30, 100 << 20, 256 << 20),  # a quarter at most
        (1 << 30, 900 << 20, 900 << 20),  # but a batch in any case
    ],
)
def test_streams_get_what_batches_leave(memory, batch, batches):
    """Values worked out by hand."""
    budget = make_budget(memory, batch, decodes=True)

    assert (budget.batches, budget.streams) == (batches, memory - batches)


# The consumer rests now and then, so that as many batches are made ahead as memory allows.
CHILD = """
import threading, time
import ndfeed
path, way, dtype = args
if way == "torch":
    import torch
    ds = ndfeed.open(path, mapped=False)
    convert = {"data": ndfeed.torch.Convert(torch.float32, scale=1 / 255)}
    loader = ndfeed.torch.loader(ds, 256, memory="32MB", threads=4, convert=convert)
else:
    ds = ndfeed.open(path, mapped=False, dtype={"data": dtype})
    loader = ndfeed.loader(ds, 256, memory="32MB", threads=4)

def taken():
    with open("/proc/self/status") as status:
        lines = [line for line in status if line.startswith("RssAnon")]
    return int(lines[0].split()[1]) * 1024

before, peak, over = taken(), 0, False

def watch():
    global peak
    while not over:
        peak = max(peak, taken())
        time.sleep(0.001)

thread = threading.Thread(target=watch)
thread.start()
for number, batch in enumerate(loader):
    if number % 50 == 0:
        time.sleep(0.05)
over = True
thread.join()
print(peak - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc for the memory in use")
@pytest.mark.parametrize(
    ("way", "stored", "dtype"),
    [("open", "f8", "f4"), ("open", "i8", "i4"), ("open", "u1", "f8"), ("torch", "u1", "f4")],
)
def test_memory_is_kept_while_fields_are_converted(tmp_path, way, stored, dtype):
    """What is stored, what becomes of it, and what lies in between."""
    np.save(tmp_path / "a.npy", np.ones((60_000, 1024 // np.dtype(dtype).itemsize * 4), stored))
    extra = int(run(CHILD, str(tmp_path / "a.npy"), way, dtype))

    # Threads and their stacks take some, too; and what tensors are made of is not given back to
    # the system at once, for each thread.
    assert extra < 32_000_000 + (28_000_000 if way == "torch" else 4_000_000)
