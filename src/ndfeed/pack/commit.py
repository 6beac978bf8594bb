"""Records of finished pieces, noted in the journal when the disk holds what they speak of.

Workers elsewhere sync what they wrote themselves, piece by piece. On this machine it is done here,
for many pieces at once, while others are being written: a sync makes all of a file wait. The files
are open here before anything is written, so that no error of the disk's can be missed.
"""

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Self

from ndfeed.errors import Error
from ndfeed.files.folder import Folder
from ndfeed.pack.journal import Journal, Record

MOST_FILES = 64
_LEAST, _MOST, _TIMES = 1 << 20, 256 << 20, 16


class Commits:
    """Collects records; syncs the files ``names`` and notes them after so many of ``total`` bytes.

    Without names what records speak of is synced already.
    """

    def __init__(
        self, journal: Journal, folder: Folder, names: Sequence[bytes], total: int
    ) -> None:
        self._journal = journal
        self._stack = ExitStack()
        with self._stack:
            self._outputs = [self._stack.enter_context(folder.output(name)) for name in names]
            self._stack = self._stack.pop_all()
        self._often = min(max(total // _TIMES, _LEAST), _MOST) if names else 0
        self._waiting: list[Record] = []
        self._bytes = 0

    def add(self, records: list[Record]) -> None:
        """Take records, and note them if there are enough."""
        self._waiting += records
        self._bytes += sum(record["bytes"] for record in records)
        if self._bytes >= self._often:
            self._commit()

    def _commit(self) -> None:
        records, self._waiting, self._bytes = self._waiting, [], 0
        if records:
            for output in self._outputs:
                output.sync()
            self._journal.note(records)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, *_: object) -> None:
        with self._stack:
            if error is None:
                self._commit()
            else:
                with suppress(Error):  # the first error is the one to tell
                    self._commit()
