"""What ``import ndfeed`` gives, and what it does not do."""

import inspect
import json
import subprocess
import sys
from types import ModuleType

import pytest

import ndfeed

FOREIGN = {"torch", "tensorflow", "jax", "keras", "ray", "dask", "rich", "typer"}

# numpy first: its linear algebra starts threads of its own.
FRESH = """
import json, sys, threading
import numpy, psutil
process = psutil.Process()
before = process.num_threads(), threading.active_count()
import ndfeed
after = process.num_threads(), threading.active_count()
print(json.dumps({"modules": sorted(sys.modules), "before": before, "after": after}))
"""


@pytest.fixture(scope="module")
def fresh():
    """What a new interpreter, where a warning is an error, sees after ``import ndfeed``."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", FRESH], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_all_lists_the_public_names():
    """Nothing is public by accident, and nothing public is forgotten."""
    public = {
        name
        for name, value in vars(ndfeed).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    }

    assert set(ndfeed.__all__) - {"__version__"} == public
    assert len(ndfeed.__all__) == len(set(ndfeed.__all__))


@pytest.mark.parametrize("name", ndfeed.__all__)
def test_public_objects_have_a_docstring(name):
    """``help`` answers for everything a user can name."""
    thing = getattr(ndfeed, name)
    members = {}
    if inspect.isclass(thing):
        members = {key: value for key, value in vars(thing).items() if key[0] != "_"}
    undocumented = [
        key
        for key, value in members.items()
        if (inspect.isroutine(value) or isinstance(value, property)) and not inspect.getdoc(value)
    ]

    assert thing.__doc__
    assert not undocumented


def test_import_loads_no_framework(fresh):
    """Importing stays quick, and works where no framework is installed."""
    loaded = {module.partition(".")[0] for module in fresh["modules"]}

    assert "ndfeed" in loaded
    assert not loaded & FOREIGN


def test_import_starts_no_thread(fresh):
    """A thread at import would not survive a fork, and nobody asked for it."""
    assert fresh["after"] == fresh["before"]
