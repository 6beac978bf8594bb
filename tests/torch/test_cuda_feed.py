"""``ndfeed.torch.cuda_feed``, as far as it needs no GPU; ``test_cuda_races`` has the rest."""

import pytest

torch = pytest.importorskip("torch")

from ndfeed.torch.cuda_feed import mark_used  # noqa: E402


class OnDevice(torch.Tensor):
    """A tensor that is said to be on a GPU, and notes who uses it."""

    is_cuda = True

    def record_stream(self, stream):
        self.used_by = stream


def test_ragged_samples_are_marked_as_used_as_well():
    """Otherwise the allocator gives their memory away while the consumer's kernels read it."""
    alone, *listed = (torch.zeros(length).as_subclass(OnDevice) for length in range(1, 5))
    mark_used({"x": alone, "r": listed, "s": ["text", "more"], "c": torch.zeros(2)}, "consumer's")
    assert [one.used_by for one in (alone, *listed)] == ["consumer's"] * 4
