"""Nodes of torchdata over our loaders, as the documentation has them."""

import numpy as np
import pytest

nodes = pytest.importorskip("torchdata.nodes")

import ndfeed  # noqa: E402
import ndfeed.torch  # noqa: E402


@pytest.fixture
def mixed(tmp_path):
    """Makes a loader of two of ours, mixed by chance."""
    np.save(tmp_path / "a.npy", np.arange(1000))
    np.save(tmp_path / "b.npy", np.arange(1000, 1600))
    sets = {name: ndfeed.open(tmp_path / f"{name}.npy") for name in "ab"}

    def make():
        wrapped = {
            name: nodes.IterableWrapper(ndfeed.torch.loader(ds, 50, shuffle=True))
            for name, ds in sets.items()
        }
        weighted = nodes.MultiNodeWeightedSampler(wrapped, {"a": 0.7, "b": 0.3}, seed=0)
        return nodes.Loader(weighted)

    return make


def rows(batches):
    return [batch["data"].tolist() for batch in batches]


def test_a_mix_has_every_row(mixed):
    """Until all of them are used up, some come again."""
    assert {row for batch in rows(mixed()) for row in batch} == set(range(1600))


@pytest.mark.parametrize("at", [1, 7, 20])
def test_a_mix_goes_on_in_the_middle(mixed, at):
    """The state of a node has that of the loader in it."""
    expected = rows(mixed())
    loader = mixed()
    batches = iter(loader)
    first = [next(batches)["data"].tolist() for _ in range(at)]
    state = loader.state_dict()
    again = mixed()
    again.load_state_dict(state)

    assert first + rows(again) == expected


def test_a_node_over_one_loader_has_its_epochs(tmp_path):
    """Each pass of the node is the loader's next, also behind one that was gone on with."""
    np.save(tmp_path / "x.npy", np.arange(200))
    ds = ndfeed.open(tmp_path / "x.npy")
    plain = ndfeed.torch.loader(ds, 50, shuffle=True)
    expected = [rows(plain) for _ in range(2)]
    loader = nodes.Loader(nodes.IterableWrapper(ndfeed.torch.loader(ds, 50, shuffle=True)))
    batches = iter(loader)
    first = [next(batches)["data"].tolist() for _ in range(2)]
    again = nodes.Loader(nodes.IterableWrapper(ndfeed.torch.loader(ds, 50, shuffle=True)))
    again.load_state_dict(loader.state_dict())

    assert [first + rows(again), rows(again)] == expected
