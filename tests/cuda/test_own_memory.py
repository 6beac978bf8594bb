"""``ndfeed.cuda.own_memory`` without a GPU, on a stand-in for the driver."""

from pathlib import Path

import numpy as np
import pytest
from children import run
from cuda.stand_in import StandIn

from ndfeed.cuda.own_memory import OwnMemory

BYTES = np.dtype(np.uint8)


def test_blocks_are_used_again_and_freed_for_others_where_memory_is_short():
    """A last batch, which is smaller, must not take the memory of all others."""
    memory = OwnMemory(StandIn(room=8 << 20), {})
    first = memory.empty_like(BYTES, (4 << 20,))
    address = first.address
    del first
    assert memory.empty_like(BYTES, (4 << 20,)).address == address
    memory.empty_like(BYTES, (2 << 20,))
    assert len(memory.empty_like(BYTES, (8 << 20,))) == 8 << 20


def test_a_device_without_memory_is_an_error_with_a_remedy():
    memory = OwnMemory(StandIn(room=8 << 20), {})
    kept = memory.empty_like(BYTES, (6 << 20,))
    with pytest.raises(MemoryError, match="no memory left; give the loader a smaller memory="):
        memory.empty_like(BYTES, (4 << 20,))
    assert len(kept) == 6 << 20


LEFT = """
import os, sys, types
sys.path.insert(0, args[0])
from cuda.stand_in import StandIn
from ndfeed.cuda.own_memory import OwnMemory

class Telling(StandIn):
    def free(self, address, write=os.write, is_over=sys.is_finalizing):
        write(1, b"freed when it is over\\n" if is_over() else b"freed\\n")
        self.free_pinned(address)

class Cycle:
    pass

def make():
    kept, memory = Cycle(), OwnMemory(Telling(), {})
    kept.own, kept.memory, kept.span = kept, memory, memory.empty_like(np.dtype("u1"), (4,))
    return kept

if args[1] == "before":
    import gc
    make()
    gc.collect()
else:  # what a module refers to is collected after Python has ended
    sys.modules["other"] = types.ModuleType("other")
    sys.modules["other"].kept = make()
"""


@pytest.mark.parametrize(("when", "freed"), [("before", "freed\n"), ("after", "")])
def test_memory_is_not_freed_after_the_end(when, freed):
    """Copies may still write to it, and a device that hangs would be waited for."""
    tests = Path(__file__).parents[1]
    assert run(LEFT, tests, when) == freed
