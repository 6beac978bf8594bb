"""The same file read by ndfeed and by NumPy, and the proof that both say the same.

Elements are compared as bytes in native order: a NaN equals only itself, -0.0 is not 0.0, and
no conversion hides a difference.
"""

import gzip
import warnings

import numpy as np

import ndfeed
from ndfeed.formats.dtypes import EXTENDED


def ours(path, **options):
    """Every field of one file, through the public API."""
    options = {"sample": "file", "cache": False} | options
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*(Fortran|opaque)")
        ds = ndfeed.open(path, **options)
        # A view, not ds[0]: a scalar of NumPy makes any true byte a 1.
        return {name: values[0, ...] for name, values in ds.read([0]).items()}


def rows(path, numbers=None, **options):
    """The rows ``numbers`` (default: all) of every field of one file."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*(Fortran|opaque)")
        ds = ndfeed.open(path, sample="row", cache=False, **options)
        return ds.read(np.arange(len(ds)) if numbers is None else numbers)


def numpys(path):
    """Every field of a .npy, .npz or .npy.gz file as NumPy and the standard library read it."""
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", "Reading `.npy` or `.npz` file required additional header"
        )
        return _read_by_numpy(path)


def _read_by_numpy(path):
    with open(path, "rb") as file:
        magic = file.read(2)
    if magic == b"\x1f\x8b":
        with gzip.open(path) as file:
            found = {"data": np.lib.format.read_array(file, max_header_size=1 << 20)}
            assert not file.read(1)
    elif magic == b"PK":
        with np.load(path, max_header_size=1 << 20) as archive:
            members = {key or "data": archive[key] for key in dict.fromkeys(archive.files)}
        found = {key: value for key, value in members.items() if not isinstance(value, bytes)}
    else:
        found = {"data": np.load(path, max_header_size=1 << 20)}
    return {name: leaf for key, array in found.items() for name, leaf in leaves(key, array).items()}


def leaves(name, array):
    """The leaf fields of a structured array, named as ndfeed names them."""
    if array.dtype.names is None:
        return {name: array}
    prefix = "" if name == "data" else f"{name}/"
    found = {}
    for field in array.dtype.names:
        found |= _below(prefix + field, array[field])
    return found


def _below(name, array):
    if array.dtype.names is None:
        return {name: array}
    return {
        full: leaf
        for field in array.dtype.names
        for full, leaf in _below(f"{name}/{field}", array[field]).items()
    }


def native(array):
    """Dtype, shape and bytes of an array in native byte order and C order."""
    array = np.asarray(array)
    swapped = array.astype(array.dtype.newbyteorder("="), order="C")
    return swapped.dtype, swapped.shape, swapped.tobytes()


def same(found, expected):
    """Are two dicts of arrays the same to the bit? bfloat16 may stand for two opaque bytes."""
    assert list(found) == list(expected)
    for name, array in expected.items():
        dtype, shape, data = native(array)
        own_dtype, own_shape, own_data = native(found[name])
        assert own_shape == shape, name
        assert own_data == data, name
        if own_dtype.name in EXTENDED:
            assert dtype.kind == "V"
        else:
            assert own_dtype == dtype, name
    return True
