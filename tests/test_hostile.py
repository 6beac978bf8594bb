"""The watch over hostile files sees what it must, and costs no one else."""

import os
import pickle
import subprocess
import sys
import threading
from contextlib import suppress

import pytest
from hostile import measured, watch

DEEDS = {
    "import": lambda path: __import__("this_module_is_nowhere"),
    "compile": lambda path: compile("1", "x", "eval"),
    "eval": lambda path: eval("1"),
    "unpickle": lambda path: pickle.loads(b"cos\nsystem\n."),
    "spawn": lambda path: subprocess.run([sys.executable, "--version"]),
    "system": lambda path: os.system("true"),
    "open": lambda path: path.open(),
    "os.open": lambda path: os.open(path, os.O_RDONLY),
    "remove": lambda path: os.remove(path),
    "rename": lambda path: os.rename(path, path),
}


@pytest.mark.parametrize("deed", DEEDS)
def test_watch_sees(tmp_path, deed):
    """A test in which any of these happens fails, whoever catches the error on the way."""
    path = tmp_path / "x"
    path.touch()

    with pytest.raises(AssertionError), watch(), suppress(RuntimeError):
        DEEDS[deed](path)


def test_watch_lets_named_files_pass(tmp_path):
    """The file itself has to be opened."""
    path = tmp_path / "x"
    path.touch()
    with watch(path):
        os.close(os.open(path, os.O_RDONLY))
        path.open().close()


def test_watch_ends_with_its_block_and_minds_one_thread():
    """Other tests, and pytest's own threads, may do as they like."""
    done = []
    with watch():
        other = threading.Thread(target=lambda: done.append(eval("1")))
        other.start()
        other.join()

    assert done == [eval("1")]


def test_measured_tells_what_was_used(tmp_path):
    """A file that is all there costs what it holds; one that is not costs an error."""
    (tmp_path / "x.bin").write_bytes(bytes(50_000_000))
    (tmp_path / "y.npy").write_bytes(b"\x93NUMPY")
    read, refused = measured(tmp_path / "x.bin", tmp_path / "y.npy", dtype="u1", shape=50_000_000)

    assert read["error"] is None
    assert 50e6 <= read["bytes"] <= 300e6
    assert refused["error"][0] == "TruncatedError"
    assert refused["bytes"] < 20e6
