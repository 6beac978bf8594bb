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
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import packed_making
from ragged_making import megatron_index

import ndfeed
from ndfeed import cli, errors
from ndfeed.files import platform_calls

REVIEWED = Path(__file__).parent / "error_tour.txt"
OPEN = "ndfeed.open({!r})"
MAPPED = "ndfeed.open(np.load('x.npy', mmap_mode='r'))"
SETS = ("web", ""), ("code", ".npy")
TOKENS = "ndfeed.open('tokens.npy', offsets='offsets.npy')"
WITH_OFFSETS = "inspect tokens.npy --offsets offsets.npy"


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
    np.savez("x.npz", format=b"csc", shape=np.array([2, 5]), data=np.ones(2), **members)


def other_matrices():
    """Rows of two widths."""
    os.mkdir("folder")
    for columns in (5, 7):
        members = {"indices": np.zeros(2, "i4"), "indptr": np.array([0, 1, 2]), "data": np.ones(2)}
        shape = np.array([2, columns])
        np.savez(f"folder/{columns}.npz", format=b"csr", shape=shape, **members)


def tokens(offsets):
    """A thousand tokens, and offsets of samples."""

    def make():
        npy("tokens.npy", np.zeros(1000, "<u2"))
        npy("offsets.npy", np.array(offsets))

    return make


def a_pair(values=1000):
    """A thousand tokens, and an index of Megatron-LM for them."""

    def make():
        content("corpus.bin", bytes(2 * values))()
        content("corpus.idx", megatron_index([500, 500]))()

    return make


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


def images_with_channels():
    import ndfeed.torch  # the call names it

    np.savez("x.npz", image=np.zeros((10, 4, 4, 3)))
    return {"ds": ndfeed.open("x.npz"), "hwc": ndfeed.torch.Convert(hwc=True)}


def a_state():
    npy()
    ds = ndfeed.open("x.npy")
    loader = ndfeed.loader(ds, 2, shuffle=True)
    return {"ds": ds, "loader": loader, "state": loader.state_dict()}


def two_sets():
    npy("web.npy")
    npy("code.npy")
    return {"sets": {name: ndfeed.open(f"{name}.npy") for name in ("web", "code")}}


def a_mixture_state():
    """The state of a mixture, and a function that makes a loader of another one."""
    known = two_sets()["sets"]
    state = ndfeed.loader(ndfeed.mix(known), 2, shuffle=True).state_dict()
    return {"sets": known, "state": state, "of": lambda sets: ndfeed.loader(ndfeed.mix(sets), 2)}


def some_texts():
    tokens([0, 300, 310, 1000])()
    return {"ds": ndfeed.open("tokens.npy", offsets="offsets.npy")}


def a_number_each():
    npy("numbers.npy", np.zeros(10, "<f4"))
    return {"ds": ndfeed.open("numbers.npy")}


def a_state_of_buckets():
    loader = ndfeed.loader(**some_texts(), batch_size=1, shuffle=ndfeed.Buckets("data"))
    next(iter(loader))
    return {"loader": loader, "state": loader.state_dict() | {"more": {}}}


def pets():
    """Samples with a weight and a class, of which one has no sample."""
    np.savez("x.npz", x=np.zeros((10, 4)), weight=np.arange(10.0), debt=-np.arange(10.0))
    kinds = ["cat", "dog"] * 5
    ds = ndfeed.open("x.npz").with_labels(kinds, field="kind", classes=["cat", "dog", "eel"])
    return {"ds": ds, "order": Shifted()}


class Shifted:
    """An order of one's own that goes one row too far."""

    def length(self, n):
        return n

    def rows(self, positions, n, seed, epoch):
        return positions + 1


@dataclass
class Turned:
    """An order of one's own that has an attribute, and expects at least one position."""

    by: int

    def length(self, n):
        return n

    def rows(self, positions, n, seed, epoch):
        return (positions[0] + np.arange(len(positions)) + self.by) % n


def a_turned_order():
    ds = pets()["ds"]
    state = ndfeed.loader(ds, 2, shuffle=Turned(3)).state_dict()
    return {"loader": ndfeed.loader(ds, 2, shuffle=Turned(7)), "state": state, "Turned": Turned}


def two_fields():
    np.savez("x.npz", x=np.zeros((10, 4, 4), "<f4"), y=np.zeros((10, 5)))
    return {"ds": ndfeed.open("x.npz")}


def patients():
    """Samples of two patients."""
    np.savez("x.npz", patient=np.arange(10) // 5, site=np.array(["Bonn", "Oslo"] * 5))
    return {"ds": ndfeed.open("x.npz")}


def ragged_patients():
    for i in range(3):
        np.savez(f"{i}.npz", scan=np.zeros(i + 2), patient=i)
    return {"ds": ndfeed.open("*.npz", sample="file")}


def some_labels():
    """Three files, and a table that lacks one of them and has another one twice."""
    for name in "abc":
        npy(f"{name}.npy")
    Path("labels.csv").write_text("id,kind\na,cat\nb,dog\na,dog\n", encoding="utf-8")
    return {"ds": ndfeed.open(["a.npy", "b.npy", "c.npy"], sample="file")}


def a_source_of_tensorflow():
    """The function behind a dataset, as TensorFlow calls it in the process that it was sent to."""
    importlib.import_module("ndfeed.tf")
    data = ndfeed.tf.dataset(a_state()["ds"], 2)
    made = importlib.import_module("ndfeed.tf.generator").GeneratorSource
    function = made(data.passes, None)
    return {"function": function, "sent": np.zeros(256, np.uint8), "data": data}


def a_folder_that_tensorflow_reads():
    """More files since a dataset was derived: what TensorFlow calls for a pass over that one."""
    module = importlib.import_module("ndfeed.tf")
    generator = importlib.import_module("ndfeed.tf.generator")
    made = importlib.import_module("ndfeed.tf.batch_format").BatchFormat
    ds, state = a_folder()["ds"], module.State()
    data = module.dataset(ds, 5, state=state)
    form = made(ds, data.passes.loader.request.options, "ragged", 5, full=True, joint=True)
    derived, any_number = (generator.GeneratorSource(data.passes, form, most) for most in (6, None))
    rows = np.zeros((10, 4), "f4")
    np.save("data/8.npy", rows)
    function = importlib.import_module("tensorflow").function
    names = {"data": data, "derived": derived, "any_number": any_number, "function": function}
    return names | {"state": state, "more": lambda: np.save("data/9.npy", rows[:3])}


def fields_of_x():
    fields()
    return {"ds": ndfeed.open("x.npz")}


def another_state():
    npy("y.npy", np.zeros((12, 4)))
    other = ndfeed.loader(ndfeed.open("y.npy"), 2, shuffle=True)
    return a_state() | {"state": other.state_dict()}


def a_folder():
    """Three files, of ten rows each, and a loader that has delivered one batch."""
    Path("data").mkdir()
    for number in (2, 4, 6):
        npy(f"data/{number}.npy")
    ds = ndfeed.open("data", sample="row")
    loader = ndfeed.loader(ds, 2, shuffle=True)
    next(iter(loader))
    return {"ds": ds, "loader": loader, "state": loader.state_dict()}


def fewer_files():
    made = a_folder()
    for number in (2, 6):
        Path(f"data/{number}.npy").unlink()
    return made


def a_vanished_file():
    npy("x.npy")
    ds = ndfeed.open("x.npy")
    Path("x.npy").unlink()
    return {"ds": ds}


def one_rewritten():
    made = a_folder()
    npy("data/4.npy", np.ones((12, 4)))
    return made


def another_kind():
    made = a_folder()
    made["loader"] = ndfeed.loader(ndfeed.open("data", sample="file"), 2)
    npy("data/8.npy", np.ones((12, 4), "<f4"))
    return made


def more_files():
    made = a_folder()
    npy("data/5.npy")
    for second, number in enumerate((2, 5, 6, 4)):
        os.utime(f"data/{number}.npy", (second, second))
    made["now"] = ndfeed.loader(ndfeed.open("data", sample="row"), 2, shuffle=True)
    return made


def more_files_for_an_order():
    made = a_folder()
    loader = ndfeed.loader(made["ds"], 2, shuffle=Turned(3))
    next(iter(loader))
    npy("data/8.npy")
    now = ndfeed.loader(ndfeed.open("data", sample="row"), 2, shuffle=Turned(3))
    return {"state": loader.state_dict(), "now": now}


def two_folders():
    """The loaders of a mixture in which one source is read in an order that cannot grow."""
    Path("web").mkdir()
    npy("web/1.npy")
    npy("web/2.npy")
    npy("code.npy")
    sets = {name: ndfeed.open(f"{name}{end}", sample="row") for name, end in SETS}
    order = {"web": ndfeed.Recent(4), "code": True}
    ds = ndfeed.mix(sets, weights=[1, 2])
    loaders = [ndfeed.loader(ds, 3, shuffle=one) for one in (order, True)]
    for loader in loaders:
        for _ in loader:
            pass
    next(iter(loaders[1]))
    return {"recent": loaders[0], "loader": loaders[1]}


def a_growing_mixture():
    made = two_folders()
    npy("web/3.npy")
    return made


def a_mixture_that_lost_a_file():
    made = two_folders()
    Path("web/1.npy").unlink()
    return made


def a_mixture_copied_in_between():
    made = two_folders()
    for second, number in enumerate(("2", "1b", "1")):
        npy(f"web/{number}.npy")
        os.utime(f"web/{number}.npy", (second, second))
    sets = {name: ndfeed.open(f"{name}{end}", sample="row") for name, end in SETS}
    now = ndfeed.loader(ndfeed.mix(sets, weights=[1, 2]), 3, shuffle=True)
    return {"state": made["loader"].state_dict(), "now": now}


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
    opened(errors.SchemaError, "sparse matrices of two widths", other_matrices, "folder"),
    Stop(
        errors.FormatError,
        "offsets without the end",
        tokens([0, 300, 600]),
        TOKENS,
        WITH_OFFSETS,
    ),
    Stop(
        errors.FormatError,
        "offsets without the start",
        tokens([300, 700, 1000]),
        TOKENS,
        WITH_OFFSETS,
    ),
    Stop(
        errors.FormatError,
        "lengths instead of offsets",
        tokens([300, 400, 300]),
        TOKENS,
        WITH_OFFSETS,
    ),
    Stop(
        errors.FormatError,
        "offsets of another array",
        tokens([0, 700, 2000]),
        TOKENS,
        WITH_OFFSETS,
    ),
    Stop(errors.FormatError, "offsets that go back", tokens([0, 700, 300, 1000]), f"{TOKENS}[1]"),
    Stop(
        errors.SchemaError,
        "offsets that are no integers",
        tokens([0.0, 1000.0]),
        TOKENS,
        WITH_OFFSETS,
    ),
    Stop(
        errors.SchemaError,
        "offsets in memory that go back",
        tokens([0, 1000]),
        "ndfeed.open('tokens.npy', offsets=[0, 700, 300, 1000])",
    ),
    opened(errors.FormatError, "tokens that another index describes", a_pair(900), "corpus.bin"),
    Stop(
        ValueError,
        "lengths after a map",
        tokens([0, 1000]),
        f"{TOKENS}.map(lambda batch: batch).lengths('data')",
    ),
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
        errors.FieldError,
        "a flip of an unknown field",
        fields,
        "ndfeed.torch.loader(ndfeed.open('x.npz'), 2, flip={'img': 0})",
        needs="torch",
    ),
    Stop(
        ValueError,
        "a flip of a field without that axis",
        fields,
        "ndfeed.torch.loader(ndfeed.open('x.npz'), 2, flip={'image': 0, 'label': 0})",
        needs="torch",
    ),
    Stop(
        ValueError,
        "a flip of samples that differ in shape",
        ragged_patients,
        "ndfeed.torch.loader(ds, 2, flip={'scan': 0})",
        needs="torch",
    ),
    Stop(
        ValueError,
        "a flip of an image along two axes, and of its mask along one",
        fields,
        "ndfeed.torch.loader(ndfeed.open('x.npz'), 2, flip={'image': (0, 1), 'label': 0})",
        needs="torch",
    ),
    Stop(
        ValueError,
        "a flip of channels",
        images_with_channels,
        "ndfeed.torch.loader(ds, 2, convert={'image': hwc}, flip={'image': -1})",
        needs="torch",
    ),
    Stop(
        TypeError,
        "a flip in words",
        fields,
        "ndfeed.torch.loader(ndfeed.open('x.npz'), 2, flip='horizontal')",
        needs="torch",
    ),
    Stop(
        TypeError,
        "a flip where no framework does it",
        a_state,
        "ndfeed.loader(ds, 2, flip={'data': 0})",
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
    Stop(errors.MissingError, "files that are gone", fewer_files, "ds.refresh()"),
    Stop(errors.MissingError, "reading a file that is gone", a_vanished_file, "ds[:]"),
    Stop(errors.ChangedError, "a file rewritten while others come", one_rewritten, "ds.refresh()"),
    Stop(errors.SchemaError, "new files of another shape", another_kind, "loader.refresh()"),
    Stop(
        RuntimeError,
        "more batches than TensorFlow was told of",
        a_folder_that_tensorflow_reads,
        "data.refresh(), next(derived())",
        needs="tensorflow",
    ),
    Stop(
        RuntimeError,
        "a batch shorter than TensorFlow was told of",
        a_folder_that_tensorflow_reads,
        "more(), data.refresh(), next(any_number())",
        needs="tensorflow",
    ),
    Stop(
        RuntimeError,
        "refresh() in a graph",
        a_folder_that_tensorflow_reads,
        "function(data.refresh, autograph=False)()",
        needs="tensorflow",
    ),
    Stop(
        RuntimeError,
        "more batches than fit asked for",
        a_folder_that_tensorflow_reads,
        "setattr(state, 'in_fit', True), data.refresh()",
        needs="tensorflow",
    ),
    Stop(ValueError, "a split that should follow its files", a_folder, "ds.split(.5)[0].refresh()"),
    Stop(ValueError, "what to do with missing files", a_folder, "ds.refresh(missing='ignore')"),
    Stop(errors.ResumeError, "more files than before", more_files, "now.load_state_dict(state)"),
    Stop(
        errors.ResumeError,
        "old files that nothing tells from new ones",
        more_files,
        "now.load_state_dict(state, grown=True)",
    ),
    Stop(
        errors.ResumeError,
        "another dataset as the old one",
        more_files,
        "now.load_state_dict(state, grown=ndfeed.open('data/[56].npy', sample='row'))",
    ),
    Stop(
        errors.ResumeError,
        "new samples in an epoch of an order of one's own",
        more_files_for_an_order,
        "now.load_state_dict(state, grown=True)",
    ),
    Stop(
        errors.ResumeError,
        "a history of growth that cannot be",
        a_folder,
        "loader.load_state_dict(state | {'more': {'grown': [[40, 2, '0']]}})",
    ),
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
    Stop(errors.FieldError, "where() with an unknown field", a_state, "ds.where('label')"),
    Stop(errors.SchemaError, "where() with a field of images", a_state, "ds.where('data')"),
    Stop(errors.SchemaError, "where() with a field of text", patients, "ds.where('site')"),
    Stop(
        TypeError,
        "a condition that returns no mask",
        patients,
        "ds.where(lambda batch: batch['patient'] * 2)",
    ),
    Stop(
        errors.SchemaError,
        "a split by a ragged field",
        ragged_patients,
        "ds.split(.8, by='scan')",
    ),
    Stop(ValueError, "fewer groups than parts", patients, "ds.split(.8, .1, .1, by='patient')"),
    Stop(ValueError, "classes of other samples", patients, "ds.split(.8, like=[0, 1])"),
    Stop(ValueError, "more folds than samples", patients, "ds.folds(11)"),
    Stop(
        errors.SchemaError,
        "labels in no column",
        some_labels,
        "ds.with_labels('labels.csv', column='label')",
        "inspect '[a-c].npy' --sample file --labels labels.csv --column label",
    ),
    Stop(
        errors.SchemaError,
        "a table of labels without the file names",
        some_labels,
        "ds.with_labels('labels.csv', column='id', key='name')",
        "inspect '[a-c].npy' --sample file --labels labels.csv --column id --key name",
    ),
    Stop(
        errors.SchemaError,
        "files without a label, names with two",
        some_labels,
        "ds.with_labels('labels.csv', column='kind')",
        "inspect '[a-c].npy' --sample file --labels labels.csv --column kind",
    ),
    Stop(
        errors.SchemaError,
        "labels for other names",
        some_labels,
        "ds.with_labels({'A_1': 0, 'B_1': 1})",
    ),
    Stop(
        errors.SchemaError,
        "a label that is no class",
        some_labels,
        "ds.with_labels(['cat', 'dog', 'eel'], classes=['cat', 'dog'])",
    ),
    Stop(
        errors.SchemaError,
        "a sum of other classes",
        some_labels,
        "ds.with_labels(['a', 'b', 'b']) + ds.with_labels(['b', 'c', 'c'])",
    ),
    Stop(ValueError, "labels of another length", some_labels, "ds.with_labels(np.arange(4))"),
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
    Stop(ValueError, "a source of negative weight", two_sets, "ndfeed.mix(sets, weights=[3, -1])"),
    Stop(ValueError, "a weight that is NaN", two_sets, "ndfeed.mix(sets, weights=[np.nan, 1])"),
    Stop(ValueError, "sources of no weight", two_sets, "ndfeed.mix(sets, weights=[0, 0])"),
    Stop(ValueError, "weights of another length", two_sets, "ndfeed.mix(sets, weights=[1, 2, 3])"),
    Stop(TypeError, "weights in no order", two_sets, "ndfeed.mix(sets, weights={3, 1})"),
    Stop(ValueError, "weights by a wrong name", two_sets, "ndfeed.mix(sets, weights={'wbe': 1})"),
    Stop(
        ValueError,
        "weights from a later epoch on",
        two_sets,
        "ndfeed.mix(sets, weights={5: [1, 1]})",
    ),
    Stop(
        ValueError,
        "weights from half an epoch on",
        two_sets,
        "ndfeed.mix(sets, weights={0: [3, 1], 0.5: [1, 1]})",
    ),
    Stop(
        ValueError,
        "weights from one place on, twice",
        two_sets,
        "ndfeed.mix(sets, weights={0: [3, 1], 5: [1, 1], (5, 0): [1, 2]})",
    ),
    Stop(
        ValueError,
        "an empty source",
        two_sets,
        "ndfeed.mix(sets | {'none': sets['web'].take([])})",
    ),
    Stop(
        ValueError,
        "one source named twice",
        two_sets,
        "ndfeed.mix(sets | {'more': sets['web']})",
    ),
    Stop(
        errors.SchemaError,
        "sources with other fields",
        two_sets,
        "ndfeed.mix(sets | {'code': sets['code'].rename({'data': 'tokens'})})",
    ),
    Stop(
        errors.SchemaError,
        "sources of two shapes",
        two_sets,
        "ndfeed.mix({'web': sets['web'].windows(2), 'code': sets['code'].windows(3)})",
    ),
    Stop(
        errors.ResumeError,
        "a source with another name",
        a_mixture_state,
        "of({'web': sets['web'], 'books': sets['code']}).load_state_dict(state)",
    ),
    Stop(
        errors.ResumeError,
        "sources in another order",
        a_mixture_state,
        "of({'code': sets['code'], 'web': sets['web']}).load_state_dict(state)",
    ),
    Stop(
        ValueError,
        "a mixture in memory that should follow its files",
        two_sets,
        "ndfeed.mix(sets).in_memory().refresh()",
    ),
    Stop(
        errors.ResumeError,
        "a source that grows in the newest samples",
        a_growing_mixture,
        "recent.refresh()",
    ),
    Stop(
        errors.ResumeError,
        "a source that lost files",
        a_mixture_that_lost_a_file,
        "loader.refresh(missing='skip')",
    ),
    Stop(
        errors.ResumeError,
        "a source in which nothing tells old files from new ones",
        a_mixture_copied_in_between,
        "now.load_state_dict(state, grown=True)",
    ),
    Stop(
        ValueError,
        "a mixture in batches of tokens",
        two_sets,
        "ndfeed.loader(ndfeed.mix(sets), tokens=4096, shuffle=True)",
    ),
    Stop(ValueError, "a mixture of one", two_sets, "ndfeed.mix({'web': sets['web']})"),
    Stop(ValueError, "split() of a mixture", two_sets, "ndfeed.mix(sets).split(.8)"),
    Stop(
        ValueError,
        "an order for an unknown source",
        two_sets,
        "ndfeed.loader(ndfeed.mix(sets), 2, shuffle={'wbe': True})",
    ),
    Stop(
        TypeError,
        "the class of an order for a source",
        two_sets,
        "ndfeed.loader(ndfeed.mix(sets), 2, shuffle={'web': ndfeed.Exact, 'code': True})",
    ),
    Stop(
        TypeError,
        "orders by source for one dataset",
        a_state,
        "ndfeed.loader(ds, 2, shuffle={'a': True})",
    ),
    Stop(ValueError, "a batch size of 0", a_state, "ndfeed.loader(ds, 0)"),
    Stop(ValueError, "edges that fall", a_state, "ndfeed.Buckets('data', edges=(128, 64))"),
    Stop(ValueError, "no edges", a_state, "ndfeed.Buckets('data', edges=())"),
    Stop(ValueError, "a negative edge", a_state, "ndfeed.Buckets('data', edges=(-1, 64))"),
    Stop(
        errors.FieldError,
        "buckets of an unknown field",
        some_texts,
        "ndfeed.loader(ds, 2, shuffle=ndfeed.Buckets('text'))",
    ),
    Stop(
        ValueError,
        "buckets of a field without lengths",
        a_number_each,
        "ndfeed.loader(ds, 2, shuffle=ndfeed.Buckets('data'))",
    ),
    Stop(
        ValueError,
        "another number of lengths than samples",
        some_texts,
        "ndfeed.loader(ds, 2, shuffle=ndfeed.Buckets([3, 4]))",
    ),
    Stop(
        ValueError,
        "a budget smaller than one sample",
        some_texts,
        "ndfeed.loader(ds, tokens=256, shuffle=True)",
    ),
    Stop(
        ValueError,
        "both a batch size and a budget of tokens",
        some_texts,
        "ndfeed.loader(ds, 8, tokens=8192, shuffle=True)",
    ),
    Stop(TypeError, "no batch size", some_texts, "ndfeed.loader(ds, shuffle=True)"),
    Stop(ValueError, "a budget without an order", some_texts, "ndfeed.loader(ds, tokens=8192)"),
    Stop(
        ValueError,
        "a budget for samples of one length",
        a_state,
        "ndfeed.loader(ds, tokens=8192, shuffle=True)",
    ),
    Stop(
        ValueError,
        "a budget for samples padded to one length",
        some_texts,
        "ndfeed.loader(ds, tokens=8192, shuffle=True, ragged='pad', pad_to=1024)",
    ),
    Stop(
        errors.ResumeError,
        "a state of buckets without their sizes",
        a_state_of_buckets,
        "loader.load_state_dict(state)",
    ),
    Stop(TypeError, "an invalid order", a_state, "ndfeed.loader(ds, 2, shuffle='yes')"),
    Stop(
        TypeError,
        "the class of an order",
        a_state,
        "ndfeed.loader(ds, 2, shuffle=ndfeed.Balanced)",
    ),
    Stop(TypeError, "rows for an order", a_state, "ndfeed.loader(ds, 2, shuffle=np.arange(10))"),
    Stop(TypeError, "an object for an order", a_state, "ndfeed.loader(ds, 2, shuffle=object())"),
    Stop(
        ValueError,
        "classes for weights",
        pets,
        "ndfeed.loader(ds, 2, shuffle=ndfeed.Weighted('kind'))",
    ),
    Stop(ValueError, "a negative weight", nothing, "ndfeed.Weighted([1, 2, -3])"),
    Stop(ValueError, "a weight that is no number", nothing, "ndfeed.Weighted([1, np.nan])"),
    Stop(ValueError, "weights that are all zero", nothing, "ndfeed.Weighted([0, 0])"),
    Stop(TypeError, "a weight for each class", nothing, "ndfeed.Weighted({'cat': 1, 'dog': 2})"),
    Stop(TypeError, "weights for a loader", a_state, "ndfeed.loader(ds, 2, weights=[1, 2])"),
    Stop(ValueError, "no weights", nothing, "ndfeed.Weighted([])"),
    Stop(ValueError, "a table of weights", nothing, "ndfeed.Weighted([[1, 2]])"),
    Stop(ValueError, "masked rows", a_state, "ds.take(np.ma.masked_equal([1, 2], 2))"),
    Stop(ValueError, "masked weights", nothing, "ndfeed.Weighted(np.ma.masked_equal([1, 2], 2))"),
    Stop(TypeError, "weights that are text", nothing, "ndfeed.Weighted(['high', 'low'])"),
    Stop(ValueError, "an epoch of no draws", nothing, "ndfeed.Weighted([1, 2], rows=0)"),
    Stop(
        ValueError,
        "weights of other samples",
        pets,
        "ndfeed.loader(ds, 2, shuffle=ndfeed.Weighted([1, 2, 3]))",
    ),
    Stop(
        ValueError,
        "a field of negative weights",
        pets,
        "ndfeed.loader(ds, 2, shuffle=ndfeed.Weighted('debt'))",
    ),
    Stop(
        errors.FieldError,
        "weights of an unknown field",
        pets,
        "ndfeed.loader(ds, 2, shuffle=ndfeed.Weighted('wight'))",
    ),
    Stop(
        errors.SchemaError,
        "a field with several weights for each sample",
        pets,
        "ndfeed.loader(ds, 2, shuffle=ndfeed.Weighted('x'))",
    ),
    Stop(
        ValueError,
        "weights of no samples",
        pets,
        "ndfeed.loader(ds.take([]), 2, shuffle=ndfeed.Weighted('weight'))",
    ),
    Stop(
        ValueError,
        "a class without a sample",
        pets,
        "ndfeed.loader(ds, 2, shuffle=ndfeed.Balanced('kind'))",
    ),
    Stop(
        ValueError,
        "a weight for an unknown class",
        pets,
        "ndfeed.loader(ds, 2, shuffle=ndfeed.Balanced('kind', weights={'cow': 2}))",
    ),
    Stop(
        ValueError,
        "a class with a part of a weight",
        nothing,
        "ndfeed.Balanced('kind', weights={'cat': 1.5})",
    ),
    Stop(
        ValueError,
        "a class twice",
        nothing,
        "ndfeed.Balanced('kind', weights={1: 2, '1': 3})",
    ),
    Stop(
        ValueError,
        "a sample without a class",
        pets,
        "ndfeed.loader(ds, 2, shuffle=ndfeed.Balanced([np.nan] + [1.0] * 9))",
    ),
    Stop(
        ValueError,
        "classes that are all left out",
        pets,
        "ndfeed.loader(ds, 2, shuffle=ndfeed.Balanced([1] * 10, weights={1: 0}))",
    ),
    Stop(TypeError, "sorted by nothing", nothing, "ndfeed.Sorted()"),
    Stop(
        ValueError,
        "more stages than samples",
        pets,
        "ndfeed.loader(ds, 2, shuffle=ndfeed.Sorted('weight', stages=100))",
    ),
    Stop(ValueError, "values without an order", nothing, "ndfeed.Sorted([1, np.nan])"),
    Stop(
        errors.OrderError,
        "an order of one's own that goes too far",
        pets,
        "list(ndfeed.loader(ds, 2, shuffle=order))",
    ),
    Stop(errors.OrderError, "the same, checked", pets, "ndfeed.check_order(order)"),
    Stop(TypeError, "no order to check", nothing, "ndfeed.check_order(True)"),
    Stop(
        errors.OrderError,
        "an order that expects a position",
        a_turned_order,
        "ndfeed.check_order(Turned(3), n=1)",
    ),
    Stop(
        errors.ResumeError,
        "a state of an order with other attributes",
        a_turned_order,
        "loader.load_state_dict(state)",
    ),
    Stop(
        ValueError, "a rank out of range", a_state, "ndfeed.loader(ds, 2, shard=(4, 4))"
    ),
    Stop(ValueError, "an unknown unit of memory", a_state, "ndfeed.loader(ds, 2, memory='2 GG')"),
    Stop(
        ValueError, "an invalid value for sample", npy, "ndfeed.open('x.npy', sample='image')"
    ),
    Stop(TypeError, "a folder for the index", npy, "ndfeed.open('x.npy', cache='/data')"),
    Stop(TypeError, "fields without an order", npy, "ndfeed.open('x.npy', fields={'data'})"),
    Stop(TypeError, "a memory map instead of its path", npy, MAPPED),
    Stop(TypeError, "a list of numbers as a source", nothing, "ndfeed.open([1, 2, 3])"),
    Stop(ValueError, "a number as a source", nothing, "ndfeed.open({'x': np.float32(3)})"),
    Stop(TypeError, "an archive instead of its path", loaded_archive, "ndfeed.open(archive)"),
    Stop(
        ValueError,
        "a dtype that NumPy does not have",
        npy,
        "ndfeed.open('x.npy', dtype={'data': 'f5'})",
    ),
    Stop(ValueError, "a shape without a dtype", odd_raw, "ndfeed.open('x.bin', shape=(100,))"),
    Stop(IndexError, "a row out of range", a_state, "ds[10]"),
    Stop(
        errors.SchemaError,
        "a window longer than every file",
        a_state,
        "ds.windows(1025)",
        "inspect x.npy --windows 1025",
    ),
    Stop(ValueError, "windows that do not move", a_state, "ds.windows(2, stride=0)"),
    Stop(
        errors.FieldError,
        "windows by an unknown field",
        a_state,
        "ds.windows(2, by='episode')",
        "inspect x.npy --windows 2 --by episode",
    ),
    Stop(ValueError, "bounds that go back", a_state, "ds.windows(2, bounds=[5, 3])"),
    Stop(
        ValueError, "windows of rows that were chosen", a_state, "ds.take([1, 5, 3]).windows(2)"
    ),
    Stop(
        ValueError, "windows after a map", a_state, "ds.map(lambda batch: batch).windows(2)"
    ),
    Stop(
        TypeError,
        "offsets of two kinds",
        two_fields,
        "ds.windows(offsets={'x': range(-3, 1), 'y': 0})",
    ),
    Stop(
        errors.SchemaError,
        "a crop larger than the case",
        a_state,
        "ds.crops({'data': (96,)})",
        "inspect x.npy --crops data=96",
    ),
    Stop(
        errors.FieldError,
        "crops of an unknown field",
        a_state,
        "ds.crops({'image': (2,)})",
        "inspect x.npy --crops image=2",
    ),
    Stop(ValueError, "crops in different axes", two_fields, "ds.crops({'x': (2, 2), 'y': (2,)})"),
    Stop(
        errors.SchemaError,
        "crops of fields of two sizes",
        two_fields,
        "ds.crops({'x': (2,), 'y': (2,)})",
    ),
    Stop(
        ValueError,
        "crops that are filled up with different values",
        a_state,
        "ds.crops({'data': (9,)}, pad=0) + ds.crops({'data': (9,)}, pad=1)",
    ),
    Stop(
        ValueError,
        "a condition on random crops",
        a_state,
        "ds.crops({'data': (2,)}, each=4).where(lambda batch: batch['data'].any(1))",
    ),
    Stop(IndexError, "a corner too far", a_state, "ds.crops({'data': (2,)}, at=[[0, 3]])"),
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
