"""Text among tensors: lists of ``str``, in every way that torch is fed."""

import numpy as np
import pytest
import torch

import ndfeed
import ndfeed.torch

NAMES = ["cat", "a much longer name", "dog", "ünïcode", "e", "f"]


@pytest.fixture
def ds(tmp_path):
    for i, name in enumerate(NAMES):
        np.savez(tmp_path / f"{i}.npz", x=np.full(3, i, "f4"), name=np.array(name))
    return ndfeed.open(tmp_path)


def test_a_loader_gives_text_as_a_list_of_str(ds):
    """torch's own DataLoader does so, and no tensor can hold it."""
    batches = list(ndfeed.torch.loader(ds, 4))

    assert [name for batch in batches for name in batch["name"]] == NAMES
    assert all(type(name) is str for batch in batches for name in batch["name"])
    assert batches[0]["x"][:, 0].tolist() == [0, 1, 2, 3]


def test_tuples_and_shuffled_orders_keep_text_beside_its_sample(ds):
    """As any other field."""
    for x, names in ndfeed.torch.loader(ds, 4, fields=("x", "name"), shuffle=True):
        assert [NAMES[int(i)] for i in x[:, 0]] == names


def test_numpy_batches_have_text_as_an_array(ds):
    """NumPy has a type for it."""
    batch = next(iter(ndfeed.loader(ds, 6)))

    assert batch["name"].dtype == "<U18"
    assert batch["name"].tolist() == NAMES


@pytest.mark.parametrize("collate", [None, ndfeed.torch.collate])
def test_torchs_own_loader_gets_the_same(ds, collate):
    """One sample has a ``str``, a batch a list."""
    samples = ndfeed.torch.dataset(ds)
    (batch,) = torch.utils.data.DataLoader(samples, batch_size=6, collate_fn=collate)

    assert samples[1]["name"] == NAMES[1]
    assert batch["name"] == NAMES


def test_maps_on_tensors_get_and_return_text(ds):
    """Tokenizers want ``str``."""

    def tokens(batch):
        return batch | {"length": torch.tensor([len(name) for name in batch["name"]])}

    (batch,) = ndfeed.torch.loader(ndfeed.torch.map(ds, tokens), 6)

    assert batch["name"] == NAMES
    assert batch["length"].tolist() == [len(name) for name in NAMES]
