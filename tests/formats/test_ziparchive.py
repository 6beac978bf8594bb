"""The zip container: what honest writers make is understood, and no archive has two readings."""

import io
import struct
import subprocess
import sys
import zipfile
import zlib

import pytest
from children import examples
from formats.making import FULL, Entry, archive, deflated
from hostile import damaged, watch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ndfeed.errors import Error, FormatError, LimitError, TruncatedError, UnsupportedError
from ndfeed.files.file import File
from ndfeed.formats import ziparchive

FEW = settings(
    max_examples=examples(300), suppress_health_check=[HealthCheck.function_scoped_fixture]
)
FILE = "x.zip"


def listed(path):
    """(name, method, size, stored bytes) of every member, and the remarks."""
    with File(bytes(path)) as file:
        members, notes = ziparchive.members(file)
        return [
            (m.name, m.method, m.size, file.read(ziparchive.data_offset(file, m), m.stored))
            for m in members
        ], notes


def pythons(path):
    """The same from the standard library."""
    with zipfile.ZipFile(path) as archive, open(path, "rb") as file:
        found = []
        for info in archive.infolist():
            with archive.open(info):  # checks the local header
                pass
            file.seek(info.header_offset)
            *_, name, extra = struct.unpack("<4s22xHH", file.read(30))
            file.seek(info.header_offset + 30 + name + extra)
            data = file.read(info.compress_size)
            found.append((info.filename, info.compress_type, info.file_size, data))
        return found


def written(*members, comment=b"", **options):
    """What Python's zipfile writes; a member is a name and its bytes."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", **options) as made:
        made.comment = comment
        for name, data in members:
            made.writestr(name, data)
    return file.getvalue()


class Unseekable(io.RawIOBase):
    """A stream that can only be written to, as a pipe or a socket."""

    def __init__(self):
        self.data = b""

    def writable(self):
        return True

    def write(self, data):
        self.data += bytes(data)
        return len(data)


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_what_python_writes(write, method):
    """Stored and deflated members, in the order of the directory."""
    path = write(written(("a", b"hello" * 50), ("b/c", b""), compression=method))

    assert listed(path) == (pythons(path), ())


def test_zip64_sizes_are_taken_from_the_directory(write):
    """NumPy forces zip64: the local header then has no sizes, only an extra field."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as made, made.open("a", "w", force_zip64=True) as member:
        member.write(b"hello")
    file.seek(18)
    file.write(b"\xff" * 8)  # what zipfile itself writes there, since Python 3.11.4
    path = write(file.getvalue())

    assert file.getvalue()[30:].startswith(b"a\1\0\x10\0")  # the name, and the extra field
    assert listed(path) == (pythons(path), ())


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_data_descriptors(write, method):
    """Written to a stream, the sizes in the local header are 0 and stand behind the data."""
    stream = Unseekable()
    with zipfile.ZipFile(stream, "w", method) as made:
        made.writestr("a", b"hello" * 9)
        made.writestr("b", b"x")
    path = write(stream.data)

    assert stream.data[18:26] == bytes(8)
    assert listed(path) == (pythons(path), ())


def test_local_extra_fields_differ_from_the_central_ones(write):
    """Writers align members by stretching the local extra field."""
    path = write(archive(Entry("a", b"one", local_extra=bytes(61)), Entry("b", b"two", extra=b"")))

    assert [data for *_, data in listed(path)[0]] == [b"one", b"two"]


@pytest.mark.parametrize("length", [0, 1, 100, 5_000, 0xFFFF])
def test_comments_of_any_length(write, length):
    """The end record is found before a comment of up to 64 KiB, whatever that holds."""
    comment = (b"PK\x05\x06 is not an end record " * 3000)[:length]
    path = write(archive(Entry("a", b"one"), comment=comment))

    assert [data for *_, data in listed(path)[0]] == [b"one"]


@pytest.mark.parametrize("junk", [b"\x7fELF" + bytes(100), b"#!/bin/sh\n", b"PK\x03\x04"])
@pytest.mark.parametrize("zip64", [False, True])
def test_bytes_before_the_archive_shift_everything(write, junk, zip64):
    """Self-extractors: places are counted from where the archive begins, and it is said."""
    path = write(archive(Entry("a", b"one"), Entry("b", b"two"), junk=junk, zip64=zip64))
    found, notes = listed(path)

    assert found == pythons(path)
    assert notes == (f"{len(junk)} bytes before the archive are ignored",)


def test_zip64_end_record(write):
    """Archives of over 65,535 members or 4 GB have one."""
    path = write(archive(Entry("a", b"one"), zip64=True))

    assert listed(path) == (pythons(path), ())


def test_zip64_end_record_with_more_in_it(write):
    """The record may be longer than what is known of it; its locator says where it begins."""
    path = write(archive(Entry("a", b"one"), zip64=True, rest=44 + 16, between=bytes(16)))

    assert [data for *_, data in listed(path)[0]] == [b"one"]


def test_archive_of_no_members(write):
    """22 bytes, and sound."""
    assert listed(write(archive())) == ([], ())


@pytest.mark.parametrize(
    ("raw", "flags", "name"),
    [
        (b"plain", 0, "plain"),
        ("ünïcödé/日本".encode(), 0x800, "ünïcödé/日本"),
        (b"\x81bung", 0, "übung"),
        (b"a/b/c", 0, "a/b/c"),
    ],
)
def test_names_are_utf8_or_cp437(write, raw, flags, name):
    """One bit of each entry says which; slashes stay."""
    path = write(archive(Entry(raw, b"x", flags=flags)))

    assert [found[0] for found in listed(path)[0]] == [name]
    assert [found[0] for found in pythons(path)] == [name]


def test_names_import_no_codec(write):
    """What is imported must not depend on a file; the first use of a codec imports its module."""
    path = write(archive(Entry(b"\x81bung", b"x")))
    code = (
        "import sys, ndfeed\nbefore = set(sys.modules)\n"
        "try: ndfeed.open(sys.argv[1], cache=False)\nexcept ndfeed.Error: pass\n"
        "print([name for name in sys.modules if name not in before and 'encodings' in name])"
    )
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True)

    assert done.stdout == "[]\n", done.stderr


def test_entries_in_another_order_than_the_members(write):
    """The directory need not be sorted by place."""
    whole = archive(Entry("a", b"one"), Entry("b", b"two"), Entry("c", b"three"))
    start = whole.index(b"PK\x01\x02")
    entries = [whole[start + 47 * i : start + 47 * (i + 1)] for i in range(3)]
    path = write(whole[:start] + entries[2] + entries[0] + entries[1] + whole[start + 141 :])

    assert [(m[0], m[3]) for m in listed(path)[0]] == [
        ("c", b"three"),
        ("a", b"one"),
        ("b", b"two"),
    ]


# Lies


@pytest.mark.parametrize("kept", [4, 21, 29, 60, -1, -21, -22, -23, -60])
def test_truncated_archives(write, kept):
    """The directory is at the end, so that any cut is seen at once."""
    path = write(archive(Entry("a", b"one" * 10), Entry("b", b"two"))[:kept])

    with pytest.raises(FormatError, match=r"x\.zip: expected a zip end record, found none"):
        listed(path)


def test_bytes_behind_the_archive_are_refused(write):
    """Python's zipfile takes the last end record it finds, others the first: there is to be one."""
    with pytest.raises(FormatError, match="followed by other bytes"):
        listed(write(archive(Entry("a", b"one")) + b"more"))


LIES = {
    "directory too long": {"directory": 1000},
    "directory too short": {"directory": 46},
    "directory before the file": {"start": 1000},
    "directory of 4 GB": {"directory": FULL - 1},
    "more entries than there is room for": {"count": 500},
    "one entry more": {"count": 3},
    "one entry less": {"count": 1},
    "no entries": {"count": 0},
    "another disk": {"disk": 1},
    "an end record of zip64 that is elsewhere": {"zip64": True, "locator": 5},
    "an end record of zip64 behind the file": {"zip64": True, "locator": 1 << 62},
    "an end record of zip64 with a long tail": {"zip64": True, "rest": 1 << 40},
    "entries of zip64 without end": {"zip64": True, "count": 1 << 60},
    "a directory of zip64 without end": {"zip64": True, "directory": (1 << 64) - 1},
    "a directory of zip64 anywhere": {"zip64": True, "start": (1 << 64) - 1},
    "a million entries too many": {"zip64": True, "count": 1_000_001},
}


@pytest.mark.parametrize("lie", LIES)
def test_end_records_that_lie(write, lie):
    """Nothing they say is believed that does not fit the file to the byte."""
    path = write(archive(Entry("a", b"one"), Entry("b", b"two"), **LIES[lie]))

    with pytest.raises(FormatError, match=r"x\.zip"):
        listed(path)


ENTRIES = {
    "overlapping": [Entry("a", b"x" * 200), Entry("b", b"y", header=10)],
    "in one place": [Entry("a", b"x"), Entry("b", b"y", header=0)],
    "in one place and empty": [Entry("a"), Entry("a", header=0), Entry("a", header=0)],
    "quoting the next": [Entry("a", b"x", size=99, stored=99), Entry("b", b"y" * 99)],
    "in the directory": [Entry("a", b"x", stored=60, size=60)],
    "behind the file": [Entry("a", b"x", header=10_000)],
    "without end": [Entry("a", b"x", stored=1 << 62, size=1 << 62)],
    "of another name": [Entry("a", b"x", local_name=b"b")],
    "of a longer name": [Entry("a", b"x", local_name=b"aa")],
    "without a local header": [Entry("a", b"x" * 100), Entry("b", b"y", header=50)],
    "with extra fields into the next": [Entry("a", b"x" * 9), Entry("b", b"y", local_extra=b"")],
    "with a zero in its name": [Entry(b"a\0b", b"x")],
    "with a name of a kilobyte": [Entry(b"n" * 1025, b"x")],
    "not of UTF-8": [Entry(b"\xff\xfe", b"x", flags=0x800)],
    "on another disk": [Entry("a", b"x", disk=2)],
    "over 4 GB without zip64": [Entry("a", b"x", stored=FULL, size=FULL, extra=bytes(4))],
    "with half a zip64 field": [
        Entry("a", b"x", stored=FULL, size=FULL, extra=struct.pack("<HHQ", 1, 8, 1))
    ],
    "with a torn zip64 field": [
        Entry("a", b"x", size=FULL, extra=struct.pack("<HH", 1, 8) + b"abc")
    ],
}


@pytest.mark.parametrize("lie", ENTRIES)
def test_members_that_lie(write, lie):
    """Each has its own bytes, between its header and the next; others are bombs, or damaged."""
    data = archive(*ENTRIES[lie])
    if lie == "with extra fields into the next":
        data = bytearray(data)
        data[28:30] = (12).to_bytes(2, "little")

    with pytest.raises(FormatError, match=r"x\.zip"):
        listed(write(data))


def test_only_full_numbers_come_from_the_zip64_field(write):
    """The field has no names: size, stored and header follow each other as far as they are full."""
    wide = struct.pack("<HHQ", 1, 8, 3)
    other = struct.pack("<HH", 0x5455, 5) + bytes(5)
    path = write(archive(Entry("a", b"one", size=FULL, extra=other + wide)))

    assert listed(path)[0] == [("a", 0, 3, b"one")]


def test_too_many_members_are_refused_before_they_are_listed(write, monkeypatch):
    """A directory of a gigabyte is nobody's dataset."""
    monkeypatch.setattr(ziparchive, "_MOST_MEMBERS", 3)

    with pytest.raises(LimitError, match="expected at most 3 members, found 4"):
        listed(write(archive(*[Entry(str(i), b"x") for i in range(4)])))


def test_hundred_thousand_members_are_listed(write):
    """Linear in their number: a few microseconds each."""
    count = 100_000
    names = [f"{i:06}".encode() for i in range(count)]
    local = b"".join(struct.pack("<4s22xHH", b"PK\x03\x04", 6, 0) + name for name in names)
    central = b"".join(
        struct.pack("<4s24xHHH2x6xI", b"PK\x01\x02", 6, 0, 0, 36 * i) + name
        for i, name in enumerate(names)
    )
    end = struct.pack("<4sQHHIIQQQQ", b"PK\x06\x06", 44, 45, 45, 0, 0, count, count, len(central),
                      len(local))  # fmt: skip
    end += struct.pack("<4sIQI", b"PK\x06\x07", 0, len(local) + len(central), 1)
    end += struct.pack("<4sHHHHIIH", b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, FULL, FULL, 0)
    found, _ = listed(write(local + central + end))

    assert len(found) == count


def test_missing_bytes_of_a_local_header(write):
    """A header at the very end of the file is cut short by the end."""
    path = write(archive(Entry("a", b"x")))
    member = ziparchive.Member(
        "a", 0, 0, 0, 0, 0, path.stat().st_size - 10, path.stat().st_size, b"a"
    )
    with File(bytes(path)) as file, pytest.raises(TruncatedError, match=r"expected \d+ bytes"):
        ziparchive.data_offset(file, member)


def test_method_and_encryption_are_told(write):
    """Whether they can be read is for the format to say, member by member."""
    path = write(archive(Entry("a", b"x", method=14, flags=1)))
    with File(bytes(path)) as file:
        (member,), _ = ziparchive.members(file)

    assert (member.method, member.flags & ziparchive.ENCRYPTED) == (14, 1)
    assert ziparchive.METHODS[member.method] == "lzma"


def test_archive_over_several_disks(write):
    """Nobody has those any more."""
    with pytest.raises(UnsupportedError, match="several disks; join it first"):
        listed(write(archive(Entry("a", b"x"), disk=1)))


# Properties


@FEW
@given(
    members=st.lists(
        st.tuples(
            st.text(
                st.characters(exclude_characters="\0", exclude_categories=["Cs"]),
                min_size=1,
                max_size=9,
            ),
            st.binary(max_size=60),
            st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]),
        ),
        max_size=5,
    ),
    # With its own signature in a comment Python cannot read what it wrote.
    comment=st.binary(max_size=40).filter(lambda comment: b"PK\5\6" not in comment),
    junk=st.binary(max_size=40),
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_any_archive_of_python_is_listed_alike(tmp_path, members, comment, junk):
    """Names, methods, sizes and places agree with the standard library's."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as made:
        made.comment = comment
        for name, data, method in members:
            made.writestr(name, data, method)
    path = tmp_path / "x.zip"
    path.write_bytes(junk + file.getvalue())

    assert listed(path)[0] == pythons(path)


SAMPLES = [
    archive(Entry("a", b"one"), deflated("b", b"two" * 20)),
    archive(Entry("a", b"one"), Entry("b"), zip64=True, comment=b"a comment"),
    archive(Entry("a", b"one", descriptor=bytes(16)), junk=b"junk"),
    written(("a.npy", b"123"), ("b", b"45")),
]


@settings(FEW, max_examples=examples(600))
@given(data=damaged(SAMPLES))
@pytest.mark.filterwarnings("ignore")
def test_damaged_archives_raise_our_errors_alone(tmp_path, data):
    """And what is accepted in spite of the damage is what zipfile lists, if it does."""
    path = tmp_path / "x.zip"
    path.write_bytes(data)
    try:
        with watch(path):
            found, _ = listed(path)
    except Error as error:
        problem = str(error)
        found = None
    if found is None:
        assert problem.startswith(str(path))
        return
    try:
        expected = pythons(path)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError, EOFError, OSError):
        return
    except zlib.error:
        return

    assert found == expected
