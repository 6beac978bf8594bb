"""One thread looks after all leases, no longer than there are any."""

import gc
import threading
import weakref

import pytest
from loading.making import eventually

from ndfeed.files import map_guard as module
from ndfeed.files import platform_calls
from ndfeed.files.map_guard import Keeper


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Looks that tests need not wait for."""
    monkeypatch.setattr(module, "_LOOK_EVERY", 0.005)


class Holder:
    """Wants to be looked after a number of times."""

    def __init__(self, looks, used=False):
        self.looks, self.used = looks, used
        self.released = 0
        self.reading = False  # so that leases cannot be given up

    def tend(self):
        self.looks -= 1
        return self.looks > 0

    def release(self, until):
        self.released += 1
        return not self.reading


def ended(keeper):
    """Wait until the keeper's thread is gone."""
    return eventually(lambda: keeper._thread is None)


def test_descriptors_are_lent_up_to_half_of_what_there_are():
    """The other half is the program's own."""
    keeper = Keeper()
    most = platform_calls.open_files_limit() // 2

    assert keeper.reserve(most)
    assert not keeper.reserve(1)
    keeper.release(10, keeper.generation)
    assert keeper.reserve(10)
    assert not keeper.reserve(1)


def test_a_child_has_all_descriptors_and_gives_back_none_of_its_parents():
    """What the parent had mapped is closed in the child too, but was never counted there."""
    keeper = Keeper()
    before = keeper.generation
    keeper.reserve(100)
    keeper.after_fork()
    keeper.release(100, before)

    assert keeper.reserve(platform_calls.open_files_limit() // 2)
    assert not keeper.reserve(1)


def test_it_looks_until_nobody_needs_it():
    """And begins again when somebody does."""
    keeper = Keeper()
    first, second = Holder(3), Holder(10)
    keeper.keep(first)
    keeper.keep(second)
    assert ended(keeper)
    assert (first.looks, second.looks) == (0, 0)

    first.looks = 2
    keeper.keep(first)
    assert ended(keeper)
    assert first.looks == 0


def test_who_reads_again_in_between_is_kept():
    """Idle at the look, used a moment later: its new leases must not be left alone."""
    keeper = Keeper()
    holder = Holder(1, used=True)
    keeper.keep(holder)

    assert eventually(lambda: holder.looks < -1)  # idle since 0, and looked at again
    assert keeper._thread is not None
    holder.used = False
    assert ended(keeper)


def test_it_keeps_nobody_alive():
    """A dataset that is dropped is dropped, though its leases are being looked after."""
    keeper = Keeper()
    holder = Holder(10**9)
    gone = weakref.ref(holder)
    keeper.keep(holder)
    del holder
    gc.collect()

    assert ended(keeper)
    assert gone() is None


def test_before_a_fork_everything_is_given_up():
    """The child has no thread to look after what it would inherit."""
    keeper = Keeper()
    holder = Holder(10**9)
    keeper.keep(holder)
    thread = keeper._thread
    keeper.before_fork()

    assert not thread.is_alive()
    assert holder.released == 1
    keeper.keep(holder)
    assert keeper._thread.is_alive()
    keeper.before_fork()


def test_leases_in_use_during_a_fork_stay_with_the_parent():
    """It goes on looking after them."""
    keeper = Keeper()
    holder = Holder(10**9)
    holder.reading = True
    keeper.keep(holder)
    keeper.before_fork()
    keeper.after_fork_in_parent()
    looks = holder.looks

    assert eventually(lambda: holder.looks < looks)
    holder.reading = False
    keeper.before_fork()


def test_an_interrupt_before_the_thread_began_is_made_good():
    """Ctrl-C may come between making a thread and starting it."""
    keeper = Keeper()
    keeper._thread = threading.Thread(target=print)
    keeper.keep(Holder(1))
    keeper.before_fork()
    keeper._thread = threading.Thread(target=print)
    keeper.before_fork()

    assert keeper._thread is None
