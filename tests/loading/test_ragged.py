"""Samples of different shapes as lists, padded, or end to end; straight from files or from maps."""

import numpy as np
import packed_making
import pytest
from children import examples
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from loading.making import assert_same, epoch_of, numbers, ragged

import ndfeed

LENGTHS = [3, 0, 1, 7, 2, 2, 5]
SHAPES = {
    "1-d": lambda n: (n,),
    "2-d, the first axis": lambda n: (n, 3),
    "2-d, the second axis": lambda n: (3, n),
    "2-d, both axes": lambda n: (n, 7 - n),
    "3-d, the outer axes": lambda n: (n, 2, 1 + n % 3),
}
PACKED = {"packed": {}, "packed, in parts": {"parts": 3}, "packed, by position": {}}
each_shape = pytest.mark.parametrize("shape", SHAPES)
each_way = pytest.mark.parametrize("way", ["stored", "mapped", "one by one", "in memory", *PACKED])


def opened(folder, shape, way):
    """Ragged samples, as they lie in files or out of a map that leaves them as they are."""
    if way in PACKED:
        numbers = np.arange(len(LENGTHS))
        packed_making.write(folder, {"x": samples_of(shape), "n": numbers}, **PACKED[way])
        return ndfeed.open(folder, mapped="position" not in way)
    ds = ragged(folder, LENGTHS, SHAPES[shape])
    if way == "mapped":
        return ds.map(lambda batch: dict(batch))
    if way == "one by one":
        return ds.map(lambda sample: dict(sample), batched=False)
    return ds.in_memory() if way == "in memory" else ds


def samples_of(shape):
    """What ``ragged`` writes."""
    shapes = [SHAPES[shape](n) for n in LENGTHS]
    return [
        (100 * i + np.arange(np.prod(own))).reshape(own).astype("<f4")
        for i, own in enumerate(shapes)
    ]


@each_shape
@each_way
def test_lists_have_an_array_for_each_sample(tmp_path, shape, way):
    """Each of its own shape, writable, in the order of the batch."""
    expected = samples_of(shape)
    found = [x for b in epoch_of(opened(tmp_path, shape, way), 3) for x in b["x"]]

    assert [x.shape for x in found] == [x.shape for x in expected]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
        one[...] = 0


@each_shape
@each_way
def test_padded_batches_are_arrays_with_lengths(tmp_path, shape, way):
    """As long as the longest of the batch, zeros behind each sample."""
    ds = opened(tmp_path, shape, way)
    expected = samples_of(shape)
    rows = 0
    for batch in epoch_of(ds, 3, ragged="pad"):
        own = expected[rows : rows + len(batch["n"])]
        rows += len(own)
        longest = tuple(np.max([x.shape for x in own], axis=0))

        assert batch["x"].shape == (len(own), *longest)
        assert batch["x"].dtype == np.float32
        assert batch["x"].flags.c_contiguous
        for one, padded in zip(own, batch["x"], strict=True):
            part = tuple(map(slice, one.shape))
            np.testing.assert_array_equal(padded[part], one)
            padded[part] = 0
            assert not padded.any()
    assert rows == len(LENGTHS)


@each_shape
@pytest.mark.parametrize("way", ["stored", "in memory", "mapped", "one by one"])
def test_lengths_have_a_number_for_each_axis_that_differs(tmp_path, shape, way):
    """One number a sample where one axis does, as every framework wants it."""
    ds = opened(tmp_path, shape, way)
    (batch,) = epoch_of(ds, 9, ragged="pad")
    shapes = np.array([SHAPES[shape](n) for n in LENGTHS])
    differing = [a for a in range(shapes.shape[1]) if len(set(shapes[:, a])) > 1]
    expected = shapes[:, differing]

    assert batch["x_length"].dtype == np.int64
    np.testing.assert_array_equal(
        batch["x_length"], expected[:, 0] if len(differing) == 1 else expected
    )


@each_shape
@each_way
def test_packed_batches_are_values_and_offsets(tmp_path, shape, way):
    """End to end, nothing in between; shapes beside them where they do not follow."""
    ds = opened(tmp_path, shape, way)
    expected = samples_of(shape)
    rows = 0
    for batch in epoch_of(ds, 3, ragged="packed"):
        own = expected[rows : rows + len(batch["n"])]
        rows += len(own)
        offsets = batch["x_offsets"].tolist()
        shapes = batch["x_shape"].tolist() if "x_shape" in batch else [(-1, *own[0].shape[1:])] * 9

        assert len(offsets) == len(own) + 1
        assert offsets[0] == 0
        assert offsets[-1] == len(batch["x"])
        for number, one in enumerate(own):
            found = batch["x"][offsets[number] : offsets[number + 1]].reshape(shapes[number])
            np.testing.assert_array_equal(found, one)
    assert rows == len(LENGTHS)


@pytest.mark.parametrize(("form", "added"), [("pad", "x_length"), ("packed", "x_offsets")])
@each_way
def test_what_is_added_can_be_asked_for(tmp_path, form, added, way):
    """A tuple of names has the lengths in its place, in every batch."""
    ds = opened(tmp_path, "1-d", way)
    for batch in epoch_of(ds, 3, ragged=form, fields=("n", "x", added)):
        numbers_, values, beside = batch

        assert len(numbers_) == (len(values) if form == "pad" else len(beside) - 1)
        assert beside.dtype == np.int64


@pytest.mark.parametrize("form", ["pad", "packed"])
def test_a_map_that_makes_samples_ragged(tmp_path, form):
    """Crops of random length out of equal rows: who asks for their lengths gets them, also with
    a batch in which all happen to be of one length, or the last with one sample."""
    ds = numbers(tmp_path, 7, width=9).map(
        lambda s: {"x": s["data"][: [2, 2, 2, 4, 5, 6, 1][s["data"][0]]]}, batched=False
    )
    beside = {"pad": "x_length", "packed": "x_offsets"}[form]
    found = epoch_of(ds, 3, ragged=form, fields=("x", beside))

    assert [len(batch) for batch in found] == [2, 2, 2]
    assert found[0][1].tolist() == {"pad": [2, 2, 2], "packed": [0, 2, 4, 6]}[form]


@pytest.mark.parametrize("form", ["list", "pad", "packed"])
@pytest.mark.parametrize("way", ["stored", "one by one", "mapped"])
def test_a_rank_without_samples_has_the_same_fields(tmp_path, form, way):
    """An empty batch is a batch: code that takes it apart must not fail on one rank only."""
    ds = opened(tmp_path, "1-d", way).take([0])
    (full,) = epoch_of(ds, 2, ragged=form, shard=(0, 2))
    (empty,) = epoch_of(ds, 2, ragged=form, shard=(1, 2))

    assert list(empty) == list(full)
    assert len(empty["n"]) == 0
    for name, values in full.items():
        assert type(empty[name]) is type(values)


def test_samples_of_no_elements(tmp_path):
    """A whole batch of them."""
    ds = ragged(tmp_path, [0, 0, 3])
    for form in ("list", "pad", "packed"):
        first = epoch_of(ds, 2, ragged=form)[0]

        assert sum(np.size(x) for x in first["x"]) == 0
        assert first["n"].tolist() == [0, 1]
    assert epoch_of(ds, 2, ragged="pad")[0]["x"].shape == (2, 0)
    assert epoch_of(ds, 2, ragged="packed")[0]["x_offsets"].tolist() == [0, 0, 0]


def test_different_ranks_out_of_a_map_are_an_error_at_their_batch(tmp_path):
    """Nothing is known of them before; the field and the way out are named."""
    ds = numbers(tmp_path, 6, width=4).map(
        lambda s: {"x": s["data"].reshape((2, 2) if s["data"][0] == 4 else 4)}, batched=False
    )
    for form in ("pad", "packed"):
        with ndfeed.loader(ds, 2, ragged=form) as loader:
            batches = iter(loader)
            next(batches)
            next(batches)
            with pytest.raises(ValueError, match=r"'x' has samples of different num.* ra"):
                next(batches)


several = st.lists(st.integers(0, 9), min_size=2, max_size=12).filter(lambda n: len(set(n)) > 1)


@given(lengths=several, size=st.integers(1, 5))
@settings(max_examples=examples(40))
def test_padded_and_packed_hold_the_same_as_lists(tmp_path_factory, lengths, size):
    """Any lengths at all, shuffled."""
    ds = ragged(tmp_path_factory.mktemp("r"), lengths)
    lists = epoch_of(ds, size, shuffle=True, threads=1)
    padded = epoch_of(ds, size, shuffle=True, threads=1, ragged="pad")
    packed = epoch_of(ds, size, shuffle=True, threads=1, ragged="packed")

    for one, pad, pack in zip(lists, padded, packed, strict=True):
        assert pad["n"].tolist() == pack["n"].tolist() == one["n"].tolist()
        cut = [row[:n] for row, n in zip(pad["x"], pad["x_length"], strict=True)]
        split = np.split(pack["x"], pack["x_offsets"][1:-1])
        for a, b, c in zip(one["x"], cut, split, strict=True):
            np.testing.assert_array_equal(a, b)
            np.testing.assert_array_equal(a, c)


# Maps that leave the shapes of samples as they are.
LEAVING = {
    "a batch": lambda ds: ds.map(lambda batch: batch),
    "single samples": lambda ds: ds.map(lambda sample: sample, batched=False),
    "several": lambda ds: ds.map(dict, batched=False).map(dict).select("x", "n"),
    "a batch, scaled": lambda ds: ds.map(lambda b: b | {"x": [x * 1 for x in b["x"]]}),
}
each_leaving = pytest.mark.parametrize("leaving", LEAVING)
each_form = pytest.mark.parametrize("form", ["list", "pad", "packed"])


@each_shape
@each_leaving
@each_form
def test_a_map_that_leaves_samples_as_they_are_changes_nothing(tmp_path, shape, leaving, form):
    """Not the lengths, not their number, not what is packed; whatever the batch size, so also in
    batches whose samples are all of one shape."""
    ds = ragged(tmp_path, [3, 3, 3, 0, 1, 7, 2, 2, 5], SHAPES[shape])
    for size in (1, 2, 3, 9):
        expected = epoch_of(ds, size, ragged=form)
        found = epoch_of(LEAVING[leaving](ds), size, ragged=form)

        assert_same(found, expected)


@given(
    lengths=several,
    size=st.integers(1, 5),
    shape=st.sampled_from(list(SHAPES)),
    leaving=st.sampled_from(list(LEAVING)),
    form=st.sampled_from(["list", "pad", "packed"]),
)
@settings(max_examples=examples(60))
def test_any_samples_through_such_a_map(tmp_path_factory, lengths, size, shape, leaving, form):
    """Also where few differ, in any order."""
    lengths = [min(n, 6) for n in lengths]
    # Of samples that are all of one shape this map makes a list, which they are not without it.
    assume(leaving != "a batch, scaled" or len(set(lengths)) > 1)
    ds = ragged(tmp_path_factory.mktemp("r"), lengths, SHAPES[shape])
    expected = epoch_of(ds, size, shuffle=True, ragged=form)
    found = epoch_of(LEAVING[leaving](ds), size, shuffle=True, ragged=form)

    assert_same(found, expected)


@each_leaving
@each_form
def test_samples_of_one_shape_in_a_view_of_ragged_ones(tmp_path, leaving, form):
    """They are ragged without a map, so they are with one."""
    ds = ragged(tmp_path, [3, 5, 3, 3], SHAPES["2-d, the first axis"]).take([0, 2, 3])
    for size in (1, 2):
        expected = epoch_of(ds, size, ragged=form)
        assert_same(epoch_of(LEAVING[leaving](ds), size, ragged=form), expected)


CROPPING = {
    "stacked": lambda ds: ds.map(lambda b: b | {"x": np.stack([x[:2] for x in b["x"]])}),
    "single samples": lambda ds: ds.map(lambda s: s | {"x": s["x"][:2]}, batched=False),
}


@pytest.mark.parametrize("cropping", CROPPING)
@each_form
def test_samples_cropped_to_one_shape_are_ragged_no_more(tmp_path, cropping, form):
    """An array and nothing beside it, also in batches that were of that shape before."""
    ds = ragged(tmp_path, [2, 2, 5, 7, 2], SHAPES["2-d, the first axis"])
    for batch in epoch_of(CROPPING[cropping](ds), 2, ragged=form):
        assert set(batch) == {"x", "n"}
        assert batch["x"].shape == (len(batch["n"]), 2, 3)


@pytest.mark.parametrize("batched", [True, False])
def test_samples_cut_to_a_length_at_most_stay_ragged(tmp_path, batched):
    """In every batch: the shortest and the longest sample tell, not the first ones."""

    def cut(x):
        return x[:4] if isinstance(x, np.ndarray) else [one[:4] for one in x]

    ds = ragged(tmp_path, [5, 6, 7, 8, 9, 1], SHAPES["2-d, the first axis"])
    mapped = ds.map(lambda b: b | {"x": cut(b["x"])}, batched=batched)
    found = epoch_of(mapped, 2, ragged="pad")

    assert [batch["x_length"].tolist() for batch in found] == [[4, 4], [4, 4], [4, 1]]


@pytest.mark.parametrize("batched", [True, False])
def test_a_map_that_renames_or_widens_a_field(tmp_path, batched):
    """Which axes differ is learned from samples that do."""

    def wider(x):
        return np.repeat(x, 2, axis=1) if isinstance(x, np.ndarray) else [wider(one) for one in x]

    ds = ragged(tmp_path, [2, 2, 5, 7], SHAPES["2-d, the first axis"])
    mapped = ds.map(lambda b: {"y": b["x"], "x": wider(b["x"])}, batched=batched)
    padded = epoch_of(mapped, 2, ragged="pad")
    packed = epoch_of(mapped, 2, ragged="packed")

    assert [b["y_length"].tolist() for b in padded] == [[2, 2], [5, 7]]
    assert [b["x_length"].tolist() for b in padded] == [[2, 2], [5, 7]]
    assert [b["x"].shape for b in packed] == [(4, 6), (12, 6)]
    assert [b["y"].shape for b in packed] == [(4, 3), (12, 3)]
    assert mapped.fields["x"].shape == (None, 6)


def test_an_axis_that_differs_unexpectedly_is_an_error(tmp_path):
    """Rather than lengths of another form in one batch of many."""
    ds = ragged(tmp_path, [2, 3, 5, 7, 4, 6] + [4] * 58, SHAPES["2-d, the first axis"])
    mapped = ds.map(lambda s: {"x": s["x"][:, : 2 if s["n"] == 4 else 3]}, batched=False)
    with ndfeed.loader(mapped, 2, ragged="pad") as loader:
        batches = iter(loader)
        assert next(batches)["x_length"].tolist() == [2, 3]
        next(batches)
        with pytest.raises(ValueError, match=r"'x': samples .* differ in axis 1 \(2 and 3\)"):
            next(batches)


def test_recycled_memory_shows_nothing_of_what_was_in_it(tmp_path):
    """Padding is zeroed anew: the memory held other samples before."""
    ds = ragged(tmp_path, [5000, 1, 4000, 2, 3000, 3] * 4, lambda n: (n, 4))
    with ndfeed.loader(ds, 2, shuffle=True, ragged="pad", threads=1) as loader:
        for _ in range(6):
            for batch in loader:
                for padded, length in zip(batch["x"], batch["x_length"], strict=True):
                    assert not padded[length:].any()
                batch["x"][...] = 7
                del batch, padded


def test_text_is_padded_with_empty_text(tmp_path):
    """A zero written into text is the text "0", which nobody would tell from data."""
    for i, words in enumerate((["a", "bc"], ["d"])):
        np.savez(tmp_path / f"{i}.npz", x=np.array(words, "U2"))
    ds = ndfeed.open(tmp_path, sample="file")
    (batch,) = ndfeed.loader(ds, 2, ragged="pad")

    assert batch["x"].tolist() == [["a", "bc"], ["d", ""]]


def test_pad_to_of_several_axes_and_fields(tmp_path):
    """One length for each axis that differs, or one for all of them; of each field its own."""
    ds = ragged(
        tmp_path, [3, 1, 2], shape=lambda n: (n, 7, n + 1), y=[np.arange(n) for n in (1, 2, 3)]
    )
    for pad_to, shapes in (
        ({"x": (4, 6)}, ((3, 4, 7, 6), (3, 3))),
        (5, ((3, 5, 7, 5), (3, 5))),
        ({"x": 8, "y": 4}, ((3, 8, 7, 8), (3, 4))),
    ):
        (batch,) = ndfeed.loader(ds, 3, ragged="pad", pad_to=pad_to, pad_value={"y": -1})

        assert (batch["x"].shape, batch["y"].shape) == shapes
        assert batch["x"].sum() == sum(ds[i]["x"].sum() for i in range(3))
        assert batch["x_length"].tolist() == [[3, 4], [1, 2], [2, 3]]
        assert (batch["y"] == -1).sum() == batch["y"].size - 6


@pytest.mark.parametrize(
    ("dtype", "value", "fits"),
    [
        ("u1", 255, True), ("u1", -1, False), ("i4", 0.5, False), ("i8", -100, True),
        ("f4", 0.1, True), ("f4", float("nan"), True), ("f2", 1e6, False), ("?", True, True),
        ("?", 2, False), ("f4", 1j, False), ("c8", 1j, True), ("U3", 0, False),
        ("i4", float("nan"), False),
    ],
)  # fmt: skip
def test_a_pad_value_must_be_one_of_the_type(tmp_path, dtype, value, fits):
    """-1 in bytes would be 255, and a fraction in integers another number."""
    for i in range(2):
        np.savez(tmp_path / f"{i}.npz", x=np.zeros(i + 1, dtype))
    ds = ndfeed.open(tmp_path, sample="file")
    if not fits:
        with pytest.raises(ValueError, match=r"pad_value .* does not fit field 'x'"):
            ndfeed.loader(ds, 2, ragged="pad", pad_value=value)
        return
    (batch,) = ndfeed.loader(ds, 2, ragged="pad", pad_value=value)

    np.testing.assert_array_equal(batch["x"][0, 1], np.array(value, dtype))


def test_a_rank_without_samples_is_padded_alike(tmp_path):
    """All ranks compile the same shapes."""
    ds = ragged(tmp_path, [2, 3])
    (batch,) = ndfeed.loader(ds, 1, ragged="pad", pad_to=5, shard=(2, 3))

    assert batch["x"].shape == (0, 5)
