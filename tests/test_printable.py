"""Text from files reaches people as printable characters, whatever way it takes.

A terminal obeys what is printed on it: a file could move the cursor, hide a line or forge one. So a
few files have such text wherever a format has text, and everything that is said about them is
looked at: errors, warnings, the dataset's own text, tables and JSON of commands.
"""

import contextlib
import io
import json
import pickle
import struct
import sys
import warnings
from unittest.mock import patch

import numpy as np
import packed_making
import pytest
from formats.making import Entry, archive, npy_text, saved

import ndfeed
from ndfeed import cli, errors

EVIL = "\x1b[31m\nforged\r\x07\x9b2J\u202e\x7f"
RAW = EVIL.encode()


def text(value):
    """The opcode for a text of a pickle."""
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()


def pt(pickled, *members):
    return archive(Entry("x/data.pkl", pickled), *members)


def storage(key):
    """The opcodes for a tensor of one byte in the storage ``key``."""
    ids = b"(" + text("storage") + b"ctorch\nByteStorage\n" + text(key) + text("cpu") + b"K\x01tQ"
    rest = b"K\x00K\x01\x85K\x01\x85\x89ccollections\nOrderedDict\n)RtR"
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + ids + rest


def safetensors(entries, nbytes=1):
    header = json.dumps(entries).encode()
    return struct.pack("<Q", len(header)) + header + bytes(nbytes)


def header(descr="'<f4'", shape="(1,)", more=""):
    return npy_text(
        f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}{more}}}", bytes(4)
    )


ONE = {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}
ARRAY = saved(np.zeros(1, "u1"))
ESCAPED = EVIL.encode("unicode_escape").decode()

FILES = {
    "a storage that is missing": ("x.pt", pt(b"\x80\x02" + storage(EVIL) + b".")),
    "a storage that is short": (
        "x.pt", pt(b"\x80\x02" + storage(EVIL) + b".", Entry(f"x/data/{EVIL}", b""))
    ),
    "a key of a dict": ("x.pt", pt(b"\x80\x02}" + text(EVIL) + b"K\x01s.")),
    "a text and its key": (
        "x.pt", pt(b"\x80\x02}" + text(EVIL) + text(EVIL) + b"s" + text("x") + b"K\x01s.")
    ),
    "a class": ("x.pt", pt(b"\x80\x04" + text(EVIL) + text(EVIL) + b"\x93.")),
    "a dtype in a pickle": (
        "x.pt",
        pt(b"\x80\x02cnumpy.core.multiarray\nscalar\ncnumpy\ndtype\n" + text(EVIL[:16])
           + b"\x85RC\x01a\x86R."),
    ),
    "a byte order": ("x.pt", pt(b"\x80\x02K\x01.", Entry("x/byteorder", RAW))),
    "a member": ("x.npz", archive(Entry(f"{EVIL}.npy", ARRAY, flags=0x800))),
    "a member that is there twice": (
        "x.npz", archive(*[Entry(f"{EVIL}.npy", ARRAY, flags=0x800)] * 2)
    ),
    "a member that is no array": (
        "x.npz", archive(Entry(EVIL, b"no", flags=0x800), Entry("x.npy", ARRAY))
    ),
    "a member that is encrypted": ("x.npz", archive(Entry(EVIL, ARRAY, flags=0x801))),
    "a member of another method": ("x.npz", archive(Entry(EVIL, ARRAY, 12, flags=0x800))),
    "a member that is damaged": ("x.npz", archive(Entry(EVIL, ARRAY, flags=0x800, size=9))),
    "a member's name that is no text": ("x.npz", archive(Entry(b"\xff" + RAW, ARRAY, flags=0x800))),
    "a field": ("x.npy", header(f"[('{ESCAPED}', '<f4')]")),
    "an unknown escape": ("x.npy", header("'\\\x1b[31m'")),
    "an unknown escape of many": ("x.npy", header("'\\\u009b'")),
    "a dtype": ("x.npy", header(f"'{ESCAPED}'")),
    "a shape": ("x.npy", header(shape=f"('{ESCAPED}',)")),
    "an order": ("x.npy", header(more=f", '{ESCAPED}': 1")),
    "a tensor": ("x.safetensors", safetensors({EVIL: ONE})),
    "a tensor of nothing": ("x.safetensors", safetensors({EVIL: {}})),
    "a tensor's dtype": ("x.safetensors", safetensors({EVIL: ONE | {"dtype": EVIL}})),
    "metadata": ("x.safetensors", safetensors({"__metadata__": {EVIL: EVIL}, "x": ONE})),
    "JSON that is none": ("x.safetensors", struct.pack("<Q", 2 + len(RAW)) + b"{" + RAW + b"}"),
    "a first byte": ("x.npy", RAW),
    "the name of the file": (f"x{EVIL.replace('/', '')}.npy", b"wrong"),
    "the name of a sound file": (f"x{EVIL.replace('/', '')}.npy", header()),
}  # fmt: skip


def said_by_library(path, **options):
    """All texts about a file: of errors, of warnings, of the dataset."""
    said = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for sample in ("auto", "file", "row"):
            try:
                ds = ndfeed.open(path, sample=sample, cache=False, **options)
                said += repr(ds).split("\n")
                said += [str(field) for field in ds.fields.values()]
                ds.select("no such field")
            except ndfeed.Error as error:
                said += [str(error), repr(error)]
    return said + [str(one.message) for one in caught]


def said_by_commands(path):
    """All lines that commands print about a file, on both of their outputs."""
    said = []
    for words in (["inspect"], ["inspect", "--json"], ["inspect", "--dtype", "f4"], ["verify"]):
        out = io.StringIO()
        with (
            patch.object(sys, "argv", ["ndfeed", words[0], str(path), *words[1:]]),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(out),
            contextlib.suppress(SystemExit),
            warnings.catch_warnings(),
        ):
            cli.main()
        said += out.getvalue().split("\n")
    return said


def assert_printable(lines):
    assert lines
    for line in lines:
        assert line.isprintable(), line
        assert "forged" not in line.strip().split("│")[0][:6], line  # a line of its own


@pytest.mark.parametrize("what", FILES)
def test_what_is_said_about_a_file_is_printable(tmp_path, what):
    """Whoever looks at a strange file looks at it on a terminal."""
    name, data = FILES[what]
    path = tmp_path / name
    path.write_bytes(data)

    assert_printable(said_by_library(path))
    assert_printable(said_by_commands(path))


def test_a_folder_of_such_files_is_told_of_in_printable_lines(tmp_path):
    """Several bad files are listed with a line each, and those lines are ours."""
    for number, (name, data) in enumerate(FILES.values()):
        (tmp_path / f"{number}{name}").write_bytes(data)
    with pytest.raises(errors.BadFilesError) as caught:
        ndfeed.open(tmp_path, cache=False)

    assert_printable(str(caught.value).split("\n"))
    assert str(caught.value).count("\n") == 11
    assert_printable(said_by_commands(tmp_path))


def test_names_of_packed_fields_are_printable(tmp_path):
    """Packing keeps names as they are, and so does the manifest."""
    packed_making.write(tmp_path / "packed", {EVIL: np.zeros((3, 2)), "y": [[1], [2, 3], []]})

    assert_printable(said_by_library(tmp_path / "packed"))
    assert_printable(said_by_commands(tmp_path / "packed"))


@pytest.mark.parametrize(
    "error",
    [
        errors.FormatError(EVIL, EVIL, 3),
        errors.FieldError(EVIL, [EVIL], EVIL),
        errors.CastError(EVIL, 3, EVIL, EVIL, EVIL),
        errors.ResumeError(EVIL),
        errors.WorkerError(EVIL),
        errors.TargetError(EVIL, EVIL),
        errors.BadFilesError([errors.FormatError(EVIL, EVIL)] * 2, 3),
        errors.Error(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_every_error_is_printable(error):
    """Where an error is made, nobody need think of what is in its text."""
    for one in (error, pickle.loads(pickle.dumps(error))):
        assert all(line.isprintable() for line in str(one).split("\n"))
        assert str(one).count("\n") == (2 if isinstance(one, errors.BadFilesError) else 0)


EMPTY = {
    "an empty dict, by torch": ("x.pt", pt(b"\x80\x02}q\0.")),
    "nothing, by torch": ("x.pt", pt(b"\x80\x02N.")),
    "text alone, by torch": ("x.pt", pt(b"\x80\x02" + text("hello") + b".")),
    "no tensors": ("x.safetensors", safetensors({}, 0)),
    "metadata alone": ("x.safetensors", safetensors({"__metadata__": {"a": "b"}}, 0)),
    "an empty archive": ("x.npz", archive()),
}


@pytest.mark.parametrize("what", EMPTY)
def test_sound_files_without_arrays_are_refused(tmp_path, what):
    """One such file in a folder of thousands has to be found: the error names it."""
    name, data = EMPTY[what]
    (tmp_path / name).write_bytes(data)
    np.save(tmp_path / "y.npy", np.zeros(3))

    for source in (tmp_path / name, tmp_path):
        with pytest.raises(errors.FormatError, match=r"x\.(pt|safetensors|npz): .*arrays.*; "):
            ndfeed.open(source, cache=False)
