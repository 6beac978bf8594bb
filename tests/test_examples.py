"""The examples run as they stand, and check themselves what they read."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_example_runs(example, tmp_path):
    """Each is what somebody will start from."""
    for framework in ("torch", "tensorflow", "keras", "jax"):
        if f"import {framework}" in example.read_text(encoding="utf-8"):
            pytest.importorskip(framework)
    cache = str(tmp_path / "cache")
    caches = {"XDG_CACHE_HOME": cache, "TORCHINDUCTOR_CACHE_DIR": cache}  # torch makes it at once
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0", "CUDA_VISIBLE_DEVICES": ""}
    env = os.environ | caches | quiet | {"TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, example], capture_output=True, text=True, cwd=tmp_path, env=env, timeout=60
    )

    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir() if path.name != "cache"] == []


def test_there_are_examples():
    """A moved folder would otherwise pass unseen."""
    assert EXAMPLES
