"""One mapped file, and the read lease that makes its writers wait."""

import contextlib
import os
import signal

import numpy as np
from numpy.typing import NDArray

from ndfeed.errors import SourceError
from ndfeed.files import system
from ndfeed.files.file import File, Identity, behind_name, status_of
from ndfeed.files.system import can, fcntl


class Unmappable(SourceError):
    """A file that cannot be mapped, or not now; it can still be read by position."""


class MappedFile:
    """One mapped file."""

    __slots__ = ("bytes", "file", "found", "leased", "number", "refused", "taken")

    def __init__(self, number: int, file: File) -> None:
        self.number = number
        self.file = file
        self.bytes: NDArray[np.uint8] = np.frombuffer(system.map_whole(file.fd), np.uint8)
        self.leased = False
        self.refused = not can.lease  # there are no leases on this file
        self.taken = False  # a writer has had the file since it was mapped
        self.found: Identity | None = None  # what it has become, if it changed

    def lease(self) -> None:
        """Make writers wait; some files cannot be leased."""
        self.look()
        if self.leased or self.refused or self.taken:
            return
        try:
            # The signal that tells of a writer must be one that is ignored: SIGIO, the
            # default, would end the process. Giving up a lease brings the default back.
            fcntl.fcntl(self.file.fd, fcntl.F_SETSIG, signal.SIGURG)
            fcntl.fcntl(self.file.fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
            self.leased = True
        except BlockingIOError:
            raise Unmappable(self.file.path, "somebody has it open for writing") from None
        except OSError:  # it is another user's, or its file system has none
            self.refused = True

    def look(self) -> None:
        """Take note of a writer that waits, or has been let in by the kernel."""
        if self.leased and self.wanted():
            self.taken = True

    def give_up(self) -> None:
        """Let writers go on."""
        if self.leased:
            self.leased = False
            with contextlib.suppress(OSError):  # the kernel may have taken it away
                fcntl.fcntl(self.file.fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)

    def wanted(self) -> bool:
        """Does a writer wait for the lease, or has the kernel taken it away?"""
        try:
            return fcntl.fcntl(self.file.fd, fcntl.F_GETLEASE) != fcntl.F_RDLCK
        except OSError:  # who cannot be asked cannot be trusted
            return True

    def identity(self, expected: Identity) -> Identity:
        """What the file is now; ``expected`` if it only was deleted since."""
        status = status_of(self.file.path, self.file.fd)
        found = Identity.of(status)
        if found != expected and found.same_data(expected):
            return behind_name(self.file.path, status) or expected
        return found

    def disturbed(self) -> bool:
        """Does a writer wait, or may another file have come in this one's place?"""
        try:
            now = os.fstat(self.file.fd)
        except OSError:
            return True
        return self.wanted() or now.st_ctime_ns != self.file.status.st_ctime_ns
