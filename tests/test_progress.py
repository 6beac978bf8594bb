"""A bar shows where somebody looks and waits, and nowhere else."""

import io
import os
import pty
import sys

import numpy as np
import pytest
from children import start

from ndfeed import progress
from ndfeed.progress import Bar

CODE = """
from ndfeed import progress
from ndfeed.index import build
progress._PATIENCE = float(args[1])
build._CHUNK = 100
ndfeed.open([args[0]] * 5000, sample="file", cache=False)
"""


@pytest.fixture
def path(tmp_path):
    """A file to open many times."""
    np.save(tmp_path / "x.npy", np.zeros(3))
    return tmp_path / "x.npy"


def shown(path, patience):
    """What a terminal gets to see."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    child = start(CODE, path, str(patience), env=environment, stderr=theirs)
    os.close(theirs)
    seen = b""
    try:
        while data := os.read(ours, 65536):
            seen += data
    except OSError:  # Linux's way to say that nobody writes any more
        pass
    os.close(ours)
    assert child.communicate(timeout=250)[0] == ""
    assert child.returncode == 0, seen
    return seen.decode()


def test_a_long_task_shows_a_bar(path):
    """On standard error, with what is being done; standard output stays clean."""
    assert "reading headers" in shown(path, 0.01)


def test_a_short_task_shows_nothing(path):
    """A bar that flashes up says nothing."""
    assert shown(path, 1000) == ""


def test_nothing_is_shown_where_nobody_looks(path):
    """Logs of a cluster hold no bars."""
    child = start(CODE, path, "0")

    assert child.communicate(timeout=250) == ("", "")
    assert child.returncode == 0


def test_a_bar_that_is_not_wanted_is_not_shown(monkeypatch):
    """``progress=False``: not even on a terminal."""
    monkeypatch.setattr(progress, "_watched", lambda: True)
    monkeypatch.setattr(progress, "_PATIENCE", 0)

    with Bar("label", 3, wanted=False) as bar:
        bar.advance(3)
    assert bar._shown is None


@pytest.mark.parametrize("stderr", [None, io.StringIO(), "closed"])
def test_standard_error_may_be_anything(monkeypatch, stderr):
    """None in a windowed program, replaced in a notebook, closed in a daemon."""
    if stderr == "closed":
        stderr = io.StringIO()
        stderr.close()
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setattr(progress, "_PATIENCE", 0)

    with Bar("label", 3) as bar:
        bar.advance(1)
        bar.advance(2)
    assert bar._shown is None
