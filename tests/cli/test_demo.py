"""``ndfeed demo``: every kind of file, read right, and nothing left behind."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from ndfeed.cli.demo import _batches, _same
from ndfeed.cli.peers import PEERS

KEYS = [
    "source",
    "samples",
    "fields",
    "way",
    "usual_per_second",
    "ndfeed_per_second",
    "ratio",
]

# As in an environment that has the core dependencies alone.
BARE = """
import sys
sys.modules["torch"] = sys.modules["safetensors"] = None
from ndfeed.cli import main
sys.argv = ["ndfeed", "demo", "--folder", sys.argv[1]]
sys.exit(main())
"""


def test_every_source_is_read_and_kept(invoke, tmp_path):
    """Each is compared with NumPy before it is timed, so being listed means being right."""
    done = invoke("demo", "--json", "--folder", tmp_path, "--keep")

    rows = [json.loads(line) for line in done.stdout.splitlines()]
    (made,) = tmp_path.iterdir()
    assert done.exit_code == 0
    assert [row["source"] for row in rows] == [peer.source for peer in PEERS if not peer.missing]
    assert all(list(row) == KEYS for row in rows)
    assert all(row["ratio"] > 0 for row in rows)
    assert len(list(made.iterdir())) == len(rows)


def test_core_dependencies_are_enough(tmp_path):
    """What needs more is left out and said so; the folder is empty afterwards."""
    done = subprocess.run(
        [sys.executable, "-c", BARE, os.fspath(tmp_path)],
        capture_output=True,
        encoding="utf-8",
        env=os.environ | {"NO_COLOR": "1", "COLUMNS": "80"},
        timeout=60,
    )

    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "left out: safetensors (needs safetensors), pt files (needs torch)" in done.stdout
    assert done.stdout.endswith("ndfeed inspect YOUR_FOLDER\n")
    for peer in PEERS:
        assert peer.needs or peer.source in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT for one child")
def test_interrupt_is_quiet_and_cleans_up(tmp_path):
    """Ctrl-C is an answer, not an error, and leaves nothing."""
    command = [sys.executable, "-m", "ndfeed", "demo", "--folder", os.fspath(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        for _ in range(3000):
            if any(tmp_path.iterdir()) or child.poll() is not None:
                break
            time.sleep(0.01)
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=30)

    assert child.returncode == 130
    assert (out, err) == (b"", b"")
    assert list(tmp_path.iterdir()) == []


def test_folder_that_is_missing(ndfeed_process, tmp_path):
    """The files go where they were asked for, or nowhere."""
    done = ndfeed_process("demo", "--folder", tmp_path / "none")

    assert done.returncode == 1
    assert done.stderr.startswith("ndfeed: ")
    assert done.stderr.count("\n") == 1


def test_difference_is_seen():
    """The check itself: values, shapes, lengths and names."""
    x = np.arange(6).reshape(2, 3)

    assert _same({"x": x}, {"x": x.copy()})
    assert _same({"x": [x, x[:1]]}, {"x": [x, x[:1]]})
    for other in ({"x": x + 1}, {"x": x[:1]}, {"x": x[:, :2]}, {"y": x}, {"x": x, "y": x}):
        assert not _same({"x": x}, other)


@pytest.mark.parametrize("count", [3, 10, 1000])
def test_batches_are_shuffled_and_of_one_size(count):
    """Batches of several sizes would make a median of different things."""
    batches = _batches(count)

    assert len({len(rows) for rows in batches}) == 1
    assert len(batches) >= 3
    assert len(np.unique(np.concatenate(batches))) == sum(map(len, batches))
