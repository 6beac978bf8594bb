"""Batches as arrays of JAX: the same as NumPy's, in the same order, and never changed."""

import gc
import pickle

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402
import jax_making  # noqa: E402
from children import start  # noqa: E402
from jax_making import table  # noqa: E402
from loader_contract import (  # noqa: E402
    STRUCTURES,
    ArgumentContract,
    EpochContract,
    Feed,
    LoaderContract,
    built,
)
from loading.making import images, large_rows, numbers, ragged  # noqa: E402

import ndfeed  # noqa: E402
import ndfeed.jax  # noqa: E402
from ndfeed.loading.buffer_pool import ALIGNED  # noqa: E402

NARROW = {"int64": "int32", "uint64": "uint32"}


@pytest.fixture
def wide():
    """64 bits are kept."""
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


class TestContract(LoaderContract):
    package = ndfeed.jax
    kind = jax.Array
    narrowed = NARROW


class JaxFeed(Feed):
    make = staticmethod(ndfeed.jax.loader)


class TestEpochs(EpochContract):
    feed = JaxFeed
    package = ndfeed.jax
    more = ("sharding", "cast", "flip", "device", "resident")


class TestArguments(ArgumentContract):
    make = staticmethod(ndfeed.jax.loader)


assert_same = TestContract().same


def test_arrays_are_for_any_device(tmp_path):
    """Without a sharding they are not tied to one: they go with what they are used with."""
    batch = next(iter(ndfeed.jax.loader(table(tmp_path), 4)))
    other = jax.device_put(np.ones(8, np.float32), jax.devices()[3])

    assert (batch["x"] + other).devices() == {jax.devices()[3]}


def test_the_consumer_s_default_device_counts(tmp_path):
    """It is said for a thread, and batches are made in others."""
    with jax.default_device(jax.devices()[2]):
        batch = next(iter(ndfeed.jax.loader(table(tmp_path), 4)))

    assert batch["x"].devices() == {jax.devices()[2]}


def test_a_device_that_arrays_stay_on(tmp_path):
    """As ``device=`` does in torch: what is used with them has to be there as well."""
    device = jax.devices()[3]
    loader = ndfeed.jax.loader(table(tmp_path), 4, shuffle=True, device=device)
    for batch, expected in zip(loader, ndfeed.loader(loader.dataset, 4, shuffle=True), strict=True):
        assert all(array.devices() == {device} and array.committed for array in batch.values())
        np.testing.assert_array_equal(batch["x"], expected["x"])
    again = pickle.loads(pickle.dumps(loader))  # a device does not, but its number does
    assert next(iter(again))["x"].devices() == {device}
    with pytest.raises(ValueError, match="incompatible devices"):
        batch["x"] + jax.device_put(np.ones(8, np.float32), jax.devices()[2])


def test_a_device_is_for_all_kinds_of_samples(tmp_path):
    """A sharding refuses ragged lists; nothing has to be cut for a single device."""
    device = jax.devices()[5]
    loader = ndfeed.jax.loader(ragged(tmp_path, [3, 1, 2]), 3, ragged="list", device=device)
    (batch,) = loader

    assert [len(one) for one in batch["x"]] == [3, 1, 2]
    assert all(one.devices() == {device} for one in (*batch["x"], batch["n"]))


def test_a_device_by_the_name_of_its_platform(tmp_path):
    """The first one of this process."""
    batch = next(iter(ndfeed.jax.loader(table(tmp_path), 4, device="cpu")))

    assert batch["x"].devices() == {jax.devices("cpu")[0]}
    assert batch["x"].committed


@pytest.mark.parametrize(
    ("device", "error", "text"),
    [
        ("abacus", ValueError, "JAX has no device 'abacus'; available: .*cpu"),
        (3, TypeError, "one of jax.local_devices()"),
    ],
)
def test_wrong_devices_are_refused(tmp_path, device, error, text):
    """At once, with those that there are."""
    with pytest.raises(error, match=text):
        ndfeed.jax.loader(table(tmp_path), 4, device=device)


def test_data_is_held_on_gpus_alone(tmp_path):
    with pytest.raises(ValueError, match=r"needs device='gpu'.*ds.in_memory\(\) holds it in RAM"):
        ndfeed.jax.loader(table(tmp_path), 8, resident=True, device="cpu")


def test_a_device_and_a_sharding(tmp_path):
    """Two words for one thing are refused."""
    device = jax.devices()[0]
    sharding = jax.sharding.SingleDeviceSharding(device)
    with pytest.raises(ValueError, match="leave out one of them"):
        ndfeed.jax.loader(table(tmp_path), 4, device=device, sharding=sharding)


def address(array):
    return array.unsafe_buffer_pointer()


def test_aligned_memory_is_used_as_it_is(tmp_path):
    """One copy, from the file: what was read is what JAX has."""
    ds = large_rows(tmp_path, 16)
    with ndfeed.jax.loader(ds, 8) as loader:
        batch = next(iter(loader))
        seen = np.asarray(batch["image"])

        assert address(batch["image"]) == seen.ctypes.data
        assert address(batch["image"]) % ALIGNED == 0
        assert loader.report().buffers >= 1


# Bytes of a row and rows of a batch: large ones, whose memory begins at 64 bytes; small ones cut
# out of 8 MB, where each begins at 64 bytes, or few do; and small ones that nothing is lent for.
KEPT = [(64 << 10, 4), (1 << 20, 1), (128, 64), (100, 33), (20, 3)]


@pytest.mark.parametrize(("size", "batch_size"), KEPT)
@pytest.mark.parametrize("cast", [False, True])
def test_kept_batches_never_change(tmp_path, size, batch_size, cast):
    """Memory is used again only when no array of JAX sees it any more, nor copies it."""
    n = 64 if size > 10_000 else 5000
    rows = np.repeat(np.arange(n, dtype="<i8" if cast else "<i4")[:, None], size // 4, axis=1)
    np.save(tmp_path / "x.npy", rows)
    kept, count = [], 0
    with ndfeed.jax.loader(
        ndfeed.open(tmp_path / "x.npy"), batch_size, shuffle=True, memory="24MB", threads=2
    ) as loader:
        while count < 600:
            for batch in loader:
                count += 1
                x = batch["data"]
                if count % 7 == 0:
                    kept.append((x, np.array(x)))
                if count == 600:
                    break
        made_of = loader.report().buffers
    wrong = [at for at, (x, then) in enumerate(kept) if not np.array_equal(np.asarray(x), then)]

    assert not wrong
    assert all((then == then[:, :1]).all() for _, then in kept)
    assert len(kept) == 85
    assert made_of < 300  # and memory is used again
    del kept, x, batch
    gc.collect()


def test_a_batch_that_is_copied_behind_our_back(tmp_path):
    """Large arrays that begin elsewhere are copied later: their memory must wait for that."""
    rows = np.repeat(np.arange(40, dtype="u1")[:, None], 2_000_003, axis=1)
    np.save(tmp_path / "x.npy", rows)
    offset = ndfeed.open(tmp_path / "x.npy").map(lambda batch: {"x": batch["data"][:, 1:]})
    found = []
    with ndfeed.jax.loader(offset, 2, memory="32MB") as loader:
        for batch in loader:
            found += [(int(row[0]), bool((row == row[0]).all())) for row in batch["x"]]

    assert found == [(row, True) for row in range(40)]


def test_donated_batches(tmp_path):
    """A step that is given a batch to use up takes nothing that others see."""
    ds = large_rows(tmp_path, 64)
    step = jax.jit(lambda image: (image + 1, image.sum()), donate_argnums=0)
    with ndfeed.jax.loader(ds, 4, shuffle=True, memory="4MB") as loader:
        for _ in range(5):
            for batch in loader:
                rows = batch["label"].tolist()
                image, _ = step(batch["image"])
                assert image[:, 0].tolist() == [row + 1 for row in rows]


def test_a_training_step_is_compiled_once(tmp_path):
    """All batches but a short last one have one shape and one type."""
    step = jax.jit(lambda batch: batch["x"].sum() + batch["label"].sum())
    with ndfeed.jax.loader(table(tmp_path), 16, shuffle=True) as loader:
        for batch in loader:
            step(batch)

    assert step._cache_size() == 1


# Types.


@pytest.mark.parametrize(
    ("dtype", "becomes"),
    [
        ("int64", "int32"),
        ("uint64", "uint32"),
        ("int32", "int32"),
        (">i8", "int32"),
        (">f4", "float32"),
        ("bool", "bool"),
        ("uint8", "uint8"),
        ("float16", "float16"),
        ("complex64", "complex64"),
    ],
)
def test_types(tmp_path, dtype, becomes):
    """64-bit integers lose nothing but zeros; all else stays what it is."""
    values = np.array([[0, 1], [1, 0], [1, 1]]).astype(dtype)
    np.save(tmp_path / "x.npy", values)
    (batch,) = ndfeed.jax.loader(ndfeed.open(tmp_path / "x.npy"), 3)

    assert batch["data"].dtype == becomes
    np.testing.assert_array_equal(np.asarray(batch["data"]), values)


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_small_types(tmp_path, name):
    """What NumPy lacks and ml_dtypes has, as tensors files hold it."""
    save_file = pytest.importorskip("safetensors.numpy").save_file
    ml_dtypes = pytest.importorskip("ml_dtypes")
    values = np.arange(6).reshape(3, 2).astype(getattr(ml_dtypes, name))
    save_file({"x": values}, tmp_path / "x.safetensors")
    (batch,) = ndfeed.jax.loader(ndfeed.open(tmp_path / "x.safetensors"), 3)

    assert batch["x"].dtype == name
    assert batch["x"].astype(jnp.float32).tolist() == values.astype("f4").tolist()


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1, 2**32 + 1])
@pytest.mark.parametrize("batch_size", [5, 64])
def test_a_label_that_does_not_fit(tmp_path, value, batch_size):
    """JAX would make another label of it. The error says where it is, as ds[row] has it."""
    values = np.arange(100)
    values[77] = value
    np.save(tmp_path / "label.npy", values)
    ds = ndfeed.open(tmp_path / "label.npy")
    loader = ndfeed.jax.loader(ds, batch_size, shuffle=True)
    with pytest.raises(
        ndfeed.CastError, match=f"field 'data' has {value} in row 77, which int32 cannot hold"
    ) as caught:
        list(loader)

    assert int(ds[caught.value.row]["data"]) == value == caught.value.value
    assert isinstance(caught.value, ValueError)
    (batch,) = ndfeed.jax.loader(ds.take(range(70)), 70)
    assert batch["data"].tolist() == list(range(70))


def test_the_largest_that_fit(tmp_path):
    """The bounds themselves are kept."""
    for dtype, bounds in {"i8": [-(2**31), 2**31 - 1], "u8": [0, 2**32 - 1]}.items():
        np.save(tmp_path / f"{dtype}.npy", np.array(bounds, dtype))
        (batch,) = ndfeed.jax.loader(ndfeed.open(tmp_path / f"{dtype}.npy"), 2)

        assert batch["data"].tolist() == bounds


def test_fractions_are_cast_where_it_is_said(tmp_path):
    """float64 would lose digits: that takes a word."""
    values = np.array([[0.1, 1e300], [np.inf, np.nan], [1.0, -2.0]])
    np.save(tmp_path / "x.npy", values)
    ds = ndfeed.open(tmp_path / "x.npy")
    with pytest.raises(
        ndfeed.SchemaError, match=r"x\.npy: field 'data' has dtype float64, of which JAX keeps "
        r'float32 .* pass cast=\{.data.: "float32"\}',
    ):  # fmt: skip
        ndfeed.jax.loader(ds, 2)
    with pytest.raises(ndfeed.CastError, match="'data' has 1e\\+300 in row 0, which float32"):
        list(ndfeed.jax.loader(ds, 2, cast={"data": "float32"}))
    (batch,) = ndfeed.jax.loader(ds.take([1, 2]), 2, cast={"data": np.float32})
    np.testing.assert_array_equal(np.asarray(batch["data"]), values[1:].astype("f4"))


@pytest.mark.parametrize(
    ("stored", "asked"),
    [("u1", "float32"), ("u1", "bfloat16"), ("i8", "int8"), ("f4", "float16"), ("?", "float32")],
)
def test_other_casts(tmp_path, stored, asked):
    """To whatever a model wants, as long as it fits."""
    values = np.array([0, 1, 100, 127]).astype(stored)
    np.save(tmp_path / "x.npy", values)
    (batch,) = ndfeed.jax.loader(ndfeed.open(tmp_path / "x.npy"), 4, cast={"data": asked})

    assert batch["data"].dtype == asked
    assert batch["data"].astype("float32").tolist() == values.astype("f4").tolist()


@pytest.mark.parametrize(
    ("stored", "asked", "error", "text"),
    [
        ("f4", "int32", ndfeed.SchemaError, "float32, which is not cast to int32; round in map"),
        ("c8", "float32", ndfeed.SchemaError, "is not cast to float32"),
        ("i8", "int64", ValueError, "JAX would make int32 of it while jax_enable_x64 is off"),
        ("i8", "U3", TypeError, "JAX has no such type"),
        ("i8", "nothing", TypeError, "cast takes types such as 'float32', got 'nothing'"),
    ],
)
def test_wrong_casts(tmp_path, stored, asked, error, text):
    """Refused before anything is read."""
    np.save(tmp_path / "x.npy", np.zeros(3, stored))
    with pytest.raises(error, match=text):
        ndfeed.jax.loader(ndfeed.open(tmp_path / "x.npy"), 2, cast={"data": asked})


def test_64_bits_where_jax_keeps_them(tmp_path, wide):
    """With jax_enable_x64 on nothing is cast."""
    np.savez(tmp_path / "x.npz", big=np.array([2**40, 1]), real=np.array([0.1, 1e300]))
    (batch,) = ndfeed.jax.loader(ndfeed.open(tmp_path / "x.npz"), 2)

    assert batch["big"].tolist() == [2**40, 1]
    assert batch["real"].tolist() == [0.1, 1e300]
    (batch,) = ndfeed.jax.loader(ndfeed.open(tmp_path / "x.npz"), 2, cast={"big": "float32"})
    assert batch["big"].dtype == "float32"


def test_64_bits_for_a_while(tmp_path):
    """A context counts in one thread only; in the others JAX would narrow in silence."""
    ds = numbers(tmp_path, 10)
    jax.config.update("jax_enable_x64", True)
    try:
        loader = ndfeed.jax.loader(ds, 2)
    finally:
        jax.config.update("jax_enable_x64", False)

    with pytest.raises(RuntimeError, match="jax_enable_x64 was True when the loader was made"):
        next(iter(loader))


@pytest.mark.parametrize("dtype", ["U3", "S4", "M8[s]", "longdouble"])
def test_types_that_jax_lacks(tmp_path, dtype):
    """By the field's name, when the loader is made; other fields can be had."""
    np.savez(tmp_path / "x.npz", bad=np.zeros(3, dtype), good=np.arange(3, dtype="i4"))
    ds = ndfeed.open(tmp_path / "x.npz")
    with pytest.raises(ndfeed.SchemaError, match=r"x\.npz: field 'bad' has dtype .*JAX cannot"):
        ndfeed.jax.loader(ds, 2)
    (good,) = next(iter(ndfeed.jax.loader(ds, 3, fields=("good",))))

    assert good.tolist() == [0, 1, 2]


def test_structured_types_are_fields(tmp_path):
    """As everywhere in ndfeed."""
    rows = np.array([(1, 0.5), (2, 1.5)], [("a", "<i4"), ("b", "<f4")])
    np.save(tmp_path / "x.npy", rows)
    ds = ndfeed.open(tmp_path / "x.npy")
    (batch,) = ndfeed.jax.loader(ds, 2)

    assert [array.tolist() for array in batch.values()] == [[1, 2], [0.5, 1.5]]


# Maps.


def test_what_a_map_makes_is_checked_before(tmp_path):
    """It is tried on a sample when the loader is made."""
    ds = table(tmp_path).map(jax_making.widened)
    with pytest.raises(ndfeed.SchemaError, match="field 'wide' has dtype float64"):
        ndfeed.jax.loader(ds, 4)
    batch = next(iter(ndfeed.jax.loader(ds, 4, cast={"wide": "float32"})))

    assert batch["wide"].dtype == "float32"


@pytest.mark.parametrize("options", [{"threads": 3}, {"processes": 1}])
def test_maps_run_in_threads_and_processes(tmp_path, options):
    """Random ones draw the same wherever they run."""
    ds = table(tmp_path).map(jax_making.noisy)
    expected = [batch["noise"] for batch in ndfeed.loader(ds, 10, shuffle=True)]
    with ndfeed.jax.loader(ds, 10, shuffle=True, **options) as loader:
        assert_same([batch["noise"] for batch in loader], expected)


# Samples of different lengths.


def test_padded_by_default(tmp_path):
    """To the longest of the batch, with lengths beside."""
    ds = ragged(tmp_path / "r", [3, 1, 2, 5])
    batches = list(ndfeed.jax.loader(ds, 2))

    assert [batch["x"].shape for batch in batches] == [(2, 3), (2, 5)]
    assert [batch["x_length"].tolist() for batch in batches] == [[3, 1], [2, 5]]
    assert batches[0]["x"][1].tolist() == [100, 0, 0]
    assert batches[0]["x_length"].dtype == "int32"


@pytest.mark.parametrize("form", ["list", "packed"])
def test_other_forms(tmp_path, form):
    """Those of arrays, as arrays of JAX."""
    ds = ragged(tmp_path / "r", [3, 1, 2, 5])

    expected = list(ndfeed.loader(ds, 2, ragged=form))
    assert_same(list(ndfeed.jax.loader(ds, 2, ragged=form)), expected)


def test_pad_to_gives_one_shape(tmp_path):
    """So a step is compiled once."""
    ds = ragged(tmp_path / "r", [3, 1, 2, 5, 4, 4])
    step = jax.jit(lambda x, length: (x * (jnp.arange(8) < length[:, None])).sum())
    totals = []
    for x, length in ndfeed.jax.loader(ds, 2, fields=("x", "x_length"), pad_to={"x": 8}):
        assert x.shape == (2, 8)
        totals.append(float(step(x, length)))

    assert totals == [float(sum(x.sum() for x in b["x"])) for b in ndfeed.loader(ds, 2)]
    assert step._cache_size() == 1


def test_pad_to_of_several_axes(tmp_path):
    """A length for each that differs."""
    ds = ragged(tmp_path / "r", [3, 1, 2], shape=lambda n: (n, 7, n + 1))
    (batch,) = ndfeed.jax.loader(ds, 3, pad_to={"x": (4, 6)})

    assert batch["x"].shape == (3, 4, 7, 6)
    assert float(batch["x"].sum()) == sum(float(ds[i]["x"].sum()) for i in range(3))
    assert batch["x_length"].tolist() == [[3, 4], [1, 2], [2, 3]]


def test_what_is_longer_than_pad_to_is_refused(tmp_path):
    """Headers say how long samples are: before anything is read."""
    ds = ragged(tmp_path / "r", [3, 1, 2, 5])
    with pytest.raises(ndfeed.SchemaError, match=r"003\.npz: field 'x' has a sample of \(5,\)"):
        ndfeed.jax.loader(ds, 2, pad_to={"x": 4})
    assert len(list(ndfeed.jax.loader(ds.take([0, 1, 2]), 3, pad_to={"x": 4}))) == 1
    longer = ds.map(lambda batch: {"x": [np.zeros(9) for _ in batch["x"]]})
    loader = ndfeed.jax.loader(longer, 2, pad_to={"x": 4}, cast={"x": "float32"})
    with pytest.raises(ValueError, match=r"samples of up to \(9,\), pad_to makes \(4,\)"):
        list(loader)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"pad_to": {"y": 8}}, ndfeed.FieldError, "no field 'y'"),
        ({"pad_to": {"n": 8}}, ValueError, "pad_to is for fields whose samples differ"),
        ({"pad_to": {"x": (8, 8)}}, ValueError, "a length for each of 1 axes"),
        ({"pad_to": {"x": -1}}, ValueError, "pad_to takes a length"),
        ({"pad_to": {"x": 8}, "ragged": "list"}, ValueError, 'pad_to is for ragged="pad"'),
        ({"cast": {"y": "int8"}}, ndfeed.FieldError, "no field 'y'"),
        ({"fields": ("n",), "cast": {"x": "int8"}}, ndfeed.FieldError, "no field 'x'"),
        ({"ragged": "nested"}, ValueError, "ragged must be one of"),
        ({"sharding": "cpu"}, TypeError, "sharding must be a jax.sharding.Sharding"),
    ],
)
def test_wrong_words(tmp_path, options, error, text):
    """Refused before anything is read."""
    ds = ragged(tmp_path / "r", [3, 1])
    with pytest.raises(error, match=text):
        ndfeed.jax.loader(ds, 2, **options)


@pytest.mark.parametrize("batched", [True, False])
def test_a_map_that_leaves_ragged_samples_as_they_are(tmp_path, batched):
    """One length a sample, and pad_to takes one number, as without the map."""
    ds = ragged(tmp_path, [5, 2, 7, 3, 3, 3], shape=lambda n: (n, 3))
    mapped = ds.map(lambda batch: batch, batched=batched)
    with (
        ndfeed.jax.loader(ds, 3, pad_to={"x": 9}, cast={"x": "float32"}) as plain,
        ndfeed.jax.loader(mapped, 3, pad_to={"x": 9}, cast={"x": "float32"}) as behind,
    ):
        for expected, found in zip(plain, behind, strict=True):
            assert list(found) == list(expected)
            for name, values in expected.items():
                assert found[name].shape == values.shape
                assert (found[name] == values).all()


def test_one_type_for_all_fields_of_its_kind(tmp_path):
    """Fractions become float32; labels and bytes stay what they are."""
    np.savez(
        tmp_path / "x.npz",
        x=np.linspace(0, 1, 6),
        half=np.ones((6, 2), np.float16),
        label=np.arange(6),
        byte=np.arange(6, dtype=np.uint8),
    )
    ds = ndfeed.open(tmp_path / "x.npz", sample="row")
    (batch,) = ndfeed.jax.loader(ds, 6, cast="float32")
    (small,) = ndfeed.jax.loader(ds, 6, fields=("label", "byte"), cast=np.int16)

    types = {name: values.dtype.name for name, values in batch.items()}
    assert types == {"x": "float32", "half": "float32", "label": "int32", "byte": "uint8"}
    assert [values.dtype.name for values in small] == ["int16", "int16"]
    np.testing.assert_array_equal(batch["x"], np.linspace(0, 1, 6).astype(np.float32))


@pytest.mark.parametrize(
    ("cast", "error", "text"),
    [
        ("float32", ValueError, r"there are none; name the field: cast=\{'n': 'float32'\}"),
        ("float99", TypeError, "cast takes types such as 'float32', got 'float99'"),
        ("float64", ValueError, "JAX would make float32 of it"),
        (3, TypeError, "cast takes types such as"),
    ],
)
def test_one_type_that_cannot_be_meant(tmp_path, cast, error, text):
    """In one line, before anything is read."""
    np.savez(tmp_path / "x.npz", n=np.arange(4))
    ds = ndfeed.open(tmp_path / "x.npz", sample="row")
    with pytest.raises(error, match=text):
        ndfeed.jax.loader(ds, 2, cast=cast)


@pytest.mark.parametrize("nest", STRUCTURES, ids=repr)
def test_structures_on_a_mesh(tmp_path, nest):
    """Global arrays go by name, and are put together at the end."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("data",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    ds = images(tmp_path)
    found = ndfeed.jax.loader(ds, 25, fields=nest, sharding=sharding)

    for one, other in zip(found, ndfeed.loader(ds, 25), strict=True):
        ArgumentContract().alike(one, built(nest, other))


def test_a_pass_that_is_left_open_at_exit_says_nothing(tmp_path):
    """The modules of a program may be empty when the last objects end."""
    pytest.importorskip("torch")
    np.save(tmp_path / "x.npy", np.zeros((100, 4)))
    code = """
    import jax
    import ndfeed.torch
    batches = iter(ndfeed.torch.loader(ndfeed.open(args[0]), 25))
    next(batches)
    """
    child = start(code, tmp_path / "x.npy")
    _, said = child.communicate(timeout=250)

    assert child.returncode == 0
    assert "Exception ignored" not in said
