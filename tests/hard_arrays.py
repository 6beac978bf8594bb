"""Arrays that every reader must survive, by name.

Read-only, since all tests share them. Use as

    @each_hard_array
    def test_something(tmp_path, array): ...
"""

import numpy as np
import pytest

_POINT = np.dtype([("x", "<f4"), ("rgb", "u1", (3,)), ("tag", "S5"), ("big", ">i2")])


def _counted(dtype, *shape):
    """0, 1, 2, … in the given shape, so that no two elements are easily confused."""
    return np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)


def _points(n):
    points = np.zeros(n, _POINT)
    points["x"] = np.arange(n) / 4
    points["rgb"] = np.arange(3 * n).reshape(n, 3)
    points["tag"] = [f"p{i}" for i in range(n)]
    points["big"] = -np.arange(n)
    return points


HARD_ARRAYS = {
    "no rows": _counted("<f4", 0, 5),
    "rows of nothing": _counted("<f4", 5, 0),
    "one row": _counted("<f4", 1, 5),
    "one number": _counted("<i8", 1),
    "rank 0": np.array(42, "<i8"),
    "rank 1": _counted("<i8", 10),
    "rank 5": _counted("<i2", 3, 1, 4, 1, 5),
    "Fortran": np.asfortranarray(_counted("<f8", 7, 3, 2)),
    "strided": _counted("<i4", 20, 6)[::2, 1::2],
    "reversed": _counted("<i4", 10, 3)[::-1],
    "broadcast": np.broadcast_to(_counted("<i4", 3), (10, 3)),
    "big-endian": _counted(">f4", 10, 3),
    "big-endian Fortran": np.asfortranarray(_counted(">u2", 10, 3)),
    "little-endian": _counted("<u2", 10, 3),
    "bytes": _counted("u1", 256),
    "bool": _counted("i4", 10, 3) % 2 == 0,
    "half": _counted("<f2", 10, 3),
    "complex": _counted("<c8", 10, 3) * (1 + 2j),
    "large numbers": np.array([0, 1, 2**63, 2**64 - 1], "<u8"),
    "not finite": np.array([[np.nan, np.inf, -np.inf], [-0.0, 0.0, 1e-45]], "<f4"),
    "dates": _counted("<M8[ms]", 10),
    "time spans": np.array([0, 1, np.iinfo("<i8").min], "<i8").view("<m8[25us]"),
    "byte strings": np.array([b"", b"a", b"a\0b"], "S3"),
    "text": np.array(["", "a", "ünïcödé"], "<U7"),
    "structured": _points(10),
    "odd row bytes": _counted("u1", 10, 7),
    "larger than a page": _counted("<f4", 5, 3000),
    "row of a page": _counted("<f4", 5, 1024),
}

for _array in HARD_ARRAYS.values():
    _array.flags.writeable = False

each_hard_array = pytest.mark.parametrize(
    "array", [pytest.param(array, id=name) for name, array in HARD_ARRAYS.items()]
)
