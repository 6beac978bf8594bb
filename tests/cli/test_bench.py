"""``ndfeed bench``: stages, limit and remedies of small data, through the command."""

import importlib
import io
import json
import os
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import ndfeed
from ndfeed.cli import throughput
from ndfeed.cli.diagnosis import OrderTrial, Stage, Trial
from ndfeed.cli.measurements import Findings
from ndfeed.cli.throughput import Ran
from ndfeed.order.mixing import Mixing

bench = importlib.import_module("ndfeed.cli.bench")  # the package has the command by this name

KEYS = [
    "path",
    "samples",
    "bytes_per_sample",
    "batch_size",
    "order",
    "loader",
    "stages",
    "to_device",
    "limit",
    "sample",
    "trials",
    "remedies",
    "orders",
    "notes",
    "plot",
]
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def compressed(tmp_path_factory):
    """A sample in each file; inflating it takes many times as long as all else together."""
    folder = tmp_path_factory.mktemp("compressed")
    images = np.random.default_rng(0).integers(0, 16, (40, 400, 400), np.uint8)
    for i, image in enumerate(images):
        np.savez_compressed(folder / f"{i}.npz", x=image, y=i)
    return folder


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """Rows of one file."""
    path = tmp_path_factory.mktemp("plain") / "x.npz"
    np.savez(path, x=np.random.default_rng(0).random((4000, 100)), y=np.arange(4000))
    return path


def examined(invoke, *args):
    """The facts of a quick run."""
    done = invoke("bench", *args, "--json", "--seconds", "0.5")
    assert done.exit_code == 0, done.output
    (line,) = done.stdout.splitlines()
    return json.loads(line)


def rates(found):
    return {one["stage"]: one["rows_per_second"] for one in found["stages"]}


def test_verdict_is_that_of_what_was_measured(invoke, compressed):
    """The limit is the slowest stage; a remedy is the best of its trials, with its own gain."""
    found = examined(invoke, compressed, "--sample", "file", "--batch-size", "8")
    before = found["sample"]["rows_per_second"]
    tried = {one["how"]: one["rows_per_second"] for one in found["trials"]}
    stages = rates(found).keys() - {"disk"}

    assert list(found) == KEYS
    assert found["samples"] == 40
    assert stages >= {"inflate"}
    assert found["limit"] in (min(stages, key=rates(found).get), None)
    assert (found["limit"] is None) == any("slower than" in note for note in found["notes"])
    assert {one["name"] for one in found["trials"]} >= {"pack", "memory", "threads"}
    assert f"ndfeed pack {compressed} packed/ --sample file" in tried
    assert all(rate > 0 for rate in (before, found["loader"]["rows_per_second"], *tried.values()))
    assert len(found["remedies"]) <= 2
    for one in found["remedies"]:
        assert one["gain"] == pytest.approx(tried[one["how"]] / before, rel=0.01)


@pytest.mark.parametrize(
    "options", [("--sample", "file"), ("--sample", "row", "--fields", "x", "--no-shuffle")]
)
def test_stages_add_up_to_the_loader(invoke, compressed, options):
    """No stage is slower than the loader it is part of; times are shares of the same run."""
    found = examined(invoke, compressed, *options, "--batch-size", "8")
    inner = [one for one in found["stages"] if one["share"] is not None]
    rate = found["loader"]["rows_per_second"]

    if "disk" not in rates(found):
        assert all(one["rows_per_second"] >= rate * 0.999 for one in inner)
        assert sum(1 / one["rows_per_second"] for one in inner) <= 1.001 / rate
    shares = sum(one["share"] for one in inner) + found["loader"]["idle"]
    assert shares == pytest.approx(1, abs=0.04)
    assert "cache" not in rates(found)


def test_nothing_is_left_behind(invoke, compressed, tmp_path, monkeypatch):
    """The sample was packed into a folder that is gone; the data is as it was."""
    monkeypatch.setattr("tempfile.tempdir", os.fspath(tmp_path))
    before = {path: path.stat().st_mtime_ns for path in compressed.iterdir()}
    found = examined(invoke, compressed, "--sample", "file")

    assert "pack" in {one["name"] for one in found["trials"]}
    assert list(tmp_path.iterdir()) == []
    assert {path: path.stat().st_mtime_ns for path in compressed.iterdir()} == before


def test_the_users_function_is_a_stage(invoke, plain, monkeypatch):
    """Found as ``module:name`` in the current folder; processes are tried for it."""
    monkeypatch.chdir(HERE)
    found = examined(invoke, plain, "--map", "bench_functions:slow", "--sample", "row")

    assert rates(found)["transform"] > 0
    tried = {one["how"] for one in found["trials"] if one["name"] == "processes"}
    assert tried or found["loader"]["processes"]


def test_fields_and_order_are_the_loaders(invoke, plain):
    """What is measured is what will be trained with."""
    both = examined(invoke, plain, "--sample", "row")
    one = examined(invoke, plain, "--sample", "row", "--fields", "y", "--no-shuffle")

    assert both["order"] == "Exact()"
    assert both["bytes_per_sample"] == 808
    assert one["order"] == "Sequential()"
    assert one["bytes_per_sample"] == 8


def test_windows_are_what_is_measured(invoke, tmp_path):
    """The command that packs them names them as well."""
    np.arange(20_000, dtype=np.uint16).tofile(tmp_path / "x.bin")
    options = ("--dtype", "uint16", "--windows", "50,50")
    found = examined(invoke, tmp_path / "x.bin", *options, "--batch-size", "8")

    assert (found["samples"], found["bytes_per_sample"]) == (400, 100)
    (packed,) = (one["how"] for one in found["trials"] if one["name"] == "pack")
    assert packed.endswith("--dtype '<u2' --windows 50,50")


@pytest.mark.parametrize("sizes", [(40, 40), (40, 44)])
def test_random_crops_are_never_stored(invoke, tmp_path, sizes):
    """They would be the same in every epoch: what they are cut from is stored."""
    for i in range(12):
        image = np.zeros((sizes[i % 2], 50), np.float32)
        np.savez_compressed(tmp_path / f"{i}.npz", image=image, label=i)
    options = ("--crops", "image=32,32", "--each", "8", "--batch-size", "4")
    found = examined(invoke, tmp_path, *options)
    trials = {one["name"]: one["how"] for one in found["trials"]}

    assert (found["samples"], found["bytes_per_sample"]) == (96, 4104)
    assert trials["memory"] == "ds.in_memory() before crops()"
    if sizes == (40, 40):
        assert trials["pack"] == f"ndfeed pack {tmp_path} packed/"
    else:
        assert "pack" not in trials
        assert any("samples of different sizes" in note for note in found["notes"])


def test_a_grid_of_crops_is_packed_as_it_is(invoke, tmp_path):
    """With its labels: the command that packs them names them all."""
    for i in range(4):
        np.save(tmp_path / f"{i}.npy", np.zeros((40, 50), np.float32))
    (tmp_path / "a b.csv").write_text("id,age\n" + "".join(f"{i},4{i}\n" for i in range(4)))
    words = ("--labels", f"age={tmp_path / 'a b.csv'}", "--column", "age", "--key", "id")
    words += ("--crops", "data=32,32", "--grid", "16")
    found = examined(invoke, tmp_path / "*.npy", "--sample", "file", *words, "--batch-size", "4")

    assert found["bytes_per_sample"] == 4096 + 8 + 8 + 16
    (packed,) = (one["how"] for one in found["trials"] if one["name"] == "pack")
    assert shlex.split(packed)[4:] == ["--sample", "file", *words]


def test_samples_that_lie_end_to_end_are_measured(invoke, tmp_path):
    """As inspect shows them."""
    np.save(tmp_path / "text.npy", np.arange(1000))
    np.save(tmp_path / "ends.npy", np.arange(0, 1001, 50))
    options = ("--offsets", tmp_path / "ends.npy", "--batch-size", "2")
    found = examined(invoke, tmp_path / "text.npy", *options)

    assert (found["samples"], found["bytes_per_sample"]) == (20, 400)


def test_a_packed_dataset_is_not_packed_again(invoke, compressed, tmp_path):
    """Nothing would come of it."""
    ndfeed.pack(ndfeed.open(compressed, sample="file"), tmp_path / "packed")
    found = examined(invoke, tmp_path / "packed")

    assert "pack" not in {one["name"] for one in found["trials"]}


def test_the_picture_has_the_limit_and_the_remedies(invoke, compressed, tmp_path):
    """For people: stages, a mark, what to type."""
    options = ("--sample", "file", "--seconds", "0.5", "--plot", tmp_path / "x.svg")
    done = invoke("bench", compressed, *options)

    lines = done.stdout.splitlines()
    assert sum("◀ bottleneck" in line for line in lines) == 1
    assert any(line.startswith("decompressing") for line in lines)
    assert any(line.startswith("the loader") for line in lines)
    assert ("what helps most" in done.stdout) != ("nothing helped" in done.stdout)
    assert "pack, memory, threads" in done.stdout
    assert f"chart: {tmp_path / 'x.svg'}" in done.stdout
    picture = (tmp_path / "x.svg").read_text(encoding="utf-8")
    assert picture.startswith("<svg ")
    assert ">decompressing</text>" in picture
    assert "× the loader</text>" in picture


def test_cold_files_show_the_disk(invoke, tmp_path):
    """Where the system lets go of them; else a note says that it does not."""
    for i in range(8):
        np.save(tmp_path / f"{i}.npy", np.random.default_rng(i).random((200, 64)))
        with open(tmp_path / f"{i}.npy", "rb") as file:
            os.fsync(file.fileno())
    found = examined(invoke, tmp_path, "--sample", "row", "--cold")

    assert ("disk" in rates(found)) != any(
        "could not be dropped" in note for note in found["notes"]
    )
    assert rates(found)["copy"] > 0
    assert found["limit"] != "disk"  # they fit into memory


def found_with(**more):
    """What was measured, made up."""
    words = {
        "order": "Exact()",
        "loader": Ran(rows=100, seconds=1.0, threads=2, row_bytes=40.0),
        "report": None,
        "sample": 10,
        "base": Trial("as it is", "", 900.0),
        "stages": [Stage("copy", 1000.0)],
        "trials": [],
        "disk_counts": False,
    }
    return Findings(**words | more)


def printed(found, row=10.0):
    """The table of stages as text."""
    out = Console(file=io.StringIO(), width=100)
    out.print(bench._make_table(found, row))
    return out.file.getvalue()


@pytest.mark.parametrize(
    ("more", "lines"),
    [
        ({}, ["copying into batches", "the loader "]),
        (
            {"stages": [Stage("disk", 100.0), Stage("copy", 1000.0)]},
            [
                "disk, cold",
                "copying into batches",
                "the loader, first epoch",
                "the loader, later epochs",
            ],
        ),
        (
            {"stages": [Stage("disk", 100.0), Stage("copy", 1000.0)], "disk_counts": True},
            ["disk, cold", "copying into batches", "the loader "],
        ),
        (
            {"stages": [Stage("device", 500.0)], "to_device": Ran(rows=400, seconds=1.0)},
            ["to the device", "the loader ", "the loader, on the device"],
        ),
    ],
)
def test_the_loader_is_told_apart(more, lines):
    """From a disk that only the first epoch waits for, from memory, and on a device."""
    said = [line for line in printed(found_with(**more)).splitlines()[2:] if line.strip()]

    assert len(said) == len(lines)
    assert all(line.startswith(begin) for line, begin in zip(said, lines, strict=True))


def test_bytes_to_the_device_are_those_of_what_the_function_made():
    """A batch of floats is four times that of the bytes it was made from."""
    to_device, copied = printed(
        found_with(stages=[Stage("device", 500.0), Stage("copy", 1000.0)])
    ).splitlines()[2:4]

    assert to_device.split()[:6] == ["to", "the", "device", "500", "20", "kB"]
    assert copied.split()[:6] == ["copying", "into", "batches", "1.0", "k", "10"]


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    """Rows that are compressed together: 64 files of one class each, of which a few are open."""
    folder = tmp_path_factory.mktemp("together")
    rng = np.random.default_rng(0)
    for i in range(64):
        np.savez_compressed(folder / f"{i:02d}.npz", x=rng.random((500, 64)), y=np.full(500, i))
    return folder


def test_compressed_rows_are_also_read_in_other_orders(invoke, together):
    """Each with its rate and its mixing, that of ``shuffle=True`` first."""
    done = invoke("bench", together, "--sample", "row", "--json", "--seconds", "2")
    found = json.loads(done.stdout)["orders"]
    usual, *others = found["tried"]
    order = ndfeed.loader(ndfeed.open(together, sample="row"), 256, shuffle=True).order

    assert (usual["how"], usual["order"], usual["gain"]) == ("shuffle=True", f"{order}", 1)
    assert usual["mixing"] == order.mixing.as_dict()
    assert {one["how"] for one in others} <= {
        "shuffle=ndfeed.Exact()",
        f"shuffle=ndfeed.Windows(files={min(4 * order.files, 64)})",
    }
    assert others
    for one in others:
        assert one["gain"] == pytest.approx(
            one["rows_per_second"] / usual["rows_per_second"], abs=0.01
        )
        assert one["mixing"]["ratio"] > usual["mixing"]["ratio"]
    best = found["recommended"]
    assert best is None or next(o["gain"] for o in others if o["how"] == best) >= 1.19


def test_small_rows_are_also_read_in_blocks(invoke, plain):
    """Blocks of a size that fits the data: several times as many as are mixed at a time."""
    usual, blocks = examined(invoke, plain, "--sample", "row")["orders"]["tried"]

    assert usual["order"] == "Exact()"
    assert blocks["how"] == "shuffle=ndfeed.Blocks(rows=32, window=32)"
    assert usual["mixing"]["ratio"] == 1
    assert blocks["mixing"]["ratio"] < 0.5


@pytest.mark.parametrize("options", [["--no-shuffle"], ["--sample", "file", "--batch-size", "8"]])
def test_orders_are_compared_only_where_it_matters(invoke, compressed, options):
    """Not where nothing is shuffled, nor where every sample is a file of its own."""
    assert examined(invoke, compressed, *options)["orders"] == {"tried": [], "recommended": None}


def test_the_table_of_orders():
    """It fits into 80 columns, and says how to read it and what to write."""
    mixing = Mixing("", 10**6, 256, 1, 0.125, "block", 244, 32.0, 0.13, 0.0, None, 64)
    exact = replace(mixing, ratio=1.0)
    how = "Blocks(rows=4096, window=32)"
    trials = [
        OrderTrial("shuffle=True", "Exact()", 1e5, exact),
        OrderTrial(f"shuffle=ndfeed.{how}", how, 3e5, mixing),
    ]
    out = Console(file=io.StringIO(), width=80)
    bench._print_orders(out, found_with(orders=trials))
    head, _, usual, blocks, *lines = out.file.getvalue().splitlines()

    assert head.split() == ["shuffle=", "rows/s", "speed", "mixing", "a", "batch", "is", "worth"]
    assert usual.split() == ["True:", "Exact()", "100.0", "k", "1.0×", "1.00", "256", "of", "256"]
    assert blocks.split()[2:] == ["300.0", "k", "3.0×", "0.12", "32", "of", "256"]
    said = " ".join(" ".join(lines).split())
    assert "1.00 is a true shuffle" in said
    assert f"shuffle=ndfeed.{how} is 3.0× as fast: a batch of 256 rows draws from about 32" in said

    out = Console(file=io.StringIO(), width=80)
    bench._print_orders(
        out, found_with(orders=[trials[0], replace(trials[1], rows_per_second=9e4)])
    )
    assert out.file.getvalue() == ""


def test_the_table_of_orders_says_what_to_do_if_files_are_sorted():
    """The better mixed order was in the table, and no line said what to do about it."""
    window = Mixing("", 10**6, 256, 1, 0.08, "file", 500, 20.0, 0.04, 0.0, None, 64)
    trials = [
        OrderTrial("shuffle=True", "Windows(files=20)", 1e5, window),
        OrderTrial("shuffle=ndfeed.Exact()", "Exact()", 8e4, replace(window, ratio=1.0)),
    ]
    out = Console(file=io.StringIO(), width=80)
    bench._print_orders(out, found_with(orders=trials))
    said = " ".join(out.file.getvalue().split())

    assert "if your files are sorted, by class for instance: shuffle=ndfeed.Exact() mixes " in said
    assert "(1.00) at 0.8× the speed, or mix the rows once with ndfeed pack --shuffle 0" in said

    faster = [trials[0], replace(trials[1], rows_per_second=2e5)]
    out = Console(file=io.StringIO(), width=80)
    bench._print_orders(out, found_with(orders=faster))
    assert "if your files are sorted" not in out.file.getvalue()  # there is nothing to weigh up


def test_what_is_in_memory_says_how_to_measure_the_disk(invoke, plain):
    """Nothing is dropped unasked."""
    plain.read_bytes()
    found = examined(invoke, plain, "--sample", "row")

    assert "disk" not in rates(found)
    assert "the files are in the page cache: use --cold to measure the disk, too" in found["notes"]


def test_every_byte_of_the_samples_is_read_from_the_disk(compressed):
    """A disk that is asked for less would look faster than it is."""
    ds = ndfeed.open(compressed, sample="file", cache=False)
    found = throughput.locate_pieces(ds, np.arange(len(ds)))
    done = throughput.read(found, seconds=60, threads=3)

    assert done.nbytes == throughput.count_bytes(found)
    assert done.nbytes >= sum(path.stat().st_size for path in compressed.iterdir()) // 2
    assert throughput.read(found, seconds=-1, threads=3).nbytes == 0


@pytest.mark.parametrize(
    ("options", "status", "message"),
    [
        (("--map", "bench_functions:broken"), 1, "broken: KeyError: 'nope'"),
        (("--map", "bench_functions:late"), 1, "late: RuntimeError: of one batch only"),
        (("--map", "bench_functions:none"), 2, "has no attribute 'none'"),
        (("--map", "bench_functions:NUMBER"), 2, "a int, not a function"),
        (("--map", "no_such_module:f"), 2, "No module named 'no_such_module'"),
        (("--map", "bench_functions"), 2, "needs MODULE:NAME"),
        (("--fields", "nope"), 1, "no field 'nope'"),
        (("--shape", "3"), 2, "needs --dtype"),
        (("--plot", "/no/such/folder/x.svg"), 1, "choose another --plot"),
        (("--plot", "x.jpeg"), 1, "written as .svg or .png"),
    ],
)
def test_wrong_input(invoke_or_error, plain, monkeypatch, options, status, message):
    """The data's or the function's fault is one line and status 1, an option's status 2."""
    monkeypatch.chdir(HERE)
    code, said = invoke_or_error("bench", plain, "--sample", "row", *options)

    assert code == status
    assert message in said
    assert status == 2 or said.count("\n") == 1


def test_a_batch_that_no_memory_holds(invoke_or_error, tmp_path):
    """The loader's own words, before anything is measured."""
    with open(tmp_path / "x.bin", "wb") as file:
        file.truncate(3 << 30)  # none of it is on the disk
    code, said = invoke_or_error("bench", file.name, "--dtype", "uint8", "--shape", str(1 << 30))

    assert code == 2
    assert "memory must hold a batch" in said


def test_no_samples(invoke_or_error, tmp_path):
    """There is nothing to divide by."""
    np.save(tmp_path / "x.npy", np.zeros((0, 4)))
    code, said = invoke_or_error("bench", tmp_path / "x.npy")

    assert code == 1
    assert "no samples to measure" in said
