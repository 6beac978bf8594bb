"""What holds for every test: no deadline for drawn examples, no trace in the user's cache."""

import os

import pytest
from hypothesis import settings

# A shared machine stalls at times: how long one example took says nothing about the code.
settings.register_profile("ndfeed", deadline=None)
settings.load_profile("ndfeed")


@pytest.fixture(scope="session", autouse=True)
def cache_of_the_run(tmp_path_factory):
    """The index of a test's files is kept in a folder of this run, also by child processes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", os.fspath(tmp_path_factory.mktemp("cache")))
        yield
