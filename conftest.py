"""Tests and modules of a framework that is not installed are left out.

The folders of tests have the names of the packages they test, `torch` and `jax` among them, and
`tests` is on the path for its helpers. Where the framework itself is missing, such a folder would
be imported in its place: so its name is blocked.
"""

import sys
from collections.abc import Generator
from importlib.util import find_spec
from pathlib import Path

import pytest

# Each framework, with what uses it: folders of tests and of modules, and single modules.
USED_BY = {
    "torch": ("torch", "torch_making", "torch_recorder", "write_torch", "demo_training"),
    "tensorflow": ("tf", "tf_making"),
    "keras": ("keras",),
    "jax": ("jax", "jax_making"),
    "ray": ("ray",),
    "dask": (),
    "distributed": (),
}


def _installed(name: str) -> bool:
    found = find_spec(name)
    return found is not None and found.origin is not None  # else a folder of tests


MISSING = [name for name in USED_BY if not _installed(name)]
sys.modules.update(dict.fromkeys(MISSING))
_LEFT_OUT = {part for name in MISSING for part in USED_BY[name]}


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out what cannot be imported here; None leaves the decision to others."""
    inside = collection_path.relative_to(Path(__file__).parent).with_suffix("")
    return True if _LEFT_OUT.intersection(inside.parts) else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """Skip a test that turns out to need what is missing: one case of many, or one page."""
    try:
        return (yield)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in MISSING:
            pytest.skip(f"{error.name} is not installed")
        raise
