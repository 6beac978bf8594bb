"""The examples run as they stand, and check themselves what they read.

Those of one framework run in one process, one after the other: importing it costs more than most
of them do.
"""

import os
import re
import subprocess
import sys
from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "examples"
SHARED = "side_by_side.py"  # what they import; no example
EXAMPLES = sorted(path for path in FOLDER.glob("*.py") if path.name != SHARED)
RUN = Path(__file__).with_name("example_run.py")


def groups():
    """Examples that may share a process, by its name; JAX is set up before it is imported."""
    found = defaultdict(list)
    for path in EXAMPLES:
        text = path.read_text(encoding="utf-8")
        shared = re.search(r"^import (torch|tensorflow)\b", text, re.M)
        found[shared[1] if shared else path.name].append(path)
    return found


@pytest.mark.parametrize(("name", "examples"), groups().items(), ids=groups())
def test_examples_run(name, examples, tmp_path):
    """Each is what somebody will start from."""
    text = "".join(path.read_text(encoding="utf-8") for path in examples)
    for framework in ("torch", "tensorflow", "keras", "jax"):
        if f"import {framework}" in text and find_spec(framework) is None:  # not imported here
            pytest.skip(f"{framework} is not installed")
    cache = str(tmp_path / "cache")
    caches = {"XDG_CACHE_HOME": cache, "TORCHINDUCTOR_CACHE_DIR": cache}  # torch makes it at once
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0", "CUDA_VISIBLE_DEVICES": ""}
    # TensorFlow writes modules of its own to TMPDIR, and Python would keep their bytecode there.
    env = os.environ | caches | quiet | {"TMPDIR": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, RUN, *examples],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=env,
        timeout=250,
    )

    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    _, *said = re.split(r"^== .+\n", done.stdout, flags=re.M)
    assert len(said) == len(examples)
    for path, words in zip(examples, said, strict=True):
        assert words, f"{path.name} said nothing"
        assert compares(path) == ("times as fast" in words), f"{path.name} said: {words}"
    assert [path.name for path in tmp_path.iterdir() if path.name != "cache"] == []


def compares(path):
    """Is a way that people take today shown beside ours?"""
    return "from side_by_side import compare" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_example_is_listed(path):
    """Who looks for an approach looks into the table."""
    assert f"]({path.name})" in (FOLDER / "README.md").read_text(encoding="utf-8")


def test_there_are_examples():
    """A moved folder would otherwise pass unseen."""
    assert len([path for path in EXAMPLES if compares(path)]) >= 11
