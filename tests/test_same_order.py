"""The same seed gives the same rows in the same order, in NumPy and in every framework."""

import numpy as np
import pytest
from loading.making import compressed
from order.own_orders import Backwards

import ndfeed

SIZE, EPOCHS = 7, 2


@pytest.fixture(scope="module", params=["raw", "compressed"])
def ds(request, tmp_path_factory):
    """Rows that can be read alone, and rows that cannot: an exact order and a window."""
    folder = tmp_path_factory.mktemp("rows")
    if request.param == "compressed":
        return compressed(folder / "c", 6, 10)[0]
    np.savez(folder / "x.npz", x=np.arange(120, dtype="u1").reshape(60, 2), n=np.arange(60))
    return ndfeed.open(folder / "x.npz")


def numpy_batches(ds, shuffle=True):
    """The rows of every batch, and the values that belong to them."""
    loader = ndfeed.loader(ds, SIZE, shuffle=shuffle, seed=11, fields=("n", "x"))
    return [batch for _ in range(EPOCHS) for batch in loader]


def with_torch(ds, shuffle=True):
    pytest.importorskip("torch")
    import ndfeed.torch

    loader = ndfeed.torch.loader(ds, SIZE, shuffle=shuffle, seed=11, fields=("n", "x"))
    return [batch for _ in range(EPOCHS) for batch in loader]


def with_tensorflow(ds, shuffle=True):
    pytest.importorskip("tensorflow")
    import ndfeed.tf

    data = ndfeed.tf.dataset(ds, SIZE, shuffle=shuffle, seed=11, fields=("n", "x"))
    return [batch for _ in range(EPOCHS) for batch in data]


def with_keras(ds, shuffle=True):
    pytest.importorskip("keras")
    import ndfeed.keras

    data = ndfeed.keras.dataset(ds, SIZE, shuffle=shuffle, seed=11, fields=("n", "x"))
    found = []
    for _ in range(EPOCHS):
        data.on_epoch_begin()
        found += [data[i] for i in range(len(data))]
        data.on_epoch_end()
    return found


def with_jax(ds, shuffle=True):
    pytest.importorskip("jax")
    import ndfeed.jax

    loader = ndfeed.jax.loader(ds, SIZE, shuffle=shuffle, seed=11, fields=("n", "x"))
    return [batch for _ in range(EPOCHS) for batch in loader]


@pytest.mark.parametrize("batches", [with_torch, with_tensorflow, with_keras, with_jax])
def test_frameworks_read_the_same(ds, batches):
    """Whoever changes the framework need not train anew to compare."""
    expected = numpy_batches(ds)
    found = batches(ds)

    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        for mine, theirs in zip(one, other, strict=True):
            np.testing.assert_array_equal(np.asarray(mine), theirs)
            np.testing.assert_array_equal(
                theirs, ds.read(other[0])["n" if theirs.ndim == 1 else "x"]
            )


VIEWS = {
    "windows": lambda ds: ds.windows(offsets={"x": range(5)}, stride=2),
    "uneven windows": lambda ds: ds.windows(offsets={"x": [0, 1, 4]}),
    "crops": lambda ds: ds.crops({"x": (4,)}, each=2),
    "mapped crops": lambda ds: ds.crops({"x": (4,)}, each=2).map(lambda batch: batch),
    "a sum": lambda ds: ds.crops({"x": (4,)}, each=2) + ds.crops({"x": (4,)}, grid=1, place=False),
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("batches", [with_torch, with_tensorflow, with_keras, with_jax])
def test_frameworks_cut_the_same(tmp_path, view, batches):
    """Windows and crops are samples like any other, and random ones come from the same draws."""
    rows = np.arange(360).reshape(60, 6)
    np.savez(tmp_path / "x.npz", x=rows, n=np.arange(60))
    ds = VIEWS[view](ndfeed.open(tmp_path / "x.npz"))
    expected = numpy_batches(ds)
    found = batches(ds)

    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        for mine, theirs in zip(one, other, strict=True):
            np.testing.assert_array_equal(np.asarray(mine), theirs)
    n, x = (np.concatenate([batch[i] for batch in expected]) for i in (0, 1))
    if "windows" in view:
        steps = [0, 1, 4] if "uneven" in view else range(5)
        np.testing.assert_array_equal(x, rows[n[:, None] + np.array(steps)])
    else:
        start = x[:, :1] - 6 * n[:, None]
        np.testing.assert_array_equal(x, 6 * n[:, None] + start + np.arange(4))
        assert set(start.ravel().tolist()) == {0, 1, 2}


ORDERS = [
    ndfeed.Weighted(np.arange(60) % 4, rows=45),
    ndfeed.Balanced(np.arange(60) // 25, rows=46),
    ndfeed.Sorted(-np.arange(60), stages=4),
    Backwards(),
]


@pytest.mark.parametrize("shuffle", ORDERS, ids=lambda order: type(order).__name__)
@pytest.mark.parametrize("batches", [with_torch, with_tensorflow, with_keras, with_jax])
def test_frameworks_draw_the_same(ds, batches, shuffle):
    """Orders with other lengths than the data have, too."""
    expected = numpy_batches(ds, shuffle)
    found = batches(ds, shuffle)

    assert [np.asarray(one[0]).tolist() for one in found] == [one[0].tolist() for one in expected]
