"""The structure of a batch: any nest of names becomes the same nest of arrays."""

import pickle
from collections import UserDict, UserList
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ndfeed
from ndfeed.loading.options import Structure

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
