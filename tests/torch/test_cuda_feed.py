"""``ndfeed.torch.cuda_feed``, as far as it needs no GPU; ``test_cuda_races`` has the rest."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import ndfeed  # noqa: E402
from ndfeed.loading.options import Structure  # noqa: E402
from ndfeed.torch.batch_format import BatchFormat  # noqa: E402
from ndfeed.torch.cuda_feed import mark_used  # noqa: E402
from ndfeed.torch.torch_loader import adapter_for  # noqa: E402


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


def test_random_crops_are_not_resident(tmp_path):
    """What is drawn for an epoch is none of the samples that were loaded."""
    np.save(tmp_path / "x.npy", np.zeros((3, 20, 20), np.uint8))
    ds = ndfeed.open(tmp_path / "x.npy", sample="row").crops({"data": (8, 8)}, each=2)
    form = BatchFormat(ds, Structure(), None, "list")
    with pytest.raises(ValueError, match="random crops are drawn in each; leave out resident"):
        adapter_for(ds, form, torch.device("cuda", 0), resident=True)
