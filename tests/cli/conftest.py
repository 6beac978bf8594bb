"""Commands run so that what they print depends on nothing but the test."""

import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from ndfeed.cli import app, main

PLAIN = {"NO_COLOR": "1", "COLUMNS": "100", "TERM": "dumb", "FORCE_COLOR": None}


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    """The index of a test's files is not kept among the user's."""
    monkeypatch.setenv("XDG_CACHE_HOME", os.fspath(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def invoke():
    """Run a command in this process; errors that only ``main`` catches come out."""

    def run(*args):
        runner = CliRunner(env=PLAIN)
        return runner.invoke(app, [os.fspath(a) for a in args], catch_exceptions=False)

    return run


@pytest.fixture
def ndfeed_process():
    """Run a command in a process of its own."""

    def run(*args, **more):
        env = {name: value for name, value in (os.environ | PLAIN | more).items() if value}
        return subprocess.run(
            [sys.executable, "-m", "ndfeed", *map(os.fspath, args)],
            capture_output=True,
            encoding="utf-8",
            env=env,
            timeout=250,
        )

    return run


@pytest.fixture
def invoke_or_error(monkeypatch, capsys):
    """Run a command in this process as ``main`` does: its status, and what it complained about."""

    def run(*args):
        for name, value in PLAIN.items():
            monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("COLUMNS", "300")
        monkeypatch.setattr(sys, "argv", ["ndfeed", *map(os.fspath, args)])
        monkeypatch.setattr("warnings.showwarning", None)
        try:
            code = main()
        except SystemExit as done:
            code = done.code
        return code, capsys.readouterr().err

    return run
