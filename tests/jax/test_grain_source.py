"""A source for Grain: its own loaders read the samples, in threads and in processes."""

import pickle

import numpy as np
import pytest

pytest.importorskip("jax")
grain = pytest.importorskip("grain")

from absl import flags  # noqa: E402
from jax_making import ROWS, table  # noqa: E402
from loader_contract import STRUCTURES, ArgumentContract, built  # noqa: E402
from loading.making import MADE, images, made  # noqa: E402

import ndfeed  # noqa: E402
import ndfeed.jax  # noqa: E402


def assert_sample(found, expected):
    assert list(found) == list(expected)
    for name, array in found.items():
        assert isinstance(array, np.ndarray)
        assert (array.dtype, array.shape) == (expected[name].dtype, expected[name].shape)
        np.testing.assert_array_equal(array, expected[name])


@pytest.mark.filterwarnings("ignore:.*Fortran order")
@pytest.mark.parametrize("name", MADE)
def test_samples_are_the_dataset_s(tmp_path, name):
    """One by one and many at once."""
    ds = made(tmp_path / "files", name)
    source = ndfeed.jax.source(ds)
    many = source._getitems(range(len(ds)))

    assert isinstance(source, grain.sources.RandomAccessDataSource)
    assert len(source) == len(many) == len(ds)
    for row in range(len(ds)):
        assert_sample(source[row], ds[row])
        assert_sample(many[row], ds[row])


def test_grain_s_dataset(tmp_path):
    """Shuffled, batched and read by its threads."""
    ds = table(tmp_path)
    batches = list(
        grain.MapDataset.source(ndfeed.jax.source(ds)).shuffle(seed=3).batch(8).to_iter_dataset()
    )
    rows = [row for batch in batches for row in batch["label"].tolist()]

    assert sorted(rows) == list(range(ROWS))
    assert rows != sorted(rows)
    for batch in batches:
        np.testing.assert_array_equal(batch["x"], ds[batch["label"]]["x"])


def test_grain_s_loader_with_processes(tmp_path):
    """The source travels to them, in little; a state of Grain's goes on with it."""
    ds = table(tmp_path)
    source = ndfeed.jax.source(ds, ("label", "x"))
    assert len(pickle.dumps(source)) < 4096

    def loader(workers):
        sampler = grain.samplers.IndexSampler(ROWS, shuffle=True, seed=1, num_epochs=1)
        return grain.DataLoader(
            data_source=ndfeed.jax.source(ndfeed.open(tmp_path / "table.npz"), ("label", "x")),
            sampler=sampler,
            operations=[grain.transforms.Batch(8)],
            worker_count=workers,
        )

    batches = iter(loader(0))
    first = next(batches)
    state = batches.get_state()
    rest = [label.tolist() for label, _ in batches]
    again = iter(loader(0))
    again.set_state(state)

    assert [label.tolist() for label, _ in again] == rest
    flags.FLAGS.mark_as_parsed()  # as absl.app.run does, without which Grain starts no process
    there = [label.tolist() for label, _ in loader(1)]
    assert there == [first[0].tolist(), *rest]
    np.testing.assert_array_equal(first[1], ds[first[0]]["x"])


def test_repr_says_which_samples(tmp_path):
    """Grain compares it: the same for a copy elsewhere, another for other samples."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one, other = table(tmp_path / "a"), table(tmp_path / "b")

    assert repr(ndfeed.jax.source(one)) == repr(ndfeed.jax.source(other))
    assert repr(ndfeed.jax.source(one)) != repr(ndfeed.jax.source(one.take(range(5))))
    assert "96 samples, fields=('x',)" in repr(ndfeed.jax.source(one, ("x",)))


def test_wrong_words(tmp_path):
    """Refused at once."""
    with pytest.raises(ndfeed.FieldError, match="no field 'y'"):
        ndfeed.jax.source(table(tmp_path), ("y",))
    with pytest.raises(TypeError, match="fields must be a tuple of names"):
        ndfeed.jax.source(table(tmp_path), 3)
    with pytest.raises(TypeError, match="expected a Dataset, got str"):
        ndfeed.jax.source("x.npz")
    with pytest.raises(IndexError):
        ndfeed.jax.source(table(tmp_path))[ROWS]


@pytest.mark.parametrize("nest", STRUCTURES, ids=repr)
def test_samples_have_the_structure_of_fields(tmp_path, nest):
    """One by one and several in one read."""
    alike = ArgumentContract().alike
    ds = images(tmp_path)
    source = ndfeed.jax.source(ds, nest)

    alike(source[3], built(nest, ds[3]))
    alike(source._getitems([3, 1]), [built(nest, ds[3]), built(nest, ds[1])])
    with pytest.raises(TypeError, match="which a set does not have"):
        ndfeed.jax.source(ds, {"image", "label"})


class Counting(ndfeed.jax.Source):
    """Notes which samples were asked for together."""

    together = ()

    def _getitems(self, rows):
        self.together = list(rows)
        return super()._getitems(rows)


def test_grain_asks_for_many_samples_by_the_name_we_know(tmp_path):
    """If this fails, Grain reads samples one by one through us: right, and slower."""
    made = ndfeed.jax.source(table(tmp_path), "label")
    source = Counting(made.ds, made._structure)
    found = grain.MapDataset.source(source)._getitems([3, 1])

    assert [int(label) for label in found] == [3, 1]
    assert source.together == [3, 1]
