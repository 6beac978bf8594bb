"""The .pt format: what torch.save wrote is described to the byte, and no byte of it is run."""

import collections
import io
import os
import pathlib
import pickle
import tarfile
import warnings
import zipfile

import ml_dtypes
import numpy as np
import pytest
from children import examples
from described import arrays, content, contents, describe, members
from hard_arrays import each_hard_array
from hostile import damaged, watch
from hypothesis import HealthCheck, given, settings

from ndfeed.errors import Error, FormatError, LimitError, TruncatedError, UnsupportedError
from ndfeed.files.file import File
from ndfeed.formats import pt
from ndfeed.formats import ziparchive as archives
from ndfeed.formats.description import INLINE, LATIN1, NO_CRC, RAW

torch = pytest.importorskip("torch")

PROTOCOLS = [2, 3, 4, 5]
each_protocol = pytest.mark.parametrize("protocol", PROTOCOLS)


@pytest.fixture
def save(tmp_path):
    def save(value, protocol=2, name="x.pt"):
        path = tmp_path / name
        torch.save(value, path, pickle_protocol=protocol)
        return path

    return save


def rewrite(path, edit, compression=zipfile.ZIP_STORED):
    """Write the archive again with ``edit(name, data)`` for each member, None to drop it."""
    with zipfile.ZipFile(path) as archive:
        old = [(name, archive.read(name)) for name in archive.namelist()]
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in old:
            new = edit(name, data)
            if new is not None:
                archive.writestr(name, new)
    return path


def replace(old, new, member="data.pkl"):
    """An edit of one member."""

    def edit(name, data):
        if name.rpartition("/")[2] != member:
            return data
        assert old in data
        return data.replace(old, new)

    return edit


def load(path, protocol=2):
    """What torch itself makes of the file. Its own safe reader stops at protocol 4."""
    with warnings.catch_warnings(action="ignore"):
        return torch.load(path, weights_only=protocol < 4)


def raw_bytes(tensor):
    """The elements of a tensor in C order."""
    with warnings.catch_warnings(action="ignore"):  # complex32 is experimental
        flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes()


def assert_same(path, expected):
    """Names, shapes and bytes are those of ``expected``."""
    found = contents(path)
    assert {name: rest[1:] for name, rest in found.items()} == {
        name: (tuple(tensor.shape), raw_bytes(tensor)) for name, tensor in expected.items()
    }


# Container


@pytest.mark.parametrize("name", ["x.pt", "weights.v2.pth", "ünïcödé.pt", "archive"])
def test_prefix_is_found_whatever_the_file_is_called(save, name):
    """torch names the folder inside the archive after the file."""
    path = save({"x": torch.arange(3)}, name=name)

    assert_same(path, load(path))


def test_prefix_of_a_buffer(tmp_path):
    """Saved through a file object, the folder is called archive."""
    buffer = io.BytesIO()
    torch.save(torch.arange(3), buffer)
    path = tmp_path / "x.pt"
    path.write_bytes(buffer.getvalue())

    assert_same(path, {"": torch.arange(3)})


def test_renamed_file_keeps_its_prefix(save):
    """A file that was moved says another name inside."""
    path = save(torch.arange(3))
    moved = path.rename(path.with_name("y.pt"))

    assert_same(moved, {"": torch.arange(3)})


def test_sizes_come_from_the_central_directory(save):
    """torch writes data descriptors: local headers have no sizes."""
    path = save({"x": torch.arange(1000)})
    record = members(path)["x/data/0"]
    raw = path.read_bytes()

    assert record.flags & 8
    assert raw[record.header + 18 : record.header + 26] == bytes(8)
    assert arrays(path)["x"].length == 8000


@pytest.mark.parametrize("alignment", [1, 64, 4096])
def test_alignment_is_read_and_not_assumed(save, alignment):
    """Records are padded by an extra field of any length."""
    with torch.utils.serialization.config.patch("save.storage_alignment", alignment):
        path = save({"a": torch.arange(3, dtype=torch.int8), "b": torch.arange(5)})

    assert_same(path, load(path))


def test_checksums_are_not_enforced(save):
    """torch can be told not to compute them: they are then no checksums."""
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        path = save({"x": torch.arange(3)})
    finally:
        torch.serialization.set_crc32_options(before)
    with zipfile.ZipFile(path) as archive, pytest.raises(zipfile.BadZipFile, match="CRC"):
        archive.read("x/data/0")

    assert_same(path, {"x": torch.arange(3)})
    assert arrays(path)["x"].crc == NO_CRC


@each_protocol
def test_legacy_files_are_recognised_and_refused(tmp_path, protocol):
    """From before 1.6: one stream of pickles, which only torch can take apart."""
    path = tmp_path / "x.pt"
    torch.save(torch.zeros(2), path, pickle_protocol=protocol, _use_new_zipfile_serialization=False)

    assert pt.legacy(path.read_bytes()[:16])
    with pytest.raises(UnsupportedError, match=r"before 1\.6.*torch\.save\(torch\.load\(path"):
        describe(path)


def test_tar_files_are_recognised(tmp_path):
    """The oldest of all."""
    path = tmp_path / "x.pt"
    with tarfile.open(path, "w") as tar:
        info = tarfile.TarInfo("storages")
        tar.addfile(info)

    assert pt.legacy(path.read_bytes()[:16])


@pytest.mark.parametrize("head", [b"", b"PK\x03\x04" + bytes(20), b"\x80\x02}q\0.", bytes(600)])
def test_other_files_are_not_taken_for_legacy_ones(head):
    """A pickle alone is none."""
    assert not pt.legacy(head)
    assert not pt.legacy(pickle.dumps(list(range(100)), 4))


@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning")
def test_torchscript_is_refused(tmp_path):
    """Its pickle names classes that are code inside the archive."""
    path = tmp_path / "x.pt"
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), path)

    with pytest.raises(UnsupportedError, match=r"a TorchScript program.*torch\.jit\.load"):
        describe(path)


@pytest.mark.parametrize("marker", ["archive_format", "serialized_exported_program.json"])
def test_exported_programs_are_refused(tmp_path, marker):
    """Their loader has run code from files before."""
    path = tmp_path / "x.pt2"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"x/{marker}", "pt2")
        archive.writestr("x/data.pkl", b"\x80\x02N.")

    with pytest.raises(UnsupportedError, match=r"an exported program \(\.pt2\)"):
        describe(path)


def test_compressed_records_are_refused(save):
    """Somebody zipped it again: rows could not be read alone."""
    path = rewrite(save({"x": torch.arange(3)}), lambda name, data: data, zipfile.ZIP_DEFLATED)

    with pytest.raises(UnsupportedError, match=r"is compressed; save it again with torch.save"):
        describe(path)


def test_two_members_of_one_name_are_refused(save):
    """Readers disagree on which one counts."""
    path = save({"x": torch.arange(3)})
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("x/data/0", bytes(24))

    with pytest.raises(FormatError, match="two members of one name"):
        describe(path)


def test_two_pickles_are_refused(save):
    """Which of them is the file?"""
    path = save({"x": torch.arange(3)})
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("y/data.pkl", b"\x80\x02N.")

    with pytest.raises(FormatError, match=r"expected one member data.pkl, found 2"):
        describe(path)


def test_pickle_over_the_limit_is_refused(save):
    """It is read whole; large arrays belong into records."""
    path = rewrite(save(1), lambda name, data: bytes(65 << 20) if "pkl" in name else data)

    with pytest.raises(LimitError, match=r"at most 67108864 bytes.*torch\.from_numpy"):
        describe(path)


# Tensors


def test_shared_storages_are_described_once_each(save):
    """One record serves several tensors; a copy per tensor is the reader's to make."""
    base = torch.arange(24.0).reshape(4, 6)
    path = save({"all": base, "row": base[2], "column": base[:, 3], "same": base})
    found = arrays(path)

    assert len({(array.offset, array.length) for array in found.values()}) == 1
    assert_same(path, load(path))


def test_small_view_of_a_large_storage_is_remarked(save):
    """torch saves the whole storage: files are a hundred times too large, and nobody notices."""
    path = save({"x": torch.zeros(1000, 250)[3]})
    found = arrays(path)["x"]

    assert (found.skip, found.length) == (3000, 1_000_000)
    assert describe(path).notes == (
        "key 'x' uses 1,000 of 1,000,000 bytes of its storage; "
        "clone() before torch.save makes the file smaller",
    )


def test_storage_used_by_several_views_is_not_waste(save):
    """Together they use all of it."""
    parts = torch.zeros(4000).chunk(4)

    assert describe(save(parts)).notes == ()


BASE = torch.arange(120.0).reshape(2, 3, 4, 5)
VIEWS = {
    "transposed": BASE.permute(3, 1, 0, 2),
    "strided": BASE[:, ::2, 1:, ::3],
    "expanded": BASE[0, 0, 0].expand(7, 5),
    "expanded inside": BASE[:, :1].expand(2, 3, 4, 5),
    "windows": torch.arange(10).unfold(0, 4, 1),
    "channels last": BASE.to(memory_format=torch.channels_last),
    "flipped": BASE.flip(0),
    "scalar": BASE[1, 2, 3, 4],
    "scalar expanded": torch.tensor(3.0).expand(4),
    "one long": BASE[:1, :, :1],
    "one long with an odd stride": torch.as_strided(torch.arange(4.0), (1, 4), (99, 1)),
    "diagonal": torch.arange(16.0).reshape(4, 4).diagonal(),
    "empty": BASE[:0],
    "empty behind the end": BASE[2:, 3:, 4:, 2:],
    "nothing": torch.empty(0),
    "rows of nothing": torch.empty(3, 0, 2),
}


@each_protocol
def test_views_of_every_kind(save, protocol):
    """Strides and offsets are kept, and C order is recognised where it is one."""
    path = save(VIEWS, protocol)

    assert_same(path, load(path, protocol))
    assert arrays(path)["transposed"].strides == (4, 80, 240, 20)
    assert arrays(path)["one long"].strides is not None
    assert arrays(path)["one long with an odd stride"].strides is None
    assert arrays(path)["empty behind the end"].skip == 0


TYPES = {
    torch.bool: "|b1", torch.uint8: "|u1", torch.int8: "|i1", torch.int16: "<i2",
    torch.int32: "<i4", torch.int64: "<i8", torch.uint16: "<u2", torch.uint32: "<u4",
    torch.uint64: "<u8", torch.float16: "<f2", torch.float32: "<f4", torch.float64: "<f8",
    torch.bfloat16: "bfloat16", torch.complex32: "complex32", torch.complex64: "<c8",
    torch.complex128: "<c16", torch.float8_e4m3fn: "float8_e4m3fn",
    torch.float8_e4m3fnuz: "float8_e4m3fnuz", torch.float8_e5m2: "float8_e5m2",
    torch.float8_e5m2fnuz: "float8_e5m2fnuz", torch.float8_e8m0fnu: "float8_e8m0fnu",
}  # fmt: skip


@each_protocol
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_every_type(save, protocol, dtype):
    """Typed storages say it themselves; for untyped ones the tensor does."""
    tensor = (torch.arange(96, dtype=torch.uint8) % 2).view(dtype).reshape(2, -1)[:, 1:]
    path = save({"x": tensor}, protocol)

    assert arrays(path)["x"].dtype == TYPES[dtype]
    assert_same(path, {"x": tensor})


def test_storages_are_arrays_of_rank_one(save):
    """Old code saves them bare."""
    path = save(torch.arange(3, dtype=torch.int16).untyped_storage())

    assert contents(path) == {"": ("|u1", (6,), b"\0\0\1\0\2\0")}


def test_parameters_are_tensors(save):
    """With and without attributes of their own."""
    plain, marked = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.zeros(3))
    marked.note = "x"
    tensor = torch.ones(4)
    tensor.tag = 7
    path = save({"plain": plain, "marked": marked, "tensor": tensor})

    assert_same(path, {"plain": plain, "marked": marked, "tensor": tensor})


@each_protocol
def test_state_dicts(save, protocol):
    """The most saved thing of all: an ordered dict with attributes."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    path = save(model.state_dict(), protocol)

    assert_same(path, load(path, protocol))


def test_devices_are_ignored(save):
    """Bytes saved from a GPU are the same bytes."""
    path = rewrite(
        save({"x": torch.arange(3)}),
        replace(b"X\x03\0\0\0cpu", b"X\x06\0\0\0cuda:0"),
    )

    assert_same(path, {"x": torch.arange(3)})


def test_reserved_space_is_described(save):
    """skip_data leaves holes that cannot be told from zeros."""
    with torch.serialization.skip_data():
        path = save({"x": torch.ones(3)})

    assert arrays(path)["x"].shape == (3,)


# Byte order


def test_without_a_record_all_is_little(save):
    """Before torch 2.1 there was none."""
    path = rewrite(
        save({"x": torch.arange(3)}), lambda name, data: None if "byteorder" in name else data
    )

    assert_same(path, {"x": torch.arange(3)})


@pytest.mark.parametrize("dtype", [d for d in TYPES if TYPES[d][0] in "<|"], ids=str)
def test_big_endian_files_are_described_as_such(save, dtype):
    """Written on a mainframe: each element's bytes are reversed, those of complex ones by half."""
    tensor = torch.arange(96, dtype=torch.uint8).view(dtype)
    if dtype is torch.bool:
        tensor = torch.tensor([True, False])
    width = dtype.itemsize // (2 if dtype.is_complex else 1)

    def edit(name, data):
        if name.endswith("data/0"):
            return np.frombuffer(data, f"V{width}").view("u1").reshape(-1, width)[:, ::-1].tobytes()
        return b"big" if name.endswith("byteorder") else data

    path = rewrite(save({"x": tensor}), edit)
    found = arrays(path)["x"]
    values = np.frombuffer(content(found, path.read_bytes()), found.dtype)

    assert values.astype(values.dtype.newbyteorder("=")).tobytes() == raw_bytes(tensor)
    assert found.dtype == TYPES[dtype].replace("<", ">")


def test_big_endian_small_floats_are_refused(save):
    """No name of ours says it."""
    path = rewrite(
        save({"x": torch.zeros(3, dtype=torch.bfloat16)}),
        replace(b"little", b"big", "byteorder"),
    )

    with pytest.raises(UnsupportedError, match="key 'x' is big-endian bfloat16"):
        describe(path)


@pytest.mark.parametrize("order", [b"", b"middle", b"big\n", b"LITTLE"])
def test_other_byte_orders_are_refused(save, order):
    """A guess would train on noise."""
    path = rewrite(save({"x": torch.arange(3)}), replace(b"little", order, "byteorder"))

    with pytest.raises(FormatError, match="byteorder must be 'little' or 'big', found"):
        describe(path)


# Containers and plain values


def test_nested_containers_are_laid_flat(save):
    """Keys stay readable, in the order in which they were saved."""
    one = torch.ones(1)
    path = save({"b": one, "a": {"list": [one, (one, one)], 3: one}, "": one})

    assert [array.name for array in describe(path).arrays] == [
        "b", "a/list/0", "a/list/1/0", "a/list/1/1", "a/3", "",
    ]  # fmt: skip


@pytest.mark.parametrize("value", [torch.ones(2), (torch.ones(2),), [torch.ones(2)]])
def test_one_tensor_has_no_name(save, value):
    """In a tuple it has its position; in a list it is a row, as each of several would be."""
    name = "0" if isinstance(value, tuple) else ""

    assert_same(save(value), {name: torch.ones(2)})


@pytest.mark.parametrize(
    ("value", "dtype", "raw"),
    [
        (3, "<i8", b"\3\0\0\0\0\0\0\0"),
        (-1, "<i8", b"\xff" * 8),
        (2**63 - 1, "<i8", b"\xff" * 7 + b"\x7f"),
        (-(2**63), "<i8", bytes(7) + b"\x80"),
        (True, "|b1", b"\1"),
        (False, "|b1", b"\0"),
        (-0.0, "<f8", bytes(7) + b"\x80"),
        (float("nan"), "<f8", np.float64("nan").tobytes()),
        (1.5, "<f8", np.float64(1.5).tobytes()),
        (np.float32(2.5), "<f4", np.float32(2.5).tobytes()),
        (np.int64(-7), "<i8", np.int64(-7).tobytes()),
        (np.bool_(True), "|b1", b"\1"),
        (np.uint8(200), "|u1", b"\xc8"),
        (np.complex64(1 + 2j), "<c8", np.complex64(1 + 2j).tobytes()),
        (np.datetime64("2024-01-02", "D"), "<M8[D]", np.datetime64("2024-01-02").tobytes()),
        (np.array(7, ">i4"), ">i4", b"\0\0\0\7"),
    ],
    ids=repr,
)
@each_protocol
def test_numbers_are_arrays_of_rank_zero(save, protocol, value, dtype, raw):
    """Labels are mostly saved so; they need no place in the file."""
    path = save({"label": value}, protocol)

    assert contents(path) == {"label": (dtype, (), raw)}
    assert arrays(path)["label"].coding == INLINE


@each_protocol
def test_wide_numpy_scalars_lie_in_the_pickle(save, protocol):
    """More than 8 bytes do not fit in a description."""
    value = np.complex128(1 - 200j)
    path = save({"x": value, "y": np.array("ünïcödé")}, protocol)

    assert contents(path)["x"] == ("<c16", (), value.tobytes())
    assert contents(path)["y"] == ("<U7", (), np.array("ünïcödé").tobytes())


@each_protocol
@pytest.mark.parametrize("value", [b"", b"a", b"abc", bytes(range(256)), b"\xff" * 70_000])
def test_bytes_are_arrays_of_bytes(save, protocol, value):
    """Encoded images are saved so."""
    for made in (value, bytearray(value)):
        path = save({"jpeg": made}, protocol)

        assert contents(path) == {"jpeg": ("|u1", (len(value),), value)}


def test_what_is_no_array_is_a_remark(save):
    """Text, None and the like are shown, and are no fields."""
    value = {"t": "a\nb", "n": None, "d": torch.float32, "z": 1j, "big": 2**63, "long": "x" * 999}
    found = describe(save(value))

    assert found.arrays == ()
    assert found.notes[:5] == (
        "key 't' is text: a\\nb",
        "key 'n' is None: left out",
        "key 'd' is torch.float32: left out",
        "key 'z' is 1j: left out",
        "key 'big' is a number of over 64 bits: left out",
    )
    assert len(found.notes[5]) < 200


def test_many_remarks_are_cut(save):
    """A thousand file names are not for people."""
    assert describe(save([str(i) for i in range(1000)])).notes[-1] == "… and 950 more remarks"


@pytest.mark.parametrize(
    "value",
    [
        {"a/b": 1, "a": {"b": 2}},
        {1: 1, "1": 2},
        {"0": [1], "0/0": 2},
    ],
)
def test_two_arrays_of_one_name_are_refused(save, value):
    """One of them would be lost."""
    with pytest.raises(UnsupportedError, match=r"two arrays have one name.*rename a key"):
        describe(save(value))


def test_long_names_are_refused(save):
    """Names are repeated for each array below them."""
    with pytest.raises(LimitError, match="keys of at most 512 characters"):
        describe(save({"k" * 600: 1}))


def test_long_lists_of_numbers_are_refused(save):
    """Each would be a field of its own; the remedy is in the message."""
    with pytest.raises(LimitError, match=r"at most 100,000 values.*as tensors"):
        describe(save(list(range(100_001))))


# NumPy


@each_protocol
@each_hard_array
def test_numpy_arrays_are_described_where_they_lie(save, protocol, array):
    """Inside the pickle: as bytes, or as text in protocol 2."""
    if array.dtype.names:
        with pytest.raises(UnsupportedError, match="a structured NumPy array at key 'x'"):
            describe(save({"x": array}, protocol))
        return
    path = save({"x": array, "y": array}, protocol)
    expected = (array.dtype.str, array.shape, array.tobytes())

    assert contents(path) == {"x": expected, "y": expected}
    assert arrays(path)["x"].coding in ((LATIN1, RAW, INLINE) if protocol == 2 else (RAW, INLINE))


def test_numpy_arrays_in_an_order_of_their_own(save):
    """Protocol 5 keeps the memory of a transposed array, and says by which axes."""
    array = np.arange(24).reshape(2, 3, 4).transpose(1, 0, 2)
    path = save({"x": array}, 5)

    assert contents(path) == {"x": ("<i8", (3, 2, 4), array.tobytes())}
    assert arrays(path)["x"].strides == (32, 96, 8)


@each_protocol
@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_small_floats_of_ml_dtypes(save, protocol, name):
    """JAX users have them in NumPy arrays."""
    array = np.arange(6).astype(getattr(ml_dtypes, name))

    assert contents(save({"x": array}, protocol)) == {"x": (name, (6,), array.tobytes())}


@each_protocol
def test_numpy_arrays_of_before_2_0(save, protocol):
    """The module was called numpy.core then."""
    path = save({"x": np.arange(3), "y": np.float32(1)}, protocol)
    if protocol == 2:
        rewrite(path, replace(b"numpy._core.", b"numpy.core."))
    else:
        edits = {b"\x16numpy._core.multiarray": b"\x15numpy.core.multiarray",
                 b"\x13numpy._core.numeric": b"\x12numpy.core.numeric",
                 b"numpy._core.": b"numpy.core."}  # fmt: skip

        def edit(name, data):
            for old, new in edits.items():
                data = data.replace(old, new) if name.endswith("data.pkl") else data
            return data

        rewrite(path, edit)

    assert contents(path)["x"] == ("<i8", (3,), np.arange(3).tobytes())


# What is refused


class Subclass(torch.Tensor):
    """Any tensor subclass."""


Pair = collections.namedtuple("Pair", "x y")
X = torch.eye(2)
REFUSED = {
    "sparse": (X.to_sparse(), r"holds a sparse tensor at key 'a/0'.*x\.to_dense\(\)"),
    "meta": (X.to("meta"), "holds a meta tensor at key 'a/0'"),
    "conjugated": (
        torch.zeros(2, dtype=torch.complex64).conj(),
        "a lazily conjugated or negated tensor at key 'a/0'",
    ),
    "subclass": (X.as_subclass(Subclass), r"of class \S*test_pt\.Subclass at key 'a/0'"),
    "module": (torch.nn.Linear(2, 2), r"torch\.nn\.modules\.linear\.Linear.*state_dict\(\)"),
    "set": ({1, 2}, r"of class builtins\.set at key 'a/0'.*save a list"),
    "named tuple": (Pair(1, 2), r"of class \S*test_pt\.Pair at key 'a/0'"),
    "path": (pathlib.PurePosixPath("x"), r"PurePosixPath at key 'a/0'.*save str\(x\)"),
    "masked": (np.ma.array([1]), r"MaskedArray at key 'a/0'"),
    "objects": (np.array([None]), "a NumPy array of Python objects at key 'a/0'"),
    "structured": (np.zeros(2, "i4,f4"), "a structured NumPy array at key 'a/0'"),
    "default dict": (collections.defaultdict(list), r"collections\.defaultdict at key 'a/0'"),
    "function": (os.getcwd, r"\.getcwd at key 'a/0'"),
}


@each_protocol
@pytest.mark.parametrize("name", REFUSED)
def test_other_values_are_refused_with_key_class_and_remedy(save, protocol, name):
    """The reader of the message must know what to change in the line that saved the file."""
    value, message = REFUSED[name]
    path = save({"good": X, "a": [value]}, protocol)

    with pytest.raises(UnsupportedError, match=message):
        describe(path)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: torch.quantize_per_tensor(X, 1, 0, torch.quint8), "a quantized tensor"),
        (lambda: torch.nested.nested_tensor([X, X]), "a nested tensor"),
        (lambda: np.matrix([[1]]), r"an object of class numpy\.matrix"),
    ],
    ids=["quantized", "nested", "matrix"],
)
def test_kinds_that_warn_are_refused_by_name(save, make, message):
    """torch and NumPy advise against them, and people have them."""
    with pytest.raises(UnsupportedError, match=f"holds {message} at key 'x'"):
        describe(save({"x": make()}))


def test_wrappers_that_are_not_installed_are_named(save):
    """The class of MONAI's tensors, without MONAI."""
    path = save({"image": X.as_subclass(Subclass)})
    rewrite(
        path,
        replace(
            f"c{Subclass.__module__}\nSubclass\n".encode(), b"cmonai.data.meta_tensor\nMetaTensor\n"
        ),
    )

    with pytest.raises(
        UnsupportedError,
        match=r"class monai\.data\.meta_tensor\.MetaTensor at key 'image'.*x\.as_tensor\(\)",
    ):
        describe(path)


# Sizes that lie

TENSOR = {"x": torch.arange(6, dtype=torch.int16).reshape(2, 3)}


def lying(save, old, new):
    """A tensor of 2 by 3 whose pickle says something else."""
    return rewrite(save(TENSOR), replace(old, new))


def test_record_that_is_missing(save):
    """A copy that stopped, or a key that points elsewhere."""
    path = rewrite(save(TENSOR), lambda name, data: None if "data/0" in name else data)

    with pytest.raises(TruncatedError, match="record data/0 is missing"):
        describe(path)


@pytest.mark.parametrize("size", [0, 1, 11])
def test_record_that_is_short(save, size):
    """Mapped, torch would read what lies behind it."""
    path = rewrite(save(TENSOR), lambda name, data: data[:size] if "data/0" in name else data)

    with pytest.raises(TruncatedError, match=f"data/0: expected 12 bytes, found {size}"):
        describe(path)


def test_empty_tensor_needs_its_record_too(save):
    """The checks of sizes must not depend on there being elements."""
    path = rewrite(
        save({"x": torch.empty(0, 3)}), lambda name, data: None if "data/0" in name else data
    )

    with pytest.raises(TruncatedError, match="record data/0 is missing"):
        describe(path)


@pytest.mark.parametrize(
    ("new", "message"),
    [
        (b"K\x00K\x02K\x04\x86", "key 'x' ends at byte 14 of a storage of 12"),
        (b"K\x01K\x02K\x03\x86", "key 'x' ends at byte 14 of a storage of 12"),
        (b"K\x00K\x03K\x03\x86", "key 'x' ends at byte 18 of a storage of 12"),
        (b"K\x00K\x02J\xff\xff\xff\xff\x86", "whole numbers in"),
        (b"J\xff\xff\xff\xffK\x02K\x03\x86", "a whole number in"),
        (b"K\x00K\x02\x85", "as many strides as dimensions"),
        (b"K\x00K\x02\x88\x86", "whole numbers in"),
        (b"K\x00G" + bytes(8) + b"K\x03\x86", "whole numbers in"),
        (b"K\x00\x8a\x09" + bytes(8) + b"\x01K\x03\x86", "whole numbers in"),
        (b"\x88K\x02K\x03\x86", "a whole number in"),
        (b"K\x00]", "as many strides as dimensions"),
    ],
)
def test_views_must_lie_within_their_storage(save, new, message):
    """Python's own numbers do not wrap, so one comparison is enough."""
    with pytest.raises(FormatError, match=message):
        describe(lying(save, b"K\x00K\x02K\x03\x86", new))


@pytest.mark.parametrize("stride", [b"J\xff\xff\xff\xff", b"\x88", b"N", b"\x8a\x09" + b"\x01" * 9])
def test_strides_must_be_whole_numbers(save, stride):
    """A negative one points before the storage."""
    with pytest.raises(FormatError, match=r"strides must be whole numbers in \[0, 2\*\*63\)"):
        describe(lying(save, b"K\x03K\x01\x86", stride + b"K\x01\x86"))


def test_strides_of_one_long_axes_are_made_harmless(save):
    """torch keeps whatever stood there; multiplied by the size of an element it may wrap."""
    path = save({"x": torch.arange(6).as_strided((2, 1, 2), (3, 1 << 60, 1))})

    assert arrays(path)["x"].strides == (24, 8, 8)
    assert_same(path, load(path))


def test_tensor_that_says_it_is_something_else(save):
    """A tensor with attributes names its class, which must be one of tensors."""
    tensor = torch.ones(2)
    tensor.tag = 7
    path = rewrite(save(tensor), replace(b"ctorch\nTensor\n", b"cnumpy\nndarray\n"))

    with pytest.raises(FormatError, match="a tensor of an unexpected class"):
        describe(path)


def test_axes_of_numpy_arrays_must_be_a_permutation(save):
    """One axis twice would make a view that leaves its bytes."""
    path = save({"x": np.arange(24).reshape(2, 3, 4).transpose(1, 0, 2)}, 5)
    rewrite(path, replace(b"K\x01K\x00K\x02\x87", b"K\x01K\x01K\x01\x87"))

    with pytest.raises(FormatError, match="the axes of a NumPy array are no permutation"):
        describe(path)


def test_storage_that_says_it_is_larger(save):
    """The record has the last word."""
    with pytest.raises(TruncatedError, match="data/0: expected 400 bytes, found 12"):
        describe(lying(save, b"cpuq\x06K\x06", b"cpuq\x06K\xc8"))


@pytest.mark.parametrize(
    "shape", [(1 << 40, 1 << 40, 0), (1 << 62, 1 << 62)], ids=["empty", "wrapping"]
)
def test_shapes_beyond_memory_are_refused(save, shape):
    """Also where a product with 0 hides them."""
    numbers = b"".join(b"\x8a\x09" + n.to_bytes(9, "little") for n in shape)
    new = b"K\x00(" + numbers + b"tq\x08(" + b"K\x00" * len(shape) + b"tq"
    old = b"K\x00K\x02K\x03\x86q\x08K\x03K\x01\x86q"

    with pytest.raises(LimitError, match="fewer than 2\\*\\*63 bytes"):
        describe(lying(save, old, new))


def test_expansion_beyond_reason_is_refused(save):
    """Four bytes that claim to be a terabyte; a thousandfold is still fine."""
    fine, bomb = torch.zeros(1).expand(10**6), torch.zeros(1).expand(10**6, 10**6)

    assert_same(save({"x": fine}), {"x": fine})
    with pytest.raises(LimitError, match="key 'x' expands 4 bytes to 4,000,000,000,000: a bomb"):
        describe(save({"x": bomb}))


@each_protocol
def test_numpy_arrays_must_have_their_bytes(save, protocol):
    """No more and no fewer: NumPy is as strict."""
    for size, message in ((4, "promises 32 bytes, found 24"), (2, "needs 16 bytes, found 24")):
        path = save({"x": np.arange(3)}, protocol)
        rewrite(path, replace(b"K\x03\x85", b"K%c\x85" % size))

        with pytest.raises(FormatError, match=f"key 'x' {message}"):
            describe(path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b"X\x02\0\0\0i8", b"X\x02\0\0\0q8", "key 'x': unknown dtype"),
        (b"X\x02\0\0\0i8", b"X\x02\0\0\0O8", "a NumPy array of Python objects"),
        (b"X\x02\0\0\0i8", b"K\x08", "a NumPy dtype without its code"),
        (b"X\x01\0\0\0<", b"X\x01\0\0\0!", "unknown byte order"),
        (b"cnumpy\nndarray", b"ccollections\nOrderedDict", "of an unexpected class"),
    ],
)
def test_numpy_states_are_checked(save, old, new, message):
    """Each part of a dtype's and an array's state is the file's own word."""
    path = rewrite(save({"x": np.arange(3)}), replace(old, new))

    with pytest.raises(FormatError, match=message):
        describe(path)


def test_errors_say_where_in_the_file(save):
    """An offset that counts from the start of the file can be looked at."""
    path = save({(1, 2): 3})
    with pytest.raises(UnsupportedError, match="neither text nor whole numbers") as caught:
        describe(path)

    assert path.read_bytes()[caught.value.offset : caught.value.offset + 1] == b"s"
    assert caught.value.path == str(path)


def test_equal_pickles_of_different_files_are_not_confused(save):
    """Pickles are parsed once and kept; places are each file's own."""
    one = save({"x": torch.zeros(3), "n": np.arange(300)}, name="x.pt")
    two = save({"x": torch.ones(3), "n": np.arange(300)}, name="much_longer_name.pt")

    assert arrays(one)["x"].offset != arrays(two)["x"].offset or one.stat() != two.stat()
    assert contents(one)["x"][2] == bytes(12)
    assert contents(two)["x"][2] == torch.ones(3).numpy().tobytes()
    assert contents(one)["n"] == contents(two)["n"]


# Damage


def sample(value, protocol=2):
    buffer = io.BytesIO()
    torch.save(value, buffer, pickle_protocol=protocol)
    return buffer.getvalue()


SAMPLES = [
    sample({"x": torch.zeros(2, 3), "y": [torch.ones(2).t(), 3, "text"]}),
    sample({"a": np.arange(300, dtype="u1"), "b": torch.zeros(2, dtype=torch.uint16)}, 5),
    sample(torch.nn.Linear(2, 2).state_dict(), 4),
]


@settings(
    max_examples=examples(400),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=damaged(SAMPLES))
def test_damaged_files_raise_our_errors_alone(tmp_path, data):
    """Whatever is described must lie within the file, and nothing may be run or opened."""
    path = tmp_path / "x.pt"
    path.write_bytes(data)
    try:
        with File(bytes(path)) as file, watch():
            found = pt.describe(file, archives.members(file)[0])
    except Error:
        return
    for array in found.arrays:
        content(array, data)
