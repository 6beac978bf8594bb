"""What holds for every test: no deadline for drawn examples, no trace in the user's cache."""

import gc
import os
import shutil
import signal
import threading
from pathlib import Path

import pytest
from growing import write
from hypothesis import given, settings
from hypothesis import strategies as st
from loading import making

# A shared machine stalls at times: how long one example took says nothing about the code. The
# examples are the same in every run: a change is to blame for what fails, not the day.
settings.register_profile("ndfeed", deadline=None, derandomize=True, max_examples=30)
# For a second run with other versions of what we stand on.
settings.register_profile("few", deadline=None, derandomize=True, max_examples=10)
# For looking further than that: new examples in every run.
settings.register_profile("search", deadline=None, max_examples=250)
settings.register_profile("thorough", deadline=None, max_examples=1000)


def pytest_configure(config):
    """Load the profile that was asked for, or ours."""
    settings.load_profile(config.getoption("--hypothesis-profile") or "ndfeed")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # As a shell's background jobs do; processes that tests start would do so, too.
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish():
    """Have tests collect only their own garbage: with that of all frameworks, it takes a second."""
    # Hypothesis makes its generator in the first test, and checks by gc that something refers to
    # it: nothing that is frozen would be found.
    given(st.integers())(lambda _: None)()
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def cache_of_the_run(tmp_path_factory):
    """The index of a test's files is kept in a folder of this run, also by child processes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", os.fspath(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def threads_of_the_test():
    """A loader in a reference cycle ends its threads when garbage is collected: perhaps later."""
    making.earlier_threads.clear()
    making.earlier_threads.update(threading.enumerate())


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


@pytest.fixture
def three(tmp_path):
    """A folder of three files, with room for others before, between and after them."""
    folder = tmp_path / "data"
    folder.mkdir()
    write(folder, 10, 20, 30)
    return folder
