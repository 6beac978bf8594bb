"""Files of the oldest and newest torch and safetensors hold what was put into them."""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import ndfeed

GOLDEN = Path(__file__).parent / "golden"
BASE = np.arange(24, dtype="f4").reshape(4, 6)
BF16 = np.arange(3).astype(ml_dtypes.bfloat16)
TORCH = {
    "f4": BASE,
    "view": BASE[1:3, ::2],
    "transposed": BASE.T,
    "bf16": BF16,
    "bool": np.array([True, False]),
    "c8": np.arange(2).astype("c8"),
    "empty": np.empty((0, 3), "f4"),
    "scalar": np.array(7),
    "nested/list/0": np.arange(2),
    "nested/list/1": np.arange(3),
    "nested/n": np.array(5),
    "nested/x": np.array(0.5),
    "parameter": np.ones(2, "f4"),
    "numpy": np.arange(130, 140, dtype="u1"),
}
SAFETENSORS = {"f4": BASE, "bf16": BF16, "i8": np.arange(5), "scalar": np.array(7)}
CASES = [(path, TORCH) for path in sorted(GOLDEN.glob("*.pt"))]
CASES += [(path, SAFETENSORS) for path in sorted(GOLDEN.glob("*.safetensors"))]


def test_both_ends_are_there():
    """The oldest and the newest that can be installed, of each."""
    assert len(CASES) == 4


@pytest.mark.parametrize(("path", "expected"), CASES, ids=lambda value: getattr(value, "name", ""))
def test_every_array_is_what_was_saved(path, expected):
    """Views, shared storages, bits of small floats, numbers and NumPy arrays among them."""
    sample = ndfeed.open(path, sample="file", cache=False)[0]

    assert set(sample) == set(expected)
    for name, wanted in expected.items():
        assert sample[name].dtype == wanted.dtype, name
        assert sample[name].shape == wanted.shape, name
        assert sample[name].tobytes() == np.ascontiguousarray(wanted).tobytes(), name
