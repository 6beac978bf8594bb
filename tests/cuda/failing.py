"""A stand-in for the driver of which one call fails, or all from one on.

Calls fail as those of ``ndfeed.cuda.driver`` do: some say that the driver refuses, after which
there is another way, others that it failed. What gives something back never fails there.
"""

import functools
import threading

from cuda.stand_in import StandIn, StandInEvent, StandInStream

from ndfeed.cuda.driver import Refused

FAILED = RuntimeError, "the call failed on purpose"
REFUSED = Refused, "refused on purpose"


def failing(error, call):
    """Count a call, unless it is part of another one, and let it fail if it is its turn."""

    @functools.wraps(call)
    def counted(self, *args, **words):
        driver = getattr(self, "_driver", self)
        with driver.turn(call.__name__, error):
            return call(self, *args, **words)

    return counted


class FailingEvent(StandInEvent):
    wait = failing(FAILED, StandInEvent.wait)


class FailingStream(StandInStream):
    event_kind = FailingEvent

    for _name in ("record", "wait_for", "copy", "copy_back", "copy_within", "launch"):
        locals()[_name] = failing(FAILED, getattr(StandInStream, _name))
    copy_rows = failing(REFUSED, StandInStream.copy_rows)


class Turn:
    """Lasts as long as a call; those within it are not counted."""

    def __init__(self, driver):
        self._driver = driver

    def __enter__(self):
        self._driver.local.depth = getattr(self._driver.local, "depth", 0) + 1

    def __exit__(self, *_):
        self._driver.local.depth -= 1


class Failing(StandIn):
    """``fails`` is the number of the call that fails, ``broken`` says that all after it do, too."""

    stream_kind = FailingStream

    def __init__(self, fails=None, *, broken=False, **words):
        self._counting = threading.Lock()
        self.calls = []  # their names
        self.fails, self._broken = fails, broken
        super().__init__(**words)

    def turn(self, name, error):
        if not getattr(self.local, "depth", 0):
            with self._counting:
                self.calls.append(name)
                number = len(self.calls)
            if self.fails is not None and (
                number == self.fails or (self._broken and number > self.fails)
            ):
                self.failed = self._broken
                kind, message = error
                raise kind(message)
        return Turn(self)

    def context(self):
        """Fails where the device is broken, and for no other reason."""
        if self.failed:
            raise RuntimeError("the device is broken")
        return super().context()

    @property
    def in_use(self):
        """Bytes that have been allocated or registered, and not been given back."""
        return sum(self.readable.values())

    for _name in ("use", "make_stream"):
        locals()[_name] = failing(FAILED, getattr(StandIn, _name))
    for _name in ("allocate", "allocate_pinned", "register"):
        locals()[_name] = failing(REFUSED, getattr(StandIn, _name))

    def within(self, call, *args):
        with Turn(self):
            return call(self, *args)

    def synchronize(self):
        return self.within(StandIn.synchronize)

    def free(self, address):
        return self.within(StandIn.free, address)
