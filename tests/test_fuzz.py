"""The fuzz targets hold: for the corpus, for some thousand changes of it, and for a short run.

Long runs are ``python -m fuzz.run all --seconds 3600``. What one of them finds becomes part of the
corpus here, once it is mended.
"""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from fuzz.harness import Failure, Target, attempt
from fuzz.mutations import mutated
from fuzz.run import NAMES
from fuzz.targets import (
    TARGETS,
    repair_gz,
    repair_index,
    repair_journal,
    repair_manifest,
    repair_npz,
)

ROOT = Path(__file__).parent.parent
MUTATIONS = 2000
each_target = pytest.mark.parametrize("name", NAMES)


def test_every_target_is_run():
    """A target that is not on the list is never run by its name."""
    assert tuple(TARGETS) == NAMES


@each_target
def test_the_corpus_is_where_inputs_begin(name):
    """A corpus of nothing but refused files would reach little."""
    accepted = [attempt(TARGETS[name], data) for data in TARGETS[name].seeds()]

    assert any(accepted)


@each_target
def test_changes_of_the_corpus_do_no_harm(name):
    """The same every time, so what fails here fails for everybody."""
    target = TARGETS[name]
    outcomes = {attempt(target, data) for data in mutated(target, MUTATIONS)}

    assert outcomes == {True, False}


@pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="needs atheris")
def test_short_runs_by_coverage_find_nothing(tmp_path):
    """Instrumentation, custom mutators and the command itself work, too, for every target."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "fuzz.run", "all", "--seconds", "1"),
            *("--seed", "1", "--found", tmp_path),
        ],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    lines = [line.split() for line in done.stdout.splitlines()[1:]]

    assert done.returncode == 0, done.stdout + done.stderr
    assert [(name, engine) for name, engine, *_ in lines] == [(name, "atheris") for name in NAMES]
    assert all(int(line[2].replace(",", "")) > 10 for line in lines), done.stdout


@pytest.mark.parametrize(
    ("name", "repair"),
    [
        *(("npz", repair_npz), ("pt", repair_npz), ("npy.gz", repair_gz)),
        *(("manifest", repair_manifest), ("index", repair_index), ("journal", repair_journal)),
    ],
)
def test_repair_leaves_sound_files_as_they_are(name, repair):
    """It would otherwise spoil every input, and nothing behind a checksum would be reached."""
    for data in TARGETS[name].seeds():
        assert repair(data) == data


def failing(act):
    def check(data):
        act()
        return True

    return Target("npy", check)


@pytest.mark.parametrize(
    "act",
    [lambda: [].pop(), lambda: {}["x"], lambda: int("x"), lambda: exec("while True: pass")],
    ids=["IndexError", "KeyError", "ValueError", "hang"],
)
def test_the_oracle_sees(act, monkeypatch):
    """The check itself, on what it must find."""
    monkeypatch.setattr("fuzz.harness.LIMIT", 0.2)

    with pytest.raises(Failure):
        attempt(failing(act), b"")
