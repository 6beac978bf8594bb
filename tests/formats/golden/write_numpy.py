"""Write the golden .npy and .npz files: ``python write_numpy.py FOLDER``, with an old NumPy.

The last two are made by hand, since the NumPy and the Python that wrote such cannot be had.
"""

import io
import sys
import warnings
import zipfile
from pathlib import Path

import numpy as np

POINTS = [("id", "<i8"), ("xyz", ">f4", (3,)), ("name", "S5"), ("p", [("x", "u1"), ("y", "<f2")])]
A = np.arange(12, dtype="<f4").reshape(4, 3)


class Pipe(io.RawIOBase):
    """A stream that cannot seek: zipfile puts sizes and checksums behind the data."""

    def __init__(self, file):
        self.file = file

    def writable(self):
        return True

    def write(self, data):
        return self.file.write(data)


def member(array, version=None):
    """The bytes of one array."""
    file = io.BytesIO()
    np.lib.format.write_array(file, np.asanyarray(array), version)
    return file.getvalue()


def points():
    """A structured array with padding, a sub-array and a structure in it."""
    made = np.zeros(3, np.dtype(POINTS, align=True))
    made["id"] = [1, 2, 3]
    made["xyz"] = np.arange(9).reshape(3, 3)
    made["name"] = [b"a", b"bc", b""]
    made["p"]["y"] = [0.5, -1, 65504]
    return made


def by_hand(descr, shape, data):
    """Padded to 16 bytes, as NumPy did before 1.14."""
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    text += b" " * (-(11 + len(text)) % 16) + b"\n"
    return b"\x93NUMPY\1\0" + len(text).to_bytes(2, "little") + text + data


def main(folder):
    """Write every file."""
    arrays = {
        "v1": member(A, (1, 0)),
        "v2": member(A, (2, 0)),
        "v3": member(A, (3, 0)),
        "fortran": member(np.asfortranarray(A)),
        "big_endian": member(A.astype(">f8")),
        "structured": member(points()),
        "field_names_utf8": member(np.ones(2, [("θ", "<f4"), ("λ", "<i2")])),
        "scalar": member(np.int64(-7)),
        "empty": member(np.zeros((0, 5), "u1")),
        "text": member(np.array(["", "ü", "abc"])),
        "dates": member(np.array(["1970-01-01", "NaT", "2024-02-29"], "M8[ms]")),
        "bool": member(np.array([True, False, True])),
        "complex": member(np.array([1 + 2j, np.nan], "c8")),
        "half": member(np.array([0.1, np.inf], "f2")),
        "header_of_16": by_hand("<f4", "(4, 3)", A.tobytes()),
        "python2_longs": by_hand("<i4", "(2L, 3L)", np.arange(6, dtype="<i4").tobytes()),
    }
    for name, data in arrays.items():
        (folder / f"{name}.npy").write_bytes(data)
    np.savez(folder / "stored.npz", image=A, label=np.int64(3), **{"nested/key": np.array(["x"])})
    np.savez_compressed(
        folder / "deflated.npz", image=A, label=np.int64(3), mask=np.zeros((8, 8), bool)
    )
    np.savez(folder / "positional.npz", A, A[0])
    for name, how in (("stored", zipfile.ZIP_STORED), ("deflated", zipfile.ZIP_DEFLATED)):
        target = folder / f"stream_{name}.npz"
        with target.open("wb") as file, zipfile.ZipFile(Pipe(file), "w", how) as archive:
            archive.writestr("x.npy", member(A))
            archive.writestr("y.npy", member(np.int64(5)))
    with zipfile.ZipFile(folder / "zip64_forced.npz", "w") as archive:
        for key, array in (("x", A), ("y", np.int64(5))):
            with archive.open(f"{key}.npy", "w", force_zip64=True) as file:
                file.write(member(array))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(Path(sys.argv[1]))
