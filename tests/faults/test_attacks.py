"""Every attack that once succeeded: nothing outside is touched, nothing is wrong, nothing ends."""

import os

import pytest
from faults.attacks import ATTACKS, run

pytestmark = pytest.mark.skipif(os.name == "nt", reason="links take privileges there")


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_harms_nothing(name):
    """In a process of its own, as a script would: all counts must be zero."""
    found, why = run(name)

    assert not any(found.values()), (found, why)
