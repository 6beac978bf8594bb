"""Which files are opened, as the interpreter itself reports it."""

import os
import sys
from contextlib import contextmanager

_lists = []


def _hook(event, args):
    if event == "open" and _lists and isinstance(args[0], str | bytes):
        for opened in _lists:
            opened.append(os.fsdecode(args[0]))


# Once for good: a hook cannot be taken away again.
sys.addaudithook(_hook)


@contextmanager
def opened_in(folder):
    """A list that grows by the name of each file in ``folder``, or below, that is opened."""
    opened = []
    found = Opened(os.fspath(folder), opened)
    _lists.append(opened)
    try:
        yield found
    finally:
        _lists.remove(opened)


class Opened:
    """Names of files that were opened, relative to a folder."""

    def __init__(self, folder, opened):
        self._prefix, self._opened = os.path.join(folder, ""), opened

    def __iter__(self):
        cut = len(self._prefix)
        return (path[cut:] for path in self._opened if path.startswith(self._prefix))

    def __len__(self):
        return len(list(self))
