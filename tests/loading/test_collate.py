"""Small batches in one piece, for an adapter that takes them so."""

import numpy as np
import pytest
from loading.making import compressed, numbers

import ndfeed
from ndfeed.loading.adapter import Adapter
from ndfeed.loading.engine import BatchGroup, count_batches
from ndfeed.loading.loader import Loader
from ndfeed.loading.options import settle


class Joint(Adapter):
    """Arrays as they are, several batches at a time."""

    joint = True


def loader_of(ds, size, rank=0, world=1, shuffle=True, **more):
    options = {"fields": None, "memory": None, "threads": None, "processes": 0, "seed": 0}
    options |= {"ragged": "list", "on_error": "raise", "drop_last": False}
    return Loader(settle(ds, size, shuffle=shuffle, shard=(rank, world), **(options | more)), Joint)


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("coded", [False, True])
def test_pieces_are_batches_end_to_end(tmp_path, world, coded):
    """Of any rank, also where files are decoded: cut, they are what others get."""
    ds = compressed(tmp_path / "c", 5, 40)[0] if coded else numbers(tmp_path, 203)
    for rank in range(world):
        loader = loader_of(ds, 4, rank, world)
        plain = ndfeed.loader(ds, 4, shuffle=True, shard=(rank, world))
        for _ in range(2):
            found = list(loader)
            pieces = [one.made if isinstance(one, BatchGroup) else one for one in found]
            expected = list(plain)

            assert any(isinstance(one, BatchGroup) for one in found)
            assert sum(map(count_batches, found)) == len(expected)
            for name in expected[0]:
                np.testing.assert_array_equal(
                    np.concatenate([piece[name] for piece in pieces]),
                    np.concatenate([batch[name] for batch in expected]),
                )


def test_a_piece_counts_as_its_batches(tmp_path):
    """In states and in reports."""
    loader = loader_of(numbers(tmp_path, 1000), 10, threads=1)
    batches = iter(loader)
    first, second = next(batches), next(batches)
    taken = count_batches(first) + count_batches(second)

    assert taken > 2
    assert loader.state_dict()["samples"] == 10 * taken
    assert loader.report().batches == taken


def noisy(batch, rng):
    return {"data": batch["data"], "z": rng.random(len(batch["data"]), np.float32)}


@pytest.mark.parametrize("words", [{}, {"memory": 6_000}, {"processes": 1}])
def test_maps_are_given_single_batches(tmp_path, words):
    """What they draw belongs to one batch; what they made is joined, bit by bit the same."""
    ds = numbers(tmp_path, 1003).map(noisy)
    with loader_of(ds, 10, **words) as loader:
        found = list(loader)
    expected = list(ndfeed.loader(ds, 10, shuffle=True))
    pieces = [one.made if isinstance(one, BatchGroup) else one for one in found]

    assert any(isinstance(one, BatchGroup) for one in found)
    assert sum(map(count_batches, found)) == len(expected) == 101
    for name in ("data", "z"):
        np.testing.assert_array_equal(
            np.concatenate([piece[name] for piece in pieces]),
            np.concatenate([batch[name] for batch in expected]),
        )


def test_an_error_of_a_map_comes_behind_what_was_made(tmp_path):
    """Those in the same piece, too."""

    def broken(batch):
        if (batch["data"] >= 570).any():
            raise ValueError("no more")
        return batch

    ds = numbers(tmp_path, 1000).map(broken)
    found = []
    with pytest.raises(ValueError, match="no more"):
        found.extend(loader_of(ds, 10, shuffle=False))

    assert sum(map(count_batches, found)) == 57


def test_batches_that_are_not_alike_stay_apart(tmp_path):
    """Nothing is cast, and nothing is padded."""

    def grown(batch):
        wide = batch["data"].reshape(len(batch["data"]), -1)
        return {"data": wide if wide[0, 0] % 20 else wide[:, :1].astype(np.float32)}

    ds = numbers(tmp_path, 400, width=2).map(grown)
    with loader_of(ds, 10) as loader:
        kinds = [(a.dtype, a.shape[1:]) for b in loader for a in unjoined(b)]
    plain = ndfeed.loader(ds, 10, shuffle=True)

    assert kinds == [(b["data"].dtype, b["data"].shape[1:]) for b in plain]
    assert len(set(kinds)) == 2


def unjoined(found):
    return [found.made["data"]] * found.count if isinstance(found, BatchGroup) else [found["data"]]


def test_pieces_hold_no_more_than_they_may(tmp_path):
    """A map may make more of a batch than was read."""
    ds = numbers(tmp_path, 4000).map(lambda b: {"x": np.zeros((len(b["data"]), 1000))})
    with loader_of(ds, 10, memory="4MB") as loader:
        found = list(loader)

    assert max(one.made["x"].nbytes for one in found if isinstance(one, BatchGroup)) <= 1 << 20
    assert sum(map(count_batches, found)) == 400
