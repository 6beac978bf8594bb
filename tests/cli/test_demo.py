"""``ndfeed demo``: every way reads the same, and nothing but the chart is left behind."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import ndfeed
from ndfeed.cli.baseline import Loop
from ndfeed.cli.demo import make, samples_of

KEYS = ["files", "batch_size", "bytes", "pack_seconds", "ways", "training", "plot", "folder"]
WAYS = ["np.load in a loop", "ndfeed, in place", "ndfeed, packed"]
SMALL = ("--files", "200", "--seconds", "0.1")

# As in an environment that has the core dependencies alone.
BARE = """
import sys
sys.modules["torch"] = sys.modules["matplotlib"] = None
from ndfeed.cli import main
sys.argv = ["ndfeed", "demo", *sys.argv[1:]]
sys.exit(main())
"""


def test_ways_training_and_chart(invoke, tmp_path, monkeypatch):
    """Each is compared with np.load before it is timed, so being listed means being right."""
    pytest.importorskip("torch")  # to train with
    monkeypatch.chdir(tmp_path)
    done = invoke("demo", *SMALL, "--json", "--folder", tmp_path, "--keep")

    assert done.exit_code == 0
    (line,) = done.stdout.splitlines()
    found = json.loads(line)
    assert list(found) == KEYS
    assert [one["way"] for one in found["ways"]] == WAYS
    assert found["ways"][0]["ratio"] == 1.0
    assert all(one["rows_per_second"] > 0 for one in found["ways"])
    assert found["training"]["epochs"] >= 1
    assert 0 < found["training"]["accuracy"] <= 1
    assert 0 <= found["training"]["waiting"] < 1
    assert found["plot"] == str(tmp_path / "ndfeed-demo.svg")
    picture = (tmp_path / "ndfeed-demo.svg").read_text(encoding="utf-8")
    assert all(f">{way}</text>" in picture for way in WAYS)
    assert picture.count("×</text>") == len(WAYS)
    assert len(ndfeed.open(f"{found['folder']}/packed")) == 200
    assert ndfeed.verify(f"{found['folder']}/packed").ok


def test_core_dependencies_are_enough(tmp_path):
    """What needs more is left out and said so; the folder is empty afterwards."""
    (tmp_path / "work").mkdir()
    chart = tmp_path / "chart.svg"
    done = subprocess.run(
        [sys.executable, "-c", BARE, *SMALL, "--folder", tmp_path / "work", "--plot", chart],
        capture_output=True,
        encoding="utf-8",
        cwd=tmp_path,
        env=os.environ | {"NO_COLOR": "1", "COLUMNS": "80"},
        timeout=250,
    )

    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert all(way in done.stdout for way in WAYS)
    assert "pip install torch" in done.stdout
    assert f"chart: {chart}\n" in done.stdout
    assert done.stdout.endswith("ndfeed bench YOUR_FOLDER\n")
    assert list((tmp_path / "work").iterdir()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["chart.svg", "work"]


def test_a_png_needs_matplotlib(tmp_path):
    """One line that names the extra, before any file is made."""
    done = subprocess.run(
        [sys.executable, "-c", BARE, *SMALL, "--folder", tmp_path, "--plot", "x.png"],
        capture_output=True,
        encoding="utf-8",
        cwd=tmp_path,
        timeout=250,
    )

    assert done.returncode == 1
    problem = "a PNG needs Matplotlib; pip install 'ndfeed[plot]', or choose an .svg"
    assert done.stderr == f"ndfeed: {tmp_path / 'x.png'}: {problem}\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT for one child")
def test_interrupt_is_quiet_and_cleans_up(tmp_path):
    """Ctrl-C is an answer, not an error, and leaves nothing."""
    command = [sys.executable, "-m", "ndfeed", "demo", "--json", "--folder", os.fspath(tmp_path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path
    ) as child:
        for _ in range(3000):
            if any(tmp_path.iterdir()) or child.poll() is not None:
                break
            time.sleep(0.01)
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=250)

    assert child.returncode == 130
    assert (out, err) == (b"", b"")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--folder", "none"), "choose another --folder"),
        (("--plot", "none/x.svg"), "choose another --plot"),
    ],
)
def test_folder_that_is_missing(invoke_or_error, tmp_path, monkeypatch, options, message):
    """Files go where they were asked for, or nowhere; known before anything is made."""
    monkeypatch.chdir(tmp_path)
    code, said = invoke_or_error("demo", *options)

    assert code == 1
    assert said.startswith("ndfeed: ")
    assert message in said
    assert said.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_said_and_leaves_nothing(tmp_path):
    """NumPy is told so, as a disk of that size is not to be had everywhere."""
    code = (
        "import errno, numpy as np, sys\n"
        "from ndfeed.cli import main\n"
        "def full(*_, **__): raise OSError(errno.ENOSPC, 'No space left on device')\n"
        "np.savez_compressed = full\n"
        "sys.argv = ['ndfeed', 'demo', '--folder', sys.argv[1]]\n"
        "sys.exit(main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, os.fspath(tmp_path)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=250,
    )

    assert done.returncode == 1
    problem = "the disk is full; choose another --folder, or fewer --files"
    assert done.stderr == f"ndfeed: {tmp_path}: {problem}\n"
    assert list(tmp_path.iterdir()) == []


def test_the_usual_way_reads_every_file_once(tmp_path):
    """In another order every time, or the comparison would be with something easier."""
    make(tmp_path, 30)
    loop = Loop(tmp_path, 8)
    first, second = (np.concatenate([batch["image"] for batch in loop]) for _ in range(2))

    assert len(list(loop)) == 4
    assert not np.array_equal(first, second)
    assert len(set(samples_of(loop))) == 30
    assert samples_of(loop) == samples_of(ndfeed.loader(ndfeed.open(tmp_path, sample="file"), 7))


def test_difference_is_seen():
    """The check itself: values, types, shapes, names, and how often."""
    x = np.arange(6).reshape(2, 3)

    assert samples_of([{"x": x}]) == samples_of([{"x": x[1:]}, {"x": x[:1]}])
    for other in ({"x": x + 1}, {"x": x[:1]}, {"x": x[:, :2]}, {"y": x}, {"x": x, "y": x}):
        assert samples_of([{"x": x}]) != samples_of([other])
    assert samples_of([{"x": x}]) != samples_of([{"x": x.astype(np.int32)}])
    assert samples_of([{"x": x}]) != samples_of([{"x": x[[0, 0]]}])
