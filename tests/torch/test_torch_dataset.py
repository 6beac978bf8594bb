"""A dataset in torch's own DataLoader."""

import pickle
import random

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from loader_contract import STRUCTURES, ArgumentContract, built  # noqa: E402
from loading.making import images, labels  # noqa: E402
from torch.utils.data import (  # noqa: E402
    BatchSampler,
    DataLoader,
    RandomSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch_making import as_they_are, brightened, in_worker, texts  # noqa: E402

import ndfeed  # noqa: E402
import ndfeed.torch  # noqa: E402

# On a machine with fewer processors; they are not for speed here.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


def test_samples(tmp_path):
    """One by one, from both ends."""
    ds = ndfeed.torch.dataset(images(tmp_path))

    assert len(ds) == 100
    assert ds[7]["label"] == torch.tensor(7)
    assert ds[7]["label"].shape == ()
    assert ds[-1]["image"].shape == (4, 4, 3)
    assert ds[np.int64(3)]["label"] == 3
    assert ds[torch.tensor(3)]["label"] == 3
    with pytest.raises(IndexError):
        ds[100]
    with pytest.raises(IndexError):
        ds.__getitems__([0, 100])


def test_fields_make_tuples(tmp_path):
    """Only what is named is read."""
    ds = ndfeed.torch.dataset(images(tmp_path), ("label", "image"))
    label, image = ds[5]

    assert label == 5
    assert image[0, 0, 0] == 5
    (batch,) = DataLoader(ds, batch_size=100)
    assert batch[0].tolist() == list(range(100))
    with pytest.raises(ndfeed.FieldError):
        ndfeed.torch.dataset(images(tmp_path), ("no",))
    with pytest.raises(TypeError, match="a set does not have"):
        ndfeed.torch.dataset(images(tmp_path), {"label", "image"})


def test_batch_of_samples(tmp_path):
    """What ``__getitems__`` gives is a sequence like any other."""
    samples = ndfeed.torch.dataset(images(tmp_path)).__getitems__([4, 2, 4])

    assert len(samples) == 3
    assert [int(sample["label"]) for sample in samples] == [4, 2, 4]
    assert int(samples[-2]["label"]) == 2
    assert [int(sample["label"]) for sample in samples[1:]] == [2, 4]
    with pytest.raises(IndexError):
        samples[3]
    assert samples[0]["image"].data_ptr() == samples.batch["image"].data_ptr()


@pytest.mark.parametrize("collate", [None, ndfeed.torch.collate])
def test_collate(tmp_path, collate):
    """Stacked by torch, or taken as it was read: the same batch."""
    loader = DataLoader(ndfeed.torch.dataset(images(tmp_path)), batch_size=30, collate_fn=collate)
    batches = list(loader)

    assert [len(batch["label"]) for batch in batches] == [30, 30, 30, 10]
    assert labels(batches) == list(range(100))
    assert batches[1]["image"][:, 0, 0, 0].tolist() == list(range(30, 60))


def test_collate_of_other_samples():
    """A list of samples is stacked as by torch."""
    found = ndfeed.torch.collate([{"x": torch.tensor(1)}, {"x": torch.tensor(2)}])

    assert found["x"].tolist() == [1, 2]


def test_a_few_kilobytes_to_pickle(tmp_path):
    """What every worker is sent."""
    order = np.random.default_rng(0).permutation(5000)
    ds = ndfeed.torch.dataset(images(tmp_path, 5000).take(order))
    data = pickle.dumps(ds)

    assert len(data) < 8192
    assert int(pickle.loads(data)[3]["label"]) == int(ds[3]["label"])


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_workers(tmp_path, method):
    """Two epochs of two workers, however they are started, after this process has read too."""
    ds = images(tmp_path)
    ds[0]
    loader = DataLoader(
        ndfeed.torch.dataset(ds),
        batch_size=7,
        shuffle=True,
        num_workers=2,
        persistent_workers=True,
        multiprocessing_context=method,
        generator=torch.Generator().manual_seed(0),
    )
    epochs = [list(loader), list(loader)]

    for batches in epochs:
        assert sorted(labels(batches)) == list(range(100))
        for batch in batches:
            assert batch["image"][:, 0, 0, 0].tolist() == batch["label"].tolist()
    assert labels(epochs[0]) != labels(epochs[1])
    loader._iterator._shutdown_workers()


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_any_number_of_workers(tmp_path, workers):
    """Each batch is read whole by one of them."""
    loader = DataLoader(
        ndfeed.torch.dataset(images(tmp_path)),
        batch_size=10,
        num_workers=workers,
        collate_fn=in_worker,
    )
    found = list(loader)

    assert [rows for rows, _ in found] == [list(range(n, n + 10)) for n in range(0, 100, 10)]
    assert len({pid for _, pid in found}) == max(workers, 1)


def test_samples_travel(tmp_path):
    """A worker may send them as they are."""
    loader = DataLoader(
        ndfeed.torch.dataset(texts(tmp_path, [3, 1, 2, 5])),
        batch_size=2,
        num_workers=1,
        collate_fn=as_they_are,
    )

    found = [sample["text"].tolist() for samples in loader for sample in samples]
    assert [len(text) for text in found] == [3, 1, 2, 5]


def test_samplers(tmp_path):
    """Those of torch, each in its way."""
    ds = ndfeed.torch.dataset(images(tmp_path))
    weights = torch.zeros(100)
    weights[7] = 1
    cases = {
        "subset": DataLoader(ds, batch_size=5, sampler=SubsetRandomSampler(range(10, 20))),
        "weighted": DataLoader(ds, batch_size=5, sampler=WeightedRandomSampler(weights, 10)),
        "batches": DataLoader(ds, batch_sampler=BatchSampler(range(50), 20, drop_last=True)),
        "whole": DataLoader(
            ds, sampler=BatchSampler(RandomSampler(ds), 30, False), batch_size=None
        ),
        "a part": DataLoader(Subset(ds, range(90, 100)), batch_size=3),
        "one": DataLoader(Subset(ds, [3]), batch_size=None),
    }
    found = {name: list(loader) for name, loader in cases.items()}

    assert sorted(labels(found["subset"])) == list(range(10, 20))
    assert labels(found["weighted"]) == [7] * 10
    assert labels(found["batches"]) == list(range(40))
    assert sorted(labels(found["whole"])) == list(range(100))
    assert [len(batch["label"]) for batch in found["whole"]] == [30, 30, 30, 10]
    assert labels(found["a part"]) == list(range(90, 100))
    assert found["one"][0]["label"] == 3


def test_random_maps_draw_by_torch_s_seed(tmp_path):
    """Others in every epoch and worker, the same in every run."""
    ds = ndfeed.torch.dataset(ndfeed.torch.map(images(tmp_path), brightened))

    def noise(seed, workers):
        torch.manual_seed(seed)
        loader = DataLoader(ds, batch_size=50, num_workers=workers)
        return [torch.cat([batch["noise"] for batch in loader]) for _ in range(2)]

    for workers in (0, 2):
        first, again, other = noise(1, workers), noise(1, workers), noise(2, workers)
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
        assert not torch.equal(first[0], first[1])
        assert not torch.equal(first[0], other[0])


def drawn(sample):
    """A number from each of the global generators."""
    found = np.random.random(), random.random(), torch.rand(1).item()  # noqa: NPY002
    return {**sample, "drawn": np.array(found)}


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_do_not_draw_the_same_numbers(tmp_path, method):
    """PyTorch seeds the global generators of its workers, each from its own number."""
    ds = ndfeed.torch.dataset(images(tmp_path).map(drawn, batched=False))
    loader = DataLoader(ds, batch_size=10, num_workers=2, multiprocessing_context=method)
    found = np.concatenate([batch["drawn"].numpy() for batch in loader])

    assert [len(np.unique(column)) for column in found.T] == [100] * 3


@pytest.mark.skipif(not torch.cuda.is_available(), reason="memory is pinned for a GPU")
def test_pinned(tmp_path):
    """Pinned by DataLoader's own thread."""
    loader = DataLoader(ndfeed.torch.dataset(images(tmp_path)), batch_size=50, pin_memory=True)

    assert all(batch["image"].is_pinned() for batch in loader)


def test_not_a_dataset():
    """Somebody will pass a path."""
    with pytest.raises(TypeError, match=r"ndfeed\.open"):
        ndfeed.torch.dataset("x.npy")


@pytest.mark.parametrize("nest", STRUCTURES, ids=repr)
def test_samples_have_the_structure_of_fields(tmp_path, nest):
    """One by one, in a row, collated by torch, and as they were read."""
    alike = ArgumentContract().alike
    plain = images(tmp_path)
    ds = ndfeed.torch.dataset(plain, nest)
    samples = ds.__getitems__([3, 1])
    taken = DataLoader(ds, batch_size=40, collate_fn=ndfeed.torch.collate)
    stacked = DataLoader(ds, batch_size=40)

    alike(ds[3], built(nest, plain[3]))
    for found in (list(samples), [samples[0], samples[1]], samples[:]):
        alike(found, [built(nest, plain[3]), built(nest, plain[1])])
    for found, other in zip(taken, ndfeed.loader(plain, 40), strict=True):
        alike(found, built(nest, other))
    first = next(iter(stacked))
    leaves = built(nest, {"image": "image", "label": "label"})
    assert torch.equal(_first(first), torch.as_tensor(plain[:40][_first(leaves)]))


def _first(nest):
    """What comes first in a nest of which torch makes lists of some tuples."""
    while isinstance(nest, dict | list | tuple):
        nest = next(iter(nest.values())) if isinstance(nest, dict) else nest[0]
    return nest


def test_arguments_of_others(tmp_path):
    """They belong to DataLoader."""
    with pytest.raises(TypeError, match="unexpected keyword argument 'num_workers': threads="):
        ndfeed.torch.dataset(images(tmp_path), num_workers=2)


@pytest.mark.parametrize("workers", [0, 2])
def test_random_crops_differ_between_epochs(tmp_path, workers):
    """As random maps do: torch's seed, which differs by worker and epoch, decides."""
    np.save(tmp_path / "x.npy", np.arange(40 * 40 * 8).reshape(8, 40, 40))
    ds = ndfeed.open(tmp_path / "x.npy").crops({"data": (4, 4)}, place=True)
    made = torch.utils.data.DataLoader(ndfeed.torch.dataset(ds), 4, num_workers=workers)
    corners = [torch.cat([batch["corner"] for batch in made]) for _ in range(2)]

    assert (corners[0] != corners[1]).any()
    torch.manual_seed(1)
    again = [torch.cat([batch["corner"] for batch in made])]
    torch.manual_seed(1)
    again.append(torch.cat([batch["corner"] for batch in made]))
    assert (again[0] == again[1]).all()
