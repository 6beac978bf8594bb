"""``ndfeed.jax.adapter``: batches on their way to other devices, many small ones at a time.

The way itself is the same wherever they go, so it is gone here on the CPU.
"""

import sys

import numpy as np
import pytest

jax = pytest.importorskip("jax")

from loader_contract import LoaderContract  # noqa: E402
from loading.making import large_rows, numbers  # noqa: E402

import ndfeed  # noqa: E402
import ndfeed.jax  # noqa: E402
from ndfeed.jax.adapter import Away, Target, ToDevices  # noqa: E402


class ToAnother(ToDevices):
    """Takes the CPU for another device."""

    def __call__(self):
        device = self.place and self.place.find()
        target = Target(self.layout, device, jax.config.jax_default_device)
        return Away(self.form, target, "device", self.size, self.room)


@pytest.fixture(autouse=True, scope="module")
def away():
    """Also the CPU counts as another device."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules["ndfeed.jax.jax_loader"], "ToDevices", ToAnother)
        yield


class TestContract(LoaderContract):
    package = ndfeed.jax
    kind = jax.Array
    narrowed = {"int64": "int32", "uint64": "uint32"}  # noqa: RUF012 - never changed


same = TestContract().same


def test_small_batches_are_sent_many_at_a_time(tmp_path):
    loader = ndfeed.jax.loader(numbers(tmp_path, 10_000), 16)
    list(loader)

    assert loader._runtimes.every[0].adapter.ahead > 16
    assert "batches ahead" in loader.report().way


def test_batches_of_maps_too(tmp_path):
    ds = numbers(tmp_path, 3000).map(lambda s: {"x": s["data"] * 2.5, "y": s["data"]})
    same(list(ndfeed.jax.loader(ds, 16, cast={"x": "float32"})),
         [{"x": b["x"].astype("f4"), "y": b["y"]} for b in ndfeed.loader(ds, 16)])  # fmt: skip


def test_what_does_not_fit_is_told_behind_the_batches_before_it(tmp_path):
    """Also where they were sent together."""
    values = np.arange(4000)
    values[2345] = 1 << 40
    np.save(tmp_path / "x.npy", values)
    loader = ndfeed.jax.loader(ndfeed.open(tmp_path / "x.npy"), 10)

    seen = []
    with pytest.raises(ndfeed.CastError, match="2345"):
        seen.extend(batch["data"].tolist() for batch in loader)

    assert seen == values[:2340].reshape(-1, 10).tolist()


def test_kept_batches_never_change(tmp_path):
    """Of batches large and small, while memory is lent again and again."""
    ds = large_rows(tmp_path, 64)
    for size in (1, 4, 16):
        loader = ndfeed.jax.loader(ds, size, shuffle=True, memory="32MB")
        kept = [batch for _ in range(3) for batch in loader]
        for batch in kept:
            assert (batch["image"] == batch["label"][:, None].astype("uint32")).all()


@pytest.mark.parametrize("memory", [8 << 20, 64 << 20])
def test_memory_counts_what_is_on_its_way(tmp_path, memory):
    """Two pieces are with JAX; batches under way make do with the rest."""
    loader = ndfeed.jax.loader(large_rows(tmp_path, 64), 1, memory=memory)
    list(loader)

    held, report = loader._runtimes.every[0].adapter.held, loader.report()
    assert held == memory // 4
    assert held + report.depth * report.batch_bytes <= memory
