"""Wrong arguments fail where they are given, in one line that has the remedy.

``structure=`` takes any nest of names, and batches become the same nest of arrays.
"""

import pickle
from collections import UserDict, UserList
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from loading.making import large_rows, numbers, ragged, threads

import ndfeed
from ndfeed.dataset.arguments import as_bytes
from ndfeed.loading.options import Structure


@pytest.fixture
def ds(tmp_path):
    return large_rows(tmp_path, 20, size=400)


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"batch_size": 0}, ValueError, "batch_size must be at least 1, got 0"),
        ({"batch_size": -1}, ValueError, "batch_size must be at least 1, got -1"),
        ({"batch_size": 2.5}, TypeError, "batch_size must be an integer, got 2.5"),
        ({"batch_size": True}, TypeError, "batch_size must be an integer, got True"),
        ({"batch_size": "4"}, TypeError, "batch_size must be an integer, got '4'"),
        ({"batch_size": None}, TypeError, "batch_size must be an integer, got None"),
        ({"fields": ("x",)}, ndfeed.FieldError, "no field 'x'; the fields are 'image', 'label'"),
        ({"fields": "imago"}, ndfeed.FieldError, "no field 'imago'"),
        ({"fields": (1,)}, TypeError, "fields must be a tuple of names"),
        ({"fields": ()}, ValueError, "fields must name at least one field"),
        ({"fields": 3}, TypeError, "fields must be a tuple of names"),
        ({"shard": (2, 2)}, ValueError, r"rank must be in \[0, 2\), got 2"),
        ({"shard": (-1, 2)}, ValueError, r"rank must be in \[0, 2\), got -1"),
        ({"shard": (0, 0)}, ValueError, "world must be at least 1, got 0"),
        ({"shard": (0.5, 2)}, TypeError, "rank must be an integer, got 0.5"),
        ({"shard": 3}, TypeError, r"shard must be \(rank, world\), got 3"),
        ({"shard": (1, 2, 3)}, TypeError, r"shard must be \(rank, world\)"),
        ({"shard": "01"}, TypeError, "must be an integer|shard must be"),
        ({"memory": 1000}, ValueError, "memory must hold a batch: 1.63 kB .* got 1 kB; raise mem"),
        ({"memory": "1kB"}, ValueError, "raise memory or lower batch_size"),
        ({"memory": "2XB"}, ValueError, 'such as "2GB" or "512MiB", got \'2XB\''),
        ({"memory": ""}, ValueError, "memory must be bytes or text"),
        ({"memory": "2iB"}, ValueError, "memory must be bytes or text"),
        ({"memory": 0}, ValueError, "memory must"),
        ({"memory": -5}, ValueError, "memory must be at least 1 byte, got -5"),
        ({"memory": 2e9}, TypeError, "memory must be bytes or text"),
        ({"threads": 0}, ValueError, r"threads must be in \[1, 256\], got 0"),
        ({"threads": 1.0}, TypeError, "threads must be a whole number, got 1.0"),
        ({"threads": True}, TypeError, "threads must be a whole number, got True"),
        ({"processes": -1}, ValueError, r"processes must be in \[0, 256\], got -1"),
        ({"seed": 1.5}, TypeError, "seed must be a whole number, got 1.5"),
        ({"seed": None}, TypeError, "seed must be a whole number, got None"),
        ({"seed": 2**300}, ValueError, "seed must be in"),
        ({"ragged": "x"}, ValueError, "ragged must be one of 'list', 'pad', 'packed', got 'x'"),
        ({"on_error": "x"}, ValueError, 'on_error must be "raise" or "skip", got \'x\''),
        (
            {"shuffle": "yes"},
            TypeError,
            "shuffle must be .* or an order such as .* got 'yes'",
        ),
        ({"shuffle": None}, TypeError, "shuffle must be True, False"),
        ({"shuffle": 1}, TypeError, "shuffle must be True, False"),
        ({"shuffle": ndfeed.Exact}, TypeError, "shuffle must be True, False"),
    ],
    ids=str,
)
def test_a_wrong_argument_fails_at_construction(ds, options, error, match):
    """Not at epoch 3, and not with a traceback out of a thread."""
    before = threads()  # of other tests, whose loaders are not collected yet
    with pytest.raises(error, match=match) as caught:
        ndfeed.loader(ds, **{"batch_size": 4, **options})

    assert "\n" not in str(caught.value)
    assert set(threads()) <= set(before)


@pytest.mark.parametrize("source", ["x.npy", b"x.npy", None, [1, 2], np.arange(3)], ids=str)
def test_a_path_is_no_dataset(source):
    """The way to get one is in the message."""
    with pytest.raises(TypeError, match=r"expected a Dataset, got .*; call ndfeed\.open first"):
        ndfeed.loader(source, 4)


def test_a_word_that_does_not_exist_is_python_s_own_error(ds):
    """No **kwargs that swallow num_workers."""
    with pytest.raises(TypeError, match="num_workers"):
        ndfeed.loader(ds, 4, num_workers=2)
    with pytest.raises(TypeError, match="positional"):
        ndfeed.loader(ds, 4, True)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("100", 100),
        ("100B", 100),
        ("2kB", 2000),
        ("2 KiB", 2048),
        ("1.5MB", 1_500_000),
        ("512MiB", 512 << 20),
        ("2g", 2_000_000_000),
        (" 1 TB ", 10**12),
        (12345, 12345),
    ],
)
def test_memory_in_words(text, size):
    """Both kinds of units, as people write them."""
    assert as_bytes(text) == size


def test_memory_by_default_is_an_eighth_of_the_machine_and_at_most_2_gib():
    """So that a loader never needs to be told on a laptop."""
    import psutil

    assert as_bytes(None) == min(psutil.virtual_memory().total // 8, 2 << 30)


def test_memory_for_just_one_batch_is_accepted(ds):
    """Four samples of 400 and 8 bytes."""
    with ndfeed.loader(ds, 4, memory=4 * 408) as loader:
        assert len(list(loader)) == 5
    with pytest.raises(ValueError, match="memory must hold a batch"):
        ndfeed.loader(ds, 4, memory=4 * 408 - 1)


@pytest.mark.parametrize("form", ["pad", "packed"])
def test_samples_of_different_ranks_have_no_other_form_than_a_list(tmp_path, form):
    """Said before anything is read."""
    np.save(tmp_path / "a.npy", np.zeros((2, 2)))
    np.save(tmp_path / "b.npy", np.ones((2, 2, 3)))
    ds = ndfeed.open(tmp_path, sample="file")
    with pytest.raises(ValueError, match=r"'data' has samples of .* use ragged=\"list\""):
        ndfeed.loader(ds, 2, ragged=form)
    with ndfeed.loader(ds, 2) as loader:
        (batch,) = loader

    assert [x.shape for x in batch["data"]] == [(2, 2), (2, 2, 3)]


@pytest.mark.parametrize(("form", "name"), [("pad", "x_length"), ("packed", "x_offsets")])
def test_a_name_that_is_taken_is_refused(tmp_path, form, name):
    """What comes beside a ragged field would overwrite a field."""
    ds = ragged(tmp_path, [3, 1, 2], **{name: np.arange(3)})
    with pytest.raises(ValueError, match=f"ragged='{form}' would add '{name}', which is a field"):
        ndfeed.loader(ds, 2, ragged=form)

    ndfeed.loader(ds, 2)
    ndfeed.loader(ds.select("x"), 2, ragged=form)


def test_even_samples_take_any_form(tmp_path):
    """Nothing is ragged, so nothing is added."""
    ds = numbers(tmp_path, 5)
    for form in ("list", "pad", "packed"):
        with ndfeed.loader(ds, 5, ragged=form) as loader:
            assert list(next(iter(loader))) == ["data"]


PARTS = {"x": object(), "y": object(), "z": object()}


class Pair(NamedTuple):
    """A structure with a name of its own."""

    first: object
    second: object


def nested(inner):
    items = st.lists(inner, min_size=1, max_size=3)
    pairs = st.tuples(inner, inner).map(lambda two: Pair(*two))
    return (
        items | items.map(tuple) | pairs | st.dictionaries(st.text(max_size=2), inner, min_size=1)
    )


nests = st.recursive(st.sampled_from(sorted(PARTS)), nested, max_leaves=12)


def leaves(nest):
    """Names or parts in a nest, from left to right."""
    if isinstance(nest, dict):
        nest = list(nest.values())
    if not isinstance(nest, list | tuple):
        return [nest]
    return [leaf for one in nest for leaf in leaves(one)]


def shape(nest):
    """The containers of a nest, with nothing in them."""
    if isinstance(nest, dict):
        return dict, [(key, shape(one)) for key, one in nest.items()]
    if isinstance(nest, list | tuple):
        return type(nest), [shape(one) for one in nest]
    return None


@given(nests)
def test_any_nest_is_built(nest):
    """The same containers, with the part of each name in its place, also in another process."""
    for structure in (Structure(nest), pickle.loads(pickle.dumps(Structure(nest)))):
        made = structure.build(PARTS)

        assert shape(made) == shape(nest)
        assert leaves(made) == [PARTS[name] for name in leaves(nest)]
        assert structure.names == tuple(dict.fromkeys(leaves(nest)))
        assert structure.pick(PARTS) == {name: PARTS[name] for name in leaves(nest)}
        assert structure == Structure(nest)


@given(nests)
def test_lists_as_tuples(nest):
    """And nothing else changed."""
    made = Structure(nest).with_tuples().build(PARTS)

    assert "list" not in repr(shape(made))
    assert leaves(made) == [PARTS[name] for name in leaves(nest)]


def test_all_fields_are_the_dict_itself():
    """Nothing is copied where nothing was asked for."""
    assert Structure().build(PARTS) is PARTS
    assert Structure().pick(PARTS) is PARTS
    assert Structure().names is None


def test_containers_of_others_are_taken_for_what_they_are():
    """Configurations are often lists and dicts of a library's own."""
    structure = Structure(UserList([UserDict({"a": "x"}), "y"]))

    assert structure.build(PARTS) == [{"a": PARTS["x"]}, PARTS["y"]]
    assert structure.nest == [{"a": "x"}, "y"]


@pytest.mark.parametrize("nest", ["w", ("x", "w"), {"a": ["w"]}])
def test_a_part_that_is_missing_is_named(nest):
    """A map may return other fields for some samples."""
    for take in (Structure(nest).build, Structure(nest).pick):
        with pytest.raises(ndfeed.FieldError, match="no field 'w'; the fields are 'x', 'y', 'z'"):
            take(PARTS)


@pytest.mark.parametrize(
    ("argument", "order"),
    [
        ("weights", "ndfeed.Weighted"),
        ("balanced", "ndfeed.Balanced"),
        ("class_weights", "ndfeed.Balanced"),
        ("curriculum", "ndfeed.Sorted"),
        ("sort_by", "ndfeed.Sorted"),
    ],
)
def test_an_argument_that_is_an_order_here_names_it(ds, argument, order):
    """All arguments were listed, and none of them does it."""
    with pytest.raises(TypeError, match=f"{argument}.*write shuffle={order}"):
        ndfeed.loader(ds, 4, **{argument: [1]})
