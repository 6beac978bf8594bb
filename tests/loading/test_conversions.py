"""Conversions take memory, which counts as any other that a loader takes."""

import sys

import numpy as np
import pytest
from children import run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="asks /proc for the memory in use")

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
