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


def test_an_iterator_that_is_not_known_takes_as_many_batches_from_each_epoch(tmp_path, monkeypatch):
    """If Keras kept the number elsewhere: the same batches, and errors where that is wrong."""
    sources = {"a": images(tmp_path / "a", 60), "b": images(tmp_path / "b", 20)}
    ds = ndfeed.mix(sources, weights={0: [2, 1], 2: [1, 1]}, end="last")
    data = ndfeed.keras.dataset(ds, 10, shuffle=True)
    kind = type(PyDatasetAdapter(data))
    own = kind.on_epoch_begin
    monkeypatch.setattr(kind, "on_epoch_begin", lambda self: own(self))
    model = Recorder()
    with pytest.raises(
        ValueError, match=r"differ in their number of batches, .* fit once for each"
    ):
        model.fit(data, epochs=3, verbose=0)
    assert by_batch(model.seen) == expected(data, 2)
    with pytest.raises(ValueError, match=r"know this version of Keras .* for steps_per_epoch"):
        model.fit(data, steps_per_epoch=3, verbose=0)


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


STRATEGY = """
import json, pickle, sys
import keras, ndfeed, ndfeed.keras
import tensorflow as tf

made, seen = [], []
own = tf.data.Dataset.from_generator
tf.data.Dataset.from_generator = lambda *args, **more: made.append(1) or own(*args, **more)


class Recorder(keras.Model):
    def call(self, data):
        return data["label"]

    def train_step(self, data):
        tf.py_function(lambda label: seen.append(label.numpy().tolist()), [data["label"]], [])
        return {"loss": 0.0}

    test_step = train_step


data = ndfeed.keras.dataset(ndfeed.open(sys.argv[1]), 10, shuffle=True)
strategy = tf.distribute.OneDeviceStrategy("CPU:0") if sys.argv[2] == "strategy" else None
with strategy.scope() if strategy else tf.name_scope("none"):
    model = Recorder()
    model.compile()
model.fit(data, verbose=0)
before = len(made)
model.fit(data, epochs=2, verbose=0)
model.evaluate(data, verbose=0)
more = len(made) - before
data = pickle.loads(pickle.dumps(data))  # in the middle of its use
model.fit(data, initial_epoch=3, epochs=4, verbose=0)
print(json.dumps({"made": more, "seen": seen}))
"""


@pytest.mark.parametrize("strategy", ["none", "strategy"])
def test_datasets_for_tensorflow_are_made_once_unless_a_strategy_divides_them(tmp_path, strategy):
    """If this fails, ``fit`` takes half as long again for each batch, or strategies fail."""
    pytest.importorskip("tensorflow")
    path = images(tmp_path).files[0]
    found, _ = run(STRATEGY, path, strategy, KERAS_BACKEND="tensorflow")

    loader = ndfeed.loader(ndfeed.open(path), 10, shuffle=True)
    batches = [batch["label"].tolist() for _ in range(4) for batch in loader]
    third = batches[3 * len(loader) :]  # evaluated, and trained on after that
    assert found["seen"] == batches[: 3 * len(loader)] + third + third
    assert (found["made"] == 0) == (strategy == "none")
