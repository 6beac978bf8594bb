"""``ndfeed.cuda.own_memory`` without a GPU, on a stand-in for the driver."""

import numpy as np
import pytest
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
