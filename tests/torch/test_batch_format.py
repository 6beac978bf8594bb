"""Types of tensors, text and ragged fields."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
ml_dtypes = pytest.importorskip("ml_dtypes")

from loading.making import images  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from torch_making import first, texts  # noqa: E402

import ndfeed  # noqa: E402
import ndfeed.torch  # noqa: E402
from ndfeed.loading.options import Structure  # noqa: E402
from ndfeed.torch.batch_format import (  # noqa: E402
    BatchFormat,
    array_of,
    tensor_of,
)

PLAIN = [
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
]
SMALL = ["bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"]


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("name", PLAIN)
def test_plain_types(tmp_path, name, order):
    """Each arrives as the torch type of its name, whatever the byte order of the file."""
    values = np.arange(6).astype(np.dtype(name).newbyteorder(order)).reshape(3, 2)
    np.save(tmp_path / "x.npy", values)
    found = first(ndfeed.open(tmp_path / "x.npy"))["data"]

    assert found.dtype == getattr(torch, name)
    np.testing.assert_array_equal(found.numpy(), values)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("known", [True, False])
def test_small_types(tmp_path, monkeypatch, name, known):
    """The types that NumPy lacks, with ml_dtypes and with nothing but their bits."""
    expected = torch.arange(6.0).reshape(3, 2).to(getattr(torch, name))
    save_file({"x": expected}, tmp_path / "x.safetensors")
    if not known:
        monkeypatch.setattr("ndfeed.formats.dtypes._SMALL", {})
        monkeypatch.setattr("ndfeed.torch.batch_format._SMALL_ARRAYS", {})
    types = __import__("ndfeed.formats.dtypes").formats.dtypes
    types.delivered.cache_clear()
    try:
        found = first(ndfeed.open(tmp_path / "x.safetensors", sample="row", cache=False))["x"]
    finally:
        monkeypatch.undo()
        types.delivered.cache_clear()

    assert found.dtype == expected.dtype
    assert torch.equal(found.view(torch.uint8), expected.view(torch.uint8))


@pytest.mark.parametrize(
    "values",
    [
        np.array(["2020-01-01", "2020-01-02"], "M8[s]"),
        np.array([1, 2], "m8[D]"),
        np.zeros(2, "V3"),
        np.zeros(2, np.longdouble),
    ],
    ids=lambda values: str(values.dtype),
)
def test_what_torch_cannot_hold(tmp_path, values):
    """Refused by name, before anything is read; the other fields can be had."""
    np.savez(tmp_path / "x.npz", odd=values, x=np.arange(2))
    ds = ndfeed.open(tmp_path / "x.npz")

    for make in (ndfeed.torch.loader, lambda ds, _: ndfeed.torch.dataset(ds)):
        with pytest.raises(ndfeed.SchemaError, match=r"'odd' has dtype .*fields="):
            make(ds, 2)
    assert first(ds, fields=("x",))[0].tolist() == [0, 1]
    assert first(ds.select("x"))["x"].tolist() == [0, 1]
    assert ndfeed.torch.dataset(ds, ("x",))[1] == (torch.tensor(1),)


def test_what_torch_cannot_hold_behind_a_map(tmp_path):
    """A map's first sample tells; where it cannot be tried, the batch does."""
    ds = images(tmp_path)

    def named(batch):
        return {"name": np.datetime64("2020-01-01") + batch["label"].astype("m8[D]")}

    def later(batch):
        if len(batch["label"]) < 2:
            raise ValueError("too few")
        return named(batch)

    with pytest.raises(ndfeed.SchemaError, match="'name' has dtype"):
        ndfeed.torch.loader(ds.map(named), 4)
    with pytest.raises(TypeError, match="'name' has dtype datetime64"):
        first(ds.map(later))


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x[:, ::-1],
        lambda x: np.broadcast_to(x[:, :1], x.shape),
        lambda x: x.astype(">i4"),
        lambda x: x.T.copy().T,
        lambda x: torch.from_numpy(x) * 2,
    ],
    ids=["backwards", "not writable", "big-endian", "Fortran", "a tensor"],
)
def test_whatever_a_map_returns(tmp_path, change):
    """A copy where torch needs one, and never a warning."""
    np.save(tmp_path / "x.npy", np.arange(12, dtype="<i4").reshape(4, 3))
    ds = ndfeed.open(tmp_path / "x.npy").map(lambda batch: {"x": change(batch["data"])})
    found = first(ds)["x"]

    assert found.tolist() == np.asarray(change(np.arange(12).reshape(4, 3))).tolist()
    found += 1


@pytest.mark.parametrize("name", [*PLAIN, *SMALL])
def test_arrays_and_tensors_share_memory(name):
    """There and back is the same memory."""
    tensor = torch.zeros(4, dtype=getattr(torch, name))
    array = array_of(tensor)
    again = tensor_of(array)

    assert again.dtype == tensor.dtype
    assert again.data_ptr() == tensor.data_ptr() == array.__array_interface__["data"][0]


def test_gradients_and_conjugates_are_left_behind():
    """NumPy knows neither."""
    assert array_of(torch.ones(2, requires_grad=True)).tolist() == [1, 1]
    assert array_of(torch.tensor([1j]).conj()).tolist() == [-1j]


def test_ragged_as_list_padded_and_packed(tmp_path):
    """As arrays, as tensors."""
    ds = texts(tmp_path, [3, 1, 2])

    assert [t.tolist() for t in first(ds)["text"]] == [[0, 1, 2], [100], [200, 201]]
    padded = first(ds, ragged="pad")
    assert padded["text"].tolist() == [[0, 1, 2], [100, 0, 0], [200, 201, 0]]
    assert padded["text_length"].tolist() == [3, 1, 2]
    packed = first(ds, ragged="packed", fields=("text", "text_offsets"))
    assert packed[0].tolist() == [0, 1, 2, 100, 200, 201]
    assert packed[1].tolist() == [0, 3, 4, 6]


@pytest.mark.parametrize("width", [(), (2,), (0,)])
@pytest.mark.parametrize("lengths", [[3, 1, 2], [0, 0], [2, 2]])
def test_nested(tmp_path, lengths, width):
    """A jagged tensor of the values as they were packed."""
    ds = texts(tmp_path, lengths, width)
    if not any(lengths):
        ds = ds + texts(tmp_path / "more", [1], width)
    expected = first(ds)["text"]
    found = first(ds, ragged="nested")["text"]
    if not isinstance(expected, list):  # all of one shape: not ragged
        assert torch.equal(found, expected)
        return

    assert found.is_nested
    assert found.layout == torch.jagged
    for one, other in zip(found.unbind(), expected, strict=True):
        assert torch.equal(one, other)


def test_nested_is_no_copy(tmp_path):
    """The values lie where they were read to."""
    ds = texts(tmp_path, [3, 1])
    form = BatchFormat(ds, Structure(("label", "text")), ragged="nested")
    (packed,) = ndfeed.loader(ds, 2, ragged="packed")
    label, text = form.build({n: form.tensor(n, array) for n, array in packed.items()})

    assert label.tolist() == [0, 1]
    assert text.values().data_ptr() == packed["text"].__array_interface__["data"][0]
    (batch,) = ndfeed.torch.loader(ds, 2, ragged="nested", fields=("label", "text"))
    assert torch.equal(batch[1].values(), text.values())


def test_nested_converted(tmp_path):
    """The values are."""
    ds = texts(tmp_path, [3, 1])
    convert = {"text": ndfeed.torch.Convert(torch.float32, scale=0.5)}
    found = first(ds, ragged="nested", convert=convert)["text"]

    assert found.dtype == torch.float32
    assert found.unbind()[0].tolist() == [0, 0.5, 1]


def test_nested_behind_a_map(tmp_path):
    """Lists that a function returns; the width is found in their shapes."""
    ds = images(tmp_path, 6).map(
        lambda batch: {
            "x": [np.full((n + 1, 2), n) for n in batch["label"].tolist()],
            "x_shape": batch["label"],
        }
    )
    found = first(ds.select("x"), ragged="nested")["x"]

    assert [len(one) for one in found.unbind()] == [1, 2, 3, 4, 5, 6]
    assert found.unbind()[5].tolist() == [[5, 5]] * 6


def test_nested_names_that_only_look_alike(tmp_path):
    """A field called x_offsets is a field."""
    np.savez(tmp_path / "a.npz", x=np.arange(4), x_offsets=np.array([0, 1, 2, 4]))
    found = first(ndfeed.open(tmp_path / "a.npz"), ragged="nested")

    assert found["x"].tolist() == [0, 1, 2, 3]
    assert found["x_offsets"].tolist() == [0, 1, 2, 4]


def test_nested_needs_one_axis(tmp_path):
    """Refused at once where another differs; behind a map when it does."""
    for i in range(2):
        np.savez(tmp_path / f"{i}.npz", x=np.zeros((2 + i, 3 + i)))
    ds = ndfeed.open(tmp_path, sample="file")

    with pytest.raises(ValueError, match="first axis"):
        ndfeed.torch.loader(ds, 2, ragged="nested")
    with pytest.raises(ndfeed.FieldError, match="'text_offsets'"):
        first(texts(tmp_path / "more", [1, 2]), ragged="nested", fields=("text", "text_offsets"))
    with pytest.raises(ValueError, match="first axis"):
        first(ds.map(lambda batch: batch), ragged="nested")


def test_empty_batches(tmp_path):
    """A rank without samples gets tensors of none."""
    ds = images(tmp_path, 1)
    (batch,) = ndfeed.torch.loader(ds, 2, shard=(1, 2))

    assert batch["image"].shape == (0, 4, 4, 3)


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("form", ["list", "pad", "packed", "nested"])
def test_a_map_that_leaves_samples_as_they_are_changes_no_tensor(tmp_path, form, batched):
    """Lengths, offsets and values of fields with several axes, also in batches of one shape."""
    ds = texts(tmp_path, [5, 2, 7, 3, 3, 3], (3,))
    for mapped in (
        ds.map(lambda batch: batch, batched=batched),
        ndfeed.torch.map(ds, lambda batch: batch, batched=batched),
    ):
        with (
            ndfeed.torch.loader(ds, 3, ragged=form) as plain,
            ndfeed.torch.loader(mapped, 3, ragged=form) as behind,
        ):
            for expected, found in zip(plain, behind, strict=True):
                assert list(found) == list(expected)
                for name, values in expected.items():
                    assert_like(found[name], values)


def assert_like(found, expected):
    """The same tensors, in the same containers."""
    assert type(found) is type(expected)
    if isinstance(expected, list) or expected.is_nested:
        for one, other in zip(found, expected, strict=True):
            assert_like(one, other)
        return
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    assert torch.equal(found, expected)


NAMES = ["cat", "a much longer name", "dog", "ünïcode", "e", "f"]


@pytest.fixture
def ds(tmp_path):
    for i, name in enumerate(NAMES):
        np.savez(tmp_path / f"{i}.npz", x=np.full(3, i, "f4"), name=np.array(name))
    return ndfeed.open(tmp_path)


def test_a_loader_gives_text_as_a_list_of_str(ds):
    """torch's own DataLoader does so, and no tensor can hold it."""
    batches = list(ndfeed.torch.loader(ds, 4))

    assert [name for batch in batches for name in batch["name"]] == NAMES
    assert all(type(name) is str for batch in batches for name in batch["name"])
    assert batches[0]["x"][:, 0].tolist() == [0, 1, 2, 3]


def test_tuples_and_shuffled_orders_keep_text_beside_its_sample(ds):
    """As any other field."""
    for x, names in ndfeed.torch.loader(ds, 4, fields=("x", "name"), shuffle=True):
        assert [NAMES[int(i)] for i in x[:, 0]] == names


def test_numpy_batches_have_text_as_an_array(ds):
    """NumPy has a type for it."""
    batch = next(iter(ndfeed.loader(ds, 6)))

    assert batch["name"].dtype == "<U18"
    assert batch["name"].tolist() == NAMES


@pytest.mark.parametrize("collate", [None, ndfeed.torch.collate])
def test_torchs_own_loader_gets_the_same(ds, collate):
    """One sample has a ``str``, a batch a list."""
    samples = ndfeed.torch.dataset(ds)
    (batch,) = torch.utils.data.DataLoader(samples, batch_size=6, collate_fn=collate)

    assert samples[1]["name"] == NAMES[1]
    assert batch["name"] == NAMES


def test_maps_on_tensors_get_and_return_text(ds):
    """Tokenizers want ``str``."""

    def tokens(batch):
        return batch | {"length": torch.tensor([len(name) for name in batch["name"]])}

    (batch,) = ndfeed.torch.loader(ndfeed.torch.map(ds, tokens), 6)

    assert batch["name"] == NAMES
    assert batch["length"].tolist() == [len(name) for name in NAMES]
