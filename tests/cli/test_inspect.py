"""``ndfeed inspect``: the same facts as a table and as JSON."""

import gzip
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from ragged_making import save_csr, save_megatron, sparse_rows

import ndfeed

KEYS = [
    "path",
    "sample",
    "samples",
    "why",
    "bytes",
    "fields",
    "readings",
    "files",
    "formats",
    "bytes_on_disk",
    "remarks",
    "remarks_total",
    "ignored",
    "ignored_total",
    "warnings",
    "advice",
    "classes",
]

FEW_FILES = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
from ndfeed.cli import main
sys.argv = ["ndfeed", "inspect", sys.argv[1], "--sample", "row", "--json"]
sys.exit(main())
"""


@pytest.fixture
def facts(invoke):
    """What ``--json`` says about one path."""

    def ask(path, *options):
        done = invoke("inspect", path, "--json", *options)
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    return ask


@pytest.fixture
def images(tmp_path):
    """A sample in each file: the label is a scalar, so each file is a sample."""
    for i in range(3):
        np.savez(tmp_path / f"{i}.npz", image=np.zeros((4, 5), "<f4"), label=i)
    return tmp_path


@pytest.fixture
def unclear(tmp_path):
    """Four rows in each of three files, or three samples."""
    for i in range(3):
        np.savez(tmp_path / f"{i}.npz", image=np.zeros((4, 5), "<f4"), label=np.arange(4))
    return tmp_path


def kinds(found):
    return [one["kind"] for one in found["advice"]]


def words(text):
    """The text with white space and the lines of tables taken out."""
    return " ".join(text.translate(dict.fromkeys(map(ord, "│┃|━─╇┼┏┓"), " ")).split())


def test_json_of_a_folder_is_frozen(facts, images):
    """Scripts rely on every key and its meaning: a change here is a change for them."""
    (images / "notes.txt").write_text("hello")
    size = sum(path.stat().st_size for path in images.glob("*.npz"))

    found = facts(images)

    assert list(found) == KEYS
    assert found == {
        "path": os.fspath(images),
        "sample": "file",
        "samples": 3,
        "why": "'label' is a scalar (0-dimensional), so it has no rows",
        "bytes": 3 * (80 + 8),
        "fields": [
            {
                "name": "image",
                "dtype": "float32",
                "shape": [4, 5],
                "bytes_per_sample": 80,
                "stored": ["raw"],
            },
            {
                "name": "label",
                "dtype": "int64",
                "shape": [],
                "bytes_per_sample": 8,
                "stored": ["raw"],
            },
        ],
        "readings": [],
        "files": 3,
        "formats": {"npz": 3},
        "bytes_on_disk": size,
        "remarks": [],
        "remarks_total": 0,
        "ignored": [os.fspath(images / "notes.txt")],
        "ignored_total": 1,
        "warnings": [],
        "advice": [],
        "classes": {},
    }


def test_json_of_two_readings_is_frozen(facts, unclear):
    """What cannot be decided is shown both ways, under the same keys."""
    found = facts(unclear)

    assert list(found) == KEYS
    for name in ("sample", "samples", "why", "bytes", "fields"):
        assert found[name] is None
    assert [(one["sample"], one["samples"], one["bytes"]) for one in found["readings"]] == [
        ("file", 3, 336),
        ("row", 12, 336),
    ]
    assert [one["fields"][0]["shape"] for one in found["readings"]] == [[4, 5], [5]]


def test_table_of_a_folder(invoke, images):
    """A person sees fields, samples, files, and why samples are what they are."""
    done = invoke("inspect", images)

    text = words(done.stdout)
    assert done.exit_code == 0
    assert "image float32 (4, 5) 80 raw" in text
    assert "label int64 () 8 raw" in text
    assert "3 samples, 264 B decoded" in text
    assert "whole file ('label' is a scalar (0-dimensional), so it has no rows)" in text
    assert "3 files (3 npz)" in text


def test_two_readings_are_no_error(invoke, unclear):
    """Who inspects wants to know: both readings, with the words that choose."""
    done = invoke("inspect", unclear)

    text = words(done.stdout)
    assert done.exit_code == 0
    assert "--sample file 3 a whole file image float32 (4, 5), label int64 (4,)" in text
    assert "--sample row 12 a row of axis 0 image float32 (5,), label int64 ()" in text


@pytest.mark.parametrize(("sample", "samples"), [("row", 12), ("file", 3)])
def test_sample_chooses_a_reading(facts, unclear, sample, samples):
    """The word that was offered is the word that works."""
    found = facts(unclear, "--sample", sample)

    assert (found["sample"], found["samples"]) == (sample, samples)
    assert found["why"] == f'sample="{sample}"'


def test_fields_are_chosen(facts, unclear):
    """The others need not fit together."""
    found = facts(unclear, "--fields", "label,image", "--sample", "row")

    assert [field["name"] for field in found["fields"]] == ["label", "image"]


def test_unknown_field_lists_the_known(ndfeed_process, unclear):
    """A slip of the pen is told from a missing field."""
    done = ndfeed_process("inspect", unclear, "--fields", "labels")

    assert done.returncode == 1
    first, _, rest = done.stderr.partition(": no field")
    assert first.startswith(f"ndfeed: {unclear}")
    assert rest == " 'labels'; the fields are 'image', 'label'\n"


def test_raw_files_are_described_by_options(facts, tmp_path):
    """A raw file says nothing about itself."""
    np.arange(60, dtype="<u2").tofile(tmp_path / "x.bin")

    found = facts(tmp_path / "x.bin", "--dtype", "uint16", "--shape", "2,3")

    assert found["samples"] == 10
    assert found["formats"] == {"raw": 1}
    assert found["fields"][0]["shape"] == [2, 3]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--shape", "3"], "needs --dtype"),
        (["--dtype", "uint16", "--shape", "3,x"], "expected whole numbers such as 3,32,32"),
        (["--dtype", "numbers"], "not understood"),
        (["--windows", ""], "--windows takes a length and a stride, got ''"),
        (["--windows", "2,1,1"], "--windows takes a length and a stride, got '2,1,1'"),
        (["--windows", "2,0"], "stride must be at least 1"),
        (["--by", "data"], "--by is for --windows"),
        (["--crops", "3,3"], "--crops takes NAME=N,N such as image=96,96, got '3,3'"),
        (["--crops", "data="], "--crops takes NAME=N,N such as image=96,96, got 'data='"),
        (["--crops", "data=x"], "--crops: expected whole numbers such as 3,32,32, got 'x'"),
        (["--crops", "data=0"], "the size of 'data' must be at least 1, got 0"),
        (["--crops", "data=1", "--each", "0"], "each must be at least 1, got 0"),
        (
            ["--crops", "data=1", "--each", "2", "--grid", "0"],
            "takes one of --each, at= and --grid",
        ),
        (["--crops", "data=1", "--grid", "x"], "--grid: expected whole numbers"),
        (["--crops", "data=1", "--pad", "x"], "--pad takes a number, got 'x'"),
        (["--crops", "data=1", "--pad", "1", "--pad", "data=2"], "--pad takes one number, or a"),
        (["--each", "2"], "--each is for --crops"),
        (["--grid", "2"], "--grid is for --crops"),
        (["--pad", "0"], "--pad is for --crops"),
        (["--column", "age"], "--column is for --labels"),
        (["--key", "id"], "--key is for --labels"),
        (
            ["--labels", "data=folder_name"],
            "field 'data' exists; choose another name with --labels",
        ),
        (["--offsets", "x.npy", "--sample", "row"], "--offsets cannot be combined with --sample"),
    ],
)
def test_wrong_options_are_refused(invoke, tmp_path, options, problem):
    """With the status of a wrong call, and without a traceback."""
    np.save(tmp_path / "x.npy", np.zeros(3))

    done = invoke("inspect", tmp_path / "x.npy", *options)

    assert done.exit_code == 2
    assert problem in words(done.output)


def test_every_path_is_a_source_of_its_own(ndfeed_process, tmp_path):
    """A bad one does not hide the others, and is not forgotten either."""
    np.save(tmp_path / "a.npy", np.zeros((3, 2)))
    np.save(tmp_path / "b.npy", np.zeros((5, 7), "u1"))
    paths = [tmp_path / name for name in ("a.npy", "none.npy", "b.npy")]

    done = ndfeed_process("inspect", *paths, "--json")

    assert done.returncode == 1
    assert [json.loads(line)["samples"] for line in done.stdout.splitlines()] == [3, 5]
    assert done.stderr == f"ndfeed: {paths[1]}: no such file or folder; check the path\n"


def test_pattern_is_one_source(facts, images):
    """In quotes it reaches us, and means all its files."""
    assert facts(images / "[01].npz")["files"] == 2


def test_names_are_shown_literally(invoke, tmp_path):
    """No name can colour, clear or rewrite the terminal, or vanish as markup."""
    folder = tmp_path / "[red]x \x1b[31m:smile:"
    folder.mkdir()
    np.savez(folder / "a.npz", **{"[bold]y\x07": np.zeros((3, 2))})
    (folder / "[blue]z\n.txt").write_text("nothing")

    done = invoke("inspect", folder)

    assert "[red]x \\x1b[31m:smile:" in done.stdout
    assert "[bold]y\\x07" in done.stdout
    assert "[blue]z\\n.txt" in done.stdout
    assert "\x1b" not in done.stdout
    assert "\x07" not in done.stdout


def test_name_that_is_no_text(facts, tmp_path):
    """File names are bytes; JSON gets them back exactly."""
    path = os.fsencode(tmp_path) + b"/\xff.npy"
    try:
        with open(path, "wb") as file:
            np.save(file, np.zeros(3))
    except OSError:
        pytest.skip("this file system takes text only")

    assert os.fsencode(facts(os.fsdecode(path))["path"]) == path


def test_ragged_field_has_a_mean_size(facts, invoke, tmp_path):
    """Lengths that differ are null in JSON and dots in the table."""
    for length in (2, 4):
        np.save(tmp_path / f"{length}.npy", np.zeros((length, 5)))

    field = facts(tmp_path, "--sample", "file")["fields"][0]
    text = words(invoke("inspect", tmp_path, "--sample", "file").stdout)

    assert field["shape"] == [None, 5]
    assert field["bytes_per_sample"] == 120
    assert "data float64 (…, 5) about 120 raw" in text


def test_sequences_and_sparse_rows_are_ranges_of_files(facts, tmp_path):
    """Also where a matrix was decoded into memory: people asked about the file."""
    save_megatron(tmp_path / "corpus.idx", [[1, 2], [3]])
    save_csr(tmp_path / "m.npz", sparse_rows(), 100)

    pair, matrix = facts(tmp_path / "corpus.idx"), facts(tmp_path / "m.npz")

    assert (pair["sample"], pair["samples"]) == ("range", 2)
    assert pair["formats"] == {"raw": 1, "megatron": 1}
    assert (matrix["sample"], matrix["samples"]) == ("range", 30)
    assert matrix["formats"] == {"csr": 1}
    assert matrix["bytes_on_disk"] == (tmp_path / "m.npz").stat().st_size


def test_windows_are_samples(facts, invoke, tmp_path):
    """Of rows, within sequences; what is stored is the same."""
    rows = np.zeros((20, 3), "<f4")
    np.savez(tmp_path / "x.npz", data=rows, episode=np.repeat([0, 1], [8, 12]))
    path, options = tmp_path / "x.npz", ("--windows", "4,2", "--by", "episode")

    found = facts(path, *options)
    text = words(invoke("inspect", path, *options).stdout)

    assert (found["sample"], found["samples"]) == ("window", 3 + 5)
    assert [field["shape"] for field in found["fields"]] == [[4, 3], [4]]
    assert found["bytes_on_disk"] == path.stat().st_size
    assert "a sample is a window of rows (4 consecutive rows, 2 apart, in 2 sequences; " in text
    assert facts(path, "--windows", "4", "--fields", "data")["samples"] == 17


@pytest.fixture
def scans(tmp_path):
    """Volumes of different sizes in folders by site, their masks, and a table of ages."""
    for i, site in enumerate(("Bonn", "Oslo", "Bonn")):
        (tmp_path / "scans" / site).mkdir(parents=True, exist_ok=True)
        image = np.zeros((2, 20 + i, 30), "<f4")
        np.savez(tmp_path / "scans" / site / f"{i}.npz", image=image, mask=image[0] > 0)
    (tmp_path / "ages.csv").write_text("id,age,sex\n0,41,f\n1,52,f\n2,63,m\n")
    return tmp_path / "scans"


def shapes(found):
    return {field["name"]: field["shape"] for field in found["fields"]}


def test_crops_are_samples(facts, invoke, scans):
    """Random ones, a grid, filled up: what is stored is the same."""
    options = ("--sample", "file", "--crops", "image=:,8,8", "--crops", "mask=8,8")
    drawn, grid = facts(scans, *options, "--each", "4"), facts(scans, *options, "--grid", "2,0")
    padded = facts(scans, "--sample", "file", "--crops", "mask=21,8", "--pad", "1")
    text = words(invoke("inspect", scans, *options, "--each", "4").stdout)

    assert (drawn["sample"], drawn["samples"], drawn["files"]) == ("crop", 12, 3)
    assert shapes(drawn) == {"image": [2, 8, 8], "mask": [8, 8]}
    assert "(4 random crops of image (:, 8, 8), mask (8, 8) each; " in text
    ds = ndfeed.open(scans, sample="file").crops(
        {"image": (None, 8, 8), "mask": (8, 8)}, grid=(2, 0)
    )
    assert grid["samples"] == len(ds)
    assert shapes(grid) == {"image": [2, 8, 8], "mask": [8, 8], "case": [], "corner": [2]}
    assert grid["bytes_on_disk"] == drawn["bytes_on_disk"] == padded["bytes_on_disk"]
    assert shapes(padded) == {"image": [2, None, 30], "mask": [21, 8]}


@pytest.mark.parametrize("name", ["scan.image", "scan/image", "a=b"])
def test_fields_of_any_name_are_cropped(facts, tmp_path, name):
    """A name may look like a path."""
    np.savez(tmp_path / "x.npz", **{name: np.zeros((3, 4, 5), "<f4")})
    found = facts(
        tmp_path, "--sample", "row", "--crops", f"{name}=6,2", "--pad", f"{name}=1", "--each", "2"
    )

    assert (found["samples"], shapes(found)) == (6, {name: [6, 2]})


@pytest.mark.parametrize("pad", [["--pad", "-1.5"], ["--pad", "image=-1.5", "--pad", "mask=0"]])
def test_crops_are_filled_up_as_the_dataset_does(ndfeed_process, scans, tmp_path, pad):
    """With one number, or one for each field."""
    options = ["--crops", "image=:,22,8"] + ["--crops", "mask=22,8"] * (len(pad) > 2)
    done = ndfeed_process(
        "pack", scans, tmp_path / "packed", "--sample", "file", "--fields", "image,mask",
        *options, "--grid", "0", *pad,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert (ndfeed.open(tmp_path / "packed")[0]["image"][:, -2:] == -1.5).all()


def test_crops_that_do_not_fit_are_one_line(ndfeed_process, scans):
    """With the options that change it."""
    done = ndfeed_process("inspect", scans, "--sample", "file", "--crops", "mask=21,8")

    assert done.returncode == 1
    assert done.stderr == (
        f"ndfeed: {scans / 'Bonn' / '0.npz'}: field 'mask' is (20, 30), smaller than crops of "
        "(21, 8); use smaller crops, fill up with --pad 0, or in Python: exclude it with take()\n"
    )


def test_crops_of_what_could_be_read_two_ways_ask_first(ndfeed_process, unclear):
    """Not how crops of the wrong reading fail."""
    done = ndfeed_process("inspect", unclear, "--crops", "image=2,2")

    assert done.returncode == 1
    assert "could be read in two ways; choose one: --sample file gives 3 samples" in done.stderr


def test_labels_are_a_field(facts, invoke, scans, tmp_path):
    """From a table, or the names of folders."""
    options = ("--sample", "file", "--labels")
    folders = facts(scans, *options, "site=folder_name")
    text = words(invoke("inspect", scans, *options, "folder_name").stdout)
    ages = facts(scans, *options, f"age={tmp_path / 'ages.csv'}", "--column", "age", "--key", "id")

    assert folders["classes"] == {"site": ["Bonn", "Oslo"]}
    assert shapes(folders)["site"] == []
    assert folders["files"] == 3
    assert "label is one of 2 classes: 'Bonn', 'Oslo'" in text
    assert (shapes(ages)["age"], ages["classes"]) == ([], {})


@pytest.mark.parametrize("cut", [["--windows", "4"], ["--windows", "4", "--crops", "mask=2,9"]])
def test_a_window_has_one_label(facts, scans, cut):
    """It is that of its file."""
    found = facts(scans, "--sample", "row", "--fields", "mask", "--labels", "folder_name", *cut)

    assert shapes(found)["label"] == []
    assert (found["samples"], found["files"]) == (17 + 18 + 19, 3)


def test_labels_that_do_not_fit_are_one_line(ndfeed_process, scans, tmp_path):
    """They name the table, and options."""
    table = tmp_path / "ages.csv"
    wrong = ndfeed_process("inspect", scans, "--sample", "file", "--labels", table, "--column", "x")
    table.write_text("id,age\n0,41\nz,52\n")
    few = ndfeed_process("inspect", scans, "--sample", "file", "--labels", table)

    assert wrong.stderr == (
        f"ndfeed: {table}: no column 'x'; the columns are 'id', 'age', 'sex': choose one with "
        "--column\n"
    )
    assert few.stderr.startswith(f"ndfeed: {table}: 2 of 3 files have no label")
    assert (wrong.returncode, few.returncode, few.stderr.count("\n")) == (1, 1, 1)


def test_samples_that_lie_end_to_end(facts, tmp_path, ndfeed_process):
    """As with offsets= in Python."""
    np.save(tmp_path / "text.npy", np.arange(10))
    np.arange(10, dtype="<u2").tofile(tmp_path / "text.bin")
    np.save(tmp_path / "ends.npy", [0, 4, 4, 10])
    for name, more in (("text.npy", []), ("text.bin", ["--dtype", "uint16", "--shape", ""])):
        found = facts(tmp_path / name, "--offsets", tmp_path / "ends.npy", *more)
        assert (found["sample"], found["samples"], found["files"]) == ("range", 3, 2)
    np.save(tmp_path / "ends.npy", [0.5, 10])
    done = ndfeed_process("inspect", tmp_path / "text.npy", "--offsets", tmp_path / "ends.npy")

    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "ends.npy" in done.stderr


def test_many_fields_are_cut_in_the_table_only(facts, invoke, tmp_path):
    """A terminal has an end; JSON has none."""
    np.savez(tmp_path / "x.npz", **{f"f{i}": np.zeros(2) for i in range(120)})

    assert len(facts(tmp_path / "x.npz")["fields"]) == 120
    assert "… and 20 more fields" in invoke("inspect", tmp_path / "x.npz").stdout


def test_remarks_name_the_file(facts, invoke, tmp_path):
    """What the format module remarked on reaches people; those of one text come together."""
    for i in range(3):
        np.save(tmp_path / f"{i}.npy", np.zeros((4, 3)))
        with open(tmp_path / f"{i}.npy", "ab") as file:
            file.write(b"more")

    found = facts(tmp_path, "--sample", "row")
    text = words(invoke("inspect", tmp_path, "--sample", "row").stdout)

    assert found["remarks_total"] == 3
    assert found["remarks"][0] == {
        "file": os.fspath(tmp_path / "0.npy"),
        "text": "4 bytes after the array are ignored",
    }
    assert f"- {tmp_path / '0.npy'} and 2 more: 4 bytes after the array are ignored" in text


def test_nothing_is_told_twice(facts, invoke, tmp_path):
    """Fortran order is a remark, a warning and advice; a person needs the advice."""
    np.save(tmp_path / "x.npy", np.asfortranarray(np.zeros((4, 3))))

    found = facts(tmp_path / "x.npy")
    text = invoke("inspect", tmp_path / "x.npy").stdout

    assert found["remarks"][0]["text"].startswith("Fortran order")
    assert text.count("Fortran order") == 1


def test_warnings_about_files_are_facts(facts, invoke, tmp_path):
    """What a script would see on standard error belongs to the file that it is about."""
    np.save(tmp_path / "x.npy", np.zeros((3, 2), "V2"))

    (text,) = facts(tmp_path / "x.npy")["warnings"]
    shown = invoke("inspect", tmp_path / "x.npy").stdout

    assert text.startswith(f"{tmp_path / 'x.npy'}: two-byte opaque elements are read as bfloat16")
    assert f"warning: {text}" in shown


class TestAdvice:
    """Each thing that costs time is found where it is, and only there."""

    def test_plain_rows_need_none(self, facts, tmp_path):
        np.save(tmp_path / "x.npy", np.zeros((10, 3)))

        assert kinds(facts(tmp_path / "x.npy")) == []

    def test_compressed_rows(self, facts, tmp_path):
        np.savez_compressed(tmp_path / "x.npz", x=np.zeros((10, 100)), y=np.zeros(10))
        found = facts(tmp_path / "x.npz")

        assert kinds(found) == ["compressed-rows"]
        assert (
            "'x', 'y' lie inside compressed members of up to 8.13 kB" in found["advice"][0]["text"]
        )

    def test_compressed_whole_files_are_as_they_must_be(self, facts, tmp_path):
        np.savez_compressed(tmp_path / "x.npz", x=np.zeros((10, 100)), y=np.zeros(10))

        assert kinds(facts(tmp_path / "x.npz", "--sample", "file")) == []

    def test_gzip_rows(self, facts, tmp_path):
        with gzip.open(tmp_path / "x.npy.gz", "wb") as file:
            np.save(file, np.zeros((10, 3)))

        assert kinds(facts(tmp_path / "x.npy.gz")) == ["compressed-rows"]

    def test_fortran_order(self, facts, tmp_path):
        np.save(tmp_path / "x.npy", np.asfortranarray(np.zeros((10, 3))))

        assert kinds(facts(tmp_path / "x.npy")) == ["scattered-rows"]

    def test_structured_rows(self, facts, tmp_path):
        np.save(tmp_path / "x.npy", np.zeros(10, [("a", "<f4"), ("b", "u1", (3,))]))

        assert kinds(facts(tmp_path / "x.npy")) == ["interleaved-rows"]

    def test_other_byte_order(self, facts, tmp_path):
        np.save(tmp_path / "x.npy", np.zeros((10, 3), np.dtype("f4").newbyteorder("S")))

        assert kinds(facts(tmp_path / "x.npy")) == ["byte-order"]

    def test_tiny_files(self, facts, tmp_path):
        np.save(tmp_path / "0.npy", np.zeros(3))
        for i in range(1, 1001):
            os.link(tmp_path / "0.npy", tmp_path / f"{i}.npy")

        assert kinds(facts(tmp_path, "--sample", "file")) == ["tiny-files"]
        os.unlink(tmp_path / "0.npy")
        assert kinds(facts(tmp_path, "--sample", "file")) == []

    @pytest.mark.skipif(sys.platform == "win32", reason="no limit to lower")
    def test_more_files_than_can_be_mapped(self, tmp_path):
        np.save(tmp_path / "0.npy", np.zeros(3))
        for i in range(1, 100):
            os.link(tmp_path / "0.npy", tmp_path / f"{i}.npy")
        done = subprocess.run(
            [sys.executable, "-c", FEW_FILES, tmp_path], capture_output=True, timeout=250
        )

        assert kinds(json.loads(done.stdout)) == ["unmapped-files"]

    def test_both_readings_agree_on(self, facts, tmp_path):
        for i in range(2):
            x = np.zeros((4, 3), np.dtype("f4").newbyteorder("S"))
            np.savez_compressed(tmp_path / f"{i}.npz", x=x)

        assert kinds(facts(tmp_path)) == ["byte-order"]

    def test_torch_views_and_pickled_arrays(self, facts, tmp_path):
        torch = pytest.importorskip("torch")
        held = {"view": torch.zeros(1000, 100)[:3], "array": np.arange(3 * 700.0).reshape(3, 700)}
        torch.save(held, tmp_path / "x.pt")

        assert kinds(facts(tmp_path / "x.pt")) == ["kept-as-text", "unused-storage"]

    def test_shared_storage_is_no_waste(self, facts, tmp_path):
        torch = pytest.importorskip("torch")
        rows = torch.zeros(1000, 100)
        torch.save({"all": rows, "some": rows[:500]}, tmp_path / "x.pt")

        assert kinds(facts(tmp_path / "x.pt", "--sample", "file")) == []


def test_no_cache_leaves_no_index(facts, images):
    """Who asks for it may have no place to keep one."""
    kept = os.path.join(os.environ["XDG_CACHE_HOME"], "ndfeed")
    facts(images, "--no-cache")

    assert not os.path.exists(kept)
    facts(images)
    assert os.path.exists(kept)
