"""``ndfeed.jax.framework_hacks``: what JAX does not document."""

import pytest

jax = pytest.importorskip("jax")

from ndfeed.cuda.driver import Refused  # noqa: E402
from ndfeed.jax import cuda_feed, framework_hacks  # noqa: E402


def test_an_array_can_be_uncommitted():
    one = jax.device_put(jax.numpy.arange(3), jax.local_devices()[0])
    assert one.committed
    assert framework_hacks.can_uncommit()
    assert not framework_hacks.uncommit(one).committed
    assert not jax.jit(lambda x: x + 1)(framework_hacks.uncommit(one)).committed


def test_where_it_cannot_jax_sends_the_batches(monkeypatch):
    """Rather than that batches raise where they are used."""
    monkeypatch.setattr(framework_hacks, "uncommit", lambda array: array)
    assert not framework_hacks.can_uncommit()
    with pytest.raises(Refused, match="commits"):
        cuda_feed.make(None, None, jax.local_devices()[0], 8, None, committed=False, resident=False)
