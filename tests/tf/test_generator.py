"""Going on in the middle of an epoch: what the consumer has had, and nothing else, counts."""

import json

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from growing import expected, write  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from loader_contract import LENGTHS  # noqa: E402
from loading.making import chained, images, labels, numbers, ragged, rows_of  # noqa: E402
from tf_making import recorder, run_imported  # noqa: E402

import ndfeed  # noqa: E402
import ndfeed.keras  # noqa: E402
import ndfeed.tf  # noqa: E402
from ndfeed.tf.batch_format import BatchFormat  # noqa: E402


@pytest.fixture(scope="module")
def ds(tmp_path_factory):
    return images(tmp_path_factory.mktemp("images"))


def used(data, state, most=None):
    """The labels of batches, each counted when it was used."""
    found = []
    for number, batch in enumerate(data):
        if number == most:
            break
        found.append(labels([batch]))
        state.advance()
    return found


def whole(ds, size, epochs, **words):
    """The labels of all batches of some epochs, as the loader has them."""
    loader = ndfeed.loader(ds, size, shuffle=True, **words)
    return [labels([batch]) for _ in range(epochs) for batch in loader]


def test_an_epoch_of_smaller_batches_is_resumed_whole(tmp_path):
    """It has more batches than the dataset would have; TensorFlow must not cut them off."""
    ds = ragged(tmp_path / "r", LENGTHS)
    words = {"shuffle": ndfeed.Buckets("x"), "epochs": 1}
    first = ndfeed.tf.State()
    data = ndfeed.tf.dataset(ds, 2, state=first, **words)
    for _ in range(2):
        seen = []
        for number, batch in enumerate(data):
            seen += batch["n"].numpy().tolist()
            first.advance()
            if first.epoch == 1 and number == 3:
                break
    saved = json.loads(json.dumps(first.state_dict()))
    assert saved["epoch"] == 1

    state = ndfeed.tf.State()
    state.load_state_dict(saved)
    resumed = ndfeed.tf.dataset(ds, 16, state=state, **words)
    assert sorted(seen + [n for batch in resumed for n in batch["n"].numpy().tolist()]) == list(
        range(len(LENGTHS))
    )

    late = ndfeed.tf.State()
    made_before = ndfeed.tf.dataset(ds, 16, state=late, **words)
    late.load_state_dict(saved)
    with pytest.raises(tf.errors.OpError, match="restore the state before the dataset is made"):
        list(made_before)


@settings(max_examples=15)
@given(
    n=st.integers(1, 50),
    size=st.integers(1, 12),
    then=st.integers(1, 12),
    at=st.integers(0, 60),
    epochs=st.sampled_from([1, 2, 3]),
)
def test_what_is_left_is_exact(tmp_path_factory, n, size, then, at, epochs):
    """Left anywhere, gone on with any batch size: every row of the chain once, in order."""
    ds = numbers(tmp_path_factory.mktemp("n"), n)
    first = ndfeed.tf.State()
    data = ndfeed.tf.dataset(ds, size, shuffle=True, seed=4, state=first, epochs=epochs)
    had = []
    for number, batch in enumerate(data):
        if number == at:
            break
        had += rows_of([as_numpy(batch)])
        first.advance()
    saved = json.loads(json.dumps(first.state_dict()))
    second = ndfeed.tf.State()
    second.load_state_dict(saved)
    rest = ndfeed.tf.dataset(ds, then, shuffle=True, state=second, epochs=epochs)
    for batch in rest:
        had += rows_of([as_numpy(batch)])
        second.advance()

    loader = ndfeed.loader(ds, n, shuffle=True, seed=4)
    passes = epochs if at < len(data) else 2 * epochs
    assert had == chained([rows_of(loader) for _ in range(passes)])
    assert second.left == len(rest)


def as_numpy(batch):
    return {name: values.numpy() for name, values in batch.items()}


def test_the_pass_behind_is_whole_again(ds):
    """Only the first is shorter; TensorFlow knows the number of the others."""
    state = ndfeed.tf.State()
    loader = ndfeed.loader(ds, 10, shuffle=True)
    state.load_state_dict(loader.state_dict() | {"epoch": 2, "samples": 70})
    data = ndfeed.tf.dataset(ds, 10, shuffle=True, state=state)
    expected = whole(ds, 10, 5)

    assert (state.epoch, state.left, len(data)) == (2, 3, 10)
    assert used(data, state) == expected[27:30]
    assert used(data, state) == expected[30:40]
    assert used(data, state) == expected[40:50]


def test_a_short_pass_takes_nothing_from_the_next(ds):
    """TensorFlow may drop an iterator at any moment, also just when its generator has ended."""
    state = ndfeed.tf.State()
    state.load_state_dict(ndfeed.loader(ds, 10, shuffle=True).state_dict() | {"samples": 70})
    data = ndfeed.tf.dataset(ds, 10, shuffle=True, state=state)
    form = BatchFormat(ds, data.passes.loader.request.options, "ragged", 10, full=True, joint=True)
    list(data.passes.arrays(form))  # all that TensorFlow asks for, and no more
    state.advance(3)

    assert used(data, state) == whole(ds, 10, 2)[10:]


def test_batches_made_ahead_are_not_counted(ds):
    """TensorFlow has long asked for all of them when the first is used."""
    state = ndfeed.tf.State()
    data = ndfeed.tf.dataset(ds, 10, shuffle=True, state=state).prefetch(10)
    used(data, state, 3)

    assert state.state_dict()["samples"] == 30


def test_a_pass_nothing_was_counted_of_was_none(ds):
    """Keras takes a batch to build a model with, and drops the pass."""
    state = ndfeed.tf.State()
    data = ndfeed.tf.dataset(ds, 10, shuffle=True, state=state)
    next(iter(data))
    expected = whole(ds, 10, 3)

    assert used(data, state, 4) == expected[:4]
    assert used(data, state) == expected[10:20]  # left early, and counts as begun
    assert used(data, state) == expected[20:30]


def test_it_is_saved_with_a_checkpoint(ds, tmp_path):
    """Beside the model, in ``tf.train.Checkpoint``."""
    weight = tf.Variable(0.0)
    state = ndfeed.tf.State()
    checkpoint = tf.train.Checkpoint(weight=weight, data=state)
    data = ndfeed.tf.dataset(ds, 10, shuffle=True, epochs=None, state=state)
    used(data, state, 13)
    weight.assign(13.0)
    path = checkpoint.save(tmp_path / "saved")
    used(data, state, 2)

    restored, again = tf.Variable(0.0), ndfeed.tf.State()
    tf.train.Checkpoint(weight=restored, data=again).restore(path).assert_consumed()
    rest = ndfeed.tf.dataset(ds, 10, shuffle=True, epochs=None, state=again)
    assert (float(restored), again.epoch, again.samples) == (13.0, 1, 30)
    assert used(rest, again, 9) == whole(ds, 10, 3)[13:22]


def test_a_state_of_other_data_is_refused(ds):
    """When the dataset is made, or when it is restored."""
    saved = ndfeed.loader(ds.take(range(90)), 10).state_dict()
    early, late = ndfeed.tf.State(), ndfeed.tf.State()
    early.load_state_dict(saved)
    ndfeed.tf.dataset(ds, 10, state=late)

    with pytest.raises(ndfeed.ResumeError, match="to other data"):
        ndfeed.tf.dataset(ds, 10, state=early)
    with pytest.raises(ndfeed.ResumeError, match="to other data"):
        late.load_state_dict(saved)
    with pytest.raises(ndfeed.ResumeError, match="no JSON"):
        late.deserialize("{")
    with pytest.raises(ndfeed.ResumeError, match="no JSON"):
        late.deserialize("[" * 100_000)


def test_a_state_needs_its_one_dataset(ds):
    """Without one it stands nowhere; of two it could not say which."""
    state = ndfeed.tf.State()
    with pytest.raises(RuntimeError, match=r"ndfeed\.tf\.dataset\(\.\.\., state=state\) first"):
        state.advance()
    ndfeed.tf.dataset(ds, 10, state=state)

    with pytest.raises(ValueError, match="belongs to one dataset"):
        ndfeed.tf.dataset(ds, 10, state=state)


def test_a_promise_of_full_batches_is_kept(ds):
    """Restored when the shapes are fixed already, at a place where they do not come out."""
    state = ndfeed.tf.State()
    data = ndfeed.tf.dataset(ds, 10, state=state)
    state.load_state_dict(state.state_dict() | {"samples": 7})

    said = "left after 7 are not a multiple of batch_size 10; restore the state before the dataset"
    with pytest.raises(tf.errors.OpError, match=said):
        next(iter(data))


def test_somebody_must_count(tmp_path):
    """Else every pass would begin at the same place, and nobody would notice."""
    data = ndfeed.tf.dataset(numbers(tmp_path, 600), 2, shuffle=True, state=ndfeed.tf.State())
    assert len(list(data)) == 300

    with pytest.raises(tf.errors.OpError, match=r"call state\.advance\(\) after each"):
        next(iter(data))


# Keras.


@pytest.mark.parametrize("at_a_time", [1, 3, 4, 64])
@pytest.mark.parametrize("start", [0, 30])
def test_several_steps_at_a_time_count_no_more_than_there_are(ds, at_a_time, start):
    """Keras counts them by the time, also where the last time there were fewer."""
    state = ndfeed.tf.State()
    state.load_state_dict(ndfeed.loader(ds, 10, shuffle=True).state_dict() | {"samples": start})
    data = ndfeed.tf.dataset(ds, 10, shuffle=True, state=state)
    model = recorder(steps_per_execution=at_a_time)
    model.fit(data, epochs=3, shuffle=False, verbose=0, callbacks=[ndfeed.keras.Resume(state)])

    assert model.seen == whole(ds, 10, 3)[start // 10 :]
    assert (state.epoch, state.samples) == (3, 0)


def test_fit_goes_on_where_it_was(ds, tmp_path):
    """Stopped in an epoch, gone on by another model: the same batches, and no more epochs."""
    state = ndfeed.tf.State()
    data = ndfeed.tf.dataset(ds, 10, shuffle=True, state=state)
    first = recorder()
    saved = []

    class Stop(tf.keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if len(first.seen) == 14:
                raise KeyboardInterrupt

    resume = ndfeed.keras.Resume(state, lambda: saved.append(state.state_dict()), every=1)
    with pytest.raises(KeyboardInterrupt):
        first.fit(data, epochs=4, verbose=0, shuffle=False, callbacks=[resume, Stop()])

    again, second = ndfeed.tf.State(), recorder()
    again.load_state_dict(saved[-1])
    rest = ndfeed.tf.dataset(ds, 10, shuffle=True, state=again)
    history = second.fit(rest, initial_epoch=again.epoch, epochs=4, verbose=0, shuffle=False,
                         callbacks=[ndfeed.keras.Resume(again)])  # fmt: skip
    assert first.seen + second.seen == whole(ds, 10, 4)
    assert history.epoch == [1, 2, 3]
    assert (again.epoch, again.samples) == (4, 0)


class Interrupt(tf.keras.callbacks.Callback):
    """Somebody presses Ctrl-C behind so many batches."""

    def __init__(self, after):
        super().__init__()
        self.left = after

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt


class Epochs(tf.keras.callbacks.Callback):
    """How many batches each epoch of fit had."""

    def __init__(self):
        super().__init__()
        self.lengths = []

    def on_epoch_begin(self, epoch, logs=None):
        self.lengths.append(0)

    def on_train_batch_end(self, batch, logs=None):
        self.lengths[-1] += 1


def test_fit_that_was_interrupted_is_called_again(ds):
    """In the same notebook: first what is left of the epoch, then whole ones."""
    state = ndfeed.tf.State()
    data = ndfeed.tf.dataset(ds, 10, shuffle=True, state=state)
    model, epochs = recorder(), Epochs()
    with pytest.raises(KeyboardInterrupt):
        model.fit(data, epochs=5, verbose=0, shuffle=False,
                  callbacks=[ndfeed.keras.Resume(state), Interrupt(6)])  # fmt: skip
    assert (state.epoch, state.samples) == (0, 60)
    model.fit(data, epochs=5, verbose=0, shuffle=False,
              callbacks=[ndfeed.keras.Resume(state), epochs])  # fmt: skip

    assert epochs.lengths == [4, 10, 10, 10, 10]
    assert model.seen == whole(ds, 10, 5)
    assert (state.epoch, state.samples) == (5, 0)


def test_an_evaluation_in_the_middle_of_an_epoch_is_not_counted(ds):
    """It reads an epoch of its own; training and its state go on as if nothing had been."""
    state = ndfeed.tf.State()
    data = ndfeed.tf.dataset(ds, 10, shuffle=True, state=state)
    model, other, places = recorder(), recorder(), []

    class Evaluate(tf.keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch in (2, 9):
                other.fit(data, verbose=0, shuffle=False)
                places.append((state.epoch, state.samples))

    model.fit(data, epochs=2, verbose=0, shuffle=False,
              callbacks=[ndfeed.keras.Resume(state), Evaluate()])  # fmt: skip

    assert model.seen == whole(ds, 10, 2)
    assert places == [(0, 30), (1, 0), (1, 30), (2, 0)]
    assert [sorted(chained(other.seen[i : i + 10])) for i in (0, 10, 20, 30)] == [[*range(100)]] * 4


def test_a_loop_behind_an_interrupted_fit_counts_what_it_uses(ds):
    """It begins the pass again that was interrupted, and so does what it counts."""
    state = ndfeed.tf.State()
    data = ndfeed.tf.dataset(ds, 10, shuffle=True, state=state)
    with pytest.raises(KeyboardInterrupt):
        recorder().fit(data, verbose=0, shuffle=False,
                       callbacks=[ndfeed.keras.Resume(state), Interrupt(6)])  # fmt: skip

    assert used(data, state) == whole(ds, 10, 1)
    assert (state.epoch, state.samples) == (1, 0)


def test_several_steps_an_execution_are_counted(ds):
    """Keras calls back once for all of them."""
    state = ndfeed.tf.State()
    model = recorder(steps_per_execution=4)
    data = ndfeed.tf.dataset(ds, 10, shuffle=True, state=state, epochs=None)
    model.fit(data, epochs=2, steps_per_epoch=12, verbose=0, shuffle=False,
              callbacks=[ndfeed.keras.Resume(state)])  # fmt: skip

    assert (state.epoch, state.samples) == (2, 40)


TRAIN = """
import json, os, signal, sys
import numpy as np, tensorflow as tf
import ndfeed, ndfeed.keras, ndfeed.tf

source, folder, kill = sys.argv[1], sys.argv[2], int(sys.argv[3])
tf.keras.utils.set_random_seed(0)
layers = tf.keras.layers
model = tf.keras.Sequential([tf.keras.Input((1,)), layers.Dense(4), layers.Dense(1)])
model.compile(tf.keras.optimizers.Adam(0.01), "mse")
model.optimizer.build(model.trainable_variables)
state = ndfeed.tf.State()
checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer, data=state)
manager = tf.train.CheckpointManager(checkpoint, folder, max_to_keep=1)
manager.restore_or_initialize()
ds = ndfeed.open(source)
data = ndfeed.tf.dataset(ds, 7, shuffle=True, seed=5, fields=("x", "y"), state=state)

class Kill(tf.keras.callbacks.Callback):
    count = 0
    def on_train_batch_end(self, batch, logs=None):
        self.count += 1
        if self.count == kill:
            os.kill(os.getpid(), signal.SIGKILL)

model.fit(data, initial_epoch=state.epoch, epochs=3, verbose=0, shuffle=False,
          callbacks=[ndfeed.keras.Resume(state, manager.save, every=2), Kill()])
print(json.dumps([w.tolist() for w in model.get_weights()]))
"""


def test_a_killed_training_ends_with_the_same_weights(tmp_path):
    """Killed in the second epoch, behind the last checkpoint: not one bit differs."""
    rng = np.random.default_rng(0)
    x = rng.random((50, 1)).astype("<f4")
    np.savez(tmp_path / "t.npz", x=x, y=3 * x)

    def train(folder, kill):
        return run_imported(TRAIN, tmp_path / "t.npz", tmp_path / folder, kill)

    at_once, _ = train("whole", 0)
    with pytest.raises(AssertionError, match="ended by SIGKILL"):
        train("cut", 11)
    gone_on, log = train("cut", 0)

    assert gone_on == at_once
    assert "ran out of data" not in log


def test_a_checkpoint_goes_on_with_more_files(tmp_path):
    """What was used stays used, and what came since comes into the rest of the epoch."""
    write(tmp_path, 10, 20, 30)
    state = ndfeed.tf.State()
    data = ndfeed.tf.dataset(
        ndfeed.open(tmp_path, sample="row"), 3, shuffle=True, fields="data", state=state
    )
    seen = []
    for batch in data.take(2):
        seen += batch.numpy().tolist()
        state.advance()
    saved = tf.train.Checkpoint(data=state).save(str(tmp_path / "saved"))
    write(tmp_path, 5, 40)
    ds = ndfeed.open(tmp_path / "0*.npy", sample="row")
    other = ndfeed.tf.State()
    tf.train.Checkpoint(data=other).restore(saved)
    with pytest.raises(ndfeed.ResumeError, match="pass grown=True if there are more now"):
        ndfeed.tf.dataset(ds, 4, shuffle=True, fields="data", state=other)
    again = ndfeed.tf.State(grown=True)
    tf.train.Checkpoint(data=again).restore(saved)
    data = ndfeed.tf.dataset(ds, 4, shuffle=True, fields="data", state=again)
    rest = []
    for batch in data:
        rest += batch.numpy().tolist()
        again.advance()
    assert sorted(seen + rest) == expected(5, 10, 20, 30, 40)
    assert sorted(x for batch in data for x in batch.numpy().tolist()) == sorted(seen + rest)


def test_a_state_counts_the_epochs_that_were_begun(tmp_path):
    """Refreshed within one: its rest, its position and its states are of what it began with."""
    write(tmp_path, 10, 20, 30)
    state = ndfeed.tf.State()
    ds = ndfeed.open(tmp_path, sample="row")
    data = ndfeed.tf.dataset(ds, 3, shuffle=True, fields="data", state=state)
    found = []
    for number, batch in enumerate(data):
        found += batch.numpy().tolist()
        state.advance()
        if number == 1:
            write(tmp_path, 5)
            assert data.refresh() == 4
            assert (state.samples, state.left) == (6, 2)
            saved = state.state_dict()
            assert saved["rows"] == 12
    assert sorted(found) == expected(10, 20, 30)
    assert (state.epoch, state.samples, state.left) == (1, 0, 6)
    assert state.state_dict()["rows"] == 16
    assert sorted(chained(used_values(data, state))) == expected(5, 10, 20, 30)

    again = ndfeed.tf.State(grown=True)
    rest = ndfeed.tf.dataset(
        ndfeed.open(tmp_path, sample="row"), 3, shuffle=True, fields="data", state=again
    )
    again.load_state_dict(saved)
    left = found[:6] + chained(used_values(rest, again))
    assert sorted(left) == expected(5, 10, 20, 30)
    write(tmp_path, 40)
    assert rest.refresh() == 4
    assert sorted(chained(used_values(rest, again))) == expected(5, 10, 20, 30, 40)


def test_files_found_after_a_state_was_loaded_wait_for_the_next_epoch(tmp_path):
    """The rest of the epoch is that of the files there were: nothing is lost or comes twice."""
    write(tmp_path, 10, 20, 30)
    loader = ndfeed.loader(ndfeed.open(tmp_path, sample="row"), 3, shuffle=True)
    seen = next(iter(loader))["data"].tolist()
    state = ndfeed.tf.State()
    ds = ndfeed.open(tmp_path, sample="row")
    data = ndfeed.tf.dataset(ds, 3, shuffle=True, fields="data", state=state)
    state.load_state_dict(loader.state_dict())
    write(tmp_path, 5)
    assert data.refresh() == 4
    assert state.state_dict() == loader.state_dict()
    assert sorted(seen + chained(used_values(data, state))) == expected(10, 20, 30)
    assert sorted(chained(used_values(data, state))) == expected(5, 10, 20, 30)


def used_values(data, state):
    """The values of batches, each counted when it was used."""
    found = []
    for batch in data:
        found.append(batch.numpy().tolist())
        state.advance()
    return found


@pytest.mark.parametrize("at", [0, 1, 5, 11])
def test_a_chain_of_epochs_counts_what_it_began(tmp_path, at):
    """TensorFlow is ahead, perhaps in the next epoch already, which then ends as it began."""
    write(tmp_path, 10, 20, 30)
    state = ndfeed.tf.State()
    ds = ndfeed.open(tmp_path, sample="row")
    data = ndfeed.tf.dataset(ds, 2, shuffle=True, fields="data", state=state, epochs=4)
    found = {}
    for number, batch in enumerate(data):
        found.setdefault(state.epoch, []).extend(batch.numpy().tolist())
        state.advance()
        if number == at:
            write(tmp_path, 5)
            data.refresh()
    assert sorted(found[0]) == expected(10, 20, 30)
    lengths = [len(one) for one in found.values()]
    assert lengths in ([12, 16, 16, 16], [12, 12, 16, 16], [12, 12, 12, 16])
    assert sorted(found[3]) == expected(5, 10, 20, 30)
    assert (state.epoch, state.samples) == (4, 0)


def test_fit_is_told_when_it_would_leave_out_what_came(tmp_path):
    """It asked how many batches there are; between two calls of fit, it asks again."""
    write(tmp_path, 10, 20, 30, save=save_labels, suffix=".npz")
    state, model = ndfeed.tf.State(), recorder(run_eagerly=True)
    data = ndfeed.tf.dataset(ndfeed.open(tmp_path, sample="row"), 3, shuffle=True, state=state)

    class Grow(tf.keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            write(tmp_path, 40, save=save_labels, suffix=".npz")
            data.refresh()

    resume = ndfeed.keras.Resume(state)
    with pytest.raises(RuntimeError, match=r"call fit for each epoch, or use ndfeed.keras.dataset"):
        model.fit(data, epochs=2, verbose=0, shuffle=False, callbacks=[resume, Grow()])
    model.fit(data, epochs=1, verbose=0, shuffle=False, callbacks=[resume])
    assert sorted(chained(model.seen[:4])) == expected(10, 20, 30)
    assert sorted(chained(model.seen[4:])) == expected(10, 20, 30, 40)


@pytest.mark.parametrize(("at", "drop_last"), [(100, False), (90, True)])
def test_an_epoch_with_nothing_left_is_over(ds, at, drop_last):
    """Its state, of a loader that had not ended or had smaller batches, begins the next one."""
    state = ndfeed.tf.State()
    state.load_state_dict(ndfeed.loader(ds, 10, shuffle=True).state_dict() | {"samples": at})
    data = ndfeed.tf.dataset(ds, 30, shuffle=True, drop_last=drop_last, state=state)
    assert (state.epoch, state.samples) == (1, 0)
    expected_batches = whole(ds, 30, 2, drop_last=drop_last)
    assert used(data, state) == expected_batches[len(expected_batches) // 2 :]


def save_labels(path, values):
    np.savez(path, label=values)
