"""What a measurement is at: a changing line on a terminal, plain lines in a log."""

import contextlib
import json
import os
import pty
import subprocess
import sys

import numpy as np
import pytest

from ndfeed.cli.console import Steps


@pytest.fixture
def plain_file(tmp_path):
    """Rows, and little to measure."""
    np.save(tmp_path / "x.npy", np.zeros((1000, 8)))
    return tmp_path / "x.npy"


@pytest.fixture
def clock(monkeypatch):
    """Time passes when the test says so."""
    now = [100.0]
    monkeypatch.setattr("ndfeed.cli.console.time.monotonic", lambda: now[0])
    return now


def test_a_log_has_a_line_for_a_step(capsys, clock):
    """Nothing for what is done at once."""
    with Steps("measuring") as steps:
        steps.begin("the disk")
        clock[0] += 1.5
        steps.begin("the loader")
        clock[0] += 2
        steps.begin("threads=[4]")

    assert capsys.readouterr().err == (
        "ndfeed: measuring, 2 s: the loader\nndfeed: measuring, 4 s: threads=[4]\n"
    )


def test_a_terminal_shows_the_steps(plain_file, tmp_path):
    """On standard error, gone at the end; standard output has the answer alone."""
    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-m", "ndfeed", "bench", plain_file, "--seconds", "1", "--json"],
        env={**os.environ, "TERM": "xterm", "COLUMNS": "80", "XDG_CACHE_HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=theirs,
        encoding="utf-8",
    )
    os.close(theirs)
    seen = b""
    with contextlib.suppress(OSError):  # Linux's way to say that nobody writes any more
        while data := os.read(ours, 65536):
            seen += data
    os.close(ours)
    said, _ = child.communicate(timeout=250)

    assert child.returncode == 0, seen
    assert said.count("\n") == 1
    assert json.loads(said)["samples"] == 1000
    assert b"measuring" in seen
    assert b"threads=1" in seen
    assert seen.endswith(b"\x1b[2K")  # the line is gone
