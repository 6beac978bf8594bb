"""``ndfeed.keras.dataset``: batches by number, for every backend."""

import contextlib
import pickle

import numpy as np
import pytest

pytest.importorskip("keras")

import keras
from growing import expected, write
from keras_recorder import Recorder
from loader_contract import ArgumentContract, EpochContract, Feed
from loading.making import MADE, chained, compressed, epoch_of, images, labels, made, noisy, numbers
from tf_making import run_imported, same

import ndfeed
import ndfeed.keras
from ndfeed.dataset.read_timing import spent

pytestmark = pytest.mark.filterwarnings("ignore:.*Fortran")


@pytest.fixture(scope="module")
def ds(tmp_path_factory):
    return images(tmp_path_factory.mktemp("images"))


class TestArguments(ArgumentContract):
    make = staticmethod(ndfeed.keras.dataset)
    listed = tuple if keras.backend.backend() == "tensorflow" else list
    padded = {}  # always  # noqa: RUF012


class Interrupted(Exception):
    """A run ends here."""


class Interrupt(keras.callbacks.Callback):
    """Ends ``fit`` after so many batches, as a signal would."""

    def __init__(self, after):
        super().__init__()
        self.after = after

    def on_train_batch_end(self, batch, logs=None):
        if batch + 1 == self.after:
            raise Interrupted


class KerasFeed(Feed):
    """A ``PyDataset``, trained on by ``fit`` with the callback ``ndfeed.keras.Resume``."""

    make = staticmethod(ndfeed.keras.dataset)

    def epoch(self):
        return self.fit(keras.callbacks.Callback())

    def begin(self, count):
        if not count:
            return [], self.data.state_dict()
        return self.fit(Interrupt(count)), self.data.state_dict()

    def fit(self, callback):
        model, data = Recorder(), self.data
        callbacks = [ndfeed.keras.Resume(data), callback]
        epochs = {"initial_epoch": data.epoch, "epochs": data.epoch + 1}
        with contextlib.suppress(Interrupted):
            model.fit(data, callbacks=callbacks, verbose=0, **epochs)
        return model.seen

    def close(self):
        """A ``PyDataset`` ends with the last reference to it."""
        del self.data


class TestEpochs(EpochContract):
    feed = KerasFeed
    package = ndfeed.keras
    loops_advance = False
    lacking = ("ragged",)
    more = ("workers", "use_multiprocessing", "max_queue_size")


def mixture(folder, weights, end="last"):
    sources = {"web": images(folder / "web", 60), "code": images(folder / "code", 20)}
    return ndfeed.mix(sources, weights=weights, end=end)


def test_epochs_of_different_lengths_in_one_fit(tmp_path):
    """Keras is told how many batches each of them has."""
    weights = {0: [2, 1], 2: [1, 1]}
    ds, model = mixture(tmp_path, weights), Recorder()
    data, numpy = (make(ds, 10, shuffle=True) for make in (ndfeed.keras.dataset, ndfeed.loader))
    model.fit(data, epochs=3, verbose=0)
    epochs = [list(numpy) for _ in range(3)]
    assert len({len(epoch) for epoch in epochs}) == 2
    same(model.seen, chained(epochs))


def test_batches_by_number_follow_other_weights(tmp_path):
    """A state that changes the order does so for those who ask for batches by number, too."""
    first = ndfeed.loader(mixture(tmp_path, [2, 1]), 10, shuffle=True)
    next(iter(first))
    ds = mixture(tmp_path, [1, 3])
    data, numpy = (make(ds, 10, shuffle=True) for make in (ndfeed.keras.dataset, ndfeed.loader))
    for one in (data, numpy):
        one.load_state_dict(first.state_dict())
    for at, batch in enumerate(numpy):
        assert np.asarray(data[at]["label"]).tolist() == batch["label"].tolist()


@pytest.mark.parametrize("name", MADE)
def test_batches_are_those_of_the_loader(tmp_path, name):
    """Whatever the files are like, and in any order of asking."""
    ds = made(tmp_path / "x", name)
    data = ndfeed.keras.dataset(ds, 7, shuffle=True, seed=2)
    loader = ndfeed.loader(ds, 7, shuffle=True, seed=2, ragged="pad")
    for _ in range(2):
        expected = list(loader)
        found = {i: data[i] for i in reversed(range(len(data)))}
        data.epoch += 1

        same([found[i] for i in range(len(data))], expected)


def test_maps_draw_as_in_the_loader(tmp_path):
    """A draw depends on the place in the order, not on who asks when."""
    ds = numbers(tmp_path, 50).map(noisy)
    data = ndfeed.keras.dataset(ds, 8, shuffle=True, seed=3)

    same([data[i] for i in range(len(data))], epoch_of(ds, 8, shuffle=True, seed=3))


def test_ranks_and_drop_last(ds):
    """The words of the loader."""
    words = {"shuffle": True, "shard": (1, 2), "drop_last": True, "fields": ("label",)}
    data = ndfeed.keras.dataset(ds, 7, **words)

    same([data[i] for i in range(len(data))], ndfeed.loader(ds, 7, **words))


def test_an_epoch_is_one_that_was_begun(ds):
    """Keras says that one ended before any was begun."""
    data = ndfeed.keras.dataset(ds, 10, shuffle=True)
    data.on_epoch_end()
    assert data.epoch == 0
    data.on_epoch_begin()
    data.on_epoch_end()
    data.on_epoch_end()

    assert data.epoch == 1


def test_it_travels_to_other_processes(ds):
    """In a few kilobytes, with its epoch and without its open files."""
    data = ndfeed.keras.dataset(ds, 10, shuffle=True)
    data.epoch = 3
    expected = labels(data[i] for i in range(10))
    travelled = pickle.dumps(data)
    again = pickle.loads(travelled)

    assert len(travelled) < 4096
    assert labels(again[i] for i in range(10)) == expected


def test_compressed_files_are_not_decoded_for_every_batch(tmp_path):
    """Those of a window are kept while they are needed."""
    ds, _ = compressed(tmp_path / "c", 6, 50)
    data = ndfeed.keras.dataset(ds, 10, shuffle=True)
    before = spent.streams  # those of this thread
    for i in range(len(data)):
        data[i]

    assert spent.streams - before == 12  # two a file


@pytest.mark.parametrize(
    ("words", "error", "match"),
    [
        ({"fields": ("imago",)}, ndfeed.FieldError, "no field 'imago'; the fields are 'image'"),
        ({"batch_size": 0}, ValueError, "batch_size must be at least 1"),
        ({"workers": -1}, ValueError, r"workers must be in \[0, "),
        ({"shuffle": "yes"}, TypeError, "shuffle must be True"),
    ],
)
def test_wrong_words_are_refused_at_once(ds, words, error, match):
    """Not in the middle of a training."""
    with pytest.raises(error, match=match):
        ndfeed.keras.dataset(ds, **({"batch_size": 10} | words))


def test_types_that_keras_lacks_are_refused(tmp_path):
    """At once, by field, with a remedy."""
    np.savez(tmp_path / "x.npz", bad=np.zeros(4, "M8[s]"), good=np.arange(4))
    ds = ndfeed.open(tmp_path / "x.npz", sample="row")

    with pytest.raises(ndfeed.SchemaError, match=r"'bad'.*cannot hold; leave it out"):
        ndfeed.keras.dataset(ds, 2)
    assert len(ndfeed.keras.dataset(ds, 2, fields=("good",))) == 2


BACKEND = """
import json, sys
import numpy as np
import keras, ndfeed, ndfeed.keras

ds = ndfeed.open(sys.argv[1])


def model():
    made = keras.Sequential([keras.Input((1,)), keras.layers.Lambda(lambda x: x)])
    made.compile(loss=lambda y, p: keras.ops.mean(y, axis=-1))
    return made


class Steps(keras.callbacks.Callback):
    "The mean of each batch, out of the mean of all so far."
    def __init__(self):
        super().__init__()
        self.means = []
    def on_epoch_begin(self, epoch, logs=None):
        self.total = 0.0
    def on_train_batch_end(self, batch, logs=None):
        total = logs["loss"] * (batch + 1)
        self.means.append(round(float(total - self.total), 1))
        self.total = total


def both(batch):
    label = batch["label"].astype("float32")[:, None]
    return {"x": label, "y": label}


found = {"backend": keras.backend.backend(), "alone": "tensorflow" not in sys.modules}
pairs = ds.map(both)
for workers, processes in ((0, False), (1, False), (3, False), (2, True)):
    data = ndfeed.keras.dataset(pairs, 10, shuffle=True, seed=1, fields=("x", "y"),
                                workers=workers, use_multiprocessing=processes)
    steps = Steps()
    one = model()
    if workers > 1:
        one.test_on_batch(*data[0])  # or Keras would do so in fit, and use what it fetched twice
    one.fit(data, epochs=2, verbose=0, shuffle=False, callbacks=[steps])
    held = ndfeed.keras.dataset(pairs, 10, fields=("x", "y"), workers=workers)
    given = one.predict(ndfeed.keras.dataset(pairs, 10, fields=("x",), workers=workers), verbose=0)
    found[f"{workers} {processes}"] = {
        "means": steps.means,
        "evaluated": round(float(one.evaluate(held, verbose=0)), 3),
        "predicted": np.asarray(given)[:, 0].tolist(),
    }
print(json.dumps(found))
"""


@pytest.mark.parametrize("backend", ["tensorflow", "torch", "jax"])
def test_every_backend_gets_the_same(ds, backend):
    """``fit``, ``evaluate``, ``predict``, with workers of every kind: one order, all rows."""
    pytest.importorskip(backend)
    found, _ = run_imported(BACKEND, ds.files[0], KERAS_BACKEND=backend)
    loader = ndfeed.loader(ds, 10, shuffle=True, seed=1)
    means = [round(float(np.mean(batch["label"])), 1) for _ in range(2) for batch in loader]

    assert found["backend"] == backend
    assert found["alone"] or backend == "tensorflow"
    for kind in ("0 False", "1 False", "3 False", "2 True"):
        assert found[kind]["means"] == pytest.approx(means, abs=0.11)
        assert found[kind]["evaluated"] == 49.5
        assert found[kind]["predicted"] == list(range(100))


def test_a_state_goes_on_with_more_files(tmp_path):
    """What fit has used stays used, and what came since comes into the rest of the epoch."""
    write(tmp_path, 10, 20, 30)

    def take(feed, count=None):
        seen = feed.epoch() if count is None else feed.begin(count)[0]
        return [x for batch in seen for x in np.asarray(batch["data"]).tolist()]

    feed = KerasFeed(ndfeed.open(tmp_path, sample="row"), 3, shuffle=True)
    seen, state = take(feed, 2), feed.data.state_dict()
    write(tmp_path, 5, 40)
    now = KerasFeed(ndfeed.open(tmp_path, sample="row"), 4, shuffle=True)
    with pytest.raises(ndfeed.ResumeError, match="pass grown=True if there are more now"):
        now.data.load_state_dict(state)
    now.data.load_state_dict(state, grown=True)
    assert now.data.state_dict()["more"] == {"grown": [[12, 6, state["data"]]]}
    assert sorted(seen + take(now)) == expected(5, 10, 20, 30, 40)
    assert sorted(take(now)) == expected(5, 10, 20, 30, 40)


def test_files_found_after_a_state_was_loaded_wait_for_the_next_epoch(tmp_path):
    """The rest of the epoch is that of the files there were: nothing is lost or comes twice."""
    write(tmp_path, 10, 20, 30)
    loader = ndfeed.loader(ndfeed.open(tmp_path, sample="row"), 3, shuffle=True)
    seen = next(iter(loader))["data"].tolist()
    feed = KerasFeed(ndfeed.open(tmp_path, sample="row"), 3, shuffle=True)
    feed.data.load_state_dict(loader.state_dict())
    write(tmp_path, 5)
    assert feed.data.refresh() == 4
    assert feed.data.state_dict() == loader.state_dict()
    assert len(feed.data) == 4
    for files in ([10, 20, 30], [5, 10, 20, 30]):
        seen += [x for batch in feed.epoch() for x in np.asarray(batch["data"]).tolist()]
        assert sorted(seen) == expected(*files)
        seen = []
