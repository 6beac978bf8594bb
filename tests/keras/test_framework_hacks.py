"""``ndfeed.keras.framework_hacks``: Keras is still as it was, and what happens if it is not."""

import pytest

pytest.importorskip("keras")

from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter
from keras_recorder import Recorder
from loading.making import chained, images, labels
from tf_making import run

import ndfeed
import ndfeed.keras


@pytest.fixture
def data(tmp_path):
    return ndfeed.keras.dataset(images(tmp_path), 10, shuffle=True)


def expected(data, epochs):
    """The labels of the batches of the first epochs."""
    loader = ndfeed.loader(data._loader.dataset, 10, shuffle=True)
    return by_batch([batch for _ in range(epochs) for batch in loader])


def by_batch(batches):
    """The labels of each batch."""
    return [labels([batch]) for batch in batches]


def test_an_adapter_takes_another_class(data):
    """If this fails, Keras asks for batches by number: slower, and in its own order."""
    adapter = PyDatasetAdapter(data, shuffle=True)

    assert isinstance(adapter, PyDatasetAdapter)
    assert type(adapter) is not PyDatasetAdapter
    assert labels(adapter.get_numpy_iterator()) == chained(expected(data, 1))


def test_what_an_adapter_is_for_is_found(data):
    """If this fails, ``evaluate`` and ``fit`` move each other's epochs."""
    model = Recorder()
    for _ in range(2):
        model.evaluate(data, verbose=0)
    model.fit(data, epochs=2, verbose=0)
    model.fit(data, initial_epoch=5, epochs=6, verbose=0)
    sixth = ndfeed.loader(data._loader.dataset, 10, shuffle=True)
    sixth.epoch = 5

    first = expected(data, 1)
    assert by_batch(model.seen[:20]) == first + first
    assert by_batch(model.seen[20:40]) == expected(data, 2)
    assert by_batch(model.seen[40:]) == by_batch(sixth)


def test_an_adapter_that_is_not_known_asks_for_batches_by_number(data, monkeypatch):
    """The fallback, as if Keras had another class: the same batches in every epoch."""
    monkeypatch.setattr(PyDatasetAdapter, "__module__", "elsewhere")
    assert type(PyDatasetAdapter(data)) is PyDatasetAdapter
    model, shuffled = Recorder(), Recorder()
    model.fit(data, epochs=2, verbose=0, shuffle=False)

    assert by_batch(model.seen) == expected(data, 2)
    assert data.epoch == 2
    data.epoch = 0
    shuffled.fit(data, verbose=0)
    assert sorted(by_batch(shuffled.seen)) == sorted(expected(data, 1))


WITHOUT_TORCH = """
import json, sys
sys.modules["torch"] = None
import ndfeed, ndfeed.keras
data = ndfeed.keras.dataset(ndfeed.open(sys.argv[1]), 10, fields="label")
print(json.dumps([batch.tolist() for batch in data][1]))
"""


@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_torch_is_needed_for_its_own_backend_only(tmp_path, backend):
    """``import ndfeed.keras`` failed wherever torch was not installed."""
    pytest.importorskip(backend)
    found, _ = run(WITHOUT_TORCH, images(tmp_path).files[0], KERAS_BACKEND=backend)

    assert found == list(range(10, 20))
