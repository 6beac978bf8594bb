"""Calls to the driver fail while JAX takes batches: right values or an error, and no leak."""

from functools import partial

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax_making  # noqa: E402
from cuda.failing import Failing  # noqa: E402
from cuda.test_failing_calls import gave_all_back, take_all  # noqa: E402
from loading.making import eventually, files  # noqa: E402

import ndfeed  # noqa: E402
import ndfeed.jax  # noqa: E402
import ndfeed.jax.jax_loader  # noqa: E402


def same(batch):
    return batch


# Arguments of the loader, and a function that changes the dataset.
CASES = {
    "files": ({}, lambda ds: ds),
    "resident": ({"resident": True}, lambda ds: ds),
    "map": ({"processes": 0}, lambda ds: ds.map(same)),
    "flips": ({"flip": {"x": 0}, "cast": {"x": "float32"}}, lambda ds: ds),
}


@pytest.mark.parametrize("broken", [False, True], ids=["once", "from then on"])
@pytest.mark.parametrize("case", CASES)
def test_any_call_may_fail(tmp_path, monkeypatch, case, broken):
    """Also of those that hand batches over."""
    words, change = CASES[case]
    ds = change(files(tmp_path, x=("u1", 24, 40_000), y=("<i8", 24), z=("u1", 24, 3)))
    monkeypatch.setattr(ndfeed.jax.jax_loader, "ToDevices", jax_making.ToStandIn)

    def run(driver, fails=None):
        stream = driver.make_stream()
        monkeypatch.setattr(jax_making, "stand_in", lambda: (driver, stream))
        driver.calls.clear()
        driver.fails = fails
        with ndfeed.jax.loader(ds, 8, shuffle=True, threads=2, **words) as loader:
            return take_all(loader, expected)

    healthy = Failing()
    with ndfeed.jax.loader(ds, 8, shuffle=True, **words) as loader:
        expected = [{n: np.array(a) for n, a in batch.items()} for batch in loader]
    assert run(healthy) is None
    for fails in range(1, len(healthy.calls) + 1):
        driver = Failing(broken=broken)
        run(driver, fails)
        if not broken:
            assert eventually(partial(gave_all_back, driver), 5), fails
            assert driver.faults == [], fails
