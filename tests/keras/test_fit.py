"""``fit`` with every backend: which samples it sees, in which order, whatever else is going on."""

from itertools import islice
from math import ceil

import numpy as np
import pytest

pytest.importorskip("keras")

from growing import expected, write
from loading.making import chained, images, ragged
from tf_making import run_imported

import ndfeed

BACKENDS = ["tensorflow", "torch", "jax"]
each_backend = pytest.mark.parametrize("backend", BACKENDS)

MODEL = """
import gc, json, os, sys, tempfile, threading, time, warnings
import numpy as np
import keras, ndfeed, ndfeed.keras


class Recorder(keras.Model):
    "Trains on nothing to speak of; notes the labels that it was given, and for what."
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.trained, self.tested, self.weights_seen = [], [], []
        self.compile("sgd", "mse", run_eagerly=True)

    def call(self, x):
        return self.dense(keras.ops.cast(keras.ops.mean(x, axis=-1, keepdims=True), "float32")) * 0

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        if "Tracer" not in type(y).__name__ and not isinstance(y, keras.KerasTensor):
            noted = keras.ops.convert_to_numpy(y).reshape(-1).tolist()
            (self.trained if training else self.tested).append(noted)
            if sample_weight is not None and training:
                self.weights_seen.append(keras.ops.convert_to_numpy(sample_weight).tolist())
        return super().compute_loss(x, y, y_pred, sample_weight, training)


class Lengths(keras.callbacks.Callback):
    "How many batches each epoch had."
    def __init__(self):
        super().__init__()
        self.found = []
    def on_epoch_begin(self, epoch, logs=None):
        self.found.append(0)
    def on_train_batch_end(self, batch, logs=None):
        self.found[-1] += 1


class Interrupt(keras.callbacks.Callback):
    def __init__(self, after):
        super().__init__()
        self.after = after
    def on_train_batch_end(self, batch, logs=None):
        self.after -= 1
        if not self.after:
            raise KeyboardInterrupt


ds = ndfeed.open(sys.argv[1]).map(
    lambda b: {"x": b["label"].astype("float32")[:, None], "y": b["label"]})


def made(size=10, **words):
    return ndfeed.keras.dataset(ds, size, **({"shuffle": True, "fields": ("x", "y")} | words))


def interrupted(model, data, after, **words):
    words["callbacks"].append(Interrupt(after))
    try:
        model.fit(data, verbose=0, **words)
    except KeyboardInterrupt:
        return
    raise AssertionError("not interrupted")


warnings.simplefilter("error")
warnings.filterwarnings("ignore", module="(tensorflow|jax|torch|keras|numpy).*")
warnings.filterwarnings("ignore", message=".*retracing.*")
warnings.filterwarnings("error", message=".*ran out of data.*")
found = {}
"""

ORDERS = (
    MODEL
    + """
model, data = Recorder(), made()
model.fit(data, epochs=8, steps_per_epoch=5, verbose=0)
found["steps"] = model.trained

model, data = Recorder(), made(workers=4)
model.fit(data, epochs=2, verbose=0)  # not built, and shuffle=True, as people write it
found["workers"] = model.trained
found["epoch"] = data.epoch


class Evaluate(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch in (3, 9):
            other.evaluate(data, verbose=0)
            other.predict(data, verbose=0)


model, other, data = Recorder(), Recorder(), made()
for one in (model, other):
    one.evaluate(made(), verbose=0)  # builds it, with a batch that is none
    one.tested.clear()
model.fit(data, epochs=2, verbose=0, callbacks=[Evaluate()], validation_data=data)
found["evaluated"] = [model.trained, [sorted(sum(other.tested[i : i + 10], [])) for i in
                                      range(0, len(other.tested), 10)], len(model.tested)]

model, data = Recorder(), made()
for _ in range(3):
    model.fit(data, verbose=0, class_weight={i: float(i) for i in range(100)})
found["again"] = model.trained
found["weighted"] = model.weights_seen == [[float(i) for i in batch] for batch in model.trained]
found["report"] = [str(data.order), data.report().rows, [b[1].tolist() for b in data][0]]
del model, other
del data
keras.backend.clear_session()
until = time.monotonic() + 60
def threads():
    names = [one.name for one in threading.enumerate()]
    return [name for name in names if name.startswith("ndfeed-") and name != "ndfeed-leases"]


while threads() and time.monotonic() < until:
    gc.collect()
    time.sleep(.05)
found["threads"] = threads()
print(json.dumps(found))
"""
)

RESUMED = (
    MODEL
    + """
def resumed(after, later, **words):
    "Trains, is interrupted, goes on in other objects; what both saw, and how long epochs were."
    saved = []
    first, data = Recorder(), made()
    save = lambda: saved.append(json.dumps(data.state_dict()))
    interrupted(first, data, after, epochs=4, callbacks=[ndfeed.keras.Resume(data, save, every=1)],
                **words)
    second, rest, lengths = Recorder(), made(**later), Lengths()
    rest.load_state_dict(json.loads(saved[-1]))
    second.fit(rest, initial_epoch=(after - 1) // (words.get("steps_per_epoch") or 10), epochs=4,
               verbose=0, callbacks=[ndfeed.keras.Resume(rest), lengths], **words)
    return first.trained, second.trained, lengths.found, rest.epoch


found["resumed"] = resumed(14, {})
found["other size"] = resumed(14, {"size": 20})
found["with steps"] = resumed(7, {}, steps_per_epoch=5)

model, data, lengths = Recorder(), made(), Lengths()
interrupted(model, data, 6, epochs=3, callbacks=[ndfeed.keras.Resume(data)])
model.fit(data, epochs=3, verbose=0, callbacks=[ndfeed.keras.Resume(data), lengths])
found["again"] = [model.trained, lengths.found]


def restored(after, **words):
    folder = tempfile.mkdtemp()
    models = []
    for kill in (after, None):
        model, data = Recorder(), made()
        model(np.zeros((1, 1), "float32"))
        backup = keras.callbacks.BackupAndRestore(folder)
        if kill:
            interrupted(model, data, kill, epochs=4, callbacks=[backup], **words)
            interrupted(model, data, 13 if not words else 3, epochs=4, callbacks=[backup], **words)
        else:
            model.fit(data, epochs=4, verbose=0, callbacks=[backup], **words)
        models.append(model.trained)
    return models


found["restored"] = restored(23)
found["restored with steps"] = restored(13, steps_per_epoch=5)
print(json.dumps(found))
"""
)

GROWING = (
    MODEL
    + """
from pathlib import Path
from growing import write

folder = Path(sys.argv[2])


def opened():
    return ndfeed.open(folder, sample="row").map(
        lambda b: {"x": b["label"].astype("float32")[:, None], "y": b["label"]})


class Grow(Lengths):
    "A file more behind every epoch, or behind a batch of one."
    def __init__(self, data, numbers, within=None):
        super().__init__()
        self.data, self.numbers, self.within, self.steps = data, numbers, within, []
    def grow(self):
        write(folder, *self.numbers.pop(0), save=lambda p, v: np.savez(p, label=v), suffix=".npz")
        self.data.refresh()
    def on_train_batch_end(self, batch, logs=None):
        super().on_train_batch_end(batch, logs)
        if batch == self.within:
            self.grow()
    def on_epoch_end(self, epoch, logs=None):
        self.steps.append(self.params["steps"])
        if self.within is None:
            self.grow()


def grown(numbers, within=None, resume=True, **words):
    data = ndfeed.keras.dataset(opened(), 3, shuffle=True, fields=("x", "y"))
    model, growing = Recorder(), Grow(data, numbers, within)
    first = [ndfeed.keras.Resume(data)] if resume else []
    model.fit(data, verbose=0, callbacks=[*first, growing], **words)
    return model.trained, growing.found, growing.steps, data.epoch, len(data)


found["between"] = grown([[5], [40], []], epochs=3)
found["within"] = grown([[41], [6]], within=2, resume=False, epochs=2)
found["within, counted"] = grown([[42], [7]], within=2, epochs=2)
found["with steps"] = grown([[43], [44], [45], [], []], epochs=5, steps_per_epoch=7)
data = ndfeed.keras.dataset(opened(), 3, shuffle=True, fields=("x", "y"))


class Lose(Lengths):
    def on_epoch_end(self, epoch, logs=None):
        (folder / "020.npz").unlink(missing_ok=True)
        data.refresh(missing="skip")


model, lost = Recorder(), Lose()
model.fit(data, epochs=2, verbose=0, callbacks=[ndfeed.keras.Resume(data), lost])
found["fewer"] = model.trained, lost.found
print(json.dumps(found))
"""
)

RAGGED = (
    MODEL
    + """
ds = ndfeed.open(sys.argv[1], sample="file")
model, other = Recorder(), Recorder()
data = ndfeed.keras.dataset(ds, 3, shuffle=True, fields=("x", "n"))
model.fit(data, epochs=2, verbose=0)
found["ragged"] = model.trained
lengths = ndfeed.keras.dataset(ds.select("x", "n"), 3, fields=("x_length", "n"))
mapped = ds.map(lambda b: {"x": [one * 2 for one in b["x"]], "n": b["n"]})
other.fit(ndfeed.keras.dataset(mapped, 3, shuffle=True, fields=("x", "n")), verbose=0)
found["mapped"] = other.trained
bad = os.path.join(sys.argv[1], "003.npz")
os.unlink(bad)
data = ndfeed.keras.dataset(ds, 3, fields=("x", "n"), on_error="skip")
model = Recorder()
model.fit(data, verbose=0)
found["skipped"] = [model.trained, [row for row, problem in data.skipped if "003.npz" in problem]]
print(json.dumps(found))
"""
)


@pytest.fixture(scope="module")
def ds(tmp_path_factory):
    return images(tmp_path_factory.mktemp("images"))


def save_labels(path, values):
    np.savez(path, label=values)


def whole(ds, size, epochs, name="label"):
    """The labels of all batches of some epochs, as the loader has them."""
    loader = ndfeed.loader(ds, size, shuffle=True)
    return [batch[name].tolist() for _ in range(epochs) for batch in loader]


@each_backend
def test_fit_sees_the_epochs_of_the_loader(ds, backend):
    """With short epochs of its own, workers, evaluations in between, or called again."""
    pytest.importorskip(backend)
    found, _ = run_imported(ORDERS, ds.files[0], KERAS_BACKEND=backend)
    everything = list(range(100))

    assert found["steps"] == whole(ds, 10, 4)
    assert (found["workers"], found["epoch"]) == (whole(ds, 10, 2), 2)
    trained, evaluated, validated = found["evaluated"]
    assert trained == whole(ds, 10, 2)
    assert evaluated == [everything] * 4
    assert validated == 20
    assert found["again"] == whole(ds, 10, 3)
    assert found["weighted"]
    assert found["report"] == ["Exact()", 100, whole(ds, 10, 4)[30]]
    assert found["threads"] == []


@each_backend
def test_fit_goes_on_where_it_was(ds, backend):
    """Interrupted anywhere: what is left of the epoch, then whole ones; no sample twice."""
    pytest.importorskip(backend)
    found, _ = run_imported(RESUMED, ds.files[0], KERAS_BACKEND=backend)
    expected = whole(ds, 10, 4)

    first, second, lengths, epoch = found["resumed"]
    assert first + second == expected
    assert (lengths, epoch) == ([6, 10, 10], 4)
    first, second, lengths, _ = found["other size"]
    assert chained(first + second) == chained(expected)
    assert lengths == [3, 5, 5]
    first, second, lengths, _ = found["with steps"]
    assert first + second == expected[: len(first) + len(second)]
    assert lengths == [5, 5, 5]
    seen, lengths = found["again"]
    assert (seen, lengths) == (whole(ds, 10, 3), [4, 10, 10])
    first, second = found["restored"]
    assert first == expected[:23] + expected[20:33]  # interrupted twice
    assert second == expected[30:]
    first, second = found["restored with steps"]
    assert (first, second) == (expected[:13] + expected[10:13], expected[10:20])


@each_backend
def test_fit_takes_in_files_that_came(ds, tmp_path, backend):
    """From a callback: each epoch has all samples that there were when it began."""
    pytest.importorskip(backend)
    write(tmp_path, 10, 20, 30, save=save_labels, suffix=".npz")
    found, _ = run_imported(GROWING, ds.files[0], tmp_path, KERAS_BACKEND=backend)

    def epochs(trained, lengths):
        batches = iter(trained)
        return [sorted(chained(islice(batches, length))) for length in lengths]

    trained, lengths, steps, epoch, coming = found["between"]
    files = [10, 20, 30]
    assert epochs(trained, lengths) == [
        expected(*sorted(files + new)) for new in ([], [5], [5, 40])
    ]
    assert (lengths, steps, epoch, coming) == ([4, 6, 7], [4, 6, 7], 3, 7)

    files = [5, 10, 20, 30, 40]
    for name, new in (("within", [41, 6]), ("within, counted", [42, 7])):
        trained, lengths, steps, epoch, _ = found[name]
        then = sorted([*files, new[0]])
        counts = [ceil(4 * len(files) / 3), ceil(4 * len(then) / 3)]
        assert (lengths, steps, epoch) == (counts, counts, 2)
        assert epochs(trained, lengths) == [expected(*files), expected(*then)]
        files = sorted([*files, *new])

    trained, lengths, steps, epoch, _ = found["with steps"]
    assert (lengths, steps) == ([7] * 5, [7] * 5)
    assert epochs(trained, [12, 14]) == [expected(*files), expected(*files, 43)]
    assert epoch == 2

    trained, lengths = found["fewer"]
    files = [*files, 43, 44, 45]
    left = [number for number in files if number != 20]
    assert epochs(trained, lengths) == [expected(*files), expected(*left)]


@each_backend
def test_ragged_samples(tmp_path, backend):
    """Padded to other lengths in every batch; and those that cannot be read are listed."""
    pytest.importorskip(backend)
    texts = ragged(tmp_path, [3, 3, 3, 3, 5, 9, 2, 3, 3, 3])
    expected = whole(texts, 3, 2, "n")
    found, _ = run_imported(RAGGED, tmp_path, KERAS_BACKEND=backend)

    assert found["ragged"] == expected
    assert found["mapped"] == expected[:4]
    assert found["skipped"] == [[[0, 1, 2], [4, 5], [6, 7, 8], [9]], [3]]


STRUCTURES = """
import json, sys
import numpy as np
import keras, ndfeed, ndfeed.keras

ds = ndfeed.open(sys.argv[1], sample="row")


def model(named):
    a, b = keras.Input((1,), name="a"), keras.Input((1,), name="b")
    made = keras.Model({"a": a, "b": b} if named else [a, b], keras.layers.Add()([a, b]))
    made.compile(loss="mae")
    return made


found = {"backend": keras.backend.backend()}
for name, x in (("dict", {"b": "z", "a": "x"}), ("list", ["x", "z"])):
    one = model(name == "dict")
    weighed = ndfeed.keras.dataset(ds, 5, shuffle=True, fields=(x, "y", "w"))
    plain = ndfeed.keras.dataset(ds, 5, fields=(x, "y"))
    # Keras reads a list by itself as (x, y): inputs alone are a tuple of one.
    alone = ndfeed.keras.dataset(ds, 5, fields=x if name == "dict" else (x,))
    found[name] = {
        "weighed": one.fit(weighed, epochs=2, verbose=0).history["loss"],
        "plain": one.evaluate(plain, verbose=0),
        "predicted": np.asarray(one.predict(alone, verbose=0))[:, 0].tolist(),
    }
one = keras.Sequential([keras.Input((1,)), keras.layers.Rescaling(2.0)])
given = one.predict(ndfeed.keras.dataset(ds, 5, fields="x"), verbose=0)
found["bare"] = np.asarray(given)[:, 0].tolist()
print(json.dumps(found))
"""


@each_backend
def test_fit_takes_any_structure_and_weights(tmp_path, backend):
    """Inputs by name and in lists, weights of samples, and bare arrays; every backend the same."""
    pytest.importorskip(backend)
    n = np.arange(20, dtype=np.float32)[:, None]
    np.savez(tmp_path / "x.npz", x=n, z=2 * n, y=3 * n + 1, w=(n[:, 0] < 10).astype(np.float32))
    found, _ = run_imported(STRUCTURES, tmp_path / "x.npz", KERAS_BACKEND=backend)

    assert found["backend"] == backend
    for kind in ("dict", "list"):
        assert found[kind]["weighed"] == pytest.approx([0.5, 0.5])
        assert found[kind]["plain"] == pytest.approx(1.0)
        assert found[kind]["predicted"] == (3 * n[:, 0]).tolist()
    assert found["bare"] == (2 * n[:, 0]).tolist()


TEXT = """
import json, os, sys
import numpy as np
import keras, ndfeed, ndfeed.keras

ds = ndfeed.open(os.path.join(sys.argv[1], "rows.npz"))
model = keras.Sequential([
    keras.Input((), dtype="string"),
    keras.layers.StringLookup(vocabulary=["cat", "dög"]),
    keras.layers.Lambda(lambda x: keras.ops.cast(x, "float32")[:, None]),
])
model.compile(loss="mae")
data = ndfeed.keras.dataset(ds, 2, shuffle=True, fields=("name", "number"))
found = {"loss": model.fit(data, epochs=2, verbose=0).history["loss"]}
given = model.predict(ndfeed.keras.dataset(ds, 2, fields="name"), verbose=0)
found["predicted"] = np.asarray(given)[:, 0].tolist()
ds = ndfeed.open(os.path.join(sys.argv[1], "words"), sample="file")
model = keras.Sequential([
    keras.Input((None,), dtype="string"),
    keras.layers.StringLookup(vocabulary=["cat", "dög"], mask_token=""),
    keras.layers.Lambda(lambda x: keras.ops.sum(x, axis=1, keepdims=True)),
])
given = model.predict(ndfeed.keras.dataset(ds, 1, fields="words"), verbose=0)
found["ragged"] = np.asarray(given)[:, 0].tolist()
found["by number"] = ndfeed.keras.dataset(ds, 1, fields="words")[0].dtype.kind
print(json.dumps(found))
"""


def test_text_with_the_tensorflow_backend(tmp_path):
    """The one backend that has text; of any script, and padded with empty text."""
    pytest.importorskip("tensorflow")
    names, numbers = ["cat", "dög", "an unknown one", "cat"], [1.0, 2.0, 0.0, 1.0]
    np.savez(tmp_path / "rows.npz", name=np.array(names), number=np.array(numbers))
    (tmp_path / "words").mkdir()
    for i, words in enumerate((["cat", "dög"], ["dög"])):
        np.savez(tmp_path / "words" / f"{i}.npz", words=np.array(words))
    found, _ = run_imported(TEXT, tmp_path, KERAS_BACKEND="tensorflow")

    expected = {"loss": [0.0, 0.0], "predicted": numbers, "ragged": [5, 3], "by number": "S"}
    assert found == expected


AHEAD = (
    MODEL
    + """
made = []


def note(batch):
    made.append(len(batch["label"]))
    return batch


class Wait(keras.callbacks.Callback):
    "Uses the first batch until others are made, or for a minute."
    def on_train_batch_end(self, batch, logs=None):
        until = time.monotonic() + 60
        while not batch and len(made) < 5 and time.monotonic() < until:
            time.sleep(0.01)
        if not batch:
            found.append(len(made))


found = []
ds = ndfeed.open(sys.argv[1]).map(note)
data = ndfeed.keras.dataset(ds, 5, shuffle=True, fields=("image", "label"))
Recorder().fit(data, verbose=0, callbacks=[Wait()])
print(json.dumps(found))
"""
)


@each_backend
def test_batches_are_made_while_fit_uses_another(tmp_path, backend):
    """PyTorch and JAX got each batch when they asked for it, six times slower than the loader."""
    pytest.importorskip(backend)
    found, _ = run_imported(AHEAD, images(tmp_path).files[0], KERAS_BACKEND=backend)

    assert len(found) == 1
    assert found[0] >= 5
