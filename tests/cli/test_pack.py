"""``ndfeed pack``: every option does what it says, and wrong input is one line."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from faults.seam import tree
from packing import making
from packing.making import same, shuffled

import ndfeed
from ndfeed.cli import console
from ndfeed.cli.console import Meter


@pytest.fixture
def source(tmp_path):
    making.npz_of_rows(tmp_path / "source")
    return tmp_path / "source"


def opened(source):
    return ndfeed.open(source, sample="row")


def test_packs_and_says_what_it_buys(invoke, source, tmp_path):
    """Sizes, time, and the speed of shuffled epochs before and after, of a second each."""
    many = making.npz_of_rows(tmp_path / "many", files=2, rows=600)
    done = invoke("pack", tmp_path / "many", tmp_path / "packed", "--sample", "row")

    assert done.exit_code == 0
    assert "1,200 rows in 1 part" in done.stdout
    assert "rows/s before" in done.stdout
    speeds = r"([\d,]+) rows/s before, ([\d,]+) now \(([\d.]+)×\), over (\S+) s and (\S+) s"
    said = re.search(speeds, done.stdout)
    before, after, gain, *seconds = (float(number.replace(",", "")) for number in said.groups())
    assert gain == pytest.approx(after / before, abs=0.1)
    assert all(1 <= one < 4 for one in seconds)
    assert same(ndfeed.open(tmp_path / "packed"), many)


def test_speed_is_not_measured_if_not_wanted(invoke, tmp_path):
    """It takes seconds, which a script may not want to spend."""
    making.npz_of_rows(tmp_path / "many", files=2, rows=600)
    options = ("--sample", "row", "--no-measure")
    done = invoke("pack", tmp_path / "many", tmp_path / "packed", *options)
    facts = invoke("pack", tmp_path / "many", tmp_path / "other", *options, "--json")

    assert done.exit_code == 0
    assert "rows/s" not in done.stdout
    assert "shuffled" not in done.stdout
    found = json.loads(facts.stdout)
    assert found["written"] is True
    assert (found["rows_per_second"], found["measured_seconds"], found["unmeasured"]) == (
        None,
        None,
        None,
    )


def test_no_speed_is_told_of_a_few_rows(invoke, source, tmp_path):
    """What would be measured is how long an epoch takes to begin."""
    done = invoke("pack", source, tmp_path / "packed", "--sample", "row")
    again = invoke("pack", source, tmp_path / "packed", "--sample", "row", "--json")

    assert "42 rows in 1 part" in done.stdout
    assert "too little data to measure their speed" in done.stdout
    assert "rows/s" not in done.stdout
    assert json.loads(again.stdout)["rows_per_second"] is None
    assert json.loads(again.stdout)["written"] is False
    third = invoke("pack", source, tmp_path / "packed", "--sample", "row")
    assert "already packed from this source: nothing was written" in third.stdout


def test_json(invoke, source, tmp_path):
    """For scripts, on one line."""
    done = invoke("pack", source, tmp_path / "packed", "--sample", "row", "--json")

    (line,) = done.stdout.splitlines()
    found = json.loads(line)
    assert found["rows"] == 42
    assert found["bytes"] == sum(len(x) for x in tree(tmp_path / "packed").values() if x) - len(
        (tmp_path / "packed/ndfeed.json").read_bytes()
    )
    assert found["source_bytes"] == sum(map(len, tree(source).values()))


def test_dry_run_writes_nothing(invoke, source, tmp_path):
    """It says how much room is needed, to the byte."""
    before = tree(tmp_path)
    options = ("pack", source, tmp_path / "packed", "--sample", "row", "--rows-per-part", "10")
    done = invoke(*options, "--dry-run", "--json")
    found = json.loads(done.stdout)

    assert tree(tmp_path) == before
    assert found["parts"] == 5
    assert found["free"] > 0
    assert (found["fits"], found["state"]) == (True, "new")
    shown = invoke(*options, "--dry-run").stdout
    assert "would have 42 rows in 5 parts" in shown
    assert "image uint8 (3, 4)" in shown
    assert json.loads(invoke(*options, "--json").stdout)["bytes"] == found["bytes"]
    assert "nothing would be written" in invoke(*options, "--dry-run").stdout
    more = ("pack", source, tmp_path / "packed", "--sample", "row", "--append", "--shuffle", "1")
    assert "would get 42 rows in 1 part" in invoke(*more, "--dry-run").stdout


def test_options(invoke, source, tmp_path):
    """Fields, casts, order, names, parts, memory."""
    done = invoke(
        *("pack", source, tmp_path / "packed", "--sample", "row", "--fields", "label,image"),
        *("--cast", "label=int16", "--cast", "image=float32", "--shuffle", "7", "--names"),
        *("--rows-per-part", "20", "--workers", "1", "--memory", "1MB"),
    )
    packed = ndfeed.open(tmp_path / "packed")
    expected = shuffled(opened(source), 7)

    assert done.exit_code == 0
    assert list(packed.fields) == ["label", "image", "file"]
    assert packed.fields["image"].dtype == np.float32
    assert packed[:]["label"].tolist() == expected[:]["label"].tolist()
    assert len(list((tmp_path / "packed").glob("0*"))) == 3


def test_raw_files(invoke, tmp_path):
    """They need their type and shape."""
    np.arange(24, dtype=np.uint16).tofile(tmp_path / "x.bin")
    invoke("pack", tmp_path / "x.bin", tmp_path / "packed", "--dtype", "uint16", "--shape", "4")

    assert ndfeed.open(tmp_path / "packed")[:]["data"].shape == (6, 4)


def test_windows(invoke, tmp_path):
    """What overlaps is stored as often as it occurs."""
    np.savez(tmp_path / "x.npz", data=np.arange(9), episode=np.repeat([0, 1], [5, 4]))
    options = ("--windows", "3,2", "--by", "episode")
    invoke("pack", tmp_path / "x.npz", tmp_path / "packed", *options)

    found = ndfeed.open(tmp_path / "packed")[:]["data"]
    assert found.tolist() == [[0, 1, 2], [2, 3, 4], [5, 6, 7]]


def test_append_and_repair(invoke, source, tmp_path):
    """What is there grows, and what is damaged is made good."""
    options = ("pack", source, tmp_path / "packed", "--sample", "row")
    invoke(*options)
    making.npz_of_rows(tmp_path / "more", files=2)
    invoke("pack", tmp_path / "more", tmp_path / "packed", "--sample", "row", "--append")
    assert len(ndfeed.open(tmp_path / "packed")) == 56
    path = tmp_path / "packed/00000/label.npy"
    data = bytearray(path.read_bytes())
    data[200] ^= 4
    path.write_bytes(data)
    done = invoke(*options, "--repair")

    assert "no damage left" in done.stdout
    assert ndfeed.verify(tmp_path / "packed").ok


@pytest.mark.parametrize(
    ("options", "status", "message"),
    [
        (("--sample", "row", "--cast", "image=int8"), 1, "which int8 cannot hold"),
        (("--sample", "row", "--fields", "nope"), 1, "no field 'nope'"),
        (("--sample", "row", "--append"), 1, "no packed dataset to append to"),
        (("--sample", "row", "--repair"), 1, "no packed dataset to repair"),
        ((), 1, "could be read in two ways"),
        (("--sample", "row", "--cast", "image"), 2, "NAME=TYPE"),
        (("--sample", "row", "--repair", "--dry-run"), 2, "ndfeed.verify says"),
        (("--sample", "row", "--memory", "lots"), 2, "memory must be bytes"),
        (("--sample", "row", "--memory", "0GB"), 2, "memory must be at least 1 byte"),
        (("--sample", "row", "--cast", "image=int3"), 2, "such as float16"),
        (("--sample", "row", "--on", "slurm"), 2, "ray://host:port"),
        (("--shape", "3"), 2, "needs --dtype"),
    ],
)
def test_wrong_input(ndfeed_process, source, tmp_path, options, status, message):
    """A wrong file is one line and status 1, a wrong option is status 2."""
    done = ndfeed_process("pack", source, tmp_path / "packed", *options, COLUMNS="300")

    assert done.returncode == status
    assert message in done.stderr
    assert status == 2 or len(done.stderr.splitlines()) == 1
    assert sorted(os.listdir(tmp_path)) == ["source"]


def test_ctrl_c_says_how_to_go_on(tmp_path):
    """Status 130, one line, and the same command finishes."""
    np.save(tmp_path / "source.npy", np.arange(1_000_000).reshape(-1, 50))
    command = [
        *(sys.executable, "-m", "ndfeed", "pack", tmp_path / "source.npy", tmp_path / "packed"),
        *("--workers", "1", "--memory", "20kB"),  # many pieces, each synced
    ]
    child = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    until = time.monotonic() + 200
    while not any(map(os.path.getsize, tmp_path.glob(".packed.*/journal"))):
        assert time.monotonic() < until
        time.sleep(0.001)
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=250)

    assert child.returncode == 130
    assert said == "ndfeed: interrupted; rerun to resume: finished work is reused\n"
    assert not (tmp_path / "packed").exists()
    subprocess.run(command, check=True, capture_output=True, timeout=250)
    assert len(ndfeed.open(tmp_path / "packed")) == 20_000
    assert sorted(os.listdir(tmp_path)) == ["packed", "source.npy"]


@pytest.mark.parametrize("on", ["dask", "ray"])
def test_on_a_cluster_of_its_own(ndfeed_process, source, tmp_path, on):
    """Started for the command, gone with it."""
    pytest.importorskip(on)
    more = {"PYTHONPATH": os.pathsep.join(sys.path), "RAY_AUTH_MODE": "disabled"}
    done = ndfeed_process(
        "pack", source, tmp_path / "packed", "--sample", "row", "--on", on, "--json", **more
    )

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"] == 42
    assert same(ndfeed.open(tmp_path / "packed"), opened(source))


def test_a_log_gets_lines(monkeypatch, capsys):
    """Rows, bytes, rate and time left; what an earlier run did counts for no speed."""
    monkeypatch.setattr(console, "_BETWEEN", -1.0)
    with Meter("packing", 1000) as shown:
        shown.advance(500, 5_000_000)
        time.sleep(0.01)
        shown.advance(250, 2_500_000)
    lines = capsys.readouterr().err.splitlines()

    assert lines[0].startswith("ndfeed: packing: 500 of 1,000 rows, 5 MB, 0 B/s")
    assert lines[1].startswith("ndfeed: packing: 750 of 1,000 rows, 7.5 MB, ")
    assert lines[1].endswith("0 s left")


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="no terminals here")
def test_a_terminal_gets_a_bar(monkeypatch):
    """With the same numbers."""
    main, end = os.openpty()
    monkeypatch.setattr(console, "_PATIENCE", -1.0)
    with open(end, "w", encoding="utf-8") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        with Meter("packing", 1000) as shown:
            shown.advance(0, 0)
            shown.advance(250, 2_500_000)
    text = ""
    with contextlib.suppress(OSError):  # Linux's way to say that nobody writes any more
        while data := os.read(main, 1 << 16):
            text += data.decode()
    os.close(main)

    assert "packing" in text
    assert "250 of 1,000 rows, 2.5 MB" in text


def test_members_of_python_objects_are_left_out_by_fields(invoke, tmp_path):
    """They cannot be read, and nobody asked for them; without ``--fields`` the error names them."""
    np.savez(tmp_path / "x.npz", x=np.arange(6), names=np.array([{}] * 6, dtype=object))
    with pytest.raises(ndfeed.UnsupportedError, match=r"'names\.npy' .*leave it out with fields="):
        invoke("pack", tmp_path / "x.npz", tmp_path / "packed")
    done = invoke("pack", tmp_path / "x.npz", tmp_path / "packed", "--fields", "x", "--no-measure")

    assert done.exit_code == 0, done.stderr
    assert ndfeed.open(tmp_path / "packed")[:]["x"].tolist() == list(range(6))
