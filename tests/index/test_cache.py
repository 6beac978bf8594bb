"""A kept index is used while it holds, renewed where it does not, and never believed blindly."""

import errno
import os
import pickle
import shutil
import subprocess
import tempfile
import time
import warnings

import numpy as np
import pytest
from audit import opened_in
from children import AS_NOBODY, examples, finish, folder_for_all, processes_at_work, run, start
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from index.forging import signed, with_columns
from index.lists import same

import ndfeed
from ndfeed.files import cache_files, platform_calls, process_server, processes
from ndfeed.files.listing import Folders
from ndfeed.index import cache, codec, validate
from ndfeed.index.open import open_table
from ndfeed.index.source import spell_source
from ndfeed.index.table import subset

COUNT = 12


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """A cache that no other test has."""
    monkeypatch.setenv("XDG_CACHE_HOME", os.fspath(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path):
    """Some files, older than any tick."""
    folder = tmp_path / "data"
    folder.mkdir()
    for i in range(COUNT):
        save(folder / f"{i}.npy", i)
    settle()
    return folder


def save(path, value, count=3):
    with open(path, "wb") as file:
        np.save(file, np.full(count, value, "<f4"))


def settle():
    """Wait until what was written is older than the index about to be built."""
    time.sleep(cache._TICK / 1e9 + 0.02)


def values(source, **options):
    """The number in each file, as read through the index."""
    ds = ndfeed.open(source, sample="file", **options)
    return [int(sample["data"][0]) for sample in ds]


def kept(tmp_path):
    """The cache's files."""
    index = tmp_path / "cache" / "ndfeed" / "index"
    return [index / name for name in sorted(os.listdir(index))] if index.exists() else []


def described(source):
    """Names of the files that opening ``source`` opens."""
    with opened_in(source) as names:
        open_table(source)
    return sorted(names)


def test_the_second_time_no_file_is_opened(tmp_path, folder):
    """Instant, however many there are: the interpreter itself reports every file opened."""
    assert described(folder) == sorted(f"{i}.npy" for i in range(COUNT))
    assert len(kept(tmp_path)) == 1

    assert described(folder) == []
    assert values(folder) == list(range(COUNT))


def test_the_cache_can_be_switched_off(tmp_path, folder):
    """Neither used nor kept."""
    assert values(folder, cache=False) == list(range(COUNT))

    assert kept(tmp_path) == []


def test_a_small_source_is_not_worth_keeping(tmp_path, folder):
    """One file is described as fast as its cache would be read."""
    assert values(folder / "3.npy") == [3]

    assert kept(tmp_path) == []


def test_only_changed_files_are_described_again(folder):
    """One file of a million costs one file."""
    open_table(folder)
    save(folder / "3.npy", 33, count=5)
    settle()

    assert described(folder) == ["3.npy"]
    assert described(folder) == []
    assert values(folder)[3] == 33


def test_new_removed_and_renamed_files_are_noticed(folder):
    """In folders below as well; and only what is new is described."""
    open_table(folder)
    save(folder / "12.npy", 12)
    (folder / "5.npy").unlink()
    (folder / "7.npy").rename(folder / "70.npy")
    (folder / "sub").mkdir()
    save(folder / "sub" / "1.npy", 100)
    settle()
    assert described(folder) == ["12.npy", "70.npy", "sub/1.npy"]
    assert values(folder) == [0, 1, 2, 3, 4, 6, 8, 9, 10, 11, 12, 7, 100]

    save(folder / "sub" / "2.npy", 200)
    settle()
    assert described(folder) == ["sub/2.npy"]


@pytest.mark.parametrize("keep_time", [False, True])
def test_a_file_rewritten_with_the_same_size_is_noticed(folder, keep_time):
    """Even if its mtime is set back: the ctime cannot be."""
    save(folder / "3.npy", 3, count=4)
    settle()
    open_table(folder)
    before = (folder / "3.npy").stat()
    with open(folder / "3.npy", "r+b") as file:
        np.save(file, np.full((2, 2), 33, "<f4"))
    if keep_time:
        os.utime(folder / "3.npy", ns=(before.st_atime_ns, before.st_mtime_ns))
    after = (folder / "3.npy").stat()
    assert after.st_size == before.st_size
    assert (after.st_mtime_ns == before.st_mtime_ns) == keep_time

    assert ndfeed.open(folder, sample="file")[3]["data"].shape == (2, 2)


def test_a_file_in_the_place_of_another_is_noticed(folder, tmp_path):
    """The same name, size and mtime, but another inode."""
    open_table(folder)
    before = (folder / "3.npy").stat()
    save(tmp_path / "new", 33)
    os.utime(tmp_path / "new", ns=(before.st_atime_ns, before.st_mtime_ns))
    os.replace(tmp_path / "new", folder / "3.npy")

    assert values(folder)[3] == 33


def test_a_file_as_young_as_the_index_is_not_believed(folder):
    """It may be written again within the same tick of the clock, and show no other time."""
    save(folder / "3.npy", 3)
    open_table(folder)
    settle()

    assert described(folder) == ["3.npy"]
    assert described(folder) == []


def test_a_clock_that_counts_seconds_is_given_more_time(folder):
    """Some file systems know no shorter ticks: then a second means the next one too."""
    second = int(time.time()) - 1
    os.utime(folder / "3.npy", ns=(0, second * 10**9))
    whole = np.array([second * 10**9, second * 10**9 + 1])

    assert cache._racy(whole, second * 10**9 + 10**9).tolist() == [True, False]


def test_a_folder_as_young_as_the_index_is_not_believed(folder):
    """A file may come into it within the same tick of the clock."""
    save(folder / "12.npy", 12)
    before = folder.stat()
    assert len(values(folder)) == 13
    save(folder / "13.npy", 13)
    os.utime(folder, ns=(before.st_atime_ns, before.st_mtime_ns))

    assert values(folder) == list(range(14))


def test_a_raw_file_described_by_another_is_described_again(folder, tmp_path):
    """The JSON beside it may have changed alone."""
    raw = tmp_path / "raw"
    raw.mkdir()
    for i in range(3):
        np.arange(8, dtype="<i2").tofile(raw / f"{i}.bin")
        (raw / f"{i}.bin.json").write_text('{"dtype": "<i2"}')
    settle()
    assert ndfeed.open(raw)[4]["data"] == 4
    for i in range(3):
        (raw / f"{i}.bin.json").write_text('{"dtype": "<i4"}')
    settle()

    assert ndfeed.open(raw).fields["data"].dtype == np.int32


def test_a_raw_file_described_by_the_caller_is_believed(tmp_path):
    """And not mistaken for one that was described otherwise."""
    raw = tmp_path / "raw"
    raw.mkdir()
    for i in range(3):
        np.arange(8, dtype="<i2").tofile(raw / f"{i}.bin")
    settle()
    ndfeed.open(raw, dtype="<i2")
    with opened_in(raw) as names:
        assert ndfeed.open(raw, dtype="<i2").fields["data"].dtype == np.int16

    assert list(names) == []
    assert ndfeed.open(raw, dtype="<i4").fields["data"].dtype == np.int32


def test_the_same_file_twice_in_a_list(folder):
    """Changed once, it is changed twice."""
    source = [folder / "1.npy", folder / "2.npy", folder / "1.npy"]
    assert values(source) == [1, 2, 1]
    save(folder / "1.npy", 11)
    settle()

    assert values(source) == [11, 2, 11]


def test_a_renewed_index_is_the_same_as_a_new_one(folder):
    """Else the same data would have two fingerprints, and a run would not resume."""
    open_table(folder)
    np.savez(folder / "1.npz", a=np.zeros((2, 5)), b=np.zeros(3, ">f8"))
    save(folder / "3.npy", 33, count=(7, 2, 2))
    (folder / "README").write_text("no array")
    (folder / "0.npy").unlink()
    settle()
    renewed = open_table(folder).table

    assert same(
        open_table(folder, cached=False).table,
        codec.decode(b"".join(codec.encode(renewed)), checked=True)[0],
    )


class Changes(RuleBasedStateMachine):
    """Whatever happens to a folder between two openings, the index shows the folder."""

    names = st.sampled_from(["1", "2", "3", "d/1", "d/2"])

    @initialize()
    def begin(self):
        self.root = tempfile.mkdtemp()
        self.patch = pytest.MonkeyPatch()
        self.patch.setenv("XDG_CACHE_HOME", os.path.join(self.root, "cache"))
        self.data = os.path.join(self.root, "data")
        os.makedirs(os.path.join(self.data, "d"))
        self.model = {}
        self.version = 0
        self.write("1")

    @rule(name=names)
    def write(self, name):
        self.version += 1
        self.model[name] = self.version
        save(os.path.join(self.data, f"{name}.npy"), self.version)

    @rule(name=names)
    def write_and_keep_the_time(self, name):
        path = os.path.join(self.data, f"{name}.npy")
        if name in self.model:
            before = os.stat(path)
            self.write(name)
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    @rule(name=names, other=names)
    def rename(self, name, other):
        if name in self.model and name != other:
            self.model[other] = self.model.pop(name)
            os.replace(
                os.path.join(self.data, f"{name}.npy"), os.path.join(self.data, f"{other}.npy")
            )

    @rule(name=names)
    def remove(self, name):
        if name in self.model and len(self.model) > 1:
            del self.model[name]
            os.unlink(os.path.join(self.data, f"{name}.npy"))

    @rule()
    def wait(self):
        settle()

    @invariant()
    def the_index_shows_the_folder(self):
        if getattr(self, "model", None):
            found = ndfeed.open(self.data, sample="file")
            names = [os.path.relpath(path, self.data).removesuffix(".npy") for path in found.files]
            assert dict(zip(names, [int(s["data"][0]) for s in found], strict=True)) == self.model

    def teardown(self):
        if hasattr(self, "patch"):
            self.patch.undo()
            shutil.rmtree(self.root)


TestChanges = Changes.TestCase
TestChanges.settings = settings(max_examples=examples(15), stateful_step_count=12, deadline=None)


class TestManyFiles:
    """Beyond a limit only some files are asked at once; the others when they are read."""

    @pytest.fixture(autouse=True)
    def few(self, monkeypatch):
        monkeypatch.setattr(cache, "CHECKED", 4)

    def test_files_that_were_just_written_need_no_second_look(self, tmp_path):
        """Whoever makes a million files and opens them waits for a moment once, not twice."""
        folder = tmp_path / "data"
        for i in range(COUNT):
            (folder / f"{i % 3}").mkdir(parents=True, exist_ok=True)
            save(folder / f"{i % 3}" / f"{i}.npy", i)
        assert len(described(folder)) == COUNT
        (written,) = kept(tmp_path)
        before = os.stat(written)

        assert described(folder) == []
        after = os.stat(written)  # another one if all files were checked
        assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)

    def test_processes_check_very_many_files(self, tmp_path, monkeypatch):
        """The same answer for each, in their order."""
        if process_server.why_not():
            pytest.skip("needs fork")
        monkeypatch.setattr(platform_calls, "cores", lambda: 3)
        monkeypatch.setattr(processes, "WORTH_IT", -1)
        names = ["a.npy", "b.npy", "c.npy"]
        for name in names:
            save(tmp_path / name, 1)
        settle()
        few = open_table([tmp_path / name for name in names]).table
        table = subset([few], np.arange(400_000) % 3)
        save(tmp_path / "b.npy", 2)
        (tmp_path / "c.npy").unlink()
        with processes_at_work():
            found = cache.changed_files(cache.Kept(table, cache.now(), Folders()), None)

        assert (found == (np.arange(400_000) % 3 > 0)).all()

    def test_names_that_appear_during_the_wait_are_not_missed(self, folder, monkeypatch):
        """Even where the folder has the same time as before."""
        save(folder / "new.npy", 1)
        before, sleep = os.stat(folder), time.sleep

        def change(seconds):
            sleep(seconds)
            save(folder / "late.npy", 2)
            os.utime(folder, ns=(before.st_atime_ns, before.st_mtime_ns))

        with monkeypatch.context() as patch:
            patch.setattr(cache.time, "sleep", change)
            assert len(open_table(folder).table.identity) == COUNT + 1

        assert len(open_table(folder).table.identity) == COUNT + 2

    def test_a_change_shows_when_the_file_is_read(self, folder):
        """And then the next to open the folder is told."""
        open_table(folder)
        save(folder / "4.npy", 44)
        settle()
        ds = ndfeed.open(folder, sample="file")
        assert ds[3]["data"][0] == 3
        with pytest.raises(ndfeed.ChangedError, match=r"4\.npy: changed since it was indexed"):
            ds.read([3, 4])

        assert described(folder) == ["4.npy"]
        assert values(folder)[4] == 44

    @pytest.mark.parametrize("mapped", [True, False])
    def test_rows_show_it_as_well(self, folder, mapped):
        """Whichever way they are read."""
        open_table(folder)
        save(folder / "4.npy", 44, count=30)
        settle()
        ds = ndfeed.open(folder, sample="row", mapped=mapped)
        with pytest.raises(ndfeed.ChangedError, match=r"4\.npy: changed since it was indexed"):
            ds[:]

        assert len(ndfeed.open(folder, sample="row", mapped=mapped)) == 3 * COUNT + 27

    def test_so_does_a_worker(self, folder):
        """The process that notices is not the one that opened."""
        open_table(folder)
        save(folder / "4.npy", 44)
        settle()
        ds = pickle.loads(pickle.dumps(ndfeed.open(folder, sample="file")))
        with pytest.raises(ndfeed.ChangedError, match=r"4\.npy"):
            ds[:]

        assert values(folder)[4] == 44

    def test_a_file_of_a_list_that_is_gone(self, folder):
        """No folder tells of it; it is missing when it is read, and when it is opened again."""
        source = [folder / f"{i}.npy" for i in range(COUNT)]
        open_table(source)
        (folder / "4.npy").unlink()
        ds = ndfeed.open(source, sample="file")
        with pytest.raises(ndfeed.MissingError, match=r"4\.npy: no such file"):
            ds[:]

        with pytest.raises(ndfeed.MissingError, match=r"4\.npy: no such file"):
            ndfeed.open(source, sample="file")

    def test_one_that_was_asked_is_noticed_at_once(self, folder):
        """The sample is even: the first is always in it."""
        open_table(folder)
        save(folder / "0.npy", 44)
        settle()

        assert values(folder)[0] == 44


def warned(folder, count=COUNT):
    """The warnings that opening ``folder`` gives; it must give the right data."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        assert values(folder) == list(range(count))
    return [str(one.message) for one in found if one.category is RuntimeWarning]


def test_every_damaged_byte_of_a_cache_is_noticed(tmp_path, folder):
    """One warning, the right data, and a sound cache afterwards."""
    source = [folder / "1.npy", folder / "2.npy"]
    open_table(source)
    (path,) = kept(tmp_path)
    sound = path.read_bytes()
    for at in range(len(sound)):
        damaged = bytearray(sound)
        damaged[at] ^= 1 << (at % 8)
        path.write_bytes(damaged)
        with pytest.warns(RuntimeWarning, match="cannot be used and is built again") as found:
            assert open_table(source).table.files == 2
        assert len(found) == 1
    assert described(folder) != []
    assert described(folder) == []


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:-1],
        lambda data: data[: len(data) // 2],
        lambda data: data[:20],
        lambda data: data + b"\0",
        lambda data: b"not an index at all",
        lambda data: os.urandom(4096),
        lambda data: data[:12] + b"\1" + data[13:],
    ],
    ids=["empty", "short", "half", "no header", "long", "text", "noise", "version"],
)
def test_a_damaged_cache_is_built_again(tmp_path, folder, damage):
    """With one warning that says which file."""
    values(folder)
    (path,) = kept(tmp_path)
    path.write_bytes(damage(path.read_bytes()))
    (message,) = warned(folder)

    assert str(path) in message
    assert warned(folder) == []


def test_a_cache_that_is_no_file(tmp_path, folder):
    """A folder in its place can be neither read nor replaced, and harms nobody."""
    values(folder)
    (path,) = kept(tmp_path)
    path.unlink()
    path.mkdir()

    assert any("cannot be used" in message for message in warned(folder))


def test_nothing_in_a_cache_is_run(tmp_path, folder):
    """A pickle in its place is noise like any other."""

    class Evil:
        def __reduce__(self):
            return os.mkdir, (os.fspath(tmp_path / "ran"),)

    values(folder)
    (path,) = kept(tmp_path)
    path.write_bytes(pickle.dumps(Evil()))

    assert len(warned(folder)) == 1
    assert not (tmp_path / "ran").exists()


def test_a_cache_folder_that_is_a_file(tmp_path, folder):
    """One warning, and it says what to do."""
    (tmp_path / "cache").write_text("no folder")
    (message,) = warned(folder)

    assert "the index cannot be cached" in message
    assert "XDG_CACHE_HOME" in message


def test_a_cache_folder_that_cannot_be_written():
    """As where the home of a service is read-only."""
    code = """
import warnings
os.environ["XDG_CACHE_HOME"] = os.path.join(args[0], "cache")
with warnings.catch_warnings(record=True) as found:
    warnings.simplefilter("always")
    ds = ndfeed.open(os.path.join(args[0], "data"), sample="file")
    assert ds[:]["data"][:, 0].tolist() == [0, 1, 2]
print(len(found), found[0].category.__name__, found[0].message)
"""
    with folder_for_all() as root:
        (root / "cache").mkdir(mode=0o555)
        (root / "data").mkdir(mode=0o755)
        for i in range(3):
            save(root / "data" / f"{i}.npy", i)
            (root / "data" / f"{i}.npy").chmod(0o644)
        said = run(AS_NOBODY + code, root)

    assert said.startswith("1 RuntimeWarning the index cannot be cached: P")


@pytest.fixture
def small_disk(tmp_path):
    """A disk of one page."""
    mount = tmp_path / "small"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", os.fspath(mount)]
    if os.geteuid() or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("only root can mount a small disk")
    yield mount
    subprocess.run(["umount", os.fspath(mount)], check=True)


def test_a_full_disk(folder, small_disk, monkeypatch):
    """Full halfway through: one warning, and nothing is left of the attempt."""
    monkeypatch.setenv("XDG_CACHE_HOME", os.fspath(small_disk))
    for i in range(COUNT, 60):
        save(folder / f"{i}.npy", i)
    (message,) = warned(folder, 60)

    assert os.strerror(errno.ENOSPC) in message
    assert [name for _, _, names in os.walk(small_disk) for name in names] == []


WRITER = """
for i in range(40):
    ds = ndfeed.open(args[0], sample="file")
    assert ds[:]["data"][:, 0].tolist() == list(range(len(ds))), i
    if i % 3 == int(args[1]) % 3:
        os.utime(args[2], ns=(0, 0))  # in doubt: it is written again
"""


def test_processes_that_write_at_once(tmp_path, folder):
    """Every rank of a run opens the same folder at the same moment."""
    values(folder)
    (index,) = kept(tmp_path)
    children = [start(WRITER, folder, str(i), index) for i in range(4)]
    for child in children:
        finish(child)

    assert kept(tmp_path) == [index]
    assert described(folder) == []
    assert values(folder) == list(range(COUNT))


def test_only_so_many_are_kept(tmp_path, folder, monkeypatch):
    """A cache that only grows fills the disk in the end."""
    monkeypatch.setattr(cache, "_KEPT", 3)
    for i in range(COUNT - 1):
        open_table([folder / f"{i}.npy", folder / f"{i + 1}.npy"])

    assert len(kept(tmp_path)) == 3
    last = [folder / f"{COUNT - 2}.npy", folder / f"{COUNT - 1}.npy"]
    with opened_in(folder) as names:
        open_table(last)
    assert list(names) == []


def test_the_cache_is_where_the_environment_says(tmp_path, folder, monkeypatch):
    """Asked at every opening: nothing is remembered from the import."""
    open_table(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", os.fspath(tmp_path / "other"))
    open_table(folder)

    assert len(kept(tmp_path)) == 1
    assert len(os.listdir(tmp_path / "other" / "ndfeed" / "index")) == 1
    assert cache_files.cache_folder() == os.fsencode(tmp_path / "other" / "ndfeed")


def forge(tmp_path, **columns):
    """Put other columns into the only cache, and sign it as this user."""
    (path,) = kept(tmp_path)
    path.write_bytes(signed(path, with_columns(path.read_bytes(), **columns)))


def put(at, value):
    """A change of a column: one number of it."""

    def change(column):
        column.reshape(-1)[at] = value

    return change


def cut(column):
    return column[:-1]


FORGERIES = {
    "a dtype that divides by zero": {"dtypes": lambda _: ("M8[s/0]",)},
    "a dtype by another name": {"dtypes": lambda _: ("float32",)},
    "a dtype of objects": {"dtypes": lambda _: ("|O",)},
    "a dtype that is wider": {"dtypes": lambda _: ("<f8",)},
    "an offset before the file": {"offset": put(3, -4096)},
    "an offset behind the file": {"offset": put(3, 1 << 40)},
    "an offset that overflows": {"offset": put(3, (1 << 63) - 1)},
    "a skip below zero": {"skip": put(3, -1)},
    "a skip behind the end": {"skip": put(3, 1 << 62)},
    "a length beyond the file": {"length": put(3, 1 << 20)},
    "a length below zero": {"length": put(3, -1)},
    "a decoded length of raw bytes": {"decoded": put(3, 12)},
    "a decoded length below zero": {"decoded": put(3, -1)},
    "bytes skipped beyond the stream": {"skip": put(3, 1 << 10)},
    "an unknown coding": {"coding": put(3, 200)},
    "a coding that needs a checksum": {"coding": put(3, 1)},
    "a number in the index, with an axis": {"coding": put(3, 3)},
    "text of another length": {"coding": put(3, 4)},
    "a checksum of more bits": {"crc": put(3, 1 << 40)},
    "a file that is not there": {"file": put(11, 12)},
    "a file below zero": {"file": put(0, -1)},
    "files out of order": {"file": put(3, 9)},
    "a name that is not there": {"name": put(3, 1)},
    "a name below zero": {"name": put(3, -1)},
    "a name that nobody has": {"names": lambda old: (*old, "more")},
    "a dtype that is not there": {"dtype": put(3, 7)},
    "a shape that is not there": {"shape": put(3, 7)},
    "strides below none": {"strides": put(3, -2)},
    "strides of another rank": {"dims": lambda _: np.array([[1, 3, 0], [2, 1, 1]]),
                                "strides": put(3, 1)},
    "strides beyond the end": {"dims": lambda _: np.array([[1, 3], [1, 1 << 40]]),
                               "strides": put(3, 1)},
    "strides that overflow": {"dims": lambda _: np.array([[1, 3], [1, (1 << 63) - 1]]),
                              "strides": put(3, 1)},
    "a length that overflows": {"dims": put(1, (1 << 63) - 1)},
    "lengths that overflow": {"dims": lambda _: np.array([[2, 1 << 32, 1 << 32]])},
    "an empty shape that overflows": {"dims": lambda _: np.array([[3, 0, 1 << 32, 1 << 32]])},
    "more rows than there are": {"dims": put(1, 4)},
    "a length below zero in a shape": {"dims": put(1, -3)},
    "a length beyond the rank": {"dims": lambda _: np.array([[1, 3, 5]])},
    "a rank beyond all bounds": {"dims": lambda _: np.array([[70, *[1] * 70]])},
    "a rank beyond the row": {"dims": put(0, 2)},
    "a rank below zero": {"dims": put(0, -1)},
    "paths that overlap": {"path_ends": put(3, 5)},
    "paths that end elsewhere": {"path_ends": put(12, 1000)},
    "paths before the beginning": {"path_ends": put(0, -1)},
    "a path with a zero": {"path_bytes": put(3, 0)},
    "another folder": {"base": lambda _: b"/etc/"},
    "a folder above": {"base": lambda old: old + b"../"},
    "a path that leads upwards": {"path_bytes": lambda old: np.concatenate([
        np.frombuffer(b"../x/0.npy", np.uint8), old[5:]]),
        "path_ends": lambda old: np.concatenate([[0], old[1:] + 5])},
    "a size below zero": {"identity": put(2, -1)},
    "an unknown format": {"format": put(3, 7)},
    "formats by other names": {"formats": lambda old: old[::-1]},
    "too few formats": {"format": cut},
    "too few files": {"identity": cut},
    "too few offsets": {"offset": cut},
    "no files": {"identity": lambda old: old[:0], "format": lambda old: old[:0],
                 "path_ends": lambda old: old[:1], "path_bytes": lambda old: old[:0],
                 **{name: lambda old: old[:0] for name in (
                     "file", "name", "dtype", "shape", "strides", "offset", "length", "skip",
                     "decoded", "crc", "coding")}, "names": lambda _: (), "dtypes": lambda _: ()},
    "a remark on no file": {"notes": lambda _: ((12, "x"),), "remarked": lambda _: 1},
    "a remark that paints the terminal": {"notes": lambda _: ((1, "\x1b[31m"),),
                                          "remarked": lambda _: 1},
    "a digest of a packed dataset": {"digest": lambda _: "0" * 64},
}  # fmt: skip


@pytest.mark.parametrize("few", [0, 32], ids=["by NumPy", "in lists"])
@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_signed_cache_is_still_checked(tmp_path, folder, monkeypatch, forgery, few):
    """Number by number: no process dies of it, and no byte comes from outside the files.

    Small tables and large ones are checked in different ways.
    """
    monkeypatch.setattr(validate, "_FEW", few)
    values(folder)
    forge(tmp_path, **FORGERIES[forgery])
    (message,) = warned(folder)

    assert "cannot be used and is built again" in message
    assert warned(folder) == []


def test_a_forged_dtype_does_not_end_the_process(tmp_path, folder):
    """NumPy divides by the zero in it, and that is a signal and no exception."""
    values(folder)
    forge(tmp_path, dtypes=lambda _: ("M8[s/0]",))
    code = """
    import warnings
    warnings.simplefilter("ignore")
    print(len(ndfeed.open(args[0], sample="file")))
    """

    assert run(code, folder).strip() == str(COUNT)


def test_bytes_kept_as_text_may_be_shorter_than_a_cache_says(tmp_path):
    """How long they are, only reading them tells: then it is one of our errors."""
    torch = pytest.importorskip("torch")
    folder = tmp_path / "data"
    folder.mkdir()
    for i in range(3):
        torch.save({"x": np.arange(i, 200 + i, dtype=np.uint8)}, folder / f"{i}.pt")
    settle()
    assert ndfeed.open(folder, sample="file")[1]["x"].tolist() == list(range(1, 201))
    forge(tmp_path, length=lambda old: old - 2)

    with pytest.raises(ndfeed.FormatError, match=r"1\.pt at byte .*: bytes kept as text"):
        ndfeed.open(folder, sample="file")[1]


def test_a_cache_of_another_source_is_not_believed(tmp_path, folder):
    """Renamed by somebody who may: its signature is over its name too."""
    other = tmp_path / "other"
    other.mkdir()
    for i in range(COUNT):
        save(other / f"{i}.npy", 100 + i)
    settle()
    values(folder)
    (mine,) = kept(tmp_path)
    values(other)
    (theirs,) = set(kept(tmp_path)) - {mine}
    mine.write_bytes(theirs.read_bytes())

    assert len(warned(folder)) == 1
    assert warned(folder) == []


@pytest.mark.parametrize("kind", ["folder", "pattern", "list", "mixed"])
def test_a_signed_cache_leads_only_where_its_source_does(tmp_path, folder, kind):
    """Even under its own name: the paths must be such as the source names."""
    other = tmp_path / "other"
    other.mkdir()
    save(other / "0.npy", 666)
    inner = folder / "inner"
    inner.mkdir()
    (folder / "0.npy").rename(inner / "0.npy")
    settle()
    source = {
        "folder": inner,
        "pattern": os.path.join(inner, "*.npy"),
        "list": [inner / "0.npy", folder / "1.npy"],
        "mixed": [inner, folder / "1.npy"],
    }[kind]
    spellings = spell_source(source)
    table = open_table(source, cached=False).table
    path = cache.place(spellings, None)
    there = open_table([other / "0.npy", folder / "1.npy"][: table.files], cached=False).table

    cache.save(path, cache.Kept(table, cache.now(), Folders()))
    assert cache.load(path, spellings) is not None
    cache.save(path, cache.Kept(there, cache.now(), Folders()))
    with pytest.warns(RuntimeWarning, match="the source does not lead to"):
        assert cache.load(path, spellings) is None


def test_an_index_folder_that_is_a_link(tmp_path, folder):
    """What it leads to is somebody's data: neither read nor pruned nor written to."""
    precious = tmp_path / "precious"
    precious.mkdir(mode=0o700)
    names = [f"{i:032x}" for i in range(300)]
    for name in names:
        (precious / name).write_text("precious")
    (tmp_path / "cache" / "ndfeed").mkdir(parents=True)
    (tmp_path / "cache" / "ndfeed" / "index").symlink_to(precious)
    (message,) = warned(folder)

    assert "the index cannot be cached" in message
    assert sorted(os.listdir(precious)) == names


@pytest.mark.parametrize("what", ["file", "folder"])
def test_a_cache_that_others_may_write_to_is_not_believed(tmp_path, folder, what):
    """A planted one would redirect every read."""
    values(folder)
    (path,) = kept(tmp_path)
    place = path if what == "file" else path.parent
    place.chmod(0o666 if what == "file" else 0o777)
    (message,) = warned(folder)

    assert "nobody else can write to" in message
    assert len(warned(folder)) == (0 if what == "file" else 1)  # a file is written anew


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_cache_that_another_user_planted_is_not_believed(tmp_path, folder):
    """In a folder that several users share, or that was theirs before."""
    values(folder)
    (path,) = kept(tmp_path)
    forged = with_columns(path.read_bytes(), base=lambda _: b"/elsewhere/")
    path.write_bytes(signed(path, forged))
    os.chown(path, 65534, 65534)
    (message,) = warned(folder)

    assert "belongs to this user" in message
    assert warned(folder) == []


def test_caches_signed_with_a_lost_key_are_built_again(tmp_path, folder):
    """Whoever removes the key, or copies the folder without it, loses nothing else."""
    values(folder)
    (tmp_path / "cache" / "ndfeed" / "private" / "key").unlink()

    assert len(warned(folder)) == 1
    assert warned(folder) == []
