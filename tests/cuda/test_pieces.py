"""``ndfeed.cuda.pieces``: what is copied piece by piece, on a stand-in for the driver."""

import threading

import numpy as np
import pytest
from cuda.stand_in import StandIn
from cuda.test_feed import Feed, settle_for

import ndfeed
from ndfeed.cuda import pieces
from ndfeed.cuda.pieces import Pieces
from ndfeed.loading.buffer_pool import Pool
from ndfeed.loading.host_source import HostSource


@pytest.fixture
def ds(tmp_path):
    np.savez_compressed(tmp_path / "x.npz", x=np.arange(4000).reshape(400, 10))
    return ndfeed.open(tmp_path / "x.npz", sample="row")


@pytest.fixture(autouse=True)
def of_a_few_rows(monkeypatch):
    monkeypatch.setattr(pieces, "_PIECE", 1000)


@pytest.fixture
def feed(ds):
    made = Feed(ds, StandIn())
    yield made
    made.close()
    assert made.driver.faults == []


@pytest.fixture
def source(ds, feed):
    host = HostSource(ds, settle_for(ds, 1).options, Pool(4), None)
    return Pieces(host, feed._side, feed._sender)


def test_memory_is_kept_until_it_was_written_to(feed, source):
    """A copy that waits its turn would write into what has been lent to somebody else."""
    stream, go = feed.driver.streams[1], threading.Event()
    copy = stream.copy
    stream.copy = lambda *args: (go.wait(30), copy(*args))
    first = source.read(np.arange(40))["x"].address
    sent = feed._side.event  # nobody refers to the batch any more
    second = source.read(np.arange(40))["x"].address
    assert first != second
    go.set()
    sent.result().wait()


def test_a_piece_that_cannot_be_sent_is_an_error(feed, source):
    """Also if those after it can: the batch would have a gap."""
    stream = feed.driver.streams[1]
    copy = stream.copy

    def fail(*args):
        stream.copy = copy
        raise RuntimeError("on purpose")

    stream.copy = fail
    source.read(np.arange(40))
    with pytest.raises(RuntimeError, match="on purpose"):
        feed._side.event.result(30)
