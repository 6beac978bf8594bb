"""Memory that is lent is lent again only when nobody can see it any more."""

import gc
import threading

import numpy as np
import pytest

from ndfeed.loading.buffer_pool import ALIGNED, LARGE, SMALL, Pool, buffer_of

SIZE = SMALL


def address(array):
    return array.__array_interface__["data"][0]


def test_returned_memory_is_lent_again():
    """The piece returned last first: it is most likely still in cache."""
    pool = Pool(4)
    first, second = pool.lend(SIZE), pool.lend(SIZE)
    places = address(first), address(second)
    del first
    del second

    assert address(pool.lend(SIZE)) == places[1]
    assert pool.made == 2


@pytest.mark.parametrize(
    "see",
    [
        lambda a: a[10:20],
        lambda a: a.view("<f4").reshape(-1, 4)[::2],
        lambda a: memoryview(a),
        lambda a: np.asarray(memoryview(a)[5:]),
        lambda a: np.lib.stride_tricks.as_strided(a, (2, 2), (1, 1)),
        lambda a: np.from_dlpack(a),
        lambda a: iter(a),
        lambda a: {"x": [a]},
    ],
)
def test_whoever_sees_it_keeps_it(see):
    """Every way that leads back to the bytes."""
    pool = Pool(4)
    lent = pool.lend(SIZE)
    place = address(lent)
    seen = see(lent)
    del lent
    other = pool.lend(SIZE)

    assert address(other) != place
    del seen
    gc.collect()
    assert address(pool.lend(SIZE)) == place


def test_a_tensor_keeps_it():
    """Frameworks alias NumPy's memory."""
    torch = pytest.importorskip("torch")
    pool = Pool(4)
    lent = pool.array(2, np.dtype("f4"), (SIZE // 4,))
    place = address(lent)
    tensor = torch.from_numpy(lent)[1, 3:5]
    del lent

    assert address(pool.lend(2 * SIZE)) != place
    del tensor
    assert address(pool.lend(2 * SIZE)) == place


@pytest.mark.parametrize("size", [SIZE, SIZE + 1, 3 * SIZE, LARGE - 1, LARGE, LARGE + 1])
def test_memory_is_aligned(size):
    """At 64 bytes: else JAX, which could use it as it is, copies it."""
    pool = Pool(2)
    kept = [pool.lend(size) for _ in range(8)]

    assert [address(one) % ALIGNED for one in kept] == [0] * 8
    assert {one.nbytes for one in kept} == {size}


def test_sizes_do_not_mix():
    """A piece is lent for its own size only."""
    pool = Pool(4)
    first = pool.lend(SIZE)
    del first
    other = pool.lend(SIZE + 1)

    assert other.nbytes == SIZE + 1
    assert pool.made == 2
    assert pool.idle == SIZE


def test_what_is_dropped_at_once_is_not_hoarded():
    """A consumer that kept a thousand batches and drops them gives memory to the system."""
    pool = Pool(3)
    kept = [pool.lend(SIZE) for _ in range(50)]
    del kept

    assert pool.idle == 3 * SIZE


def test_small_arrays_are_the_allocators():
    """It is as fast, and a label kept keeps nothing else."""
    pool = Pool(3)
    array = pool.array(10, np.dtype("i8"), ())

    assert array.shape == (10,)
    assert buffer_of(array) is None
    assert pool.made == 0
    large = pool.array(SIZE, np.dtype("u1"), ())
    assert buffer_of(large[3:].reshape(-1, 1)) is not None
    assert large.flags.writeable
    assert large.flags.c_contiguous


def test_many_threads_never_share_a_piece():
    """Lent and returned from everywhere at once, without a lock."""
    pool = Pool(8)
    wrong = []

    def work(number):
        for _ in range(300):
            mine = pool.lend(SIZE)
            mine[:] = number
            if (mine != number).any():
                wrong.append(number)
            del mine

    every = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in every:
        thread.start()
    for thread in every:
        thread.join()

    assert not wrong
    assert pool.made <= 16


def test_the_pool_allocates_through_what_it_is_given():
    """Pinned or shared memory is an adapter's business."""
    asked = []

    def allocate(size):
        asked.append(size)
        return np.zeros(size, np.uint8)

    pool = Pool(2, allocate)
    pool.array(2, np.dtype("f8"), (SIZE,))
    pool.array(2, np.dtype("f8"), (SIZE,))

    assert asked == [16 * SIZE]
