"""Every fault at every call: nothing lost, nothing torn, no crash, no hang, no strange error."""

import pytest
from faults.campaigns import CAMPAIGNS, Tally

LEAST = 200  # cases; fewer would mean that the seam misses calls


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", CAMPAIGNS)
def test_nothing_goes_wrong(name, tmp_path, monkeypatch):
    """The library is trusted with the only copy of somebody's data."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    tally = Tally()
    CAMPAIGNS[name](tmp_path, tally)

    assert tally.examples == []
    assert tally.sound
    assert tally["tried"] > LEAST
