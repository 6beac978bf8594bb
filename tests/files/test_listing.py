"""Paths in little memory behave as a list of them does."""

import pickle

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ndfeed.files.listing import Paths, common_folder

names = st.binary(min_size=1, max_size=8).filter(lambda name: b"\0" not in name)


@given(st.lists(names, max_size=30), st.integers(-40, 40), st.integers(-40, 40))
def test_indexing_and_slicing_are_those_of_a_list(paths, a, b):
    """Who has a list of paths need not know that it is none."""
    found = Paths(paths)

    assert list(found) == paths
    assert len(found) == len(paths)
    assert found[a:b] == paths[a:b]
    assert found[::-1] == paths[::-1]
    assert found[a:b:3] == paths[a:b:3]
    assert [found[i] for i in range(-len(paths), len(paths))] == paths + paths


@given(st.lists(st.tuples(names, st.lists(names, max_size=5)), max_size=6))
def test_names_are_put_in_their_folder(groups):
    """A folder is named once for all its files, and what all begin with not at all."""
    found = Paths(base=b"/root/")
    for folder, inside in groups:
        found.extend(inside, b"/root/" + folder + b"/")
    wanted = [b"/root/" + folder + b"/" + name for folder, inside in groups for name in inside]

    assert list(found) == wanted
    assert list(pickle.loads(pickle.dumps(found))) == wanted


@given(st.lists(st.tuples(names, st.booleans()), max_size=20))
def test_a_mask_chooses(marked):
    """Only what is new or changed is described again."""
    found = Paths([name for name, _ in marked]).chosen(np.array([m for _, m in marked], bool))

    assert list(found) == [name for name, mark in marked if mark]


def test_more_paths_than_are_handled_at_once():
    """Nothing is lost where one batch of paths ends and the next begins."""
    paths = [b"/d/%d" % i for i in range(10_000)]

    assert list(Paths(paths, b"/d/")) == paths
    assert Paths(paths)[4090:4100] == paths[4090:4100]
    assert list(Paths(paths).chosen(np.arange(10_000) % 3 == 0)) == paths[::3]


def test_the_deepest_folder_that_holds_all():
    """It is cut off every path, so it must end with a folder, not within a name."""
    assert common_folder([b"/a/b/x1", b"/a/b/x2"]) == b"/a/b/"
    assert common_folder([b"/a/bx", b"/a/by/z"]) == b"/a/"
    assert common_folder([b"/a/b/c"]) == b"/a/b/"
    assert common_folder([b"/a/b/", b"/a/b/c/"]) == b"/a/b/"
    assert common_folder([b"/x", b"/y"]) == b"/"
    assert common_folder([b"C:\\x", b"D:\\y"]) == b""
    assert common_folder([]) == b""
