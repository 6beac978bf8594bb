"""``ndfeed.jax.cuda_feed``: batches on a CUDA device; without one, on a stand-in for its driver.

The stand-in's memory is that of the process, which JAX is told is the CPU's.
"""

import gc
import itertools
import sys

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402
from cuda.stand_in import StandInNvcomp  # noqa: E402
from jax.sharding import Mesh, NamedSharding  # noqa: E402
from jax_making import P, ToStandIn, stand_in  # noqa: E402
from loader_contract import LoaderContract  # noqa: E402
from loading.making import files, numbers  # noqa: E402

import ndfeed  # noqa: E402
import ndfeed.jax  # noqa: E402
from ndfeed.cuda.driver import Refused  # noqa: E402
from ndfeed.jax import cuda_feed  # noqa: E402
from ndfeed.jax.batch_format import has_every_value  # noqa: E402
from ndfeed.loading.map_rng import SampleSeeds, key_of  # noqa: E402

HAS_GPU = jax.default_backend() == "gpu"


@pytest.fixture(autouse=True, scope="module")
def on_stand_in():
    """The real device where there is one."""
    with pytest.MonkeyPatch.context() as patch:
        if not HAS_GPU:
            patch.setattr(sys.modules["ndfeed.jax.jax_loader"], "ToDevices", ToStandIn)
        yield
        if not HAS_GPU:
            assert stand_in()[0].faults == []


class TestContract(LoaderContract):
    package = ndfeed.jax
    kind = jax.Array
    narrowed = {"int64": "int32", "uint64": "uint32"}  # noqa: RUF012 - never changed


same = TestContract().same


def compare_two_epochs(loader, ds, size):
    """Compare the batches of two epochs with those of a loader of arrays."""
    for _ in range(2):
        expected = ndfeed.loader(ds, size, shuffle=True)
        expected.epoch = loader.epoch
        same(list(loader), list(expected))


SHAPES = {
    "small": {"x": ("<f4", 5000, 7)},
    "large": {"x": ("u1", 300, 40_000)},
    "image and label": {"x": ("u1", 300, 40_000), "y": ("<i8", 300), "z": ("u1", 300, 3)},
    "flags": {"x": ("?", 4000, 3), "y": ("<c8", 4000), "z": ("<f2", 4000, 5)},
}


@pytest.mark.parametrize("label", SHAPES)
def test_the_device_reads_the_files(tmp_path, label):
    """Batches are those of a loader of arrays, also where some fields are cast."""
    ds = files(tmp_path, **SHAPES[label])
    with ndfeed.jax.loader(ds, 32, shuffle=True) as loader:
        compare_two_epochs(loader, ds, 32)
        assert "reads the files" in loader.report().way


@pytest.mark.parametrize("label", SHAPES)
def test_all_data_may_be_on_the_device(tmp_path, label):
    """Rows are gathered there, in the same order; values that are checked come beside them."""
    ds = files(tmp_path, **SHAPES[label])
    with ndfeed.jax.loader(ds, 32, shuffle=True, resident=True) as loader:
        compare_two_epochs(loader, ds, 32)
        assert "resident on" in loader.report().way


def test_compressed_files_are_decoded_once_for_the_device(tmp_path):
    for number in range(30):
        np.savez_compressed(tmp_path / f"{number}.npz", x=np.full((20, 20), number, "<f4"))
    ds = ndfeed.open(tmp_path, sample="file")
    with ndfeed.jax.loader(ds, 8, shuffle=True, resident=True) as loader:
        compare_two_epochs(loader, ds, 8)
        assert "resident on" in loader.report().way


def test_data_that_is_larger_than_the_device(tmp_path, monkeypatch):
    """The error says what JAX's own part of the memory has to do with it."""
    if HAS_GPU:
        pytest.skip("the stand-in alone has as much memory as it says")
    monkeypatch.setattr(stand_in()[0], "room", 1 << 20)
    ds = files(tmp_path, x=("<f4", 5000, 700))
    with ndfeed.jax.loader(ds, 32, resident=True) as loader:
        message = r"resident=True needs 14 MB on .* set XLA_PYTHON_CLIENT_MEM_FRACTION to less"
        with pytest.raises(MemoryError, match=message):
            next(iter(loader))


def every_device():
    """A sharding over several devices of this process."""
    if len(jax.local_devices()) == 1:
        pytest.skip("JAX has one device")
    return NamedSharding(Mesh(np.array(jax.local_devices()), ("data",)), P())


@pytest.mark.parametrize(
    ("change", "words", "message"),
    [
        (lambda ds: ds.map(lambda batch: batch), {}, "leave out map"),
        (lambda ds: ds.crops({"x": (2,)}, each=2), {}, "random crops are drawn in each"),
        (lambda ds: ds.select("y"), {}, "every value is cast, and checked; leave it out"),
        (lambda ds: ds, {"sharding": every_device}, "one GPU of each process"),
    ],
)
def test_what_cannot_be_held_on_the_device(tmp_path, change, words, message):
    """It is refused when the loader is made."""
    ds = change(files(tmp_path, x=("<f4", 50, 7), y=("<i8", 50)))
    words = {name: value() for name, value in words.items()}
    with pytest.raises(ValueError, match=message):
        ndfeed.jax.loader(ds, 10, resident=True, **words)


def test_batches_are_arrays_of_jax_itself(tmp_path):
    """They can be donated, and stay what they are while the loader goes on."""
    ds = files(tmp_path, x=("<f4", 4000, 64))
    expected = [batch["x"] for batch in ndfeed.loader(ds, 100)]
    double = jax.jit(lambda x: x * 2, donate_argnums=0)
    with ndfeed.jax.loader(ds, 100, memory="4MB") as loader:
        kept = [batch["x"] for batch in loader]
        doubled = [double(batch["x"]) for batch in loader]
    for one, two, array in zip(kept, doubled, expected, strict=True):
        np.testing.assert_array_equal(one, array)
        np.testing.assert_array_equal(two, array * 2)


@pytest.mark.parametrize("spec", [P("data"), P(), P("data", "model")], ids=str)
def test_a_mesh_of_one_device(tmp_path, spec):
    """As where each process drives one: the same way, and arrays have the sharding."""
    mesh = Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("data", "model"))
    ds = files(tmp_path, x=("u1", 300, 40_000), y=("<i8", 300), z=("u1", 300, 3))
    sharding = NamedSharding(mesh, spec)
    double = jax.jit(lambda x: x * 2, donate_argnums=0)
    with ndfeed.jax.loader(ds, 32, shuffle=True, sharding=sharding) as loader:
        expected = list(ndfeed.loader(ds, 32, shuffle=True))
        found = list(loader)
        same(found, expected)
        for batch in found:
            assert batch["x"].sharding == sharding
            assert batch["y"].sharding.mesh == mesh
        np.testing.assert_array_equal(double(found[3]["x"]), expected[3]["x"] * 2)
        assert "reads the files" in loader.report().way


def test_other_memory_of_a_mesh_is_left_to_jax(tmp_path):
    """Arrays that are to stay in the memory of the host, for example."""
    device = jax.devices()[0]
    kinds = {one.kind for one in device.addressable_memories()} - {device.default_memory().kind}
    if not kinds:
        pytest.skip(f"{device} has one kind of memory")
    mesh = Mesh(np.array([device]), ("data",))
    sharding = NamedSharding(mesh, P("data"), memory_kind=min(kinds))
    ds = files(tmp_path, x=("u1", 300, 40_000))
    with ndfeed.jax.loader(ds, 32, sharding=sharding) as loader:
        same(list(loader), list(ndfeed.loader(ds, 32)))
        assert "reads the files" not in loader.report().way


def test_casts_that_lose_nothing_are_done_on_the_device(tmp_path):
    """Images become floats where they are used, and the bus carries bytes."""
    ds = files(tmp_path, x=("u1", 3000, 16), y=("<f2", 3000))
    cast = {"x": "float32", "y": "float32"}
    with ndfeed.jax.loader(ds, 50, shuffle=True, cast=cast) as loader:
        for batch, arrays in zip(loader, ndfeed.loader(ds, 50, shuffle=True), strict=True):
            for name in cast:
                assert batch[name].dtype == "float32"
                np.testing.assert_array_equal(batch[name], arrays[name].astype("f4"))
        assert "reads the files" in loader.report().way


@pytest.mark.parametrize(
    ("of", "dtype", "exact"),
    [
        ("u1", "bfloat16", True),
        ("u1", "float16", True),
        ("i2", "float16", False),
        ("u2", "float32", True),
        ("i4", "float32", False),
        ("f2", "float32", True),
        ("f4", "float16", False),
        ("f2", "bfloat16", False),
        ("i8", "int32", False),
        ("?", "float32", True),
    ],
)
def test_what_loses_nothing(of, dtype, exact):
    """By the bits of the mantissa and the exponent; every small value is tried as well."""
    new, old = np.dtype(getattr(jnp, dtype)), np.dtype(of)
    assert has_every_value(new, old) == exact
    if exact:
        every = np.arange(1 << 8 * old.itemsize, dtype=f"u{old.itemsize}")
        every = every.astype(bool) if of == "?" else every.view(old)
        back = every.astype(new).astype(old)
        np.testing.assert_array_equal(back, every)


def test_the_last_batch_may_be_short(tmp_path):
    ds = files(tmp_path, x=("<f4", 1003, 3))
    assert [len(batch["x"]) for batch in ndfeed.jax.loader(ds, 10)] == [10] * 100 + [3]


@pytest.mark.parametrize("batches", [1, 50])
def test_a_rank_may_have_no_sample_of_the_last_batch(tmp_path, batches):
    """Then its arrays are empty, and of the dtypes of all others."""
    ds = files(
        tmp_path,
        x=("<f4", batches * 8 + 2, 3),
        y=("<i8", batches * 8 + 2),
        z=("u1", batches * 8 + 2),
    )
    for rank in range(4):
        words = {"shard": (rank, 4), "cast": {"z": "float32"}}
        with ndfeed.jax.loader(ds, 2, **words) as loader:
            found = list(loader)
        expected = ndfeed.loader(ds, 2, shard=(rank, 4), fields="x")
        same([batch["x"] for batch in found], list(expected))
        assert [len(batch["x"]) for batch in found] == [2] * batches + [int(rank < 2)]
        assert {(b["y"].dtype.name, b["z"].dtype.name) for b in found} == {("int32", "float32")}


@pytest.mark.parametrize(
    "dtype",
    [
        *("int4", "uint4", "float4_e2m1fn"),  # JAX packs them: ours have a byte for each
        *("float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn"),
        *("float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"),
        *("bfloat16", "float16", "float32", "int8", "int16", "int32", "uint16", "uint32"),
    ],
)
def test_dtypes_that_the_bits_become(tmp_path, dtype):
    """Of some, DLPack has no name."""
    ds = files(tmp_path, x=("<f4", 100, 8))
    np.save(tmp_path / "y.npy", np.arange(300, dtype="u1").reshape(100, 3) % 4)
    ds = ndfeed.open({"x": tmp_path / "x.npy", "y": tmp_path / "y.npy"}, sample="row")
    with ndfeed.jax.loader(ds, 10, cast={"y": dtype}) as loader:
        for batch, arrays in zip(loader, ndfeed.loader(ds, 10), strict=True):
            assert batch["y"].dtype == dtype
            np.testing.assert_array_equal(np.asarray(batch["y"]).astype("f4"), arrays["y"])


def test_64_bits_are_not_cut_to_32_without_a_word(tmp_path):
    """With ``jax_enable_x64`` turned off after the loader was made, which chose not to cast."""
    np.save(tmp_path / "x.npy", np.arange(100).reshape(50, 2) + (1 << 40))
    ds = ndfeed.open(tmp_path / "x.npy", sample="row")
    jax.config.update("jax_enable_x64", True)
    try:
        loader = ndfeed.jax.loader(ds, 10)
        assert int(next(iter(loader))["data"][0, 0]) == 1 << 40
    finally:
        jax.config.update("jax_enable_x64", False)
    with loader, pytest.raises(RuntimeError, match="jax_enable_x64 was True"):
        list(loader)


def test_jax_is_handed_memory_that_xla_takes(tmp_path, monkeypatch):
    """Labels are parts of what was fetched for many batches, and begin anywhere."""
    addresses = []
    take_over = jax.dlpack.from_dlpack
    monkeypatch.setattr(
        jax.dlpack,
        "from_dlpack",
        lambda shared: (addresses.append(shared._span.address), take_over(shared))[1],
    )
    ds = files(tmp_path, x=("u1", 300, 40_000), y=("<i4", 300), z=("u1", 300, 3))
    with ndfeed.jax.loader(ds, 10, shuffle=True, memory="2MB") as loader:
        same(list(loader), list(ndfeed.loader(ds, 10, shuffle=True)))
    assert addresses
    assert not [address for address in addresses if address % 16]


def test_small_batches_are_handed_over_many_at_a_time(tmp_path):
    with ndfeed.jax.loader(numbers(tmp_path, 10_000).select("data"), 16, cast="int32") as loader:
        list(loader)
        assert "batches ahead" in loader.report().way  # everything is cast, on the CPU
    ds = files(tmp_path, x=("<f4", 10_000, 3))
    with ndfeed.jax.loader(ds, 16) as loader:
        list(loader)
        assert loader._runtimes.every[0].adapter.ahead > 16


def test_values_that_do_not_fit_come_after_the_batches_before_them(tmp_path):
    """A field that is cast, beside one that the device reads itself."""
    values = np.arange(4000)
    values[2345] = 1 << 40
    np.save(tmp_path / "y.npy", values)
    np.save(tmp_path / "x.npy", np.zeros((4000, 8), "f4"))
    ds = ndfeed.open({"x": tmp_path / "x.npy", "y": tmp_path / "y.npy"}, sample="row")
    seen = []
    with ndfeed.jax.loader(ds, 16) as loader, pytest.raises(ndfeed.CastError, match="2345"):
        seen.extend(len(batch["y"]) for batch in loader)
    assert sum(seen) == 2345 // 16 * 16


@pytest.mark.skipif(HAS_GPU, reason="counts the memory of the stand-in")
def test_closed_loaders_have_no_memory(tmp_path):
    """One that is made for every validation would take the whole device in time."""
    gc.collect()
    free = stand_in()[0].room
    ds = files(tmp_path, x=("u1", 300, 40_000), y=("<i8", 300), z=("u1", 300, 3))
    loader = ndfeed.jax.loader(ds, 10)
    for until in (1, 30):
        list(itertools.islice(loader, until))
        loader.close()
        assert stand_in()[0].room >= free


@pytest.mark.skipif(HAS_GPU, reason="counts the memory of the stand-in")
def test_values_that_do_not_fit_cost_no_memory(tmp_path):
    """The memory that other fields were sent through is used again, and freed in the end."""
    for name in "yz":
        np.save(tmp_path / f"{name}.npy", np.full(100, 1 << 40 if name == "z" else 1))
    np.save(tmp_path / "x.npy", np.zeros((100, 8), "f4"))
    ds = ndfeed.open({name: tmp_path / f"{name}.npy" for name in "xyz"}, sample="row")
    before = count_uploads()
    with ndfeed.jax.loader(ds, 16) as loader:
        for _ in range(3):
            with pytest.raises(ndfeed.CastError):
                list(loader)
    assert count_uploads() <= before


def count_uploads():
    """How many pieces of memory there are that are smaller than a block for a batch."""
    return sum(size < 2 << 20 for size in dict(stand_in()[0].readable).values())


@pytest.mark.parametrize("slow", [False, True])
def test_every_value_is_right_at_any_pace(tmp_path, slow):
    """Memory of ours that were used again too soon would show here."""
    ds = files(tmp_path, x=("u1", 3000, 3001), n=("<i4", 3000))
    truth = jnp.asarray(np.load(tmp_path / "x.npy"))
    busy = jnp.ones((1500, 1500), "float32") if slow else None
    wrong = jnp.zeros((), "int32")
    expected = ndfeed.loader(ds, 100, shuffle=True, fields="n")
    np.save(tmp_path / "n.npy", np.arange(3000, dtype="<i4"))
    ds = ndfeed.open({"x": tmp_path / "x.npy", "n": tmp_path / "n.npy"}, sample="row")
    expected = ndfeed.loader(ds, 100, shuffle=True, fields="n")
    with ndfeed.jax.loader(ds, 100, shuffle=True, memory="8MB") as loader:
        for _ in range(4 if slow else 10):
            for batch, n in zip(loader, expected, strict=True):
                if busy is not None:
                    busy = busy @ busy * 1e-3
                wrong += (batch["x"] != truth[n]).any() | (batch["n"] != n).any()
    assert int(wrong) == 0


def test_large_batches_of_functions_go_through_pinned_memory(tmp_path):
    """As they are made, one by one; what the function returns may be in any memory and order."""
    ds = files(tmp_path, x=("u1", 400, 100, 200), n=("<i4", 400)).map(turned)
    with ndfeed.jax.loader(ds, 64, shuffle=True, seed=2) as loader:
        expected = ndfeed.loader(ds, 64, shuffle=True, seed=2)
        for _ in range(3):
            for batch, arrays in zip(loader, expected, strict=True):
                for name, values in arrays.items():
                    np.testing.assert_array_equal(batch[name], values)
        assert "through pinned memory" in loader.report().way


def turned(batch):
    x = batch["x"]
    return {"x": x, "t": x.transpose(0, 2, 1), "f": x[:, ::2].astype("f4"), "b": x > 9} | batch


def test_files_that_are_opened_for_every_sample(tmp_path):
    """They are read by processes, where that is faster, into memory that the device copies from."""
    for number in range(60):
        np.savez(tmp_path / f"{number:03}.npz", x=np.full((50, 50), number, "f4"))
    ds = ndfeed.open(tmp_path, sample="file")
    for processes in (0, 2):
        with ndfeed.jax.loader(ds, 8, shuffle=True, processes=processes) as loader:
            same(list(loader), list(ndfeed.loader(ds, 8, shuffle=True)))
            assert "through pinned memory" in loader.report().way


def inflate_always(monkeypatch):
    """Have the device inflate, whether or not that is faster."""
    for name, value in (("least", 0), ("prefer", staticmethod(lambda rates: True))):
        monkeypatch.setattr(cuda_feed.Direct, name, value)
    if not HAS_GPU:
        library = staticmethod(lambda: StandInNvcomp(stand_in()[0]))
        monkeypatch.setattr(cuda_feed.Direct, "load_library", library)
    try:
        cuda_feed.Direct.load_library()
    except Refused as error:
        pytest.skip(f"{error}")


def test_deflated_files_are_inflated_on_the_device(tmp_path, monkeypatch):
    """With casts: those that lose nothing there, and those that are checked on the CPU."""
    rng = np.random.default_rng(0)
    for number in range(90):
        x, z = rng.integers(0, 50, (30, 31, 3)).astype("u1"), rng.random((5, 3), "f4")
        np.savez_compressed(tmp_path / f"{number:02}", x=x, y=np.int64(number), z=z)
    ds = ndfeed.open(tmp_path, sample="file")
    inflate_always(monkeypatch)
    expected = ndfeed.loader(ds, 16, shuffle=True)
    with ndfeed.jax.loader(ds, 16, shuffle=True, cast={"x": "float32"}) as loader:
        for batch, arrays in itertools.chain(
            zip(loader, expected, strict=True), zip(loader, expected, strict=True)
        ):
            assert {name: str(values.dtype) for name, values in batch.items()} == {
                "x": "float32",
                "y": "int32",
                "z": "float32",
            }
            for name, values in arrays.items():
                np.testing.assert_array_equal(batch[name], values)
        way = loader.report().way
    assert "inflated on" in way


def flipped(arrays, axes):
    """Batches of arrays, flipped one sample at a time by the bytes that are drawn for them."""
    first = 0
    for batch in arrays:
        count = len(batch["x"])
        drawn = SampleSeeds.of(key_of(0, 0), [(first, first + count, 1)]).draw_bytes()
        for name, some in axes.items():
            for at, byte in enumerate(drawn.tolist()):
                turned = [axis for bit, axis in enumerate(some) if byte >> bit & 1]
                batch[name][at] = np.flip(batch[name][at], turned)
        first += count
        yield batch


def same_batch(batch):
    return batch


@pytest.mark.parametrize("size", [7, 64])
@pytest.mark.parametrize("way", ["files", "resident", "map", "compressed", "inflated"])
def test_samples_are_flipped_on_the_device(tmp_path, monkeypatch, way, size):
    """As they would be on the CPU, whichever way they came, alone or in groups."""
    values = np.random.default_rng(0).integers(0, 99, (300, 2, 40, 35))
    if way in ("compressed", "inflated"):
        for number in range(300):
            one = {"x": values[number, 0].astype("u1"), "m": values[number, 1].astype("<f2")}
            np.savez_compressed(tmp_path / f"{number:03}.npz", **one, y=number)
        ds = ndfeed.open(tmp_path, sample="file")
    else:
        ds = files(tmp_path, x=("u1", 300, 40, 35), y=("<i8", 300), m=("<f2", 300, 40, 35))
    axes = {"x": (0, -1), "m": (0, 1)}
    if way == "inflated":
        inflate_always(monkeypatch)
    source = ds.map(same_batch) if way == "map" else ds
    words = {"resident": True} if way == "resident" else {}
    cast = {"m": "float32"}
    with ndfeed.jax.loader(source, size, shuffle=True, cast=cast, flip=axes, **words) as loader:
        found = list(loader)
        report = loader.report().way
    expected = flipped(ndfeed.loader(ds, size, shuffle=True), axes)
    for batch, arrays in zip(found, expected, strict=True):
        assert list(batch) == list(arrays)
        for name, one in arrays.items():
            np.testing.assert_array_equal(batch[name], one)
    assert {"files": "reads", "resident": "resident", "inflated": "inflated on"}.get(
        way, ""
    ) in report


def test_a_cast_of_all_integers_is_not_one_of_what_is_drawn(tmp_path):
    """Bytes for flips need not fit the dtype that fields are cast to."""
    values = np.random.default_rng(0).integers(0, 99, (300, 40, 35)).astype("u1")
    for name in ("x", "m"):
        np.save(tmp_path / f"{name}.npy", values.astype({"x": "u1", "m": "<f4"}[name]))
    ds = ndfeed.open({name: tmp_path / f"{name}.npy" for name in ("x", "m")}, sample="row")
    axes = {"x": (0, -1), "m": (0, 1)}
    for source in (ds, ds.map(same_batch)):
        with ndfeed.jax.loader(source, 64, shuffle=True, cast="int8", flip=axes) as loader:
            found = list(loader)
        for batch, arrays in zip(
            found, flipped(ndfeed.loader(ds, 64, shuffle=True), axes), strict=True
        ):
            assert batch["x"].dtype == "int8"
            for name, one in arrays.items():
                np.testing.assert_array_equal(batch[name], one)
