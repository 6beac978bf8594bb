"""Samples of different shapes as lists, padded, or end to end; straight from files or from maps."""

import numpy as np
import packed_making
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loader.making import epoch_of, numbers, ragged

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
@pytest.mark.parametrize("way", ["stored", "in memory"])
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
@settings(max_examples=40)
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
