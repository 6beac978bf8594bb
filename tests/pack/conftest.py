"""What tests of packing share."""

import os
import shutil
from pathlib import Path

import pytest


@pytest.fixture
def folder(tmp_path):
    """A folder in memory where there is one: what is killed here is a process, not a machine."""
    shared = Path("/dev/shm")
    if not os.access(shared, os.W_OK):
        yield tmp_path
        return
    made = shared / f"ndfeed-{os.getpid()}"
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir()
    yield made
    shutil.rmtree(made)
