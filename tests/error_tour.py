"""A tour of the errors: each provoked by a call, and by a command where one can meet it.

    python tests/error_tour.py           print what is said today
    python tests/error_tour.py --write   … into error_tour.txt, to be reviewed

A stop has a class, a title, what makes its files (in the current folder; what it returns are names
for the call), the call, and the command. To add one is to add a line to ``STOPS``.
"""

import contextlib
import gzip
import importlib
import io
import os
import re
import resource
import shlex
import struct
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import packed_making

import ndfeed
from ndfeed import cli, errors
from ndfeed.files import platform_calls

REVIEWED = Path(__file__).parent / "error_tour.txt"
OPEN = "ndfeed.open({!r})"


class Stop(NamedTuple):
    """One mistake, and who hears of it."""

    error: type[Exception]
    title: str
    make: Callable[[], dict[str, Any] | None]
    call: str
    command: str | None = None
    needs: str | None = None  # a framework, without which the stop is left out of a test run


class Heard(NamedTuple):
    """What was said at a stop; paths as seen from its folder."""

    error: BaseException | None
    said: str
    status: int | None
    complaint: str


def opened(error, title, make, path):
    """A stop where a file, or what a path names, is opened."""
    return Stop(error, title, make, OPEN.format(path), f"inspect {shlex.quote(path)}")


def nothing():
    """No files are needed."""


def content(name, data):
    """A file of these bytes."""
    return lambda: Path(name).write_bytes(data) and None


def npy(name="x.npy", array=None):
    """A sound file."""
    np.save(name, np.zeros((10, 4), "<f4") if array is None else array)


def edited(name, start, data):
    """Other bytes in the middle of a file, or from its end."""
    whole = bytearray(Path(name).read_bytes())
    start %= len(whole)
    whole[start : start + len(data)] = data
    Path(name).write_bytes(whole)


def header(text, version=b"\1\0"):
    """A ``.npy`` that has only a header."""
    return b"\x93NUMPY" + version + struct.pack("<H", len(text)) + text.encode()


# Files and folders


def a_pipe():
    os.mkfifo("pipe.npy")


def a_maze():
    """Folders of which each has two links to the next: more paths than anybody can walk."""
    for level in range(22):
        Path(f"maze/{level}").mkdir(parents=True)
        for link in "ab":
            Path(f"maze/{level}/{link}").symlink_to(f"../{level + 1}")
    Path("maze/22").mkdir()


def a_wide_layout():
    """A JSON file beside a raw file that is not UTF-8."""
    Path("x.bin").write_bytes(bytes(8))
    Path("x.bin.json").write_bytes('{"dtype": "u2"}'.encode("utf-16-le"))


def a_long_layout():
    """A JSON file beside a raw file, far longer than a layout is."""
    Path("x.bin").write_bytes(bytes(8))
    Path("x.bin.json").write_text('{"dtype": "u2"}' + " " * 70_000, encoding="utf-8")


def a_loop():
    Path("folder").mkdir()
    Path("folder/again").symlink_to("../folder")
    npy("folder/x.npy")


def only_text():
    Path("folder").mkdir()
    Path("folder/notes.txt").write_text("none here")


def forbidden():
    npy()
    Path("x.npy").chmod(0)


def one_short():
    npy()
    with open("x.npy", "rb+") as file:
        file.truncate(200)


def three_short():
    Path("folder").mkdir()
    npy("folder/sound.npy")
    for i in range(3):
        npy(f"folder/{i}.npy")
        with open(f"folder/{i}.npy", "rb+") as file:
            file.truncate(100 + i)


# Formats


def short_npz():
    np.savez("x.npz", x=np.zeros(100))
    with open("x.npz", "rb+") as file:
        file.truncate(500)


def damaged_npz():
    np.savez("x.npz", x=np.arange(100), y=1)
    edited("x.npz", 400, b"damaged!")
    return {"ds": ndfeed.open("x.npz", sample="file")}


def damaged_gzip():
    with gzip.GzipFile("x.npy.gz", "wb", mtime=0) as file:
        np.save(file, np.arange(100))
    edited("x.npy.gz", -6, b"!!")
    return {"ds": ndfeed.open("x.npy.gz")}


def short_gzip():
    with gzip.GzipFile("x.npy.gz", "wb", mtime=0) as file:
        np.save(file, np.arange(1000))
    with open("x.npy.gz", "rb+") as file:
        file.truncate(900)
    return {"ds": ndfeed.open("x.npy.gz")}


def bzip2_npz():
    npy()
    with zipfile.ZipFile("x.npz", "w", zipfile.ZIP_BZIP2) as file:
        file.write("x.npy")


def a_bomb():
    text = repr({"descr": "<f8", "fortran_order": False, "shape": (1 << 40,)}) + "\n"
    with zipfile.ZipFile("x.npz", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("x.npy", header(text) + bytes(1000))
    data = Path("x.npz").read_bytes()
    size = struct.pack("<L", len(header(text)) + 1000)
    Path("x.npz").write_bytes(data.replace(size, struct.pack("<L", (1 << 31) - 1)))


def objects():
    np.save("x.npy", np.array([{"a": 1}, None], dtype=object), allow_pickle=True)


def objects_among_arrays():
    np.savez("x.npz", image=np.zeros((3, 2)), meta=np.array([{"a": 1}] * 3, dtype=object))


def cut_safetensors():
    text = b'{"x":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}'
    Path("x.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(10))


def unknown_dtype():
    text = b'{"x":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},'
    text += b'"scale":{"dtype":"F3_E1M1","shape":[8],"data_offsets":[4,7]}}'
    Path("x.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(7))


def odd_raw():
    Path("x.bin").write_bytes(bytes(1001))


# Packed datasets


def packed():
    packed_making.write("packed", {"x": np.arange(40).reshape(10, 4)})


def edited_manifest():
    packed()
    text = Path("packed/ndfeed.json").read_text(encoding="utf-8")
    Path("packed/ndfeed.json").write_text(text.replace('"rows"', '"ROWS"', 1), encoding="utf-8")


def short_column():
    packed()
    with open("packed/00000/x.npy", "rb+") as file:
        file.truncate(400)


def damaged_header():
    packed()
    edited("packed/00000/x.npy", 100, b"?")


def damaged_rows():
    packed()
    edited("packed/00000/x.npy", -8, b"?")
    return {"ds": ndfeed.open("packed", verify=True)}


def a_large_member():
    np.savez_compressed("x.npz", x=np.zeros((1000, 1000)), y=np.arange(1000))
    return {"ds": ndfeed.open("x.npz", sample="row")}


def a_large_sample():
    for i in range(9):
        np.save(f"{i}.npy", np.zeros((2 if i else 200, 1000)))
    return {"ds": ndfeed.open("*.npy", sample="file")}


def no_column():
    packed()
    Path("packed/00000/x.npy").unlink()


def packing(error, title, make, source="x.npy", target="packed", **words):
    """A stop where something is packed; ``words`` are those of the call and of the command."""
    call = "".join(f", {name}={value!r}" for name, value in words.items())
    option = "".join(_option(name, value) for name, value in words.items())
    command = f"pack {shlex.quote(source)} {shlex.quote(target)}{option}"
    return Stop(error, title, make, f"ndfeed.pack({source!r}, {target!r}{call})", command)


def _option(name, value):
    if name == "dtype":
        return "".join(f" --cast {field}={kind}" for field, kind in value.items())
    return f" --{name}"


def wide_rows():
    npy(array=np.arange(1000))


def wide_rows_and_packed():
    wide_rows()
    packed()


def occupied():
    npy()
    Path("packed").mkdir()
    Path("packed/notes.txt").write_text("mine")


def notes_in_the_way():
    packed_making.write("packed", {"data": np.arange(10)})
    np.save("x.npy", np.arange(10))
    Path("packed/00001").mkdir()
    Path("packed/00001/notes.txt").write_text("mine")


def linked_target():
    packed_making.write("packed", {"data": np.arange(10)})
    np.save("x.npy", np.arange(10))
    Path("link").symlink_to("packed")


def strange_source():
    packed_making.write("packed", {"data": np.arange(10)}, source={"packs": [5]})
    np.save("x.npy", np.arange(10))


def packed_already():
    npy()
    packed()


# What belongs together


def one_odd_type():
    """Hundreds of files, one of them saved in double precision."""
    os.mkdir("folder")
    for i in range(30):
        npy(f"folder/{i:02}.npy", np.zeros(3, "<f8" if i == 17 else "<f4"))


def fields_in_files():
    """Inputs and targets, each in a file of its own."""
    os.mkdir("folder")
    npy("folder/X_train.npy")
    npy("folder/y_train.npy", np.zeros(10, "<f4"))


def sparse_matrix():
    """What scipy.sparse.save_npz writes."""
    members = {"indices": np.zeros(2, "i4"), "indptr": np.zeros(3, "i4")}
    np.savez("x.npz", format=b"csr", shape=np.array([2, 5]), data=np.ones(2), **members)


def loaded_archive():
    """What np.load makes of a sound archive."""
    np.savez("x.npz", x=np.zeros(3))
    with np.load("x.npz") as archive:
        return {"archive": archive}


def large_number():
    """One value of many that does not fit."""
    npy("x.npy", np.array([1, 2, 300, 4]))


def other_types():
    Path("folder").mkdir()
    npy("folder/a.npy", np.zeros((10, 4), "<f4"))
    npy("folder/b.npy", np.zeros((10, 4), "<f8"))


def other_fields():
    Path("folder").mkdir()
    np.savez("folder/a.npz", x=1, y=2)
    np.savez("folder/b.npz", x=1, z=2)


def other_counts():
    npy("x.npy", np.zeros((10, 4)))
    npy("y.npy", np.zeros(9))


def either_way():
    Path("folder").mkdir()
    for i in range(3):
        np.savez(f"folder/{i}.npz", x=np.zeros((10, 5)), y=np.zeros(10))


def fields():
    np.savez("x.npz", image=np.zeros((10, 4)), label=np.zeros(10))


# What happens later


def rewritten():
    npy()
    ds = ndfeed.open("x.npy")
    npy(array=np.ones((12, 4)))
    return {"ds": ds}


def other_mode():
    npy()
    ds = ndfeed.open("x.npy")
    Path("x.npy").chmod(0o600)
    return {"ds": ds}


def wide_numbers():
    import ndfeed.jax  # the call names it

    npy(array=np.array([1, 2, 3 << 40]))
    return {"ds": ndfeed.open("x.npy")}


def a_state():
    npy()
    ds = ndfeed.open("x.npy")
    loader = ndfeed.loader(ds, 2, shuffle=True)
    return {"ds": ds, "loader": loader, "state": loader.state_dict()}


def a_source_of_tensorflow():
    """The function behind a dataset, as TensorFlow calls it in the process that it was sent to."""
    importlib.import_module("ndfeed.tf")
    data = ndfeed.tf.dataset(a_state()["ds"], 2)
    function = importlib.import_module("ndfeed.tf.generator").GeneratorSource(data.passes)
    return {"function": function, "sent": np.zeros(256, np.uint8), "data": data}


def fields_of_x():
    fields()
    return {"ds": ndfeed.open("x.npz")}


def another_state():
    npy("y.npy", np.zeros((12, 4)))
    other = ndfeed.loader(ndfeed.open("y.npy"), 2, shuffle=True)
    return a_state() | {"state": other.state_dict()}


def _dies(batch):
    os._exit(3)


def a_map_that_dies():
    npy()
    before = os.getpid()
    # Making a loader tries the function here, where it must not end anything.
    ds = ndfeed.open("x.npy").map(lambda batch: batch if os.getpid() == before else _dies(batch))
    return {"ds": ds}


STOPS = [
    Stop(
        errors.SourceError, "a URL", nothing, OPEN.format("s3://bucket/x"), "inspect s3://bucket/x"
    ),
    opened(errors.SourceError, "a pipe instead of a file", a_pipe, "pipe.npy"),
    opened(errors.SourceError, "a symbolic link to its own folder", a_loop, "folder"),
    opened(errors.SourceError, "symbolic links that multiply each other", a_maze, "maze/0"),
    opened(errors.FormatError, "a JSON layout file in UTF-16", a_wide_layout, "x.bin"),
    opened(errors.LimitError, "a JSON layout file that is too large", a_long_layout, "x.bin"),
    opened(errors.MissingError, "a misspelled path", nothing, "trian/"),
    opened(errors.MissingError, "a pattern that matches nothing", nothing, "*.npz"),
    opened(errors.MissingError, "a folder without arrays", only_text, "folder"),
    opened(errors.MissingError, "a packed dataset without one of its columns", no_column, "packed"),
    opened(errors.DeniedError, "a file without read permission", forbidden, "x.npy"),
    Stop(
        errors.ResourceError,
        "a compressed member that fits neither in memory nor on a disk",
        a_large_member,
        "ndfeed.loader(ds, 10, shuffle=True, memory='1MB')",
    ),
    Stop(
        errors.ResourceError,
        "a sample larger than memory",
        a_large_sample,
        "ndfeed.loader(ds, 1, memory='1MB')",
    ),
    Stop(
        errors.UnsupportedError,
        "verify=True for files without checksums",
        npy,
        "ndfeed.open('x.npy', verify=True)",
    ),
    opened(errors.FormatError, "an empty file", lambda: Path("x.npy").touch(), "x.npy"),
    opened(
        errors.FormatError,
        "an unknown file format",
        content("x.npy", b"0.1,0.2,0.3\n"),
        "x.npy",
    ),
    opened(
        errors.FormatError,
        "an invalid header",
        content("x.npy", header("{'descr': '<f4', }\n")),
        "x.npy",
    ),
    opened(errors.FormatError, "a truncated archive", short_npz, "x.npz"),
    Stop(
        errors.FormatError,
        "a raw file of the wrong size",
        odd_raw,
        "ndfeed.open('x.bin', dtype='uint16', shape=(100,))",
        "inspect x.bin --dtype uint16 --shape 100",
    ),
    opened(errors.FormatError, "a raw file without dtype and shape", odd_raw, "x.bin"),
    opened(errors.TruncatedError, "a truncated file", one_short, "x.npy"),
    opened(
        errors.TruncatedError, "a truncated .safetensors file", cut_safetensors, "x.safetensors"
    ),
    opened(errors.TruncatedError, "a truncated column", short_column, "packed"),
    Stop(errors.TruncatedError, "a truncated gzip file", short_gzip, "ds[0]"),
    Stop(errors.ChecksumError, "a damaged archive", damaged_npz, "ds[0]"),
    Stop(errors.ChecksumError, "a damaged gzip file", damaged_gzip, "ds[0]"),
    Stop(
        errors.ChecksumError,
        "a column with a damaged header",
        damaged_header,
        OPEN.format("packed"),
        "verify packed",
    ),
    Stop(errors.ChecksumError, "damaged rows, with verify=True", damaged_rows, "ds[:]"),
    opened(errors.LimitError, "a decompression bomb", a_bomb, "x.npz"),
    opened(
        errors.LimitError,
        "a shape too large for any machine",
        content(
            "x.npy",
            header("{'descr': '<f8', 'fortran_order': False, 'shape': (9" + "0" * 18 + ",), }\n"),
        ),
        "x.npy",
    ),
    Stop(
        errors.ManifestError,
        "a manifest that was edited",
        edited_manifest,
        "ndfeed.verify('packed')",
        "verify packed",
    ),
    packing(
        errors.MissingError, "a target in a folder that does not exist", npy, target="no/packed"
    ),
    packing(errors.ConflictError, "a target that is not empty", occupied),
    packing(errors.ConflictError, "a target that holds another dataset", packed_already),
    packing(
        errors.ConflictError,
        "a folder in the place of a new part",
        notes_in_the_way,
        append=True,
    ),
    packing(
        errors.ConflictError, "a link to a dataset", linked_target, target="link", append=True
    ),
    packing(
        errors.ManifestError,
        "an invalid record of sources in the manifest",
        strange_source,
        append=True,
    ),
    packing(errors.SpaceError, "a full disk", wide_rows),
    packing(errors.TargetError, "a target whose name is too long", npy, target="a" * 256),
    packing(errors.SchemaError, "appending other fields", wide_rows_and_packed, append=True),
    opened(errors.UnsupportedError, "Python objects", objects, "x.npy"),
    opened(
        errors.UnsupportedError, "Python objects among arrays", objects_among_arrays, "x.npz"
    ),
    opened(
        errors.UnsupportedError, "a dtype that is not known", unknown_dtype, "x.safetensors"
    ),
    opened(
        errors.UnsupportedError,
        "a valid file without arrays",
        content("x.safetensors", struct.pack("<Q", 2) + b"{}"),
        "x.safetensors",
    ),
    opened(errors.UnsupportedError, "another compression", bzip2_npz, "x.npz"),
    opened(
        errors.UnsupportedError,
        "an unknown .npy version",
        content("x.npy", header("{}\n", b"\x09\x00")),
        "x.npy",
    ),
    opened(
        errors.UnsupportedError, "another format", content("x.h5", b"\x89HDF\r\n\x1a\n"), "x.h5"
    ),
    opened(errors.UnsupportedError, "a pickle", content("x.pkl", b"\x80\x04K\x01."), "x.pkl"),
    opened(errors.UnsupportedError, "a pickle named .pt", content("x.pt", b"\x80\x04K."), "x.pt"),
    Stop(errors.ChangedError, "a file that was overwritten", rewritten, "ds[0]"),
    Stop(errors.ChangedError, "a file whose mode was changed", other_mode, "ds[0]"),
    opened(errors.BadFilesError, "several damaged files", three_short, "folder"),
    opened(errors.SchemaError, "files of different types", other_types, "folder"),
    opened(errors.SchemaError, "one file of another type", one_odd_type, "folder"),
    Stop(errors.AmbiguousError, "files that are fields", fields_in_files, "ndfeed.open('folder')"),
    opened(errors.UnsupportedError, "a sparse matrix", sparse_matrix, "x.npz"),
    Stop(
        errors.CastError,
        "a value too large for the requested dtype",
        large_number,
        "ndfeed.open('x.npy', dtype={'data': 'uint8'})[:]",
    ),
    Stop(
        errors.FieldError,
        "a dtype for an unknown field",
        npy,
        "ndfeed.open('x.npy', dtype={'image': 'uint8'})",
    ),
    opened(errors.SchemaError, "files with different fields", other_fields, "folder"),
    Stop(
        errors.SchemaError,
        "sources of different lengths",
        other_counts,
        "ndfeed.open({'x': 'x.npy', 'y': 'y.npy'})",
    ),
    Stop(
        errors.SchemaError,
        "a dtype for a file that has one",
        npy,
        "ndfeed.open('x.npy', dtype='uint16')",
        "inspect x.npy --dtype uint16",
    ),
    Stop(
        errors.SchemaError,
        "a dtype for all of a packed dataset",
        packed,
        "ndfeed.open('packed', dtype='uint16')",
    ),
    Stop(
        errors.SchemaError,
        "adding datasets with different fields",
        a_state,
        "ds.map(lambda b: {'x': b['data']}) + ds",
    ),
    Stop(
        errors.SchemaError,
        "adding datasets with different dtypes",
        a_state,
        "ds.map(lambda b: {'data': b['data'] > 0}) + ds",
    ),
    Stop(
        errors.AmbiguousError, "rows, or files?", either_way, OPEN.format("folder"), "pack folder p"
    ),
    Stop(
        errors.FieldError,
        "a misspelled field",
        fields,
        "ndfeed.open('x.npz', fields=('image', 'labels'))",
        "inspect x.npz --fields image,labels",
    ),
    Stop(
        errors.FieldError,
        "an unknown field in a loader",
        fields,
        "ndfeed.loader(ndfeed.open('x.npz'), 2, fields=('image', 'labels'))",
    ),
    Stop(
        errors.CastError,
        "a number too large for 32 bits",
        wide_numbers,
        "list(ndfeed.jax.loader(ds, 3))",
    ),
    packing(
        errors.CastError, "a number that a cast would change", wide_rows, dtype={"data": "int8"}
    ),
    Stop(
        errors.ResumeError, "a state of other data", another_state, "loader.load_state_dict(state)"
    ),
    Stop(
        errors.ResumeError,
        "a state of another order",
        a_state,
        "ndfeed.loader(ds, 2).load_state_dict(state)",
    ),
    Stop(
        errors.ResumeError,
        "a damaged state",
        a_state,
        "loader.load_state_dict(state | {'epoch': None})",
    ),
    Stop(errors.ResumeError, "an empty state", a_state, "loader.load_state_dict({})"),
    Stop(
        errors.WorkerError,
        "a function that ends its process",
        a_map_that_dies,
        "list(ndfeed.loader(ds, 5, processes=1))",
    ),
    Stop(ValueError, "fractions that do not sum to 1", a_state, "ds.split(.8, .1)"),
    Stop(TypeError, "a single number for take()", a_state, "ds.take(5)"),
    Stop(ValueError, "two fields with the same name", fields_of_x, "ds.rename({'image': 'label'})"),
    Stop(ValueError, "split() after with_origin()", a_state, "ds.with_origin().split(.8)"),
    Stop(TypeError, "a dict in a dict", a_state, "ds.map(lambda b: {'in': {'a': b['data']}})[0]"),
    Stop(TypeError, "a path instead of a dataset", npy, "ndfeed.loader('x.npy', 2)"),
    Stop(TypeError, "a set of fields", a_state, "ndfeed.loader(ds, 2, fields={'x', 'y'})"),
    Stop(TypeError, "a number among fields", a_state, "ndfeed.loader(ds, 2, fields=('data', 1))"),
    Stop(TypeError, "an argument of DataLoader", a_state, "ndfeed.loader(ds, 2, num_workers=4)"),
    Stop(
        TypeError,
        "another argument of DataLoader",
        a_state,
        "ndfeed.loader(ds, 2, pin_memory=True)",
    ),
    Stop(TypeError, "a cast at open", npy, "ndfeed.open('x.npy', cast='float32')"),
    Stop(
        errors.FieldError,
        "file and row without with_origin()",
        a_state,
        "ndfeed.loader(ds, 2, fields=('data', 'file', 'row'))",
    ),
    Stop(
        RuntimeError,
        "a tf.data.Dataset that was made in another process",
        a_source_of_tensorflow,
        "function(sent)",
        needs="tensorflow",
    ),
    Stop(TypeError, "a misspelled argument", a_state, "ndfeed.loader(ds, 2, shufle=True)"),
    Stop(ValueError, "pad_to without padding", a_state, "ndfeed.loader(ds, 2, pad_to=16)"),
    Stop(
        ValueError,
        "pad_value without ragged fields",
        a_state,
        "ndfeed.loader(ds, 2, ragged='pad', pad_value=-1)",
    ),
    Stop(ValueError, "a batch size of 0", a_state, "ndfeed.loader(ds, 0)"),
    Stop(TypeError, "an invalid order", a_state, "ndfeed.loader(ds, 2, shuffle='yes')"),
    Stop(
        ValueError, "a rank out of range", a_state, "ndfeed.loader(ds, 2, shard=(4, 4))"
    ),
    Stop(ValueError, "an unknown unit of memory", a_state, "ndfeed.loader(ds, 2, memory='2 GG')"),
    Stop(
        ValueError, "an invalid value for sample", npy, "ndfeed.open('x.npy', sample='image')"
    ),
    Stop(TypeError, "a folder for the index", npy, "ndfeed.open('x.npy', cache='/data')"),
    Stop(TypeError, "fields without an order", npy, "ndfeed.open('x.npy', fields={'data'})"),
    Stop(TypeError, "an array instead of its path", nothing, "ndfeed.open(np.zeros(3))"),
    Stop(TypeError, "an archive instead of its path", loaded_archive, "ndfeed.open(archive)"),
    Stop(
        ValueError,
        "a dtype that NumPy does not have",
        npy,
        "ndfeed.open('x.npy', dtype={'data': 'f5'})",
    ),
    Stop(ValueError, "a shape without a dtype", odd_raw, "ndfeed.open('x.bin', shape=(100,))"),
    Stop(IndexError, "a row out of range", a_state, "ds[10]"),
]  # fmt: skip


def errors_of(module):
    """The classes that somebody may meet: all but the base that none is raised of."""
    return [getattr(module, name) for name in module.__all__ if name != "Error"]


@contextlib.contextmanager
def _folder():
    """A new current folder that everybody may enter."""
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        os.chdir(folder)
        try:
            with patch.dict(os.environ, {"XDG_CACHE_HOME": os.path.join(folder, ".cache")}):
                yield os.path.realpath(folder)
        finally:
            os.chdir(before)


@contextlib.contextmanager
def _on_small_disk(wanted):
    """No file may grow beyond a kilobyte."""
    if not wanted:
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextlib.contextmanager
def _as_nobody(wanted):
    """Root may read everything: what is forbidden can be seen only as somebody else."""
    if not wanted or os.geteuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def _raised(call, names):
    try:
        eval(call, {"ndfeed": ndfeed, "np": np} | names)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is looked at
        return error
    return None


def _complained(command):
    """Exit status, and what was written to standard error."""
    out, err = io.StringIO(), io.StringIO()
    with (
        patch.object(sys, "argv", ["ndfeed", *shlex.split(command)]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        warnings.catch_warnings(),
    ):
        try:
            status = cli.main()
        except SystemExit as ended:
            status = ended.code
    return status, err.getvalue()


@contextlib.contextmanager
def _without_a_disk(wanted):
    """As on a machine whose temporary files lie in memory."""
    before, platform_calls.can.scratch = platform_calls.can.scratch, not wanted
    try:
        yield
    finally:
        platform_calls.can.scratch = before


def heard(stop):
    """Visit one stop."""
    with _folder() as folder:
        names = stop.make() or {}
        denied, full = stop.error is errors.DeniedError, stop.error is errors.SpaceError
        with (
            _as_nobody(denied),
            _on_small_disk(full),
            _without_a_disk("nor on a disk" in stop.title),
        ):
            error = _raised(stop.call, names)
            status, complaint = _complained(stop.command) if stop.command else (None, "")

        def near(text):
            text = text.replace(f"{folder}/", "").replace(folder, ".")
            text = re.sub(r"\.[0-9a-f]{32}-[0-9a-f]{32}\.packing", ".….packing", text)
            return re.sub(r"process \d+", "process …", text)

        return Heard(error, near(str(error)), status, near(complaint))


def told(stop, found):
    """A stop as it stands in the reviewed file."""
    lines = [f"# {stop.title}", f">>> {stop.call}"]
    lines += [f"{type(found.error).__name__}: {found.said}"]
    if stop.command:
        lines += [f"$ ndfeed {stop.command}", found.complaint.rstrip("\n")]
    return "\n".join(lines) + "\n"


def tour():
    """The whole text."""
    return "\n".join(told(stop, heard(stop)) for stop in STOPS)


if __name__ == "__main__":
    text = tour()
    if sys.argv[1:] == ["--write"]:
        REVIEWED.write_text(text, encoding="utf-8")
    else:
        print(text, end="")  # noqa: T201
