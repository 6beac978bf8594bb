"""What ``import ndfeed`` gives, and what it does not do."""

import inspect
import json
import subprocess
import sys
from types import ModuleType

import pytest

import ndfeed

PARTS = {"jax": "jax", "keras": "keras", "ray": "ray", "tf": "tensorflow", "torch": "torch"}
FOREIGN = {"torch", "tensorflow", "jax", "keras", "ray", "dask", "rich", "typer", "pyarrow", "csv"}

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
        [sys.executable, "-W", "error", "-c", FRESH], capture_output=True, text=True, timeout=250
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


MISSING = """
import sys
sys.modules[sys.argv[2]] = None  # as if it were not installed
import ndfeed
assert sys.argv[1] not in dir(ndfeed)
for again in (lambda: getattr(ndfeed, sys.argv[1]), lambda: __import__("ndfeed." + sys.argv[1])):
    try:
        again()
    except ImportError as error:
        print(error.name, error, sep=": ")
"""


@pytest.mark.parametrize(("part", "needed"), PARTS.items())
def test_a_framework_that_is_missing(part, needed):
    """Which one, and the line that installs it; ``dir()`` does not offer what fails."""
    done = subprocess.run(
        [sys.executable, "-c", MISSING, part, needed], capture_output=True, text=True, timeout=250
    )

    assert done.returncode == 0, done.stderr
    said = f"{needed}: ndfeed.{part} needs {needed}, which is not installed: "
    assert done.stdout.split("\n")[:-1] == [f"{said}pip install 'ndfeed[{part}]'"] * 2


ALONE = """
import sys
import ndfeed
assert sys.argv[1] in dir(ndfeed) and "open" in dir(ndfeed)
part = getattr(ndfeed, sys.argv[1])
print(part.__name__, part is sys.modules[f"ndfeed.{sys.argv[1]}"], part.__all__ != [])
"""


@pytest.mark.parametrize(("part", "needed"), PARTS.items())
def test_a_framework_needs_no_second_import(part, needed):
    """``import ndfeed; ndfeed.torch.loader(...)`` is what people write first."""
    pytest.importorskip(needed)
    done = subprocess.run(
        [sys.executable, "-c", ALONE, part], capture_output=True, text=True, timeout=250
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [f"ndfeed.{part}", "True", "True"]


def test_other_names_are_attribute_errors():
    """As of any module; ``hasattr`` works."""
    assert not hasattr(ndfeed, "pandas")
    with pytest.raises(AttributeError, match="module 'ndfeed' has no attribute 'oepn'"):
        ndfeed.oepn  # noqa: B018
