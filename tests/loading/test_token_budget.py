"""Loaders with ``ndfeed.Buckets`` and ``tokens=``: what is delivered, measured and refused."""

import copy
import itertools
import json
import pickle
from dataclasses import replace

import numpy as np
import pytest
from children import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from loading.making import compressed, numbers
from ragged_making import offsets_of

import ndfeed
from ndfeed.loading.loader import reorder

RNG = np.random.default_rng(2)
LENGTHS = np.clip(RNG.lognormal(3, 0.8, 600), 1, 200).astype(np.int64)


def write_texts(folder, lengths):
    """Texts end to end in one array, each full of its own number, and their offsets."""
    folder.mkdir(exist_ok=True, parents=True)
    np.save(folder / "text.npy", np.repeat(np.arange(len(lengths)), lengths).astype(np.int32))
    np.save(folder / "offsets.npy", offsets_of(lengths))
    return ndfeed.open(folder / "text.npy", offsets=folder / "offsets.npy")


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    return write_texts(tmp_path_factory.mktemp("texts"), LENGTHS)


def rows_of(batch):
    """The numbers of the samples of a padded batch, all of length 1 or more."""
    return batch["data"][:, 0].tolist() if len(batch["data"]) else []


def every(loader):
    """The numbers of the samples of every batch."""
    return [rows_of(batch) for batch in loader]


def test_a_padded_batch_is_within_the_budget(texts):
    """Length times number; and nearly all of it is used."""
    loader = ndfeed.loader(texts, tokens=1024, shuffle=True, ragged="pad")
    sizes = [batch["data"].shape for batch in loader]

    assert len(sizes) == len(loader)
    assert max(count * length for count, length in sizes) <= 1024
    assert np.mean([count * length for count, length in sizes]) > 700
    assert loader.order == ndfeed.loader(texts, tokens=1024, shuffle=ndfeed.Buckets("data")).order
    assert repr(loader.order) == "Buckets('data')"


def test_the_form_of_batches_does_not_change_them(texts):
    """Padded, packed or as lists, with any number of threads and processes: the same samples."""
    words = {"tokens": 1024, "shuffle": True, "seed": 5}
    padded = every(ndfeed.loader(texts, ragged="pad", threads=1, **words))
    listed = ndfeed.loader(texts, threads=3, **words)
    packed = ndfeed.loader(texts, ragged="packed", processes=1, **words)

    assert [[int(text[0]) for text in batch["data"]] for batch in listed] == padded
    firsts = ((batch["data"], batch["data_offsets"][:-1]) for batch in packed)
    assert [values[starts].tolist() for values, starts in firsts] == padded
    assert every(ndfeed.loader(texts, ragged="pad", memory="100kB", **words)) == padded


@given(
    size=st.sampled_from([{"batch_size": 7}, {"batch_size": 30}, {"tokens": 400}]),
    then=st.sampled_from([{"batch_size": 7}, {"batch_size": 16}, {"tokens": 999}]),
    worlds=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    at=st.floats(0, 1),
    drop_last=st.booleans(),
)
@settings(max_examples=examples(30))
def test_a_run_resumes_with_other_ranks_and_batches(texts, size, then, worlds, at, drop_last):
    """All ranks together see what is left, each sample once, in equally many batches."""
    words = {"shuffle": ndfeed.Buckets("data"), "seed": 1, "ragged": "pad"}
    ranks = [
        ndfeed.loader(texts, shard=(rank, worlds[0]), drop_last=drop_last, **size, **words)
        for rank in range(worlds[0])
    ]
    done = int(at * len(ranks[0]))
    seen = []
    for batches in itertools.islice(zip(*map(iter, ranks), strict=True), done):
        seen += [row for batch in batches for row in rows_of(batch)]
    states = [loader.state_dict() for loader in ranks]
    assert states.count(states[0]) == worlds[0]
    assert len(json.dumps(states[0])) < 400

    again = [
        ndfeed.loader(texts, shard=(rank, worlds[1]), **then, **words) for rank in range(worlds[1])
    ]
    rest = []
    for loader in again:
        loader.load_state_dict(json.loads(json.dumps(states[0])))
        rest.append(every(loader))
    assert len({len(one) for one in rest}) == 1
    left = [row for one in rest for rows in one for row in rows]
    if done < len(ranks[0]) or not drop_last:  # else the epoch is over, and the next one came
        assert sorted(seen + left) == list(range(len(LENGTHS)))


def test_a_copy_resumes_in_an_epoch_of_other_sizes(texts):
    """Pickled or copied, in the middle of an epoch that was begun with another batch size."""
    words = {"shuffle": ndfeed.Buckets("data"), "ragged": "pad"}
    first = ndfeed.loader(texts, 40, **words)
    next(iter(first))
    loader = ndfeed.loader(texts, 16, **words)
    loader.load_state_dict(first.state_dict())
    copies = [pickle.loads(pickle.dumps(loader)), copy.copy(loader)]
    state = loader.state_dict()
    expected = [every(loader), every(loader)]

    for one in copies:
        assert one.state_dict() == state
        assert [every(one), every(one)] == expected
    assert state["more"] == {"ranks": 1, "batch_size": 40}
    assert loader.state_dict()["more"] == {"ranks": 1, "batch_size": 16}
    assert {*map(len, expected[1][:-1])} == {16}


@pytest.mark.parametrize("size", [{"batch_size": 16}, {"tokens": 400}], ids=str)
def test_ranks_that_become_known_late_finish_the_epoch_in_its_order(texts, size):
    """As in PyTorch, where a state may be loaded before ``torch.distributed`` is initialised."""
    words = {"shuffle": ndfeed.Buckets("data"), "ragged": "pad", **size}
    first = ndfeed.loader(texts, **words)
    seen = [row for batch in itertools.islice(first, 3) for row in rows_of(batch)]
    state = json.loads(json.dumps(first.state_dict()))
    for rank in range(2):
        loader = ndfeed.loader(texts, **words)
        loader.load_state_dict(state)
        loader.share = replace(loader.share, rank=rank, world=2)
        assert loader.state_dict() == state
        seen += [row for batch in loader for row in rows_of(batch)]

    assert sorted(seen) == list(range(len(LENGTHS)))
    assert loader.state_dict()["more"]["ranks"] == 2  # the next epoch is made for both


def test_the_state_says_which_order(texts):
    """Another order refuses it, by name."""
    loader = ndfeed.loader(texts, 8, shuffle=ndfeed.Buckets("data", (10, 50)))
    with pytest.raises(ndfeed.ResumeError, match=r"buckets\(field=data, edges=\[10, 50\]\)"):
        ndfeed.loader(texts, 8, shuffle=True).load_state_dict(loader.state_dict())


def test_the_report_measures_padding(texts):
    """Exactly what the batches have, as text and for JSON."""
    same = texts.map(lambda batch: batch)  # nothing is made ahead of the next epoch
    loader = ndfeed.loader(same, 8, shuffle=True, ragged="pad")
    tokens = sum(batch["data"].size for batch in loader)
    report = loader.report()

    assert report.tokens == tokens
    assert report.padding == pytest.approx(1 - LENGTHS.sum() / tokens)
    assert report.as_dict()["padding"] == report.padding
    assert f"padding: {report.padding:.1%} of {tokens:,} tokens" in str(report)

    by_length = ndfeed.loader(same, 8, shuffle=ndfeed.Buckets("data"), ragged="pad")
    for _ in by_length:
        pass
    assert by_length.report().padding < report.padding / 3
    assert by_length.order.padding == pytest.approx(by_length.report().padding)


@pytest.mark.parametrize("size", [{"batch_size": 16}, {"tokens": 1024}])
def test_the_report_counts_the_padding_of_what_was_delivered(texts, size):
    """After every batch, whatever was prefetched of this epoch or of the next one."""
    loader = ndfeed.loader(texts, **size, shuffle=True, ragged="pad", threads=2)
    for _ in range(2):
        tokens = real = 0
        for batch in loader:
            tokens += batch["data"].size
            real += int(batch["data_length"].sum())
            report = loader.report()
            assert report.tokens == tokens
            assert report.padding == pytest.approx(1 - real / tokens)
        assert real == LENGTHS.sum()
        assert loader.report().tokens == tokens


def test_padding_of_other_forms_is_not_reported(texts):
    """There is none."""
    loader = ndfeed.loader(texts, 32, ragged="packed")
    for _ in loader:
        pass
    assert loader.report().tokens == 0
    assert "padding" not in str(loader.report())


def test_padding_of_several_axes(tmp_path):
    """Images of different sizes: pixels count, not their channels."""
    for i, (high, wide) in enumerate([(2, 6), (4, 3)]):
        np.save(tmp_path / f"{i}.npy", np.ones((3, high, wide), "f4"))
    ds = ndfeed.open(tmp_path, sample="file").map(lambda batch: batch)
    loader = ndfeed.loader(ds, 2, ragged="pad")
    assert next(iter(loader))["data"].shape == (2, 3, 4, 6)
    assert loader.report().tokens == 2 * 4 * 6
    assert loader.report().padding == pytest.approx(1 - (12 + 12) / 48)


def test_lengths_are_those_before_a_map(texts):
    """A map runs when batches are made; what it makes of a sample is known only then."""
    twice = texts.map(lambda batch: {"data": [np.repeat(text, 2) for text in batch["data"]]})
    words = {"tokens": 1024, "shuffle": ndfeed.Buckets("data"), "ragged": "pad"}
    assert every(ndfeed.loader(twice, **words)) == every(ndfeed.loader(texts, **words))


def test_lengths_may_come_from_a_field_or_an_array(tmp_path, texts):
    """A field of integers holds lengths itself: of what a map will make, for example."""
    np.save(tmp_path / "cost.npy", LENGTHS * 3)
    both = ndfeed.open({"data": texts, "cost": tmp_path / "cost.npy"})
    words = {"tokens": 3072, "ragged": "pad", "fields": {"data": "data"}}
    by_field = ndfeed.loader(both, shuffle=ndfeed.Buckets("cost"), **words)
    by_array = ndfeed.loader(both, shuffle=ndfeed.Buckets(LENGTHS * 3), **words)

    found = every(by_field)
    assert found == every(by_array)
    assert all(LENGTHS[rows].max() * len(rows) <= 1024 for rows in found)
    with pytest.raises(ndfeed.ResumeError, match="lengths="):
        by_field.load_state_dict(by_array.state_dict())


def test_rows_that_are_compressed_together(tmp_path):
    """As with ``Exact``: every row comes once, however often that decompresses a file."""
    ds = compressed(tmp_path / "c", 4, 50)[0]
    lengths = np.arange(200) % 17
    loader = ndfeed.loader(ds, 16, shuffle=ndfeed.Buckets(lengths, (4, 9)))
    found = np.concatenate([batch["n"] for batch in loader])
    assert sorted(found.tolist()) == list(range(200))


def test_memory_is_that_of_the_largest_batch(texts):
    """Which holds the longest samples, not those of average length."""
    loader = ndfeed.loader(texts, 32, shuffle=ndfeed.Buckets("data"), ragged="pad")
    plain = ndfeed.loader(texts, 32, shuffle=True, ragged="pad")
    longest = int(LENGTHS.max()) * 32 * 4
    assert loader._setup.batch_bytes >= longest > plain._setup.batch_bytes
    budget = ndfeed.loader(texts, tokens=2048, shuffle=True, ragged="pad")
    assert 2048 * 4 <= budget._setup.batch_bytes <= 2 * 2048 * 4
    with pytest.raises(ValueError, match=r"memory must hold a batch: .* or tokens"):
        ndfeed.loader(texts, tokens=2048, shuffle=True, memory="5kB")


def test_a_loader_that_no_longer_shuffles_stays_within_the_budget(texts):
    """As when Lightning overfits: the stored order, with as many samples as always fit."""
    loader = reorder(ndfeed.loader(texts, tokens=1024, shuffle=True, ragged="pad"), False)
    found = every(loader)
    assert list(itertools.chain(*found)) == list(range(len(LENGTHS)))
    assert {*map(len, found[:-1])} == {1024 // LENGTHS.max()}


@pytest.mark.parametrize("name", ["max_tokens", "group_by_length", "bucket_boundaries"])
def test_arguments_of_other_libraries(texts, name):
    """They say what is written here instead."""
    with pytest.raises(TypeError, match=r"write tokens=|shuffle=ndfeed\.Buckets"):
        ndfeed.loader(texts, 8, **{name: 64})


def test_nothing_is_left_by_drop_last(texts):
    """The report says why there are no batches."""
    few = texts.take(LENGTHS < 10)
    loader = ndfeed.loader(few, tokens=10**6, shuffle=True, drop_last=True)
    assert len(loader) == 0
    assert list(loader) == []
    assert "drop_last leaves no batches" in str(loader.report())
    assert "lower tokens" in str(loader.report())
    empty = ndfeed.loader(texts.take([]), tokens=10, shuffle=True)
    assert (len(empty), list(empty)) == (0, [])


@pytest.mark.parametrize(
    ("words", "error", "message"),
    [
        ({"batch_size": 8, "tokens": 64}, ValueError, "both say how large a batch is; leave out"),
        ({}, TypeError, "batch_size must be an integer, got None; give it, or tokens="),
        ({"tokens": 0, "shuffle": True}, ValueError, "tokens must be in"),
        ({"tokens": 1.5, "shuffle": True}, TypeError, "tokens must be a whole number"),
        (
            {"tokens": 64, "shuffle": True},
            ValueError,
            r"tokens must hold the longest sample: number",
        ),
        ({"tokens": 640}, ValueError, r"pass shuffle=True or shuffle=ndfeed.Buckets\('data'\)"),
        ({"tokens": 640, "shuffle": ndfeed.Exact()}, ValueError, "needs batches of similar length"),
        ({"tokens": 640, "shuffle": True, "ragged": "pad", "pad_to": 200}, ValueError, "pad_to"),
        ({"batch_size": 8, "shuffle": ndfeed.Buckets("x")}, ndfeed.FieldError, "no field 'x'"),
        ({"batch_size": 8, "shuffle": ndfeed.Buckets([1])}, ValueError, "for each of 600 samples"),
    ],
    ids=str,
)
def test_bad_arguments(texts, words, error, message):
    """They are refused when the loader is made, in one line that says what to do."""
    with pytest.raises(error, match=message) as caught:
        ndfeed.loader(texts, **words)
    assert "\n" not in str(caught.value)


def test_fields_without_lengths(tmp_path, texts):
    """A budget needs lengths that differ, and to know whose."""
    plain = numbers(tmp_path, 10, dtype="<f4")
    with pytest.raises(ValueError, match="no stored field has them; use batch_size"):
        ndfeed.loader(plain, tokens=10, shuffle=True)
    with pytest.raises(ValueError, match="single values, which have no length"):
        ndfeed.loader(plain, tokens=10, shuffle=ndfeed.Buckets("data"))
    two = ndfeed.open({"a": texts, "b": write_texts(tmp_path / "b", LENGTHS[::-1])})
    with pytest.raises(ValueError, match=r"the lengths of 'a' and 'b' differ; pass .*Buckets\('a'"):
        ndfeed.loader(two, tokens=640, shuffle=True)
    assert len(ndfeed.loader(two, tokens=640, shuffle=ndfeed.Buckets("b"))) > 1
    assert len(ndfeed.loader(two, tokens=640, shuffle=True, fields="b")) > 1
    negative = ndfeed.open({"x": np.array([1, -1])})
    with pytest.raises(ValueError, match="which are not negative, found -1"):
        ndfeed.loader(negative, 1, shuffle=ndfeed.Buckets("x"))


def test_a_mixture_has_no_budget_of_tokens(texts, tmp_path):
    """The message names the argument that was given, and the one to use."""
    ds = ndfeed.mix({"short": texts, "long": write_texts(tmp_path / "other", LENGTHS * 2)})
    with pytest.raises(ValueError, match=r"tokens does not work with a mixture.*use batch_size"):
        ndfeed.loader(ds, tokens=4096, shuffle=True)
    with pytest.raises(ValueError, match=r"'short': Buckets\('data'\) cuts batches itself.*choose"):
        ndfeed.loader(ds, 8, shuffle=ndfeed.Buckets("data"))
    assert sum(len(batch["data"]) for batch in ndfeed.loader(ds, 8, shuffle=True)) == 1200
