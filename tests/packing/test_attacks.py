"""Nothing outside the dataset is written or removed, whatever somebody has put in the way.

In each test a folder ``precious`` stands for whatever else the user has. Links to it, hard links
to what is in it and folders that look like ours are put wherever packing writes or removes.
"""

import os
import shutil
import stat
import subprocess
import sys
from itertools import count

import numpy as np
import pytest
from faults.seam import BROKEN, system, tree
from packing import making
from packing.attacking import IN_THE_WAY, NAMES, damaged, everything, replaced, two
from packing.making import same

import ndfeed
from ndfeed.cli import chart
from ndfeed.files import cache_files
from ndfeed.files.platform_calls import can

pytestmark = pytest.mark.skipif(os.name == "nt", reason="links take privileges there")
root = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root may give files away"
)


@pytest.fixture(params=[True, False], ids=["by descriptor", "by path"])
def place(request, tmp_path, monkeypatch):
    """A folder with something precious in it, and the ways that platforms have."""
    monkeypatch.setattr(can, "beneath", request.param)
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious/notes").write_bytes(b"years of work")
    (tmp_path / "precious/data.npy").write_bytes(b"other years of work")
    yield tmp_path
    found = {path.name: path.read_bytes() for path in (tmp_path / "precious").iterdir()}
    assert found == {"notes": b"years of work", "data.npy": b"other years of work"}


def attempted(*args, **options):
    """What packing gives, and the error that it raises instead."""
    try:
        return ndfeed.pack(*args, **options), None
    except ndfeed.Error as error:
        return None, error


@pytest.mark.parametrize("what", IN_THE_WAY)
def test_whatever_is_where_a_part_is_to_go_is_left_alone(place, what):
    """A folder that no manifest speaks of is somebody's, unless our own notes say otherwise."""
    expected = two(place)
    IN_THE_WAY[what](place / "packed/00001", place / "precious")
    before = everything(place)
    for options in ({}, {"dry_run": True}):
        with pytest.raises(ndfeed.ConflictError, match="not made by ndfeed") as caught:
            ndfeed.pack(place / "b.npy", place / "packed", append=True, **options)
        assert caught.value.path == str(place / "packed/00001")
        assert everything(place) == before
    os.rename(place / "packed/00001", place / "elsewhere")
    found = ndfeed.pack(place / "b.npy", place / "packed", append=True)

    np.testing.assert_array_equal(found[:]["data"], expected)


def test_the_command_says_so_in_one_line(place):
    """With exit status 1, and what to do."""
    two(place)
    (place / "packed/00001").symlink_to(place / "precious")
    command = [sys.executable, "-m", "ndfeed", "pack", "b.npy", "packed/", "--append"]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True)

    assert done.returncode == 1
    assert "packed/00001: exists where the new part would be written" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("append", [False, True])
@pytest.mark.parametrize("what", IN_THE_WAY)
@pytest.mark.parametrize("name", NAMES)
def test_what_only_looks_like_a_folder_of_work(place, name, what, append):
    """Nobody but us can name one: it is not gone on with, not written to, not removed."""
    expected = two(place)
    if not append:
        shutil.rmtree(place / "packed")
    IN_THE_WAY[what](place / name, place / "precious")
    before = everything(place)
    source = "b.npy" if append else "a.npy"
    with pytest.warns(UserWarning, match="looks like an unfinished pack that .* is ignored"):
        found = ndfeed.pack(place / source, place / "packed", append=append)

    np.testing.assert_array_equal(found[:]["data"], expected[: len(found)])
    assert before.items() - everything(place).items() <= {
        ("packed/ndfeed.json", before.get("packed/ndfeed.json"))
    }


def test_a_prepared_folder_is_not_gone_on_with(place):
    """As it would come with a download: ours by name and content, from another place or user."""
    ds = making.npz_of_rows(place / "source", files=8, rows=100)
    journal, _ = making.interrupted(ds, place / "packed")
    (place / "download").mkdir()
    prepared = place / "download" / journal.parent.name
    shutil.copytree(journal.parent, prepared)
    for column in prepared.glob("data/*/*.npy"):
        column.write_bytes(b"attack" * 1000)
    (prepared / "data/00000/label.npy").unlink()
    (prepared / "data/00000/label.npy").symlink_to(place / "precious/notes")
    before = everything(prepared)
    with pytest.warns(UserWarning, match="is ignored"):
        packed = ndfeed.pack(ds, place / "download/packed", **making.PIECES)

    assert same(packed, ds)
    assert everything(prepared) == before
    with pytest.raises(ndfeed.MissingError, match="not made here by this user"):
        ndfeed.verify(prepared)


def test_names_of_folders_of_work_cannot_be_foreseen(place):
    """They differ from user to user, for the same plan and place."""
    ds = making.npz_of_rows(place / "source", files=8, rows=100)
    names = set()
    for number in range(2):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("XDG_CACHE_HOME", str(place / f"cache{number}"))
            journal, _ = making.interrupted(ds, place / "packed")
        names.add(journal.parent.name)
        assert stat.S_IMODE(journal.parent.stat().st_mode) == 0o700
        shutil.rmtree(journal.parent)

    assert len(names) == 2


@pytest.mark.parametrize("what", [w for w in IN_THE_WAY if "link" in w])
@pytest.mark.parametrize("which", ["stored", "spooled"])
def test_links_inside_a_folder_of_work(place, which, what):
    """In place of each file and folder in it: refused, or done right, and never followed."""
    ds = making.npz_of_rows(place / "source", files=3, rows=30)
    if which == "spooled":
        ds = ds.map(making.ragged)
    journal, _ = making.interrupted(ds, place / "packed")
    work, kept = journal.parent, place / "kept"
    shutil.copytree(work, kept)
    inside = sorted(path.relative_to(kept) for path in kept.rglob("*"))
    spooled = [name for name in inside if name.parent.name == "spool"]
    inside = [name for name in inside if name not in spooled[4:]]  # which are all alike
    assert {"owner", "plan", "journal", "data"} <= set(map(str, inside))
    for name in (".", *inside):
        shutil.rmtree(place / "packed", ignore_errors=True)
        work.unlink() if work.is_symlink() or work.is_file() else shutil.rmtree(
            work, ignore_errors=True
        )
        shutil.copytree(kept, work)
        replaced(work / name, what, place / "precious")
        packed, error = attempted(ds, place / "packed", **making.PIECES)
        if error is None:
            assert same(packed, ds)
        else:
            assert isinstance(error, ndfeed.ConflictError)
            assert ".packed." in error.path
            assert "not made by ndfeed" in str(error)
            assert "\n" not in str(error)
        assert (place / "precious/notes").read_bytes() == b"years of work"


def _mine(work):
    (work / "data/00000/mine.txt").write_bytes(b"mine")


def _linked(work):
    (work / "spool").symlink_to(work.parent / "precious")


@pytest.mark.parametrize("spoil", [_mine, _linked])
def test_what_is_not_ours_in_a_folder_of_work_is_not_removed(place, spoil):
    """Nor is anything beside it: another plan is refused until it is moved away."""
    ds = making.npz_of_rows(place / "source", files=8, rows=100)
    journal, _ = making.interrupted(ds, place / "packed")
    spoil(journal.parent)
    before = everything(journal.parent)

    with pytest.raises(ndfeed.ConflictError, match="not made by ndfeed; move it"):
        ndfeed.pack(ds, place / "packed", shuffle=1)
    assert everything(journal.parent) == before
    assert not (place / "packed").exists()


@root
@pytest.mark.parametrize("how", ["another owner", "writable for others"])
def test_a_folder_of_work_must_be_this_users_alone(place, how):
    """Somebody else could have put anything into it."""
    ds = making.npz_of_rows(place / "source", files=8, rows=100)
    journal, _ = making.interrupted(ds, place / "packed")
    work = journal.parent
    os.chown(work, 65534, 65534) if how == "another owner" else os.chmod(work, 0o777)
    before = everything(place)
    for options in ({}, {"shuffle": 1}):
        with pytest.raises(ndfeed.ConflictError, match="does not belong to this user alone"):
            ndfeed.pack(ds, place / "packed", **making.PIECES, **options)
        kept = everything(place)
        assert before.items() <= kept.items()


@pytest.mark.parametrize("what", IN_THE_WAY)
@pytest.mark.parametrize("name", ["00000/label.npy", "00001/text.offsets.npy", "00001"])
def test_repair_follows_no_link(place, name, what):
    """Of a column or of a part's folder: refused, or replaced by a file of its own."""
    ds, before = damaged(place)
    replaced(place / "packed" / name, what, place / "precious")
    _, error = attempted(ds, place / "packed", repair=True)
    if error is None:
        found = tree(place / "packed")
        assert {name: found[name] for name in before} == before
        assert not any(path.is_symlink() for path in (place / "packed").rglob("*"))
    else:
        assert "\n" not in str(error)
        assert not isinstance(error, ndfeed.FormatError)


def test_repair_leaves_other_names_of_a_column_alone(place):
    """As a backup of hard links has them: the damaged bytes stay there, the dataset is mended."""
    ds, before = damaged(place)
    shutil.copytree(place / "packed", place / "backup", copy_function=os.link)
    backup = tree(place / "backup")
    ndfeed.pack(ds, place / "packed", repair=True)

    assert tree(place / "packed") == before
    assert tree(place / "backup") == backup
    assert sorted(os.listdir(place)) == ["backup", "packed", "precious", "source"]


@root
def test_repair_of_somebody_elses_column(place):
    """It is replaced, not written to."""
    ds, before = damaged(place)
    column = place / "packed/00000/label.npy"
    os.chown(column, 65534, 65534)
    old = os.open(column, os.O_RDONLY)
    ndfeed.pack(ds, place / "packed", repair=True)

    assert tree(place / "packed") == before
    assert os.fstat(old).st_ino != column.stat().st_ino
    os.close(old)


@pytest.mark.parametrize("options", [{"append": True}, {"repair": True}])
def test_a_target_that_is_a_link(place, options):
    """The folder itself is to be named: the work is done beside it."""
    two(place)
    (place / "link").symlink_to("packed")
    before = everything(place)

    with pytest.raises(
        ndfeed.ConflictError, match=r"symbolic link; pass the folder itself, .*packed"
    ):
        ndfeed.pack(place / "b.npy", place / "link", **options)
    assert everything(place) == before


def test_a_manifest_that_is_a_link(place):
    """It is not read, so nothing is done that it says."""
    two(place)
    os.rename(place / "packed/ndfeed.json", place / "manifest")
    (place / "packed/ndfeed.json").symlink_to(place / "manifest")
    before = everything(place)
    for options in ({}, {"append": True}, {"repair": True}):
        with pytest.raises(ndfeed.SourceError, match="a symbolic link, which is not followed"):
            ndfeed.pack(place / "b.npy", place / "packed", **options)
    assert everything(place) == before


def fail_after_parts_were_moved(place):
    """An append that ends behind the moving of its part and before the manifest speaks of it."""
    shutil.copytree(place / "packed", place / "base")
    for at in count(1):
        shutil.rmtree(place / "packed")
        shutil.copytree(place / "base", place / "packed")
        with (
            system(at, BROKEN, {"replace"}),
            pytest.raises(ndfeed.TargetError, match="cannot rename"),
        ):
            ndfeed.pack(place / "b.npy", place / "packed", append=True)
        if (place / "packed/00001").exists():
            break


def test_other_rows_after_parts_were_moved(place):
    """What a run that is gone moved there, and no manifest speaks of, is removed; nothing else."""
    expected = two(place)
    np.save(place / "c.npy", expected[:3] + 100)
    fail_after_parts_were_moved(place)
    (place / "packed/00001/mine.txt").write_bytes(b"mine")
    before = everything(place / "packed")
    with pytest.raises(ndfeed.ConflictError, match="not made by ndfeed") as caught:
        ndfeed.pack(place / "c.npy", place / "packed", append=True)
    assert caught.value.path == str(place / "packed/00001/mine.txt")
    assert everything(place / "packed") == before
    (place / "packed/00001/mine.txt").unlink()
    found = ndfeed.pack(place / "c.npy", place / "packed", append=True)

    np.testing.assert_array_equal(
        found[:]["data"], np.concatenate([expected[:10], expected[:3] + 100])
    )
    assert sorted(os.listdir(place / "packed")) == ["00000", "00001", "ndfeed.json"]
    assert ndfeed.verify(place / "packed").ok


def test_parts_that_were_moved_and_then_replaced(place):
    """A folder of the same name that somebody made since is not the one that we moved."""
    two(place)
    fail_after_parts_were_moved(place)
    os.rename(place / "packed/00001", place / "moved")
    shutil.copytree(place / "precious", place / "packed/00001")
    before = everything(place)

    with pytest.raises(ndfeed.ConflictError, match="exists where the new part"):
        ndfeed.pack(place / "b.npy", place / "packed", append=True)
    assert everything(place) == before


@pytest.fixture
def cache(place, monkeypatch):
    """A cache folder of the test's own."""
    folder = place / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder / "ndfeed"


def test_the_key_is_for_this_user_alone(place, cache):
    """It is made once."""
    two(place)
    key = cache / "private/key"
    before = key.read_bytes()
    cache_files.known.clear()  # as in another process
    ndfeed.pack(place / "b.npy", place / "other")

    assert key.read_bytes() == before
    assert len(before) == 32
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert stat.S_IMODE(key.parent.stat().st_mode) == 0o700
    assert os.listdir(key.parent) == ["key"]


def _readable(private):
    os.chmod(private / "key", 0o644)


def _short(private):
    (private / "key").write_bytes(b"short")


def _link(private):
    os.rename(private / "key", private.parent / "key")
    (private / "key").symlink_to(private.parent / "key")


def _open(private):
    os.chmod(private, 0o777)


def _linked_folder(private):
    os.rename(private, private.parent / "elsewhere")
    private.symlink_to("elsewhere")


def _no_folder(private):
    shutil.rmtree(private)
    private.write_bytes(b"")


@pytest.mark.parametrize("spoil", [_readable, _short, _link])
def test_what_is_no_key_is_replaced_by_one(place, cache, spoil):
    """In a folder that is this user's alone, and without following a link."""
    ds = making.npz_of_rows(place / "source", files=8, rows=100)
    ndfeed.pack(place / "source/0.npz", place / "first")
    key = cache / "private/key"
    before = key.read_bytes()
    spoil(cache / "private")
    cache_files.known.clear()  # as in another process

    assert same(ndfeed.pack(ds, place / "packed"), ds)
    assert not key.is_symlink()
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert key.read_bytes() != before
    assert spoil is not _link or (cache / "key").read_bytes() == before


@pytest.mark.parametrize("spoil", [_open, _linked_folder, _no_folder])
def test_without_a_key_nothing_is_gone_on_with(place, cache, spoil):
    """It is said; the work is done all the same, under a name that nobody knows."""
    ds = making.npz_of_rows(place / "source", files=8, rows=100)
    ndfeed.pack(place / "source/0.npz", place / "first")
    spoil(cache / "private")
    cache_files.known.clear()  # as in another process
    steps = []

    def stop(rows, nbytes):
        steps.append(rows)
        if sum(steps) > 400:
            raise KeyboardInterrupt

    with (
        pytest.warns(UserWarning, match="no key can be stored"),
        pytest.raises(KeyboardInterrupt) as e,
    ):
        ndfeed.pack(ds, place / "packed", progress=stop, **making.PIECES)
    assert not getattr(e.value, "__notes__", [])
    assert not list(place.glob(".packed.*"))
    with pytest.warns(UserWarning, match="no key can be stored"):
        assert same(ndfeed.pack(ds, place / "packed"), ds)


def test_the_demos_chart_goes_through_no_link(place):
    """Its name is known to all, and so was the one it had until it was whole."""
    for name in ("chart.png", "chart.png.new", ".chart.png.new"):
        (place / name).symlink_to(place / "precious/notes")
    chart.save(str(place / "chart.png"), b"a picture")

    assert (place / "chart.png").read_bytes() == b"a picture"
    assert not (place / "chart.png").is_symlink()
    assert sorted(os.listdir(place)) == [".chart.png.new", "chart.png", "chart.png.new", "precious"]
