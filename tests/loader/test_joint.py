"""Small batches in one piece, for an adapter that takes them so."""

import numpy as np
import pytest
from loader.making import compressed, numbers

import ndfeed
from ndfeed.loader.engine import Several, counted
from ndfeed.loader.loader import Loader
from ndfeed.loader.options import Options
from ndfeed.order.share import Share


class Joint:
    """Arrays as they are, several batches at a time."""

    allocate = None
    threads = None
    ahead = 0
    together = 8 << 20
    joint = True

    def source(self, host):
        return host

    def finish(self, made):
        return made

    send = receive = finish

    def describe(self):
        return ""

    def close(self):
        pass


def loader_of(ds, size, rank=0, world=1, **words):
    options = {"fields": None, "memory": None, "threads": None, "processes": 0, "seed": 0}
    options |= {"ragged": "list", "on_error": "raise"}
    share = Share(len(ds), size, rank, world, False)
    return Loader(ds, share, True, Options.of(ds, **(options | words)), Joint)


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
            pieces = [one.made if isinstance(one, Several) else one for one in found]
            expected = list(plain)

            assert any(isinstance(one, Several) for one in found)
            assert sum(map(counted, found)) == len(expected)
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
    taken = counted(first) + counted(second)

    assert taken > 2
    assert loader.state_dict()["samples"] == 10 * taken
    assert loader.report().batches == taken


def test_maps_are_given_single_batches(tmp_path):
    """What they draw belongs to one batch; there are no pieces then."""
    ds = numbers(tmp_path, 100).map(lambda batch: batch)

    assert not any(isinstance(one, Several) for one in loader_of(ds, 10))
