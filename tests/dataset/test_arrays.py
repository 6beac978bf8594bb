"""Arrays in memory as sources: of NumPy, torch, JAX, and whatever speaks DLPack."""

import pickle

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import ndfeed


class DLPackOnly:
    """What only DLPack can read; ``device`` as DLPack numbers them."""

    def __init__(self, array, device=1):
        self._array, self._device = array, device

    def __dlpack__(self, **options):
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._device, 0


class ArrayOnly:
    """What only NumPy's protocol can read."""

    def __init__(self, array):
        self._array = array

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self._array, dtype)


@given(
    array=hnp.arrays(
        st.sampled_from(["?", "i1", "<u2", ">i4", "<f4", ">f8", "<c8", "<M8[s]"]),
        hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=5),
    ),
    way=st.sampled_from(["c", "fortran", "reversed", "protocol"]),
)
def test_rows_of_any_array_are_samples(array, way):
    """Bit for bit, in native byte order, whatever its layout."""
    if way == "fortran":
        array = np.asfortranarray(array)
    elif way == "reversed":
        array = array[::-1]
    ds = ndfeed.open(ArrayOnly(array) if way == "protocol" else array)

    found = ds[:]["data"]
    assert len(ds) == len(array)
    assert found.dtype == array.dtype.newbyteorder("=")
    assert found.tobytes() == np.ascontiguousarray(array).astype(found.dtype).tobytes()
    again = pickle.loads(pickle.dumps(ds))[:]["data"]
    assert again.tobytes() == found.tobytes()


def test_dlpack_is_enough():
    """An array need not know NumPy."""
    array = np.arange(12, dtype=np.float32).reshape(4, 3)

    np.testing.assert_array_equal(ndfeed.open(DLPackOnly(array))[:]["data"], array)


def test_a_copy_is_made():
    """What is written to the array later does not reach the dataset."""
    array = np.arange(4)
    ds = ndfeed.open({"x": array})
    array[:] = 0

    assert ds[:]["x"].tolist() == [0, 1, 2, 3]


def test_tensors_of_torch():
    """Also those that a gradient flows to, and types that NumPy lacks."""
    torch = pytest.importorskip("torch")
    plain = torch.arange(6.0).reshape(3, 2).requires_grad_()
    small = torch.arange(3.0).to(torch.bfloat16)[[2, 0, 1]]
    tiny = torch.arange(6.0).to(torch.float8_e4m3fn).reshape(2, 3).T
    ds = ndfeed.open({"a": plain, "b": small, "c": tiny})

    assert ds.fields["b"].type == "bfloat16"
    assert ds.fields["c"].type == "float8_e4m3fn"
    batch = ds[:]
    assert batch["b"].dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(batch["a"], plain.detach())
    np.testing.assert_array_equal(batch["b"].astype(float), [2, 0, 1])
    np.testing.assert_array_equal(batch["c"].astype(float), tiny.float())
    with ndfeed.torch.loader(ds, 3) as loader:
        (found,) = loader
    assert found["b"].dtype == torch.bfloat16
    assert torch.equal(found["b"], small)


def test_arrays_of_jax():
    """bfloat16 comes as ml_dtypes has it."""
    jax = pytest.importorskip("jax")
    ds = ndfeed.open({"a": jax.numpy.arange(4), "b": jax.numpy.ones((4, 2), "bfloat16")})

    assert ds.fields["b"].type == "bfloat16"
    assert ds[:]["a"].tolist() == [0, 1, 2, 3]


def test_arrays_stand_beside_files(tmp_path):
    """Predictions of another model, beside the images they are for."""
    images = np.random.default_rng(0).random((20, 3)).astype("f4")
    np.save(tmp_path / "x.npy", images)
    scores = np.arange(20) * 2
    ds = ndfeed.open({"image": tmp_path / "x.npy", "score": scores})

    np.testing.assert_array_equal(ds[[3, 1]]["score"], [6, 2])
    np.testing.assert_array_equal(ds.take([5, 7]).in_memory()[:]["image"], images[[5, 7]])
    assert list(ds.files) == [str(tmp_path / "x.npy")]
    assert ds.fingerprint == ndfeed.open({"image": tmp_path / "x.npy"}).fingerprint
    for options in ({"threads": 2}, {"processes": 2}):
        with ndfeed.loader(ds.map(dict), 6, shuffle=True, **options) as loader:
            for batch in loader:
                np.testing.assert_array_equal(batch["image"], images[batch["score"] // 2])


def test_arrays_decide_how_files_are_read(tmp_path):
    """Eight files of two rows and eight labels: a sample is a file."""
    for i in range(8):
        np.save(tmp_path / f"{i}.npy", np.full((2, 3), i))
    ds = ndfeed.open({"x": tmp_path, "y": np.arange(8)})

    assert ds.fields["x"].shape == (2, 3)
    np.testing.assert_array_equal(ds[:]["x"][:, 0, 0], ds[:]["y"])


def test_the_fingerprint_is_that_of_another_process():
    """A run resumes with the same array: where it was in memory does not count."""
    first, second = (ndfeed.open({"a": np.arange(6), "b": np.zeros((6, 2))}) for _ in range(2))

    assert first.fingerprint == second.fingerprint
    assert ndfeed.open(np.arange(6)).fingerprint != ndfeed.open(np.arange(7)).fingerprint
    assert ndfeed.open(np.arange(6)).fingerprint != ndfeed.open(np.arange(6.0)).fingerprint


def test_memory_has_no_file():
    """A path of this process would tell nobody anything."""
    ds = ndfeed.open(np.arange(3))

    assert list(ds.files) == ["memory"]
    assert "rows of an array in memory" in repr(ds)


BAD = {
    "a number": (
        lambda: ndfeed.open(np.float32(3)),
        ValueError,
        "got a single number",
    ),
    "objects": (lambda: ndfeed.open(np.array([{}])), TypeError, "a path or a list of paths"),
    "a list of numbers": (lambda: ndfeed.open([1, 2]), TypeError, r"got int in it; np\.asarray"),
    "nested lists": (lambda: ndfeed.open({"x": [[1.0]]}), TypeError, r"in it; np\.asarray"),
    "a list of arrays": (
        lambda: ndfeed.open({"x": [np.zeros(2), np.zeros(3)]}),
        TypeError,
        r"got ndarray in it; np\.stack\(list\) .* np\.concatenate\(list\) with offsets=",
    ),
    "a structure": (
        lambda: ndfeed.open(np.zeros(3, [("a", "f4")])),
        TypeError,
        "cannot be read as an array",
    ),
    "masked values": (
        lambda: ndfeed.open({"x": np.ma.array([1, 2], mask=[False, True])}),
        TypeError,
        r"'x': masked values are no numbers; pass array\.filled",
    ),
    "a device": (
        lambda: ndfeed.open({"x": DLPackOnly(np.zeros(3), device=2)}),
        TypeError,
        "'x' must be in the memory of this machine",
    ),
    "files": (lambda: ndfeed.open(np.zeros(3), sample="file"), ValueError, "are its rows"),
    "dtype": (lambda: ndfeed.open(np.zeros(3), dtype="f4"), ValueError, "convert the array"),
    "casts": (
        lambda: ndfeed.open({"x": np.zeros(3)}, dtype={"x": "f4"}),
        ValueError,
        "dtype= is for files; convert the array",
    ),
    "lengths": (
        lambda: ndfeed.open({"x": np.zeros(3), "y": np.zeros(4)}),
        ndfeed.SchemaError,
        "differ in their number of samples: 'x' has 3, 'y' has 4",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_wrong_arrays_are_refused(case):
    """In one line that says what to do."""
    call, error, said = BAD[case]

    with pytest.raises(error, match=said) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_a_mapped_file_is_not_copied(tmp_path):
    """It may be larger than memory, and is read in place if its path is given."""
    np.save(tmp_path / "x.npy", np.zeros(3))

    with pytest.raises(TypeError, match="pass the path of the file"):
        ndfeed.open(np.load(tmp_path / "x.npy", mmap_mode="r"))
