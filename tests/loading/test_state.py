"""Where a loader stands: small, exact at any batch, and refused where it does not fit."""

import contextlib
import copy
import json

import numpy as np
import pytest
from children import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from loading.making import assert_same, compressed, epoch_of, made, noisy, numbers, rows_of

import ndfeed

each_name = pytest.mark.parametrize(
    "name", ["one npy", "many deflated npz of rows", "a permuted view of compressed rows"]
)


@pytest.fixture
def ds(tmp_path):
    return numbers(tmp_path, 50)


def resumed(ds, state, batch_size=6, **options):
    """What a new loader delivers from a state that went through JSON."""
    with ndfeed.loader(ds, batch_size, shuffle=True, **options) as loader:
        loader.load_state_dict(json.loads(json.dumps(state)))
        return list(loader)


def test_a_state_is_small_json(tmp_path):
    """It is saved beside every checkpoint, and read by people."""
    names = ["one npy", "many deflated npz of rows", "one behind the other", "in memory"]
    for name in names:
        for shuffle in (True, False, ndfeed.Blocks(rows=10**9, window=10**6)):
            ds = made(tmp_path / name, name)
            with ndfeed.loader(ds, 5, shuffle=shuffle, seed=2**255) as loader:
                loader.epoch = 10**9
                next(iter(loader))
                text = json.dumps(loader.state_dict())

            assert len(text) < 400
            assert json.loads(text)["version"] == 1


@each_name
@pytest.mark.parametrize("threads", [1, 4])
def test_resume_at_any_batch(tmp_path, name, threads):
    """Before the first, in the middle, at the last: what follows is what would have followed."""
    ds = made(tmp_path / "x", name).map(noisy)
    options = {"shuffle": True, "seed": 4}
    with ndfeed.loader(ds, 5, **options, threads=threads) as loader:
        states = [loader.state_dict()]
        whole = []
        for batch in loader:
            whole.append(batch)
            states.append(loader.state_dict())
        second = list(loader)
    for number, state in enumerate(states):
        with ndfeed.loader(ds, 5, **options) as loader:
            loader.load_state_dict(json.loads(json.dumps(state)))

            assert loader.epoch == 0
            assert_same(list(loader), whole[number:])
            assert loader.epoch == 1
            assert_same(list(loader), second)


def test_a_state_after_an_epoch_is_that_of_the_next(ds):
    """Nothing of the finished epoch is left to deliver."""
    with ndfeed.loader(ds, 6, shuffle=True) as loader:
        list(loader)
        state = loader.state_dict()
        second = list(loader)

    assert (state["epoch"], state["samples"]) == (1, 0)
    assert_same(resumed(ds, state), second)


def test_a_state_counts_what_was_received(ds):
    """Not what was made ahead: those batches the consumer never had."""
    with ndfeed.loader(ds, 2, threads=4) as loader:
        batches = iter(loader)
        assert loader.state_dict()["samples"] == 0
        for number in range(1, 6):
            next(batches)
            while loader.report().ready < 3:
                pass
            assert loader.state_dict()["samples"] == 2 * number
            assert loader.report().batches == number


def test_a_state_of_all_ranks_is_the_same(ds):
    """Rank 0 saves it for everybody: it counts the samples of all ranks together."""
    states = []
    for rank in range(3):
        with ndfeed.loader(ds, 4, shuffle=True, shard=(rank, 3)) as loader:
            batches = iter(loader)
            next(batches)
            next(batches)
            states.append(loader.state_dict())

    assert states[0] == states[1] == states[2]
    assert states[0]["samples"] == 24


def test_the_seed_comes_with_the_state(ds):
    """A state is one of an order; the seed given to the new loader does not count."""
    with ndfeed.loader(ds, 6, shuffle=True, seed=1) as loader:
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        rest = list(batches)

    assert_same(resumed(ds, state, seed=2), rest)


def test_a_loader_goes_back_to_an_earlier_state(ds):
    """Within a pass as well; the pass under way is over then."""
    with ndfeed.loader(ds, 6, shuffle=True) as loader:
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        rest = list(batches)
        batches = iter(loader)
        next(batches)
        loader.load_state_dict(state)
        with pytest.raises(RuntimeError, match="another pass"):
            next(batches)

        assert_same(list(loader), rest)


def test_setting_the_epoch_it_stands_in_keeps_the_place(ds):
    """Loops that set the epoch themselves begin with the one of the checkpoint."""
    with ndfeed.loader(ds, 6, shuffle=True) as loader:
        whole = list(loader)
        state = {**loader.state_dict(), "epoch": 0, "samples": 12}
        loader.load_state_dict(state)
        loader.epoch = 0
        assert_same(list(loader), whole[2:])
        loader.load_state_dict(state)
        loader.epoch = 3
        assert loader.state_dict()["samples"] == 0
        assert len(list(loader)) == len(whole)


def test_an_epoch_left_early_is_left_for_good(ds):
    """After a break, iter() begins the next one, from its first sample."""
    with ndfeed.loader(ds, 6, shuffle=True) as loader:
        for _ in loader:
            break
        assert loader.state_dict()["samples"] == 6
        assert len(list(loader)) == 9
        assert loader.epoch == 2


def test_a_resumed_epoch_left_early_is_left_for_good(ds):
    """The state is used up by the first iter()."""
    with ndfeed.loader(ds, 6, shuffle=True) as loader:
        loader.load_state_dict({**loader.state_dict(), "samples": 18})
        for _ in loader:
            break
        assert loader.state_dict()["samples"] == 24
        assert len(list(loader)) == 9


def test_a_closed_loader_still_has_its_state(ds):
    """Saved in a `finally`, behind the `with`."""
    with ndfeed.loader(ds, 6, shuffle=True) as loader:
        batches = iter(loader)
        next(batches)
        rest = [next(batches) for _ in range(8)]
        loader.load_state_dict({**loader.state_dict(), "samples": 6})

    assert loader.state_dict()["samples"] == 6
    assert_same(resumed(ds, loader.state_dict()), rest)


def test_drop_last_at_the_end_of_a_resumed_epoch(ds):
    """What is left and makes no batch is dropped, wherever the epoch was taken up."""
    with ndfeed.loader(ds, 7, drop_last=True) as loader:
        loader.load_state_dict({**loader.state_dict(), "samples": 48})
        assert list(loader) == []
        loader.load_state_dict({**loader.state_dict(), "epoch": 0, "samples": 42})
        assert rows_of(loader) == list(range(42, 49))


# Refused.


def test_other_data_is_refused_with_both_fingerprints(tmp_path, ds):
    """Going on with other samples would train on some twice and on some never."""
    other = numbers(tmp_path, 51, name="other.npy")
    state = ndfeed.loader(other, 6, shuffle=True).state_dict()
    with pytest.raises(ndfeed.ResumeError) as caught:
        ndfeed.loader(ds, 6, shuffle=True).load_state_dict(state)

    for words in (other.fingerprint, ds.fingerprint, "51", "50", "open the same files"):
        assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "view",
    [
        lambda ds: ds.take(slice(0, 49)),
        lambda ds: ds.take(slice(None, None, -1)),
        lambda ds: ds.split(0.5)[0],
        lambda ds: ds + ds,
    ],
)
def test_a_view_of_other_samples_is_other_data(ds, view):
    """The same files in another order are not the same samples."""
    state = ndfeed.loader(view(ds), 6).state_dict()
    with pytest.raises(ndfeed.ResumeError, match="the state belongs to other data"):
        ndfeed.loader(ds, 6).load_state_dict(state)


def test_the_same_samples_elsewhere_are_the_same_data(tmp_path, ds):
    """A copy on another machine, or in memory, goes on."""
    (tmp_path / "copy").mkdir()
    copied = numbers(tmp_path / "copy", 50)
    for other in (copied, ds.in_memory()):
        state = {**ndfeed.loader(other, 6, shuffle=True).state_dict(), "samples": 48}

        assert_same(resumed(ds, state), epoch_of(ds, 6, shuffle=True)[8:])


def test_another_order_is_refused_with_both_shown(ds):
    """A position means something in its own order only."""
    state = ndfeed.loader(ds, 6, shuffle=ndfeed.Blocks(rows=8, window=4)).state_dict()
    with pytest.raises(
        ndfeed.ResumeError,
        match=r"another order: blocks\(rows=8, window=4.*\), but this is exact\(.*\); pass",
    ):
        ndfeed.loader(ds, 6, shuffle=True).load_state_dict(state)


@pytest.mark.parametrize(
    "damage", [{"data": "a\nb"}, {"version": "1\n2"}, {"order": {"kind": "a\nb"}}], ids=str
)
def test_a_refusal_is_one_line(ds, damage):
    """Whatever was found where text belongs: it goes into logs."""
    loader = ndfeed.loader(ds, 6)
    with pytest.raises(ndfeed.ResumeError, match="state") as caught:
        loader.load_state_dict({**loader.state_dict(), **damage})

    assert "\n" not in str(caught.value)


def test_a_refused_state_changes_nothing(tmp_path, ds):
    """The loader stands where it stood, also within a pass."""
    other = ndfeed.loader(numbers(tmp_path, 3, name="other.npy"), 1).state_dict()
    with ndfeed.loader(ds, 6) as loader:
        batches = iter(loader)
        next(batches)
        before = loader.state_dict()
        with pytest.raises(ndfeed.ResumeError, match="other data"):
            loader.load_state_dict(other)

        assert loader.state_dict() == before
        assert rows_of(batches) == list(range(6, 50))


@pytest.mark.parametrize(
    "state", [None, 3, "x", [], {}, {"version": 2}, {"version": None}], ids=str
)
def test_what_is_no_state_is_refused(ds, state):
    """Also one of a later version, whose meaning nobody knows here."""
    with pytest.raises(ndfeed.ResumeError, match="a state"):
        ndfeed.loader(ds, 6).load_state_dict(state)


values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**30), 10**30),
    st.integers(-2, 60),
    st.floats(),
    st.text(max_size=5),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)


@st.composite
def mutations(draw):
    """Something to do to a state, as damage, hands or another program would."""
    key = draw(st.sampled_from(["version", "seed", "epoch", "samples", "order", "rows", "data"]))
    inner = draw(st.sampled_from(["kind", "files", "rows", "window", "x"]))
    value = draw(values)
    kind = draw(st.sampled_from(["set", "delete", "inner", "inner delete", "extra"]))

    def change(state):
        if kind == "set":
            state[key] = value
        elif kind == "delete":
            state.pop(key, None)
        elif kind == "extra":
            state[inner] = value
        elif isinstance(state.get("order"), dict):
            state["order"][inner] = value
            if kind == "inner delete":
                del state["order"][inner]

    return change


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return compressed(tmp_path_factory.mktemp("small"), files=3, rows=10)[0]


@given(changes=st.lists(mutations(), min_size=1, max_size=3))
@settings(max_examples=examples(400))
def test_a_damaged_state_is_refused_or_means_something(small, changes):
    """Never another error, at once or at the first batch, and never a loader that is broken."""
    with ndfeed.loader(small, 7, shuffle=True, threads=1) as loader:
        sound = loader.state_dict()
        state = copy.deepcopy(sound)
        state["samples"] = 14
        for change in changes:
            change(state)
        left = sound
        with contextlib.suppress(ndfeed.ResumeError):
            loader.load_state_dict(state)
            left = {**sound, **{name: state[name] for name in ("seed", "epoch", "samples")}}
        assert loader.state_dict() == left

        assert json.loads(json.dumps(left)) == left
        assert sum(len(batch["n"]) for batch in loader) == 30 - left["samples"]
        loader.epoch = loader.epoch  # what was loaded can also be set


def deep(levels):
    """Lists in lists, deeper than ``repr`` can go."""
    made = []
    for _ in range(levels):
        made = [made]
    return made


HOSTILE = {
    "an array for a version": {"version": np.array([1, 1])},
    "true for a version": {"version": True},
    "a number with a point": {"version": 1.0},
    "a deep version": {"version": deep(100_000)},
    "an immense version": {"version": 10**5000},
    "a deep epoch": {"epoch": deep(100_000)},
    "an array of samples": {"samples": np.arange(3)},
    "true samples": {"samples": True},
    "an array in the order": {"order": {"kind": np.array(["exact", "exact"])}},
    "a list in the order": {"order": {"kind": deep(100_000)}},
    "true in the order": {"order": {"kind": "blocks", "rows": True, "window": 4}},
    "a long order": {"order": {str(i): i for i in range(10_000)}},
    "an immense number in the order": {"order": {"kind": "blocks", "rows": 10**5000}},
    "a long text in the order": {"order": {"kind": "x" * 1_000_000}},
    "no text for a name in the order": {"order": {1: 1}},
    "an empty order": {"order": {}},
    "long data": {"data": "x" * 1_000_000},
    "half a character": {"data": "\ud800"},
    "data that paints the terminal": {"data": "\x1b[31m"},
    "immense rows": {"rows": 2**255},
    "a number for a history": {"more": {"grown": 5}},
    "a text for a history": {"more": {"grown": "abc"}},
    "a dict for a history": {"more": {"grown": {"rows": 1}}},
}


@pytest.mark.parametrize("damage", HOSTILE)
def test_a_hostile_state_is_refused_in_one_short_line(ds, damage):
    """It comes out of a checkpoint, which may come from anywhere: no other error, no flood."""
    with ndfeed.loader(ds, 6, shuffle=ndfeed.Blocks(rows=1, window=4)) as loader:
        with pytest.raises(ndfeed.ResumeError, match="state") as caught:
            loader.load_state_dict({**loader.state_dict(), **HOSTILE[damage]})

        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    "seed", [10**5000, -(10**5000), 2**300], ids=["immense", "very small", "large"]
)
def test_a_seed_beyond_all_bounds_is_refused(ds, seed):
    """The same bounds as at construction: else it fails at the first batch, of something else."""
    with ndfeed.loader(ds, 6, shuffle=True) as loader:
        with pytest.raises(ndfeed.ResumeError, match="seed"):
            loader.load_state_dict({**loader.state_dict(), "seed": seed})
        with pytest.raises(ndfeed.ResumeError, match="epoch"):
            loader.load_state_dict({**loader.state_dict(), "epoch": seed})


def test_states_are_frozen(tmp_path):
    """Checkpoints of earlier versions must load: a change here needs a new version number."""
    np.save(tmp_path / "x.npy", np.arange(10))
    with ndfeed.loader(ndfeed.open(tmp_path / "x.npy"), 4, shuffle=True, seed=5) as loader:
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()

    assert list(state) == ["version", "seed", "epoch", "samples", "order", "rows", "data"]
    assert {name: state[name] for name in ("version", "seed", "epoch", "samples", "rows")} == {
        "version": 1,
        "seed": 5,
        "epoch": 0,
        "samples": 4,
        "rows": 10,
    }
    assert state["order"]["kind"] == "exact"


def test_an_epoch_that_no_loader_comes_to_is_a_damaged_state(small):
    """What a loader takes from a state it also takes from the caller."""
    with ndfeed.loader(small, 7) as loader:
        state = loader.state_dict()
        with pytest.raises(ndfeed.ResumeError, match="epoch is out of bounds"):
            loader.load_state_dict(state | {"epoch": 1 << 62})
