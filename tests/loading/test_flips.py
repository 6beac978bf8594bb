"""``flip=``: which samples are reversed, the same everywhere, in every framework that has it."""

import importlib

import numpy as np
import pytest

import ndfeed
from ndfeed.errors import FieldError
from ndfeed.loading.map_rng import SampleSeeds, key_of

N = 400
WAYS = [(), (0,), (1,), (0, 1)]
FLIP = {"image": (0, 1), "mask": (0, -1)}


@pytest.fixture(params=["torch", "jax"])
def loader(request):
    pytest.importorskip(request.param)
    return importlib.import_module(f"ndfeed.{request.param}").loader


@pytest.fixture
def ds(tmp_path):
    image = np.random.default_rng(0).integers(0, 255, (N, 6, 5, 3), np.uint8)
    mask = np.arange(N * 30, dtype=np.int32).reshape(N, 6, 5)
    np.savez(tmp_path / "x.npz", image=image, mask=mask, i=np.arange(N, dtype=np.int32))
    return ndfeed.open(tmp_path / "x.npz")


def turns(batches, ds):
    """How each sample came, image and mask alike, in the order of the batches."""
    stored, found = ds[:], []
    for batch in batches:
        for i, image, mask in zip(*(np.asarray(batch[n]) for n in ("i", "image", "mask"))):  # noqa: B905
            fits = [
                k
                for k, way in enumerate(WAYS)
                if np.array_equal(np.flip(stored["image"][i], way), image)
                and np.array_equal(np.flip(stored["mask"][i], way), mask)
            ]
            assert len(fits) == 1, "neither as it is stored, nor flipped alike"
            found.append((int(i), fits[0]))
    return found


def test_fields_are_flipped_alike_in_every_way_equally_often(loader, ds):
    """An image and its mask stay the same picture; each axis has a coin of its own."""
    with loader(ds, 64, shuffle=True, flip=FLIP) as batches:
        first, second = turns(batches, ds), turns(batches, ds)
    for epoch in (first, second):
        assert [i for i, _ in epoch] != sorted(i for i, _ in epoch)
        assert min(np.bincount([way for _, way in epoch])) > N / 4 * 0.7
    changed = np.mean([dict(first)[i] != dict(second)[i] for i in range(N)])
    assert 0.65 < changed < 0.85


def test_flips_depend_on_seed_epoch_and_position_alone(loader, ds):
    """Not on batch size, threads, ranks, or where a run was stopped."""
    words = {"shuffle": True, "seed": 5, "flip": FLIP}
    expected = turns(loader(ds, 64, **words), ds)
    assert turns(loader(ds, 10, threads=1, **words), ds) == expected
    assert turns(loader(ds, 1, threads=3, memory="1MB", **words), ds) == expected
    ranks = [turns(loader(ds, 20, shard=(rank, 2), **words), ds) for rank in range(2)]
    assert sorted(ranks[0] + ranks[1]) == sorted(expected)
    stopped = loader(ds, 50, **words)
    batches = iter(stopped)
    for _ in range(3):
        next(batches)
    later = loader(ds, 32, **words)
    later.load_state_dict(stopped.state_dict())
    assert turns(later, ds) == expected[150:]


def test_frameworks_flip_the_same_samples(ds):
    pytest.importorskip("torch")
    pytest.importorskip("jax")
    each = [importlib.import_module(f"ndfeed.{name}").loader for name in ("torch", "jax")]
    first, second = (turns(one(ds, 30, shuffle=True, flip=FLIP), ds) for one in each)
    assert first == second


def test_a_row_that_comes_twice_is_flipped_by_its_position(loader, ds):
    """Orders that draw rows repeat them."""
    weights = np.zeros(N)
    weights[7] = 1
    found = turns(loader(ds, 50, shuffle=ndfeed.Weighted(weights), flip=FLIP), ds)
    assert {i for i, _ in found} == {7}
    assert {way for _, way in found} == set(range(4))


def test_flips_do_not_follow_random_crops(loader, tmp_path):
    """Both are drawn for the same position."""
    np.save(tmp_path / "x.npy", np.tile(np.arange(5, dtype=np.int32), (2000, 1)))
    ds = ndfeed.open({"x": tmp_path / "x.npy"}, sample="row").crops({"x": (4,)}, place=True)
    count = np.zeros((2, 2), int)
    for batch in loader(ds, 100, flip={"x": 0}):
        x, corner = np.asarray(batch["x"]), np.asarray(batch["corner"])[:, 0]
        np.add.at(count, (corner, (x[:, 0] > x[:, 1]).astype(int)), 1)
    assert count.min() > 400


def test_what_a_map_returns_is_flipped_and_left_as_it_is(loader, ds):
    """It may return the same array again and again."""
    kept = ds[:20]

    def same(_):
        return {name: values[:20] for name, values in kept.items()}

    before = {name: values.copy() for name, values in kept.items()}
    for _ in range(2):
        turns(loader(ds.take(range(20)).map(same), 20, flip=FLIP), ds)
    assert all(np.array_equal(kept[name], before[name]) for name in kept)


def test_samples_that_are_skipped_change_no_flip_of_others(loader, ds):
    def fails(sample):
        if sample["i"] % 7 == 3:
            raise LookupError("on purpose")
        return sample

    words = {"shuffle": True, "flip": FLIP, "on_error": "skip"}
    expected = [one for one in turns(loader(ds, 25, **words), ds) if one[0] % 7 != 3]
    mapped = ds.map(fails, batched=False)
    assert turns(loader(mapped, 25, **words), ds) == expected


def test_a_rank_may_have_no_sample_of_the_last_batch(loader, ds):
    """Nothing is drawn for it then."""
    ranks = [list(loader(ds.take(range(42)), 10, shard=(r, 4), flip=FLIP)) for r in range(4)]
    assert [[len(batch["image"]) for batch in each] for each in ranks] == [
        [10, count] for count in (1, 1, 0, 0)
    ]


def test_drawn_bytes_are_frozen():
    """A run that resumes relies on them."""
    seeds = SampleSeeds.of(key_of(3, 1), [(5, 13, 1)])
    assert seeds.draw_bytes().tolist() == GOLDEN
    assert SampleSeeds.join([seeds.only(np.arange(3)), seeds]).draw_bytes().tolist() == [
        *GOLDEN[:3],
        *GOLDEN,
    ]


GOLDEN = [42, 6, 200, 97, 10, 67, 56, 123]


@pytest.mark.parametrize("dtype", ["?", "u1", "u2", "<f2", "<f4", "<i4", "<c8"])
def test_every_dtype_is_flipped(loader, tmp_path, dtype):
    stored = np.arange(600).reshape(100, 6).astype(dtype)
    np.save(tmp_path / "x.npy", stored)
    ds = ndfeed.open({"x": tmp_path / "x.npy"}, sample="row")
    found = np.concatenate([np.asarray(b["x"]) for b in loader(ds, 9, flip={"x": -1})])
    turned = (SampleSeeds.of(key_of(0, 0), [(0, 100, 1)]).draw_bytes() & 1).astype(bool)
    np.testing.assert_array_equal(found, np.where(turned[:, None], stored[:, ::-1], stored))


@pytest.mark.parametrize(
    ("flip", "error", "message"),
    [
        ("horizontal", TypeError, r'flip takes a dict such as \{"image": 1, "mask": 1\}'),
        ({"image": "width"}, TypeError, "axes of a sample such as 1 or .* for 'image'"),
        ({"image": ()}, ValueError, "1 to 8 axes, got 0 for 'image'"),
        ({"image": (0, 1), "mask": 1}, ValueError, "all fields need as many axes"),
        ({"image": 3}, ValueError, r"axes \(3,\) of 'image', .* shape \(6, 5, 3\): axes count"),
        ({"image": -4}, ValueError, r"axes \(-4,\) of 'image'"),
        ({"image": (1, -2)}, ValueError, "each comes once"),
        ({"i": 0}, ValueError, r"axes \(0,\) of 'i', whose samples have the shape \(\)"),
        ({"imgae": 1}, FieldError, "no field 'imgae'"),
    ],
)
def test_wrong_flips_are_refused(loader, ds, flip, error, message):
    """When the loader is made."""
    with pytest.raises(error, match=message):
        loader(ds, 10, flip=flip)


def test_ragged_samples_are_refused(loader, tmp_path):
    """Padding would be flipped with them."""
    for i in range(3):
        np.savez(tmp_path / f"{i}.npz", x=np.zeros((i + 1, 4), np.float32))
    ds = ndfeed.open(tmp_path, sample="file")
    with pytest.raises(ValueError, match=r"all have one shape; 'x' is .* flip it in a map"):
        loader(ds, 2, flip={"x": 1})


def test_what_cannot_be_known_before_is_checked_in_its_batch(loader, ds):
    """A map that fails on the first sample says nothing of what it makes."""
    seen = []

    def late(batch):
        seen.append(1)
        if len(seen) < 2:
            raise LookupError("not yet")
        return {"x": batch["mask"][:, 0, 0]}

    with pytest.raises(ValueError, match=r"axes \(-2,\) of 'x'"):
        list(loader(ds.map(late), 10, threads=1, processes=0, flip={"x": -2}))
