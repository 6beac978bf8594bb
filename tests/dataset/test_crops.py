"""Crops: what slicing gives, whatever the files; random ones fixed by the seed."""

import os
import pickle

import numpy as np
import pytest
from children import run
from hypothesis import given
from hypothesis import strategies as st
from loading.making import in_process

import ndfeed
from ndfeed.errors import FieldError, SchemaError
from ndfeed.files.platform_calls import can

CODINGS = ("npy", "fortran", "big", "stored", "deflated")


def write(folder, coding, cases):
    """One file for each case, with an image and a mask of the same size."""
    for i, image in enumerate(cases):
        mask = (image % 3).astype("u1")
        if coding in ("stored", "deflated"):
            save = np.savez if coding == "stored" else np.savez_compressed
            save(folder / f"{i:03}.npz", image=image, mask=mask, label=np.int32(i))
            continue
        if coding == "big":
            image = image.astype(image.dtype.newbyteorder(">"))
        if coding == "fortran":
            image = np.asfortranarray(image)
        np.save(folder / f"{i:03}.npy", image)


def open_cases(folder, coding, **options):
    ds = ndfeed.open(folder, sample="file", cache=False, **options)
    return ds if coding in ("stored", "deflated") else ds.rename({"data": "image"})


def box_of(corner, size):
    return tuple(slice(a, a + n) for a, n in zip(corner, size, strict=True))


def check(batch, cases, size):
    """Every crop of a batch is the box at its corner."""
    for case, corner, image in zip(batch["case"], batch["corner"], batch["image"], strict=True):
        assert image.tobytes() == cases[case][box_of(corner, size)].tobytes()
    for i, case in enumerate(batch["case"] if "label" in batch else ()):
        expected = (cases[case] % 3).astype("u1")[box_of(batch["corner"][i], size)]
        assert (batch["mask"][i] == expected).all()
        assert batch["label"][i] == case


@pytest.mark.filterwarnings("ignore:.*Fortran order")
@given(
    coding=st.sampled_from(CODINGS),
    mapped=st.booleans(),
    dtype=st.sampled_from(["<u2", "<f4", "u1"]),
    rank=st.integers(1, 3),
    data=st.data(),
)
def test_crops_are_slices(tmp_path_factory, coding, mapped, dtype, rank, data):
    """Random ones, those of a grid, and chosen ones, of cases that differ in size."""
    size = data.draw(st.lists(st.integers(1, 4), min_size=rank, max_size=rank))
    shapes = data.draw(
        st.lists(st.tuples(*(st.integers(n, n + 6) for n in size)), min_size=1, max_size=3)
    )
    folder, rng = tmp_path_factory.mktemp("c"), np.random.default_rng(0)
    cases = [rng.integers(0, 99, shape).astype(dtype) for shape in shapes]
    write(folder, coding, cases)
    ds = open_cases(folder, coding, mapped=mapped)
    sizes = {name: size for name in ("image", "mask") if name in ds.fields}
    each = data.draw(st.integers(1, 3))
    drawn = ds.crops(sizes, each=each, place=True)

    assert len(drawn) == each * len(cases)
    check(drawn[:], cases, size)
    with ndfeed.loader(drawn, 2, shuffle=True, seed=each) as loader:
        batches = list(loader)
    for batch in batches:
        check(batch, cases, size)
    counts = np.bincount(np.concatenate([batch["case"] for batch in batches]))
    assert (counts == each).all()

    grid = ds.crops(sizes, grid=[min(1, n - 1) for n in size])
    covered = [np.zeros(shape, bool) for shape in shapes]
    for one in grid:
        covered[one["case"]][box_of(one["corner"], size)] = True
    assert all(one.all() for one in covered)
    check(grid[:], cases, size)

    corners = [[i, *(rng.integers(0, n - m + 1) for n, m in zip(c.shape, size, strict=True))]
               for i, c in enumerate(cases)][::-1]  # fmt: skip
    chosen = ds.crops(sizes, at=corners)[:]
    assert (np.column_stack([chosen["case"], chosen["corner"]]) == corners).all()
    check(chosen, cases, size)


@pytest.fixture
def volumes(tmp_path):
    """Cases of several sizes, as files and as arrays."""
    rng = np.random.default_rng(1)
    cases = [rng.integers(0, 999, shape) for shape in [(9, 12, 8), (7, 7, 7), (14, 8, 10)]]
    write(tmp_path, "stored", cases)
    return open_cases(tmp_path, "stored"), cases


def corners_of(ds, **options):
    """The corners of two epochs, batch by batch."""
    with ndfeed.loader(ds, 4, shuffle=True, **options) as loader:
        return [np.concatenate([batch["corner"] for batch in loader]) for _ in range(2)]


def test_random_crops_are_fixed_by_seed_epoch_and_position(volumes):
    """The same for any threads, processes and batch size; others in another epoch."""
    ds, _ = volumes
    crops = ds.crops({"image": (3, 3, 3), "mask": (3, 3, 3)}, each=5, place=True)
    first = corners_of(crops, seed=1, threads=1)

    for options in ({"threads": 3}, {"processes": 2}):
        for one, other in zip(first, corners_of(crops, seed=1, **options), strict=True):
            assert (one == other).all()
    assert (first[0] != first[1]).any()
    assert (first[0] != corners_of(crops, seed=2)[0]).any()
    mapped = corners_of(crops.map(in_process), seed=1, processes=2)
    assert (mapped[0] == first[0]).all()


def test_random_crops_resume(volumes):
    """In the middle of an epoch, with other batches than before."""
    ds, _ = volumes
    crops = ds.crops({"image": (3, 3, 3)}, each=5, place=True)
    with ndfeed.loader(crops, 2, shuffle=True, seed=3) as loader:
        batches = iter(loader)
        next(batches), next(batches)
        state = loader.state_dict()
        rest = np.concatenate([batch["corner"] for batch in batches])
    with ndfeed.loader(crops, 3, shuffle=True, seed=3) as loader:
        loader.load_state_dict(state)
        again = np.concatenate([batch["corner"] for batch in loader])

    assert (rest == again).all()


def test_random_crops_start_anywhere_equally_often(tmp_path):
    """By a chi-squared test at one in ten thousand: 64 places, 6,400 crops."""
    np.save(tmp_path / "x.npy", np.zeros((1600, 11, 11), "u1"))
    ds = ndfeed.open(tmp_path / "x.npy").crops({"data": (4, 4)}, each=4, place=True)
    corner = corners_of(ds, seed=5)[0]
    counts = np.bincount(corner[:, 0] * 8 + corner[:, 1], minlength=64)

    assert ((counts - 100) ** 2 / 100).sum() < 117  # 63 degrees of freedom


def test_crops_compose(volumes, tmp_path):
    """With every other view, with memory, and when they are sent elsewhere."""
    ds, cases = volumes
    size = (3, 2, 4)
    sizes = {"image": size, "mask": size}
    crops = ds.crops(sizes, each=2, place=True)

    check(crops.take([4, 1])[:], cases, size)
    for part in crops.split(0.5):
        check(part[:], cases, size)
    check(pickle.loads(pickle.dumps(crops))[:], cases, size)
    check(crops.in_memory()[:], cases, size)
    assert crops.in_memory().fingerprint != crops.fingerprint  # it draws no more
    check(ds.in_memory().crops(sizes, place=True)[:], cases, size)
    picked = ds.take([2, 0]).crops(sizes, place=True)[:]
    assert (picked["label"] == [2, 0]).all()
    assert (picked["case"] == [0, 1]).all()
    names = {"image": "x", "corner": "y"}
    assert set(crops.rename(names).select("x", "y")[:]) == {"x", "y"}
    shown = crops.map(lambda batch: {"sum": batch["image"].sum(axis=(1, 2, 3))})
    assert (shown[:]["sum"] == crops[:]["image"].sum(axis=(1, 2, 3))).all()
    ndfeed.pack(crops, tmp_path / "packed", progress=False)
    check(ndfeed.open(tmp_path / "packed")[:], cases, size)
    file, row = crops.locate(np.arange(6))
    assert [crops.files[one] for one in file] == [p for p in ds.files for _ in range(2)]
    assert not row.any()


def test_rows_have_crops_too(tmp_path):
    """Images in one array; channels are kept whole, wherever they are."""
    images = np.random.default_rng(0).integers(0, 255, (20, 9, 10, 3), np.uint8)
    np.save(tmp_path / "x.npy", images)
    np.save(tmp_path / "y.npy", images.transpose(0, 3, 1, 2).copy())
    np.save(tmp_path / "z.npy", np.arange(20))
    sources = {name: tmp_path / f"{name}.npy" for name in "xyz"}
    ds = ndfeed.open(sources).crops({"x": (4, 5), "y": (None, 4, 5)}, place=True)
    found = ds[:]

    assert found["x"].shape == (20, 4, 5, 3)
    for i, (a, b) in enumerate(found["corner"]):
        assert (found["x"][i] == images[i, a : a + 4, b : b + 5]).all()
    assert (found["y"] == found["x"].transpose(0, 3, 1, 2)).all()
    assert (found["z"] == np.arange(20)).all()


def test_small_cases_are_filled_up_if_asked(volumes):
    """At the end of each axis."""
    ds, cases = volumes
    found = ds.select("image").crops({"image": (8, 8, 8)}, pad=-1)[1]["image"]

    assert (found[:7, :7, :7] == cases[1]).all()
    assert (found == -1).sum() == 8**3 - 7**3


def test_fields_may_be_filled_up_with_values_of_their_own(volumes):
    """Which their dtypes must hold: nothing is rounded without a word."""
    ds, _ = volumes
    sizes = {"image": (8, 8, 8), "mask": (8, 8, 8)}
    found = ds.crops(sizes, pad={"image": -1000, "mask": 255})[1]

    assert found["image"][7, 7, 7] == -1000
    assert found["mask"][7, 7, 7] == 255
    for pad, words in [
        (0.9, "pad=0.9 does not fit field .image., which has dtype int64"),
        (-1, "pad=-1 does not fit field .mask., which has dtype uint8"),
        ({"image": 0}, "pad= must have a value for each of"),
    ]:
        with pytest.raises(ValueError, match=words):
            ds.crops(sizes, pad=pad)
    with pytest.raises(TypeError, match="pad= takes a number, got 'zeros'"):
        ds.crops(sizes, pad="zeros")


def test_a_generator_draws_other_crops(volumes):
    """As it does for maps; without one a row has the same crop every time."""
    ds, cases = volumes
    crops = ds.crops({"image": (3, 3, 3), "mask": (3, 3, 3)}, place=True)
    found = [crops.read([0, 1, 2], rng=np.random.default_rng(i)) for i in (1, 1, 2)]

    for batch in found:
        check(batch, cases, (3, 3, 3))
    assert (found[0]["corner"] == found[1]["corner"]).all()
    assert (found[0]["corner"] != found[2]["corner"]).any()
    assert (crops[:]["corner"] == crops[:]["corner"]).all()


def test_compressed_cases_are_decoded_once_for_all_their_crops(tmp_path):
    """Each member once in an epoch, though its crops come at different times."""
    cases = [np.random.default_rng(i).integers(0, 99, (40, 40)) for i in range(12)]
    write(tmp_path, "deflated", cases)
    ds = open_cases(tmp_path, "deflated").select("image")
    with ndfeed.loader(ds.crops({"image": (8, 8)}, each=4), 6, shuffle=True) as loader:
        assert sum(len(batch["image"]) for batch in loader) == 48
        assert loader.report().streams == 12


def test_only_the_bytes_of_a_box_are_read(tmp_path):
    """And few between them, where files are not mapped."""
    volume = np.arange(64**3, dtype="<i4").reshape(64, 64, 64)
    np.save(tmp_path / "x.npy", volume)
    ds = ndfeed.open([tmp_path / "x.npy"], sample="file", mapped=False)
    crops = ds.crops({"data": (16, 16, 16)}, each=3, place=True)
    with open("/proc/self/io") as file:
        before = int(file.read().split("rchar: ")[1].split()[0])
    found = crops[:]
    with open("/proc/self/io") as file:
        after = int(file.read().split("rchar: ")[1].split()[0])

    check({"image": found["data"], **found}, [volume], (16, 16, 16))
    assert after - before < 4 * found["data"].nbytes


COLD = """
def count(name):
    with open("/proc/self/io") as file:
        return int(file.read().split(f"{name}: ")[1].split()[0])

ds = ndfeed.open(args[1:], sample="file", mapped=args[0] == "read_bytes")
# With a map, crops of the next epoch are not prefetched.
crops = ds.crops({"data": (96, 96, 96)}, each=3).map(dict)
before = count(args[0])
with ndfeed.loader(crops, 3, shuffle=True, processes=0) as loader:
    useful = sum(batch["data"].nbytes for batch in loader)
print(count(args[0]) - before, useful)
"""


@pytest.mark.skipif(not can.advise or not can.probe, reason="hints are Linux's")
def test_crops_of_volumes_take_at_most_three_times_their_bytes(tmp_path):
    """From a cold disk, in a process of its own, whatever the kernel reads around page faults."""
    paths = [tmp_path / f"{i}.npy" for i in range(2)]
    for path in paths:
        with path.open("wb") as file:
            np.save(file, np.zeros((256, 256, 256), np.float32))
            file.flush()
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    for what in ("read_bytes", "rchar"):  # mapped, from the disk; and by position, as was asked
        taken, useful = map(int, run(COLD, what, *paths).split())
        assert useful == 6 * 4 * 96**3
        # None where a file system keeps everything in memory.
        assert taken < 3 * useful


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda ds: ds.crops({"image": (99, 3, 3)}), "smaller than crops of (99, 3, 3)"),
        (
            lambda ds: ds.crops({"image": (3, 3, 3), "mask": (2, 3, 3)}),
            "give 'image' and 'mask' one",
        ),
        (
            lambda ds: ds.rename({"mask": "case"}).crops({"image": (3, 3, 3)}, grid=0),
            "'case' exists",
        ),
        (lambda ds: ds.crops({"nope": (3, 3, 3)}), "'nope'"),
        (lambda ds: ds.crops({"image": (3, 3, 3, 3)}), "fewer axes than crops"),
        (lambda ds: ds.crops({"image": (3, 3), "mask": (3,)}), "in 2 axes and 'mask' in 1"),
        (lambda ds: ds.crops({"image": (0, 3, 3)}), "must be at least 1, got 0"),
        (lambda ds: ds.crops({"image": (None,)}), "must have a number"),
        (lambda ds: ds.crops({}), "crops() takes a dict such as"),
        (lambda ds: ds.crops((3, 3, 3)), "crops() takes a dict such as"),
        (lambda ds: ds.crops({"image": (3, 3, 3)}, each=0), "each must be at least 1"),
        (lambda ds: ds.crops({"image": (3, 3, 3)}, each=2, grid=0), "takes one of each="),
        (lambda ds: ds.crops({"image": (3, 3, 3)}, grid=3), "from 0 to less than (3, 3, 3)"),
        (lambda ds: ds.crops({"image": (3, 3, 3)}, at=[[0, 1]]), "at= takes rows of 4 whole"),
        (lambda ds: ds.crops({"image": (3, 3, 3)}, at=[[9, 0, 0, 0]]), "cases from 9 to 9"),
        (lambda ds: ds.crops({"image": (3, 3, 3)}, at=[[0, 7, 0, 0]]), "corner [7, 0, 0] in case"),
        (lambda ds: ds.crops({"image": (3, 3, 3), "label": (3, 3, 3)}), "fewer axes than crops"),
        (lambda ds: ds.map(lambda b: b).crops({"image": (3, 3, 3)}), "comes before map()"),
        (lambda ds: ds.crops({"image": (3, 3, 3)}, grid=1.5), "grid= must be a whole number"),
        (lambda ds: ds.crops({"image": (3, 3, 3)}, each=2**70), "each must be at most"),
        (lambda ds: ds.crops({"image": (2**70, 3, 3)}, pad=0), "must be at most"),
        (lambda ds: ds.crops({"image": (2**40, 3, 2**40)}, pad=0), "281,474,976,710,656 elements"),
    ],
)
def test_what_makes_no_crops_is_refused(volumes, call, words):
    """In one line that says what to change."""
    ds, _ = volumes
    with pytest.raises((ValueError, TypeError, IndexError, SchemaError, FieldError)) as caught:
        call(ds)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_error_names_the_row_not_what_was_drawn(volumes):
    """A row is one of those that there are."""
    ds, _ = volumes

    def fail(batch):
        if (batch["label"] == 2).any():
            raise KeyError("no")
        return batch

    crops = ds.crops({"image": (3, 3, 3)}).map(fail)
    with ndfeed.loader(crops, 1, seed=1) as loader, pytest.raises(KeyError) as caught:
        list(loader)
    assert "rows 2" in "".join(caught.value.__notes__)


def test_crops_of_crops_are_refused(tmp_path):
    """Their numbers count places in several axes, which windows and further crops do not know."""
    np.save(tmp_path / "x.npy", np.arange(240).reshape(2, 12, 10))
    crops = ndfeed.open(tmp_path / "x.npy").crops({"data": (11, 8)}, grid=(10, 7))
    with pytest.raises(ValueError, match=r"crops\(\) of crops"):
        crops.crops({"data": (2, 2)}, place=False)
    for some in (crops, crops.select("case"), crops.select("corner")):
        with pytest.raises(ValueError, match=r"windows\(\) of crops"):
            some.windows(2)
    memory = crops.select("data").in_memory()
    assert (memory.crops({"data": (2, 2)}, at=[[3, 1, 2]])[0]["data"]
            == crops[3]["data"][1:3, 2:4]).all()  # fmt: skip


def sources_of_one_shape(tmp_path):
    """Crops of every kind, and samples that have their size from the start."""
    rng = np.random.default_rng(0)
    for coding in ("npy", "deflated"):
        (tmp_path / coding).mkdir()
        write(tmp_path / coding, coding, [rng.random((n, 7, 2)) for n in (4, 9, 6)])
        ds = open_cases(tmp_path / coding, coding).select("image")
        yield ds.crops({"image": (3, 4)}, each=3)
        yield ds.take([2, 0]).crops({"image": (3, 4)}, each=2).take([3, 0, 0])
        yield ds.crops({"image": (3, 4)}, grid=1, place=False)
        yield ds.crops({"image": (3, 4)}, at=[[2, 1, 1], [0, 0, 3], [1, 5, 0]], place=False)
    yield ds.crops({"image": (3, 4, 2)}, each=2)
    np.savez(tmp_path / "rows.npz", image=rng.random((6, 3, 4, 2)))
    rows = ndfeed.open(tmp_path / "rows.npz")
    yield from (rows, rows.take([4, 4, 1]), rows.in_memory())
    (tmp_path / "files").mkdir()
    write(tmp_path / "files", "npy", rng.random((3, 3, 4, 2)))
    yield open_cases(tmp_path / "files", "npy")


def test_sums_have_the_crops_of_each(tmp_path):
    """Whatever the other dataset is; views of sums, too, and in another process."""
    sources = list(sources_of_one_shape(tmp_path))
    values = [one[:]["image"] for one in sources]
    rng = np.random.default_rng(0)
    for i, first in enumerate(sources):
        for j, second in enumerate(sources):
            k = int(rng.integers(len(sources)))
            both = first + second
            every = np.concatenate([values[i], values[j], values[k]])
            rows = rng.integers(0, len(every), 9)
            for one in (both + sources[k], first + (second + sources[k])):
                assert len(one) == len(every)
                assert (one[:]["image"] == every).all()
                assert (one.take(rows)[:]["image"] == every[rows]).all()
                assert (pickle.loads(pickle.dumps(one))[:]["image"] == every).all()


@pytest.fixture
def two_kinds(tmp_path):
    """Random crops and chosen ones of other files, and the cases of both."""
    rng, cases = np.random.default_rng(3), {}
    for name, coding in (("all", "stored"), ("some", "deflated")):
        (tmp_path / name).mkdir()
        cases[name] = [rng.integers(0, 10**6, (n, 40)) for n in (30, 41, 35)]
        write(tmp_path / name, coding, cases[name])
    box = {"image": (5, 6), "mask": (5, 6)}
    random = open_cases(tmp_path / "all", "stored").crops(box, each=8, place=True)
    at = [[i % 3, i, 2 * i] for i in range(12)]
    return random, open_cases(tmp_path / "some", "deflated").crops(box, at=at), cases


def batches_of(ds, state=None, **options):
    """The batches of two epochs, or of the rest of one."""
    with ndfeed.loader(ds, 4, shuffle=True, seed=5, **options) as loader:
        if state is not None:
            loader.load_state_dict(state)
            return list(loader)
        return [batch for _ in range(2) for batch in loader]


def same_batches(some, others):
    for one, other in zip(some, others, strict=True):
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])


@pytest.mark.parametrize("mixed", [False, True])
def test_random_crops_of_sums_and_mixtures_are_drawn(two_kinds, mixed):
    """By position, as those of one dataset: for any threads and processes, and after a resume."""
    random, chosen, cases = two_kinds
    together = random + chosen
    if mixed:
        together = ndfeed.mix({"all": random, "some": chosen}, weights=[1, 2], source="source")
    made = batches_of(together)
    corners = []
    for batch in made:
        for i, image in enumerate(batch["image"]):
            place = int(batch["case"][i]), *batch["corner"][i].tolist()
            box = box_of(place[1:], (5, 6))
            fits = [name for name in cases if (cases[name][place[0]][box] == image).all()]
            assert len(fits) == 1
            assert not mixed or fits == [["all", "some"][batch["source"][i]]]
            corners += [place] if fits == ["all"] else []
        assert (batch["mask"] == batch["image"] % 3).all()
    assert len(set(corners)) > 0.9 * len(corners) > 10
    same_batches(made, batches_of(together, threads=3))
    same_batches(made, batches_of(together, processes=2))
    with ndfeed.loader(together, 4, shuffle=True, seed=5) as loader:
        next(iter(loader))
        rest = batches_of(together, loader.state_dict())
    same_batches(made[1 : len(made) // 2], rest)


@pytest.mark.parametrize("files_first", [True, False])
def test_crops_of_files_and_rows_together(tmp_path, files_first):
    """Arrays of one sample have no axis for rows, those of many have one."""
    rng = np.random.default_rng(0)
    images, stacked = rng.integers(0, 255, (3, 6, 7)), rng.integers(0, 255, (4, 6, 7))
    (tmp_path / "each").mkdir()
    for i, image in enumerate(images):
        np.savez(tmp_path / "each" / f"{i}.npz", image=image)
    np.savez(tmp_path / "stacked.npz", image=stacked)
    each = ndfeed.open(tmp_path / "each", sample="file"), images
    rows = ndfeed.open(tmp_path / "stacked.npz"), stacked
    (first, one), (second, two) = (each, rows) if files_first else (rows, each)
    cases = np.concatenate([one, two])

    found = (first + second).crops({"image": (3, 3)}, grid=1)[:]
    assert len(found["case"]) == 7 * 9
    for crop, case, (y, x) in zip(found["image"], found["case"], found["corner"], strict=True):
        np.testing.assert_array_equal(crop, cases[case][y : y + 3, x : x + 3])


def test_places_of_sums_are_those_of_each(two_kinds, tmp_path):
    """Cases are numbered in each dataset; packs, maps and copies in memory have them, too."""
    random, chosen, _ = two_kinds
    both = random.map(halve) + chosen.map(keep)
    for one in (both, both.in_memory(), ndfeed.pack(both, tmp_path / "packed")):
        batch = one[:]
        for name in ("case", "corner", "label"):
            expected = np.concatenate([random[:][name], chosen[:][name]])
            np.testing.assert_array_equal(batch[name], expected)
        assert (batch["image"][: len(random)] == random[:]["image"] // 2).all()
        assert (batch["image"][len(random) :] == chosen[:]["image"]).all()


def halve(batch):
    return batch | {"image": batch["image"] // 2}


def keep(batch):
    return batch


def test_crops_that_cannot_be_added(tmp_path):
    """What fills them up must be the same, and what says where they lie."""
    np.save(tmp_path / "x.npy", np.arange(240.0).reshape(2, 12, 10))
    ds = ndfeed.open(tmp_path / "x.npy")
    padded = ds.crops({"data": (14, 4)}, pad=0)

    assert len(padded + ds.crops({"data": (14, 4)}, pad=0)) == 4
    for other in (ds.crops({"data": (14, 4)}, pad=1), ds.crops({"data": (15, 4)}, pad=0)):
        with pytest.raises(ValueError, match="differ in pad= or in size"):
            padded + other
    placed = ds.crops({"data": (3, 4)}, grid=0)
    with pytest.raises(ValueError, match=r"'case' says where crops lie .* leave it out"):
        placed + placed.in_memory()
    assert len(placed.select("data") + placed.in_memory().select("data")) == 2 * len(placed)
    with pytest.raises(SchemaError, match=r"expected fields .* select the ones both have"):
        placed + ds.crops({"data": (3, 4)}, each=2)
    later = placed.select("data").with_labels(np.arange(len(placed)))
    before = ds.with_labels([0, 1]).crops({"data": (3, 4)}, each=2)
    with pytest.raises(ValueError, match=r"with_labels\(\) before crops"):
        later + before


@pytest.mark.parametrize("mapped", [True, False])
def test_crops_of_windows_that_go_back(tmp_path, mapped):
    """Strides are negative there, also where files are read by position."""
    np.save(tmp_path / "x.npy", np.arange(40))
    windows = ndfeed.open(tmp_path / "x.npy", mapped=mapped).windows(offsets=range(0, -6, -1))
    batch = windows.crops({"data": (3,)}, grid=0)[:]
    first = batch["case"] + 5 - batch["corner"][:, 0]
    assert (batch["data"] == first[:, None] - np.arange(3)).all()


@pytest.mark.parametrize("mapped", [True, False])
def test_padded_crops_that_keep_an_axis_whole(tmp_path, mapped):
    """Samples stay ragged in that axis, and are filled up in the others; some have no elements."""
    cases = [np.arange(n * m).reshape(n, m) for n, m in ((3, 4), (5, 9), (2, 6), (2, 0))]
    for i, case in enumerate(cases):
        np.save(tmp_path / f"{i}.npy", case)
    ds = ndfeed.open(tmp_path, sample="file", mapped=mapped)
    crops = ds.crops({"data": (None, 6)}, grid=0, pad=-1)
    batch = crops[:]
    for found, case, (corner,) in zip(batch["data"], batch["case"], batch["corner"], strict=True):
        box = cases[case][:, corner : corner + 6]
        expected = np.full((len(box), 6), -1)
        expected[:, : box.shape[1]] = box
        assert np.array_equal(found, expected)
    assert crops.select("data").nbytes == sum(one.nbytes for one in batch["data"])
    assert crops.lengths("data").tolist() == [len(one) for one in batch["data"]]
    again = [one for part in ndfeed.loader(crops, 2) for one in part["data"]]
    assert all(map(np.array_equal, again, batch["data"]))


@pytest.mark.parametrize("pad", [300, -1, 1.5, float("nan")])
def test_padding_that_a_field_cannot_hold(tmp_path, pad):
    """Refused at once: NumPy would cut off the fraction, or fail on the first small case."""
    np.save(tmp_path / "x.npy", np.ones((2, 3), np.uint8))
    with pytest.raises(ValueError, match="does not fit field 'data', which has dtype uint8"):
        ndfeed.open(tmp_path / "x.npy").crops({"data": (5,)}, pad=pad)
    with pytest.raises(TypeError, match="pad= takes a number"):
        ndfeed.open(tmp_path / "x.npy").crops({"data": (5,)}, pad="1")


def test_crops_know_their_files(tmp_path):
    """Also of samples in memory, which no longer lie in files, and of windows with a stride."""
    for i in range(3):
        np.save(tmp_path / f"{i}.npy", np.full((6, 6), i))
    held = ndfeed.open(tmp_path, sample="file").in_memory()
    crops = held.crops({"data": (3, 3)}, grid=0)
    labelled = crops.with_labels(lambda path: int(path[-5]))[:]
    assert (labelled["label"] == labelled["data"][:, 0, 0]).all()
    assert (crops.locate(np.arange(len(crops)))[0] == labelled["label"]).all()
    np.save(tmp_path / "x.npy", np.arange(40))
    steps = ndfeed.open(tmp_path / "x.npy").windows(6, stride=3).crops({"data": (2,)}, grid=0)
    first = steps[:]["data"][:, 0] - steps[:]["corner"][:, 0]
    assert (steps.locate(np.arange(len(steps)))[1] == first).all()


@pytest.mark.parametrize("size", [(2, 1), (3, 4), (1, 4)])
def test_crops_of_compressed_rows_are_packed(tmp_path, size):
    """A stream is decoded in the order of rows, which is not that of crops."""
    np.savez_compressed(tmp_path / "x.npz", data=np.arange(288).reshape(24, 3, 4))
    crops = ndfeed.open(tmp_path / "x.npz").crops({"data": size}, grid=0)
    packed = ndfeed.pack(crops, tmp_path / "packed", progress=False)
    for name, values in crops[:].items():
        assert np.array_equal(packed[:][name], values)


def test_cases_that_were_left_out_may_be_small(tmp_path):
    """As the error says that they may, whatever the selection looks like."""
    rng = np.random.default_rng(0)
    cases = [rng.random((n, 12)) for n in (12, 3, 9, 3, 20)]
    write(tmp_path, "npy", cases)
    ds = open_cases(tmp_path, "npy")

    with pytest.raises(SchemaError, match="exclude it with take"):
        ds.crops({"image": (8, 8)})
    for rows in ([4, 0], [2, 2], range(4, -1, -2), np.array([True, False, True, False, True])):
        taken = ds.take(rows)
        crops = taken.crops({"image": (8, 8)}, each=2, place=True)
        chosen = [cases[i] for i in np.arange(5)[rows]]
        check(crops[:], chosen, (8, 8))
        check(taken.crops({"image": (8, 8)}, grid=0)[:], chosen, (8, 8))
        assert crops.nbytes == len(crops) * (64 + 1 + 2) * 8
    with pytest.raises(SchemaError, match=r"001.npy: field 'image' is \(3, 12\)"):
        ds.take([0, 1]).crops({"image": (8, 8)})


@pytest.mark.parametrize("coding", ["npy", "deflated"])
@pytest.mark.parametrize("size", [(None, 5), (8, 2)])
def test_crops_of_several_shapes_are_packed(tmp_path, coding, size):
    """An axis that is kept whole, or one behind those that are cut, differs from case to case."""
    rng = np.random.default_rng(0)
    cases = [rng.random((n, 12, 1 + n % 3)).astype("f4") for n in (12, 4, 8)]
    (tmp_path / "cases").mkdir()
    write(tmp_path / "cases", coding, cases)
    ds = open_cases(tmp_path / "cases", coding).select("image")
    random = ds.crops({"image": size}, each=3, pad=0)
    grid = ds.crops({"image": size}, grid=1, pad=1)
    for i, crops in enumerate((random, grid)):
        packed = ndfeed.pack(crops, tmp_path / f"packed {i}")
        for stored, crop in zip(packed[:]["image"], crops[:]["image"], strict=True):
            np.testing.assert_array_equal(stored, crop, strict=True)


def test_conditions_on_what_is_drawn_anew_are_refused(volumes):
    """The crops that met them would not be those that a loader delivers."""
    ds, _ = volumes
    crops = ds.crops({"image": (3, 3, 3), "mask": (3, 3, 3)}, each=4, place=True)
    for condition in (
        {"condition": lambda batch: batch["mask"].any((1, 2, 3))},
        {"condition": lambda batch: batch["mask"].any((1, 2, 3)), "fields": ("mask", "label")},
        {"condition": lambda batch: batch["corner"][:, 0] > 3, "fields": "corner"},
    ):
        with pytest.raises(ValueError, match="differs in every epoch; name fields that are not"):
            crops.where(**condition)

    assert crops.where(lambda batch: batch["label"] == 1, fields="label")[:]["label"].all()
    assert len(crops.where(lambda batch: batch["case"] == 1, fields="case")) == 4
    chosen = ds.crops({"mask": (1, 1, 2)}, grid=0).where(lambda b: b["mask"].all((1, 2, 3)))
    assert len(chosen) > 0
    assert chosen[:]["mask"].all()


def test_crops_of_rows_that_are_joined_are_refused(tmp_path):
    """Windows at uneven offsets are put together when they are read."""
    np.save(tmp_path / "x.npy", np.arange(120).reshape(20, 6))
    windows = ndfeed.open(tmp_path / "x.npy").windows(offsets=[0, 1, 3])

    with pytest.raises(ValueError, match="give offsets= evenly spaced"):
        windows.crops({"data": (None, 3)})


def test_samples_that_were_taken_twice_are_two_cases(tmp_path):
    """So results find their place, and a chosen case is the one that was chosen."""
    np.save(tmp_path / "x.npy", np.arange(24).reshape(4, 6))
    ds = ndfeed.open(tmp_path / "x.npy").with_labels([5, 6, 7, 8])
    twice = ds.take([2, 0, 0, 2])
    grid = twice.crops({"data": (4,)}, grid=2)
    at = [[3, 1], [2, 0], [0, 2]]
    chosen = pickle.loads(pickle.dumps(twice.crops({"data": (4,)}, at=at)))[:]

    assert grid[:]["case"].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert grid[:]["data"][::2].tolist() == twice[:]["data"][:, :4].tolist()
    assert np.column_stack([chosen["case"], chosen["corner"]]).tolist() == at
    assert chosen["data"].tolist() == [[13, 14, 15, 16], [0, 1, 2, 3], [14, 15, 16, 17]]
    assert chosen["label"].tolist() == [7, 5, 7]
    drawn = twice.crops({"data": (4,)}, each=3, place=True)
    assert drawn[:]["case"].tolist() == np.repeat(range(4), 3).tolist()
    assert drawn.locate(range(12))[1].tolist() == np.repeat([2, 0, 0, 2], 3).tolist()


def test_more_crops_than_can_be_numbered_are_refused(tmp_path):
    """Their numbers would begin again at crops of another place."""
    np.save(tmp_path / "x.npy", np.zeros((400, 400), "u1"))
    ds = ndfeed.open(tmp_path / "x.npy", sample="file")

    assert ds.crops({"data": (1, 1)}, each=2**45)[2**45 - 1]["data"] == 0
    with pytest.raises(ValueError, match="are too many to be numbered"):
        ds.crops({"data": (1, 1)}, each=2**46)


def test_no_crops_at_all(volumes):
    """A list of places may be empty."""
    ds, _ = volumes

    assert ds.crops({"image": (3, 3, 3)}, at=[])[:]["image"].shape == (0, 3, 3, 3)
