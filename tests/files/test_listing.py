"""Folders and patterns name the files that a person would expect; many paths take little memory."""

import glob
import os
import pickle
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ndfeed.errors import MissingError, SourceError
from ndfeed.files import listing
from ndfeed.files.listing import Folders, Paths, common_folder

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


def make(root, *names):
    """Empty files, with the folders they need."""
    for name in names:
        path = os.path.join(os.fsencode(root), os.fsencode(name))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb"):
            pass


def below(root, found):
    """Paths relative to ``root``, as text."""
    return [os.fsdecode(os.path.relpath(path, os.fsencode(root))) for path in found.paths]


def walked(root):
    return below(root, listing.walk(os.fsencode(root)))


def matched(root, pattern):
    return below(root, listing.find_matches(os.fsencode(os.path.join(root, pattern))))


def test_a_folder_is_walked_in_natural_order(tmp_path):
    """Sample 10 comes after sample 9, as whoever numbered the files meant it."""
    make(tmp_path, "x10", "x9", "x1", "b/2", "b/10", "a10/x", "a9/y", "c/d/e", ".hidden", ".h/x")

    assert walked(tmp_path) == ["x1", "x9", "x10", "a9/y", "a10/x", "b/2", "b/10", "c/d/e"]


@given(st.lists(st.integers(0, 10**20), unique=True, max_size=20))
def test_numbers_sort_as_numbers(numbers):
    """Whatever their length."""
    names = sorted((b"x%d.npy" % n for n in numbers), key=listing.natural_key)

    assert names == [b"x%d.npy" % n for n in sorted(numbers)]


@given(st.lists(st.text("a01.", min_size=1, max_size=6).map(str.encode), unique=True, max_size=9))
@example([b"1", b"01", b"001"])
def test_the_order_does_not_depend_on_the_listing(names):
    """File systems list names in any order; the same files must give the same samples."""

    def order(names):
        return sorted(sorted(names), key=listing.natural_key)

    assert order(names) == order(names[::-1])


def test_links_are_followed(tmp_path):
    """A folder of links to data elsewhere is a common way to choose some of it."""
    make(tmp_path, "data/a", "data/b", "elsewhere/c")
    (tmp_path / "data" / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "data" / "d").symlink_to(tmp_path / "elsewhere" / "c")

    assert walked(tmp_path / "data") == ["a", "b", "d", "link/c"]


@pytest.mark.parametrize("pattern", [None, "**/*.npy", "**/x/*"])
def test_a_loop_of_links_is_refused(tmp_path, pattern):
    """It would have no end; the message says which link."""
    make(tmp_path, "a/b/x.npy")
    (tmp_path / "a" / "b" / "up").symlink_to(tmp_path / "a")

    with pytest.raises(SourceError, match=r"a/b/up: a loop of symbolic links"):
        walked(tmp_path) if pattern is None else matched(tmp_path, pattern)


def test_two_links_to_one_folder_are_no_loop(tmp_path):
    """Only a folder within itself has no end."""
    make(tmp_path, "a/x")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    (tmp_path / "c").symlink_to(tmp_path / "a")

    assert walked(tmp_path) == ["a/x", "b/x", "c/x"]


def maze(root, levels, links=2):
    """Folders of which each has some links to the next: ``links ** levels`` paths."""
    for level in range(levels):
        folder = root / f"level{level:05}"
        folder.mkdir(parents=True)
        for i in range(links):
            (folder / f"to{i}").symlink_to(root / f"level{level + 1:05}")
    (root / f"level{levels:05}").mkdir()
    make(root / f"level{levels:05}", "x.npy")
    return root / "level00000"


def cost(walk):
    """How many folders a search listed before it was refused."""
    listed = []
    with pytest.MonkeyPatch.context() as patch:
        scandir = os.scandir
        patch.setattr(os, "scandir", lambda path: listed.append(path) or scandir(path))
        with pytest.raises(SourceError, match="links lead to the same folders again and again"):
            walk()
    return len(listed)


@pytest.mark.parametrize(
    "pattern", [None, "**/*.npy", "**/x/*.npy", "*/*/*/*/*/*/*/*/*/*/*/*/*/*/*"]
)
def test_links_that_multiply_paths_are_refused(tmp_path, pattern):
    """22 folders with two links each to the next make two million paths."""
    root = maze(tmp_path, 22)

    assert cost(lambda: walked(root) if pattern is None else matched(root, pattern)) < 20_000


def test_the_cost_of_a_maze_grows_with_its_size(tmp_path, monkeypatch):
    """Four times the links, four times the work; there are a million times as many paths."""
    monkeypatch.setattr(listing, "_ALWAYS", 100)
    roots = [maze(tmp_path / str(links), 10, links) for links in (10, 40)]
    small, large = (cost(partial(walked, root)) for root in roots)

    assert large < 6 * small


def test_many_links_to_one_folder_are_a_way_to_weigh_it(tmp_path):
    """Rare samples are drawn more often so; a hundred times is no maze."""
    make(tmp_path, "pool/x", "pool/deep/y")
    (tmp_path / "train").mkdir()
    for i in range(100):
        (tmp_path / "train" / f"{i}").symlink_to(tmp_path / "pool")

    assert len(walked(tmp_path / "train")) == 200


def test_a_link_to_itself_is_left_for_opening(tmp_path):
    """It is listed as a file, so that it is reported together with all other bad ones."""
    (tmp_path / "me").symlink_to(tmp_path / "me")

    assert walked(tmp_path) == ["me"]


@pytest.fixture
def deep(tmp_path):
    """A file in more folders than calls can nest; not even ``rmtree`` could remove them."""
    here = os.open(tmp_path, os.O_RDONLY)
    for _ in range(sys.getrecursionlimit() + 50):
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(os.open("x", os.O_CREAT, dir_fd=here))
    os.close(here)
    yield tmp_path
    subprocess.run(["rm", "-r", os.fspath(tmp_path / "d")], check=True)


def test_folders_nest_deeper_than_calls_do(deep):
    """No RecursionError from a tree that the file system can hold."""
    assert len(listing.walk(os.fsencode(deep)).paths) == 1


def test_names_need_not_be_text(tmp_path):
    """Line breaks, bytes that are no UTF-8, names that differ in case only."""
    names = [b"a\nb", b"\xff\xfe.npy", b"X.npy", b"x.npy", b"\xc3\xa4"]
    make(tmp_path, *names)
    found = [os.path.basename(path) for path in listing.walk(os.fsencode(tmp_path)).paths]

    assert sorted(found) == sorted(names)


def test_a_folder_that_is_not_there(tmp_path):
    """The error is one of ours, and says which folder."""
    with pytest.raises(MissingError, match="none: no such file or folder"):
        walked(tmp_path / "none")


FILES = [
    "a.npy", "b.npy", "b.txt", ".c.npy", "x1/a.npy", "x2/a.npy", "x2/y/a.npy", "x2/y/b.npz",
    "x2/y/x2/a.npy", "z[1]/a.npy", "z1/a.npy",
]  # fmt: skip


@pytest.mark.parametrize(
    "pattern",
    ["*", "*.npy", "?.npy", "[a-b].npy", "[!a].npy", "x*/a.npy", "x?/*", "**/a.npy", "**/*.npy",
     "**", "x2/**", "x2/**/a.npy", "**/y/*", "**/y/**/*.npy", "x[2]/*", "**/x2/**/a.npy",
     "**/**/a.npy", ".*", "none*", "*/none/*.npy", "*/a.npy"],
)  # fmt: skip
def test_patterns_mean_what_glob_means(tmp_path, pattern):
    """Nobody should have to learn another language, and no file may come twice."""
    make(tmp_path, *FILES)
    wanted = {
        path
        for path in glob.glob(pattern, root_dir=tmp_path, recursive=True)
        if os.path.isfile(tmp_path / path)
    }
    found = matched(tmp_path, pattern)

    assert sorted(found) == sorted(wanted)


def test_matches_come_in_natural_order(tmp_path):
    """A pattern gives the order that the folder would."""
    make(tmp_path, "10/x2", "10/x10", "9/x1", "x3")

    assert matched(tmp_path, "**/x*") == ["x3", "9/x1", "10/x2", "10/x10"]
    assert matched(tmp_path, "*/*") == ["9/x1", "10/x2", "10/x10"]


def test_a_folder_may_have_a_name_with_wildcards(tmp_path):
    """What is there is meant as it is spelled; only behind it are wildcards wild."""
    make(tmp_path, "run[1]/a.npy", "run1/b.npy")

    assert matched(tmp_path, "run[1]/*.npy") == ["run[1]/a.npy"]


def test_folders_tell_when_their_names_change(tmp_path):
    """This is how a cached index learns of new and removed files."""
    make(tmp_path, "a/x", "b/y")
    folders = listing.walk(os.fsencode(tmp_path)).folders
    assert folders.unchanged()

    make(tmp_path, "b/z")
    assert not folders.unchanged()


def test_a_folder_that_is_gone_has_changed(tmp_path):
    """Nothing is asked of a folder that is not there."""
    make(tmp_path, "a/x")
    folders = listing.walk(os.fsencode(tmp_path)).folders
    os.rename(tmp_path / "a", tmp_path / "b")

    assert not folders.unchanged()
    assert Folders().unchanged()
    assert Folders().changed_last() == 0
