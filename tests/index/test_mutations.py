"""A kept index that somebody edited: the same data as without it, whatever was edited."""

import os

import pytest
from index.mutating import outcomes

COUNT = 300


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """A cache that no other test has."""
    monkeypatch.setenv("XDG_CACHE_HOME", os.fspath(tmp_path / "cache"))


def test_an_edited_cache_with_its_checksum_repaired_changes_nothing(tmp_path):
    """Whoever has not the key of this user cannot make the library believe anything."""
    assert outcomes(tmp_path, COUNT, forged=False) == {"same": COUNT}


def test_an_edited_cache_that_is_signed_leads_nowhere_else(tmp_path):
    """Who has the key may describe the files wrongly, which is as good as editing them.

    There is no crash, no other error, no file but the source's own, and no byte from outside it.
    """
    found = outcomes(tmp_path, COUNT, forged=True)

    assert found.total() == COUNT
    assert found["same"] > 0.9 * COUNT
