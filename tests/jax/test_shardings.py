"""Batches on meshes of one process: every sharding, and what it does not divide."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

jax = pytest.importorskip("jax")

from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding  # noqa: E402
from jax_making import P, table  # noqa: E402
from loading.making import labels, ragged  # noqa: E402

import ndfeed  # noqa: E402
import ndfeed.jax  # noqa: E402
from ndfeed.jax.shardings import slices  # noqa: E402


def mesh_of(*shape, order=None):
    devices = np.array(jax.devices())
    devices = devices if order is None else devices[list(order)]
    return Mesh(devices.reshape(shape), ("data", "model")[: len(shape)])


SPECS = [
    P("data"),
    P("data", "model"),
    P(None, "model"),
    P(("model", "data")),
    P(("data", "model")),
    P(),
]


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_global_arrays_are_numpy_s(tmp_path, spec):
    """On every device its part, whichever axes are cut; of fewer axes, what there is of them."""
    ds = table(tmp_path)
    sharding = NamedSharding(mesh_of(4, 2), spec)
    words = {"shuffle": True, "seed": 3}
    loader = ndfeed.jax.loader(ds, 32, sharding=sharding, **words)
    for batch, expected in zip(loader, ndfeed.loader(ds, 32, **words), strict=True):
        assert batch["x"].sharding == sharding
        assert batch["label"].sharding.spec == P(*tuple(spec)[:1])
        assert batch["label"].dtype == "int32"
        for name, array in batch.items():
            np.testing.assert_array_equal(np.asarray(array), expected[name])
            for shard in array.addressable_shards:
                np.testing.assert_array_equal(shard.data, expected[name][shard.index])
    assert loader.report().way == "on 8 cpu devices of this process"


@pytest.mark.skipif(not hasattr(jax, "set_mesh"), reason="an older JAX has no current mesh")
@pytest.mark.parametrize("given", [P("data"), {"x": P("data", "model"), "label": P("data")}])
def test_a_partition_spec_is_for_the_current_mesh(tmp_path, given):
    """Programs that call ``jax.set_mesh`` write the spec alone, as in ``jax.jit``."""
    ds, mesh = table(tmp_path), mesh_of(4, 2)
    with jax.set_mesh(mesh):
        loader = ndfeed.jax.loader(ds, 32, sharding=given)
    spec = given["x"] if isinstance(given, dict) else given
    for batch, expected in zip(loader, ndfeed.loader(ds, 32), strict=True):  # made outside of it
        assert batch["x"].sharding == NamedSharding(mesh, spec)
        np.testing.assert_array_equal(np.asarray(batch["x"]), expected["x"])


def test_a_partition_spec_without_a_mesh(tmp_path):
    """What to write is in the message."""
    with pytest.raises(ValueError, match=r"within jax.set_mesh\(mesh\), or pass .*NamedSharding"):
        ndfeed.jax.loader(table(tmp_path), 32, sharding=P("data"))


@pytest.mark.parametrize("order", [range(8), (7, 0, 6, 1, 5, 2, 4, 3)])
def test_any_order_of_devices(tmp_path, order):
    """JAX may order a mesh as the hardware lies."""
    sharding = NamedSharding(mesh_of(8, order=order), P("data"))

    assert labels(ndfeed.jax.loader(table(tmp_path), 8, sharding=sharding)) == list(range(96))


def test_a_device(tmp_path):
    """As a sharding of one."""
    device = jax.devices()[5]
    batch = next(iter(ndfeed.jax.loader(table(tmp_path), 5, sharding=SingleDeviceSharding(device))))

    assert {d for array in batch.values() for d in array.devices()} == {device}


def test_a_sharding_for_each_field(tmp_path):
    """Where one does not fit all."""
    mesh = mesh_of(4, 2)
    sharding = {
        "x": NamedSharding(mesh, P(None, "model")),
        "label": NamedSharding(mesh, P(("data", "model"))),
    }
    x, label = next(
        iter(ndfeed.jax.loader(table(tmp_path), 8, sharding=sharding, fields=("x", "label")))
    )

    assert (x.sharding, label.sharding) == tuple(sharding.values())
    assert label.tolist() == list(range(8))
    (x,) = next(iter(ndfeed.jax.loader(table(tmp_path), 8, sharding=sharding, fields=("x",))))
    assert x.sharding == sharding["x"]
    with pytest.raises(ndfeed.FieldError, match="'lable'"):
        ndfeed.jax.loader(table(tmp_path), 8, sharding=sharding | {"lable": sharding["x"]})
    del sharding["label"]
    with pytest.raises(ValueError, match="sharding has nothing for field 'label'"):
        ndfeed.jax.loader(table(tmp_path), 8, sharding=sharding)


@pytest.mark.parametrize("spec", [P("data"), P("data", "model")], ids=str)
def test_kept_global_arrays_never_change(tmp_path, spec):
    """Devices see parts of the pool's memory."""
    rows = np.repeat(np.arange(256, dtype="<i4")[:, None], 2048, axis=1)
    np.save(tmp_path / "x.npy", rows)
    sharding = NamedSharding(mesh_of(4, 2), spec)
    kept, count = [], 0
    with ndfeed.jax.loader(
        ndfeed.open(tmp_path / "x.npy"), 32, shuffle=True, sharding=sharding, memory="8MB"
    ) as loader:
        while count < 200:
            for batch in loader:
                count += 1
                if count % 5 == 0:
                    kept.append((batch["data"], np.array(batch["data"])))

    assert all(np.array_equal(np.asarray(x), then) for x, then in kept)
    assert all((then == then[:, :1]).all() for _, then in kept)


@pytest.mark.parametrize(
    ("spec", "batch_size", "text"),
    [
        (P("data"), 30, "batch_size must be a multiple of 4, .* sharding of 'x' .* got 30; give"),
        (P(("data", "model")), 12, "batch_size must be a multiple of 8"),
        (P("data"), 2, "batch_size must be a multiple of 4"),
        (P("data"), 36, r"the last batch must be a multiple of 4, .* got 25; drop_last=True"),
    ],
)
def test_batches_that_do_not_divide(tmp_path, spec, batch_size, text):
    """Refused when the loader is made, with the way out."""
    ds = table(tmp_path, 97)
    with pytest.raises(ValueError, match=text):
        ndfeed.jax.loader(ds, batch_size, sharding=NamedSharding(mesh_of(4, 2), spec))


def test_other_axes_that_do_not_divide(tmp_path):
    """They are fields', and no batch size helps."""
    np.save(tmp_path / "x.npy", np.zeros((8, 7), "f4"))
    ds = ndfeed.open(tmp_path / "x.npy")
    with pytest.raises(ValueError, match=r"'data' have the shape \(8, 7\), which its sharding"):
        ndfeed.jax.loader(ds, 8, sharding=NamedSharding(mesh_of(4, 2), P(None, "model")))


def test_a_last_batch_that_divides(tmp_path):
    """It is short, and laid out all the same."""
    sharding = NamedSharding(mesh_of(4, 2), P("data"))
    batches = list(ndfeed.jax.loader(table(tmp_path), 36, sharding=sharding))

    assert [len(batch["x"]) for batch in batches] == [36, 36, 24]
    short = ndfeed.jax.loader(table(tmp_path, 97), 36, sharding=sharding, drop_last=True)
    assert len(labels(short)) == 72


def test_a_state_whose_last_batch_does_not_divide(tmp_path):
    """What is left may be another number than when the loader was made."""
    ds = table(tmp_path)
    first = ndfeed.jax.loader(ds, 7)
    next(iter(first))
    loader = ndfeed.jax.loader(ds, 8, sharding=NamedSharding(mesh_of(4, 2), P("data")))
    loader.load_state_dict(first.state_dict())
    with pytest.raises(ValueError, match=r"the last batch must be a multiple of 4, .* got 1;"):
        iter(loader)


def test_samples_of_different_lengths_need_one(tmp_path):
    """Every process must make the same shape."""
    ds = ragged(tmp_path / "r", [3, 1, 2, 5, 1, 1, 1, 1])
    sharding = NamedSharding(mesh_of(4, 2), P("data", "model"))
    with pytest.raises(ValueError, match=r"pad_to=\{.x.: length\}"):
        ndfeed.jax.loader(ds, 8, sharding=sharding)
    (batch,) = ndfeed.jax.loader(ds, 8, sharding=sharding, pad_to={"x": 6})

    assert batch["x"].sharding == sharding
    assert batch["x"].shape == (8, 6)
    assert batch["x_length"].sharding.spec == P("data")
    assert batch["x_length"].tolist() == [3, 1, 2, 5, 1, 1, 1, 1]


def test_leaving_samples_out_does_not_go_with_it(tmp_path):
    """Nobody can say beforehand how long such batches are."""
    with pytest.raises(ValueError, match='on_error="skip" makes batches shorter'):
        ndfeed.jax.loader(
            table(tmp_path), 8, on_error="skip", sharding=NamedSharding(mesh_of(8), P("data"))
        )


def test_what_a_map_makes_is_laid_out(tmp_path):
    """Fields are those behind the map; one that raises is told at once."""
    sharding = NamedSharding(mesh_of(4, 2), P("data", "model"))
    ds = table(tmp_path).map(lambda batch: {"y": batch["x"][:, :4] * 2})
    for batch, expected in zip(
        ndfeed.jax.loader(ds, 16, sharding=sharding), ndfeed.loader(ds, 16), strict=True
    ):
        assert batch["y"].sharding == sharding
        np.testing.assert_array_equal(np.asarray(batch["y"]), expected["y"])
    broken = table(tmp_path).map(lambda batch: {"y": batch["no such field"]})
    with pytest.raises(KeyError, match="no such field"):
        ndfeed.jax.loader(broken, 16, sharding=sharding)


def test_a_jitted_step_over_a_mesh(tmp_path):
    """Nothing is moved between devices to begin with."""
    mesh = mesh_of(8)
    data, everywhere = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())
    weights = jax.device_put(np.ones(8, np.float32), everywhere)
    step = jax.jit(lambda w, batch: (batch["x"] @ w).sum(), out_shardings=everywhere)
    ds = table(tmp_path)
    total = sum(float(step(weights, b)) for b in ndfeed.jax.loader(ds, 32, sharding=data))

    assert total == float(ds[:]["x"].sum())
    assert step._cache_size() == 1


@given(st.lists(st.booleans(), min_size=1, max_size=48).filter(any))
def test_slices_are_what_is_needed(wanted):
    """No row less and none more, in as few slices as can be."""
    needed = np.array(wanted)
    world, ranks = slices(needed)
    size = len(needed) // world
    covered = [row for rank in ranks for row in range(rank * size, (rank + 1) * size)]

    assert covered == np.flatnonzero(needed).tolist()
    for fewer in itertools.takewhile(lambda n: n < world, itertools.count(1)):
        if len(needed) % fewer == 0:
            blocks = needed.reshape(fewer, -1)
            assert (blocks.any(1) != blocks.all(1)).any()
