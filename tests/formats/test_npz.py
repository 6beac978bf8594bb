"""Every .npz that NumPy writes is read to the bit; every other is refused with its name."""

import io
import os
import warnings
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from children import examples
from described import arrays, describe
from formats.making import FULL, Entry, archive, deflated, npy, npy_text, saved
from formats.reading import numpys, ours, rows, same
from formats.test_npy import any_arrays
from hard_arrays import each_hard_array
from hostile import assert_harmless, contained, damaged, measured
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ndfeed
from ndfeed.errors import (
    ChecksumError,
    FormatError,
    LimitError,
    TruncatedError,
    UnsupportedError,
)
from ndfeed.formats.description import DEFLATE, RAW

GOLDEN = Path(__file__).parent / "golden"
FEW = settings(
    max_examples=examples(200), suppress_health_check=[HealthCheck.function_scoped_fixture]
)
A = np.arange(12, dtype="<f4").reshape(4, 3)
FILE = "x.npz"


def written(writer=np.savez, **members):
    """The bytes of an archive that NumPy writes."""
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        writer(file, **members)
    return file.getvalue()


each_writer = pytest.mark.parametrize("writer", [np.savez, np.savez_compressed])


# What NumPy writes


@each_writer
@each_hard_array
def test_hard_arrays_are_read_to_the_bit(write, array, writer):
    """Stored members lie unaligned in the file, deflated ones are decoded: nothing may show."""
    path = write(written(writer, image=array, label=np.int64(7)))
    expected = numpys(path)

    assert same(ours(path), expected)
    if array.ndim:
        names = [name for name in expected if name != "label"]
        assert same(rows(path, fields=names), {name: expected[name] for name in names})


def test_positional_arrays(write):
    """np.savez(path, a, b) names them itself."""
    file = io.BytesIO()
    np.savez(file, A, A[0])
    path = write(file.getvalue())

    assert same(ours(path), {"arr_0": A, "arr_1": A[0]})


def test_members_lie_where_their_local_headers_say(write):
    """NumPy forces zip64: 20 bytes of extra field that the directory does not have."""
    path = write(written(x=A))

    assert arrays(path)["x"].offset == 30 + 5 + 20
    assert arrays(path)["x"].skip == 128
    assert same(rows(path), {"x": A})


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_archives_written_to_a_stream(write, method):
    """Sizes stand behind the data then; only the directory has them."""

    class Pipe(io.RawIOBase):
        data = b""

        def writable(self):
            return True

        def write(self, data):
            self.data += bytes(data)
            return len(data)

    pipe = Pipe()
    with zipfile.ZipFile(pipe, "w", method) as made:
        made.writestr("x.npy", saved(A))
        made.writestr("y.npy", saved(np.int64(5)))
    path = write(pipe.data)

    assert same(ours(path), numpys(path))


def test_each_member_has_its_own_coding(write):
    """Stored ones can be read in part though others are deflated."""
    path = write(archive(Entry("a.npy", saved(A)), deflated("b.npy", saved(A + 1))))

    assert [array.coding for array in describe(path).arrays] == [RAW, DEFLATE]
    assert same(rows(path), {"a": A, "b": A + 1})


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA, 9, 77])
def test_other_methods_are_refused_by_name(write, method):
    """No NumPy writes them; each would be another decoder to trust."""
    path = write(archive(Entry("a.npy", saved(A), method=method)))
    names = {zipfile.ZIP_BZIP2: "bzip2", zipfile.ZIP_LZMA: "lzma", 9: "deflate64", 77: "method 77"}

    with pytest.raises(
        UnsupportedError,
        match=rf"x\.npz: member 'a\.npy' is compressed with {names[method]}; .*np\.savez",
    ):
        ndfeed.open(path)


def test_last_of_two_members_of_one_name_counts(write):
    """As in NumPy; and it is remarked on."""
    path = write(archive(Entry("a.npy", saved(A)), Entry("a.npy", saved(A + 1))))

    assert same(ours(path), {"a": A + 1})
    assert same(ours(path), numpys(path))
    assert describe(path).notes == ("'a' appears twice; 'a.npy' is used",)


@pytest.mark.parametrize("names", [("a", "a.npy"), ("a.npy", "a")])
def test_exact_name_goes_before_the_one_with_a_suffix(write, names):
    """NumPy looks for the key itself first, in whatever order the members are."""
    path = write(archive(*[Entry(name, saved(A + len(name))) for name in names]))

    assert same(ours(path), {"a": A + 1})
    assert same(ours(path), numpys(path))
    assert describe(path).notes == ("'a' appears twice; 'a' is used",)


def test_members_that_are_no_arrays_are_remarked_on(write):
    """A README in an archive is no field; NumPy hands it out as bytes."""
    path = write(
        archive(
            Entry("x.npy", saved(A)), Entry("README.txt", b"hello"), Entry("short.npy", b"\x93")
        )
    )

    assert list(ours(path)) == ["x"]
    assert describe(path).notes == (
        "member 'README.txt' is no array and is left out",
        "member 'short.npy' is no array and is left out",
    )


def test_deflated_members_that_are_no_arrays(write):
    """The same, told by what comes out of the decoder."""
    path = write(archive(deflated("notes.md", b"text" * 500), deflated("x.npy", saved(A))))

    assert list(ours(path)) == ["x"]


def test_members_without_the_suffix_are_arrays_if_they_begin_as_such(write):
    """Content decides, as in NumPy."""
    path = write(archive(Entry("weights", saved(A)), deflated("bias.dat", saved(A[0]))))

    assert same(ours(path), {"weights": A, "bias.dat": A[0]})
    assert same(ours(path), numpys(path))


def test_names_are_kept_as_they_are(write):
    """Slashes and letters of any alphabet; the suffix goes once."""
    names = ["a/b", "a/c/d", "ünïcödé", "日本", "x.npy.npy", "with space", "."]
    path = write(written(**{name: np.array([i]) for i, name in enumerate(names)}))

    assert list(ours(path)) == names


def test_member_without_a_name_is_called_data(write):
    """np.savez(path, **{"": x}) is possible, and a field must be called something."""
    path = write(written(**{"": A}))

    assert same(ours(path), {"data": A})


def test_folders_in_an_archive_are_passed_over(write):
    """Other tools write an entry for each."""
    path = write(archive(Entry("sub/"), Entry("sub/x.npy", saved(A))))

    assert same(ours(path), {"sub/x": A})
    assert describe(path).notes == ()


def test_structured_members(write):
    """Their leaves are named below the member."""
    points = np.zeros(3, [("x", "<f4"), ("c", "u1", (2,))])
    path = write(written(p=points, q=A[:3]))

    assert list(ours(path)) == ["p/x", "p/c", "q"]
    assert same(ours(path), numpys(path))


def test_encrypted_members_are_refused(write):
    """There is no way to give a password, in NumPy or here."""
    path = write(archive(Entry("a.npy", saved(A), flags=1)))

    with pytest.raises(UnsupportedError, match=r"x\.npz: member 'a\.npy' is encrypted"):
        ndfeed.open(path)


@pytest.mark.parametrize("junk", [b"#!/bin/sh\nexit\n", bytes(3000)])
def test_bytes_before_the_archive(write, junk):
    """Self-extracting archives; NumPy goes by the first bytes alone and takes them for pickles."""
    path = write(junk + written(x=A, y=A[0]))

    assert same(ours(path), {"x": A, "y": A[0]})
    assert describe(path).notes == (f"{len(junk)} bytes before the archive are ignored",)


def test_comment_of_an_archive(write):
    """The end record is looked for behind 64 KiB of comment."""
    path = write(written(x=A))
    with zipfile.ZipFile(path, "a") as made:
        made.comment = b"c" * 60_000

    assert same(ours(path), {"x": A})


def test_empty_archive_is_refused(write):
    """np.savez(path) without arrays: nothing to feed."""
    with pytest.raises(FormatError, match="no arrays among its 0 members"):
        ndfeed.open(write(written()))


def test_archive_without_arrays_is_refused(write):
    """A zip of text files is no dataset."""
    with pytest.raises(FormatError, match="no arrays among its 1 members"):
        ndfeed.open(write(archive(Entry("README", b"hello"))))


def test_thousand_members(write):
    """Parsed once, in microseconds each."""
    members = {f"key{i}": np.array([i, i + 1]) for i in range(1000)}
    path = write(written(**members))

    assert same(ours(path), members)


def test_headers_of_any_length_in_members(write):
    """Longer than what is first read, and longer than what is first decoded."""
    points = np.zeros(2, [(f"a_rather_long_name_of_a_field_{i}", "<f4") for i in range(300)])
    for writer in (np.savez, np.savez_compressed):
        path = write(written(writer, p=points, q=A))
        assert same(ours(path), numpys(path))


def test_many_remarks_are_cut(write):
    """A hostile archive must not fill the index with text."""
    junk = [Entry(f"{i}" * 20, b"x") for i in range(200)]
    notes = describe(write(archive(Entry("x.npy", saved(A)), *junk))).notes

    assert len(notes) == 51
    assert notes[-1] == "… and 150 more remarks"


def test_archive_that_is_rewritten_is_seen(write):
    """The next open describes it anew; the dataset that is open says that it changed."""
    path = write(written(x=A))
    ds = ndfeed.open(path, sample="file")
    os.replace(write(written(x=A, y=A), "y.npz"), path)

    assert list(ndfeed.open(path, sample="file").fields) == ["x", "y"]
    with pytest.raises(ndfeed.Error, match=r"x\.npz.*changed"):
        ds[0]


# Damage


@pytest.mark.parametrize("make", [Entry, deflated], ids=["stored", "deflated"])
@pytest.mark.parametrize("part", ["first element", "last element"])
def test_damaged_members_fail_their_checksum_when_read_whole(write, make, part):
    """One flipped bit: np.load raises as well, at the end of the member."""
    content = saved(np.arange(1000.0))
    entry = make("x.npy", content, **({"level": 0} if make is deflated else {}))
    whole = bytearray(archive(entry))
    at = {
        "first element": whole.index(b" \n") + 3,
        "last element": whole.index(b"PK\x01\x02") - (1 if make is Entry else 2),
    }[part]
    whole[at] ^= 1
    ds = ndfeed.open(write(bytes(whole)), sample="file", cache=False)

    with pytest.raises(ChecksumError, match=r"x\.npz: expected checksum [0-9a-f]{8}"):
        ds[0]


@pytest.mark.parametrize("array", [A, np.asfortranarray(A), A.view("<i2,<i2")], ids=["C", "F", "V"])
@pytest.mark.parametrize("make", [Entry, deflated], ids=["stored", "deflated"])
def test_wrong_checksum_is_found_whatever_the_order(write, make, array):
    """Whoever reads a member whole compares, also where its elements are gathered with strides."""
    content = saved(array)
    path = write(archive(make("x.npy", content, crc=zlib.crc32(content) ^ 1)))
    ds = ndfeed.open(path, sample="file", cache=False)

    with pytest.raises(ChecksumError, match="checksum"):
        ds[0]


def test_wrong_checksum_of_deflated_rows(write):
    """A row of a deflated member costs the whole member, so it is checked too."""
    content = saved(A)
    path = write(archive(deflated("x.npy", content, crc=1)))

    with pytest.raises(ChecksumError, match="expected checksum 00000001"):
        ndfeed.open(path, cache=False)[2]


@pytest.mark.parametrize("kept", [1, 30, 100, 200, -1, -22, -60])
def test_truncated_archives(write, kept):
    """A half-copied archive has no end record."""
    path = write(written(x=A)[:kept])

    with pytest.raises(FormatError, match=r"x\.npz"):
        ndfeed.open(path)


@pytest.mark.parametrize("make", [Entry, deflated], ids=["stored", "deflated"])
def test_member_that_ends_before_its_elements(write, make):
    """The header promises more than the member has."""
    content = saved(A)[:-5]

    with pytest.raises(
        TruncatedError, match=r"expected 176 bytes according to the header of 'x', found 171"
    ):
        ndfeed.open(write(archive(make("x.npy", content))))


@pytest.mark.parametrize("make", [Entry, deflated], ids=["stored", "deflated"])
@pytest.mark.parametrize("kept", [6, 9, 12, 100])
def test_member_that_ends_in_its_header(write, make, kept):
    """It begins as an array, so it is one, and damaged."""
    with pytest.raises(TruncatedError, match=r"x\.npz at byte .*header"):
        ndfeed.open(write(archive(make("x.npy", saved(A)[:kept]))))


def test_bytes_behind_the_array_of_a_member(write):
    """NumPy reads the first array and stops; the checksum covers all."""
    path = write(archive(Entry("x.npy", saved(A) + b"more"), deflated("y.npy", saved(A) + b"more")))

    assert same(ours(path), {"x": A, "y": A})


LIES = {
    "stored, and a size of its own": (Entry("x.npy", saved(A), size=1000), FormatError),
    "deflated, longer than it is": (deflated("x.npy", saved(A), size=180), TruncatedError),
    "deflated, shorter than it is": (deflated("x.npy", saved(A), size=170), TruncatedError),
    "deflated, with more behind": (deflated("x.npy", saved(A) + bytes(99), size=176), FormatError),
    "deflated, without its end": (
        deflated("x.npy", saved(np.arange(999)), stored=500),
        FormatError,
    ),
    "deflated to nothing": (deflated("x.npy", saved(A), stored=0), FormatError),
    "no deflate stream": (Entry("x.npy", b"\xff" * 90, 8, size=176), FormatError),
    "damaged behind its header": (
        Entry("x.npy", deflated("", saved(np.arange(999))).data[:150] + b"\xff" * 99, 8, size=8120),
        FormatError,
    ),
}


@pytest.mark.parametrize("lie", LIES)
def test_sizes_that_lie(write, lie):
    """Found when opened, or else when read; nothing is written behind the buffer."""
    entry, kind = LIES[lie]
    path = write(archive(entry))

    with pytest.raises(kind, match=r"x\.npz"):
        ndfeed.open(path, sample="file", cache=False)[0]


def test_promises_beyond_deflate_are_refused_at_open(write):
    """At most 1,032 bytes come out of one."""
    content = npy("|u1", (10**9,))
    path = write(archive(deflated("x.npy", content, size=len(content) + 10**9)))

    with pytest.raises(
        LimitError, match=r"claims that \d+ bytes expand to 1000000128, more than deflate"
    ):
        ndfeed.open(path)


def zeros(megabytes):
    """A deflate stream of zeros, 1,028 to 1."""
    squeeze = zlib.compressobj(9, zlib.DEFLATED, -15)
    data = squeeze.compress(npy("|u1", (megabytes << 20,)))
    for _ in range(megabytes):
        data += squeeze.compress(bytes(1 << 20))
    return data + squeeze.flush()


def test_bomb_that_is_larger_than_it_says(write):
    """300 MB come out of a member that promised 1 MB."""
    size = (1 << 20) + 128
    content = npy("|u1", (1 << 20,))
    squeeze = zlib.compressobj(9, zlib.DEFLATED, -15)
    data = squeeze.compress(content)
    for _ in range(300):
        data += squeeze.compress(bytes(1 << 20))
    data += squeeze.flush()

    assert_harmless(
        write(archive(Entry("x.npy", data, 8, size=size, crc=0))), kinds=["FormatError"]
    )


def test_bomb_that_is_smaller_than_it_says(write):
    """900 MB are promised, within what deflate can do, and a kilobyte comes out."""
    size = 900_000_000
    data = deflated("", npy("|u1", (size - 128,))).data + bytes(900_000)

    assert_harmless(
        write(archive(Entry("x.npy", data, 8, size=size, crc=0))), kinds=["TruncatedError"]
    )


def test_bomb_of_overlapping_members(write):
    """Thousands of entries that all quote one stream: refused before any is decoded."""
    kernel = zeros(100)
    size = (100 << 20) + 128
    entries = [Entry("0.npy", kernel, 8, size=size, crc=0)]
    entries += [
        Entry(f"{i}.npy", b"", 8, size=size, stored=len(kernel), crc=0, header=0)
        for i in range(1, 5000)
    ]

    assert_harmless(write(archive(*entries)), kinds=["FormatError"])


def test_bomb_of_many_members(write):
    """Ten thousand members of nothing: each costs no more than its entry."""
    entries = [Entry(f"{i}", b"") for i in range(10_000)]

    assert_harmless(write(archive(*entries)), kinds=["FormatError"])


def test_bomb_of_headers(write):
    """Forty members, each with a long header from a few bytes."""
    text = "{'descr': [" + "".join(f"('{i:x}','u1')," for i in range(4000))
    text += "], 'fortran_order': False, 'shape': (1,)}"
    content = npy_text(text, bytes(4000), version=2)
    entries = [deflated(f"{i}.npy", content) for i in range(40)]
    entries.append(Entry("last.npy", saved(A)[:-1]))

    assert_harmless(write(archive(*entries)), kinds=["LimitError"])


def test_bomb_of_names(write):
    """The member's name precedes those of its fields: thousands of times, if they are many."""
    text = "{'descr': [" + "".join(f"('{i:x}','u1')," for i in range(4000))
    content = npy_text(text + "], 'fortran_order': False, 'shape': (1,)}", bytes(4000), version=2)
    entries = [deflated(f"{i:02}" + "n" * 1000, content) for i in range(20)]
    entries.append(Entry("last.npy", saved(A)[:-1]))

    assert_harmless(write(archive(*entries)), kinds=["TruncatedError"])


def test_structured_members_are_decoded_once_a_sample(write):
    """Thousands of fields share one stream: decoding it for each would take minutes."""
    text = "{'descr': [" + "".join(f"('{i:x}','u1')," for i in range(3000))
    text += "], 'fortran_order': False, 'shape': (10000,)}"
    content = npy_text(text, bytes(30_000_000), version=2)
    (cost,) = measured(write(archive(deflated("x.npy", content))), sample="file")

    assert cost["error"] is None
    assert cost["seconds"] <= 2, cost
    assert cost["bytes"] <= 256e6, cost


def test_zip64_sizes_without_end(write):
    """Sizes of 2**64 - 1 are checked against the file before anything else."""
    entry = Entry("x.npy", saved(A), stored=(1 << 64) - 1, size=(1 << 64) - 1)

    assert_harmless(write(archive(entry)), kinds=["FormatError"])


def test_members_over_4_gb_that_lost_their_sizes(write):
    """cnpy and others write 32 bits of a 64-bit size: say so."""
    entry = Entry("x.npy", saved(A), stored=FULL, size=FULL, extra=b"\0\0\0\0")

    with pytest.raises(FormatError, match="its writer lost them; write it again with NumPy"):
        ndfeed.open(write(archive(entry)))


def test_errors_in_a_member_name_the_file_and_the_place(write):
    """An archive has many members: the byte says which."""
    path = write(archive(Entry("ok.npy", saved(A)), Entry("bad.npy", npy([], (1,), bytes(9)))))

    with pytest.raises(FormatError, match=r"x\.npz at byte \d+: the \.npy header is wrong"):
        ndfeed.open(path)


def test_member_of_an_unknown_dtype_is_refused_by_name_and_can_be_left_out(write):
    """A long double of another platform made all other arrays of its archive unreadable."""
    path = write(archive(Entry("odd.npy", npy("<f3", (4,), bytes(12))), Entry("x.npy", saved(A))))

    with pytest.raises(UnsupportedError, match=r"'odd\.npy' .*unknown dtype '<f3'; .*fields="):
        ndfeed.open(path)
    with pytest.raises(UnsupportedError, match="unknown dtype '<f3'"):
        ndfeed.open(path, fields=["odd"])
    assert np.array_equal(ndfeed.open(path, sample="row", fields=["x"])[:]["x"], A)


def test_object_members_are_refused(write):
    """One dict in an archive is enough to say no."""
    path = write(written(x=A, meta=np.array({"a": 1}, object)))

    with pytest.raises(
        UnsupportedError, match=r"x\.npz at byte \d+: member 'meta.npy' holds Python objects"
    ):
        ndfeed.open(path)


# Files of other times


def test_golden_files_of_old_numpy():
    """Written by NumPy 1.23 and by zipfile in its odd ways."""
    names = sorted(path.name for path in GOLDEN.glob("*.npz"))
    for name in names:
        assert same(ours(GOLDEN / name), numpys(GOLDEN / name))

    assert {"stored.npz", "deflated.npz", "stream_deflated.npz", "zip64_forced.npz"} <= set(names)


# Properties


@FEW
@given(members=st.lists(any_arrays(), min_size=1, max_size=3), deflate=st.booleans())
def test_any_arrays_are_read_to_the_bit(tmp_path, members, deflate):
    """Every type, shape and order that NumPy can put into an archive, compared as bytes."""
    path = tmp_path / "x.npz"
    named = {f"m{i}": array for i, array in enumerate(members)}
    path.write_bytes(written(np.savez_compressed if deflate else np.savez, **named))

    assert same(ours(path), numpys(path))


SAMPLES = [
    written(x=A, y=np.int64(3)),
    written(np.savez_compressed, x=A, y=np.zeros((2, 2), ">u2")),
    written(p=np.zeros(2, [("x", "<f4"), ("c", "u1", (2,))])),
    archive(Entry("x.npy", saved(A)), deflated("y", saved(A[0])), Entry("z", b"text"), zip64=True),
]


@settings(FEW, max_examples=examples(500))
@given(data=damaged(SAMPLES))
@pytest.mark.filterwarnings("ignore")
def test_damaged_files_raise_our_errors_alone(tmp_path, data):
    """And what is accepted in spite of the damage is what NumPy reads, if it reads it."""
    path = tmp_path / "x.npz"
    path.write_bytes(data)
    found = contained(path)
    if found is None:
        return
    try:
        expected = numpys(path)
    except (ValueError, TypeError, SyntaxError, OSError, MemoryError, EOFError, RuntimeError):
        return
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, KeyError):
        return

    assert same(found, expected)


@pytest.mark.parametrize(
    "members",
    [
        {"indices": np.arange(3), "indptr": np.arange(3)},
        {"row": np.arange(3), "col": np.arange(3)},
        {"offsets": np.arange(3)},
    ],
    ids=["csr", "coo", "dia"],
)
def test_a_sparse_matrix_is_named_and_refused(tmp_path, members):
    """Its members were read as one sample, or as a row for every value that is not zero."""
    common = {"format": b"xyz", "shape": np.array([2, 5]), "data": np.ones(3)}
    np.savez(tmp_path / "x.npz", **members, **common)

    with pytest.raises(UnsupportedError, match=r"sparse matrix of scipy\.sparse.*toarray\(\)"):
        describe(tmp_path / "x.npz")


def test_what_scipy_saves_is_refused_in_every_format_but_csr(tmp_path):
    """Whatever the members of each are called today: only rows can be samples."""
    sparse = pytest.importorskip("scipy.sparse")
    sparse.save_npz(tmp_path / "csr.npz", sparse.eye_array(6, format="csr"))
    assert describe(tmp_path / "csr.npz").format == "csr"
    for form in ("csc", "coo", "bsr", "dia"):
        sparse.save_npz(tmp_path / f"{form}.npz", sparse.eye_array(6, format=form))

        with pytest.raises(UnsupportedError, match="sparse matrix"):
            describe(tmp_path / f"{form}.npz")


def test_arrays_that_are_only_named_as_those_of_sparse_matrices_are_read(tmp_path):
    """Rows called data, with their shapes beside them, are no sparse matrix."""
    rows = {name: np.zeros((4, 2)) for name in ("format", "shape", "data", "indices", "indptr")}
    np.savez(tmp_path / "x.npz", **rows)

    assert len(describe(tmp_path / "x.npz").arrays) == 5
