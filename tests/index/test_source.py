"""Whatever a caller means by a source, it is the files that a person would expect."""

import os
import pathlib

import numpy as np
import pytest
from children import AS_NOBODY, folder_for_all, run

import ndfeed
from ndfeed.index.source import find, spell_source


def save(*paths, value=0):
    """An array of one number in each file."""
    for path in paths:
        path = pathlib.Path(os.fsdecode(path))
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "wb") as file:
            np.save(file, np.full(3, value, "<f4"))


def names(ds, folder):
    """The files of a dataset, relative to a folder."""
    return [os.path.relpath(path, folder) for path in ds.files]


def opened(source, **options):
    return ndfeed.open(source, sample="file", **options)


def test_a_file(tmp_path):
    """By any of the names that Python has for it."""
    path = tmp_path / "x.npy"
    save(path, value=7)

    for source in (str(path), path, os.fsencode(path), [path], (str(path),), np.array([str(path)])):
        assert opened(source)[0]["data"].tolist() == [7, 7, 7]


def test_a_folder_with_all_below_it(tmp_path):
    """In the order of the numbers in their names; hidden files are not data."""
    save(*(tmp_path / name for name in ("x10.npy", "x9.npy", "a/1.npy", ".x.npy", ".a/1.npy")))

    assert names(opened(tmp_path), tmp_path) == ["x9.npy", "x10.npy", "a/1.npy"]
    assert names(opened(f"{tmp_path}/"), tmp_path) == ["x9.npy", "x10.npy", "a/1.npy"]


def test_a_pattern(tmp_path):
    """Also through folders; what it names is taken at its word."""
    save(tmp_path / "a" / "1.npy", tmp_path / "a" / "b" / "2.npy", tmp_path / "c.npy")

    assert names(opened(tmp_path / "**" / "*.npy"), tmp_path) == ["c.npy", "a/1.npy", "a/b/2.npy"]
    assert names(opened(f"{tmp_path}/a/[12].npy"), tmp_path) == ["a/1.npy"]


@pytest.mark.parametrize("name", ["x[1].npy", "x*.npy", "x?.npy", "[!a].npy", "**"])
def test_a_file_whose_name_has_wildcards(tmp_path, name):
    """What is there is meant as it is spelled."""
    save(tmp_path / name, tmp_path / "x1.npy", tmp_path / "xy.npy")

    assert names(opened(tmp_path / name), tmp_path) == [name]


def test_a_list_of_all_of_these(tmp_path):
    """In the caller's order, the same file twice if the caller says so."""
    save(*(tmp_path / name for name in ("d/2.npy", "d/1.npy", "p1.npy", "p2.npy", "x.npy")))
    source = [tmp_path / "x.npy", tmp_path / "p*.npy", str(tmp_path / "d"), tmp_path / "x.npy"]

    assert names(opened(source), tmp_path) == [
        "x.npy", "p1.npy", "p2.npy", "d/1.npy", "d/2.npy", "x.npy",
    ]  # fmt: skip


def test_relative_paths_and_home(tmp_path, monkeypatch):
    """They are made absolute at once: a program may change its folder later."""
    save(tmp_path / "d" / "x.npy")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for source in ("d/x.npy", "./d/../d/x.npy", "~/d/x.npy", "d", ".", "d/*.npy", "~/d/*"):
        ds = opened(source)
        monkeypatch.chdir("/")
        assert ds[0]["data"].tolist() == [0, 0, 0]
        assert list(ds.files) == [str(tmp_path / "d" / "x.npy")]
        monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    "name",
    [b"line\nbreak.npy", b"\xff\xfe.npy", b"\xe2\x82\xac.npy", b" .npy", b"-x.npy", b"a'b.npy"],
)
def test_odd_names(tmp_path, name):
    """A name is bytes; only an error turns it into one line of text."""
    path = os.path.join(os.fsencode(tmp_path), name)
    save(path, value=7)

    for source in (path, os.fsdecode(path), tmp_path, [path]):
        ds = opened(source)
        assert ds[0]["data"].tolist() == [7, 7, 7]
        assert os.fsencode(ds.files[0]) == path
    with open(path, "wb") as file:
        file.write(b"damaged")
    with pytest.raises(ndfeed.FormatError, match=r"^/") as caught:
        opened(path)
    assert str(caught.value).isprintable()
    assert os.fsencode(caught.value.path) == path


def test_names_that_differ_in_case_only(tmp_path):
    """They are two files here, so they are two samples."""
    save(tmp_path / "x.npy", value=1)
    save(tmp_path / "X.npy", value=2)
    if not os.path.samefile(tmp_path / "x.npy", tmp_path / "X.npy"):
        assert sorted(opened(tmp_path)[:]["data"][:, 0].tolist()) == [1, 2]


def test_links_are_followed(tmp_path):
    """To files and to folders."""
    save(tmp_path / "real" / "1.npy", tmp_path / "real" / "2.npy")
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "file.npy").symlink_to(tmp_path / "real" / "1.npy")
    (tmp_path / "d" / "folder").symlink_to(tmp_path / "real")

    assert names(opened(tmp_path / "d"), tmp_path / "d") == [
        "file.npy", "folder/1.npy", "folder/2.npy",
    ]  # fmt: skip


def test_what_else_lies_in_a_folder_is_passed_over(tmp_path):
    """A README, the JSON beside the arrays, a picture, an archive: the table lists them."""
    save(tmp_path / "x.npy", tmp_path / "no_suffix", tmp_path / "other.suffix")
    for name, data in {
        "README.md": b"# Data",
        "x.json": b"{}",
        "empty": b"",
        "notes.zip": b"PK\x03\x04 and more",
        "log.gz": b"\x1f\x8b\x08\x00 and more",
        "weights.bin": b"\0" * 64,
    }.items():
        (tmp_path / name).write_bytes(data)
    ds = opened(tmp_path)
    table = ds.groups[0].table

    assert names(ds, tmp_path) == ["no_suffix", "other.suffix", "x.npy"]
    assert sorted(os.path.basename(path) for path in table.ignored) == [
        "README.md", "empty", "log.gz", "notes.zip", "weights.bin", "x.json",
    ]  # fmt: skip
    assert table.passed_over == 6


@pytest.mark.parametrize("name", ["x.npy", "x.NPY", "x.npz", "x.npy.gz", "x.pt", "x.safetensors"])
@pytest.mark.parametrize("data", [b"", b"damaged, and longer than any magic"])
def test_a_damaged_file_with_a_known_suffix_is_an_error(tmp_path, name, data):
    """Passing it over would train on less than there is."""
    save(tmp_path / "good.npy")
    (tmp_path / name).write_bytes(data)

    with pytest.raises(ndfeed.FormatError, match=f"^{tmp_path}/{name}"):
        opened(tmp_path)


def test_a_damaged_file_without_suffix_that_begins_as_an_array_is_an_error(tmp_path):
    """No other file begins so."""
    save(tmp_path / "x")
    (tmp_path / "y").write_bytes((tmp_path / "x").read_bytes()[:-1])

    with pytest.raises(ndfeed.TruncatedError, match=f"^{tmp_path}/y"):
        opened(tmp_path)


@pytest.mark.parametrize("source", ["README.md", ["README.md"], "*.md", ["d", "README.md"]])
def test_what_is_named_is_never_passed_over(tmp_path, monkeypatch, source):
    """Not even beside a folder in the same list."""
    save(tmp_path / "d" / "x.npy")
    (tmp_path / "README.md").write_bytes(b"# Data, and more of it")
    monkeypatch.chdir(tmp_path)

    with pytest.raises(ndfeed.FormatError, match=r"^/.*README\.md: not a known array format"):
        opened(source)


def test_a_folder_without_arrays(tmp_path):
    """It says what would be read."""
    with pytest.raises(ndfeed.MissingError, match=rf"^{tmp_path}: no array files in this folder; "):
        opened(tmp_path)
    (tmp_path / "README.md").write_bytes(b"# Data")
    with pytest.raises(ndfeed.MissingError, match=rf"^{tmp_path}: no array files in this folder; "):
        opened(tmp_path)


def test_a_pattern_that_names_nothing(tmp_path):
    """Most likely it is misspelled."""
    with pytest.raises(ndfeed.MissingError, match=r"^/.*/\*\.npy: no array files match"):
        opened(tmp_path / "*.npy")
    with pytest.raises(ndfeed.MissingError, match=r"^/.*/none: no such file or folder"):
        opened(tmp_path / "none" / "*.npy")


def test_no_source_at_all(tmp_path):
    """An empty list, an empty path, nothing there."""
    with pytest.raises(ndfeed.MissingError, match="an empty list of files"):
        opened([])
    with pytest.raises(ndfeed.MissingError, match="an empty path"):
        opened("")
    with pytest.raises(FileNotFoundError, match=f"^{tmp_path}/none.npy: no such file or folder"):
        opened(tmp_path / "none.npy")


@pytest.mark.parametrize("source", [5, None, {"a"}, iter(["a"]), ["a", 5], [["a"]], [None]])
def test_what_is_no_source(source):
    """A set has no order, and a generator is gone once it was looked at."""
    with pytest.raises(TypeError, match="a source must be a path or a list of paths, got"):
        spell_source(source)


@pytest.mark.parametrize(
    "url", ["s3://bucket/x.npy", "https://x.org/x.npy", "HTTP://x", "gs://a/*"]
)
def test_urls_are_refused(url):
    """As such, not as files that are not there."""
    with pytest.raises(ndfeed.SourceError, match=r"URLs are not supported; copy the files"):
        opened(url)


def test_a_pipe_in_a_folder_is_seen_at_once(tmp_path):
    """Opening one must not wait for somebody to write to it; only its name can make it data."""
    save(tmp_path / "x.npy")
    os.mkfifo(tmp_path / "pipe")
    assert opened(tmp_path).groups[0].table.ignored == (f"{tmp_path}/pipe",)
    os.mkfifo(tmp_path / "pipe.npy")

    with pytest.raises(ndfeed.SourceError, match=r"pipe\.npy: expected a regular file"):
        opened(tmp_path)


def test_links_that_lead_nowhere_are_errors(tmp_path):
    """Each is named, together with the other, if its name is that of an array file."""
    save(tmp_path / "x.npy")
    for name in ("README", "dangling.npy"):
        (tmp_path / name).symlink_to(tmp_path / "none")
    (tmp_path / "self.npy").symlink_to(tmp_path / "self.npy")

    with pytest.raises(ndfeed.BadFilesError) as caught:
        opened(tmp_path)
    first, second, count = str(caught.value).splitlines()
    assert first.startswith(f"{tmp_path}/dangling.npy: no such file or folder")
    assert second.startswith(f"{tmp_path}/self.npy: a loop of symbolic links")
    assert count == "2 of 4 files cannot be used"


def test_a_folder_that_may_not_be_read():
    """It is said which, not passed over."""
    code = """
try:
    ndfeed.open(args[0], sample="file", cache=False)
except PermissionError as error:
    print(error)
"""
    with folder_for_all() as folder:
        save(folder / "a.npy", folder / "d" / "b.npy")
        (folder / "a.npy").chmod(0o644)
        (folder / "d").chmod(0)
        said = run(AS_NOBODY + code, folder)
        (folder / "d").chmod(0o755)

    assert said.startswith(f"{folder}/d: permission denied; make the file readable for this user")


def test_a_long_list_is_of_files(tmp_path, monkeypatch):
    """Asking each whether it is a folder would cost as much as the cache saves."""
    monkeypatch.setattr("ndfeed.index.source.MANY", 2)
    save(tmp_path / "d" / "x.npy", tmp_path / "y.npy")
    source = [tmp_path / "y.npy", tmp_path / "d", tmp_path / "y.npy"]

    with pytest.raises(ndfeed.SourceError, match=f"^{tmp_path}/d: expected a regular file"):
        opened(source)
    assert len(find(spell_source([tmp_path / "*.npy", *source[::2]])).paths) == 3
