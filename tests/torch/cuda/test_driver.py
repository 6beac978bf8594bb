"""``ndfeed.torch.cuda.driver`` without a GPU: when registered pages are taken back."""

import numpy as np
import pytest
from children import run

pytest.importorskip("torch")

# Stands in for the driver of a GPU.
PAGES = """
from ndfeed.dataset.reader import reader_of
from ndfeed.torch.cuda.driver import Registered

class Driver:
    def register(self, address, size):
        print("registered", flush=True)
    def unregister(self, address):
        print("taken back", flush=True)

ds = ndfeed.open(args[0])
group = ds.groups[0]
pages = Registered(Driver(), reader_of(group).maps, group.table.identity[:, 2].tolist(), 1 << 30)
reader_of(group).maps.enter(0)
pages.ensure(0, np.array([128]), 10)
"""


@pytest.mark.parametrize(
    ("then", "said"),
    [
        ("pages.close()", ["registered", "taken back"]),
        ("del pages", ["registered", "taken back"]),
        ("", ["registered"]),
    ],
    ids=["closed", "gone", "at the end of the process"],
)
def test_pages_are_taken_back_by_who_knows_that_nothing_reads_them(tmp_path, then, said):
    """At its end a process has threads at work still; first the loader must have stopped them."""
    np.save(tmp_path / "x.npy", np.zeros((100, 10), np.uint8))

    assert run(PAGES + then, tmp_path / "x.npy").split("\n")[:-1] == said
