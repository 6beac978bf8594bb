"""Every fault at every call: nothing lost, nothing torn, no crash, no hang, no strange error."""

from contextlib import nullcontext

import pytest
from children import short_lease_breaks
from faults.campaigns import CAMPAIGNS
from faults.stops import stops
from faults.tally import Tally

LEAST = 200  # cases; fewer would mean that the seam misses calls


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", CAMPAIGNS)
def test_nothing_goes_wrong(name, folder, monkeypatch):
    """The library is trusted with the only copy of somebody's data."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    tally = Tally()
    with short_lease_breaks(2) if CAMPAIGNS[name] is stops else nullcontext():
        CAMPAIGNS[name](folder, tally)

    assert tally.examples == []
    assert tally.sound
    assert tally["tried"] > LEAST
