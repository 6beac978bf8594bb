"""Another process that changes files."""

import os
import shutil
from contextlib import suppress


class Changer:
    """Another process, which changes files when it is told to."""

    def __init__(self):
        self._orders, orders = os.pipe()[::-1]
        done, self._done = os.pipe()[::-1]
        self._child = os.fork()
        if not self._child:
            try:
                self._obey(orders, done)
            finally:  # not through the code of the parent, which would remove its folder
                os._exit(0)
        os.close(orders)
        os.close(done)

    def _obey(self, orders, done):
        os.close(self._orders)
        with open(orders) as lines:
            for line in lines:
                how, *paths = line.rstrip("\n").split("\0")
                for path in paths:
                    with suppress(OSError):  # such as no room left: then it did not change
                        CHANGES[how](path)
                os.write(done, b".")

    def begin(self, how, paths):
        """Begin to change files; gives what waits for the end of it."""
        os.write(self._orders, ("\0".join([how, *map(str, paths)]) + "\n").encode())
        return lambda: os.read(self._done, 1)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self._orders)
        os.close(self._done)
        os.waitpid(self._child, 0)


def _truncate(path):
    os.truncate(path, os.path.getsize(path) // 2)


def _overwrite(path):
    """Other bytes of the same length, and the time put back."""
    status = os.stat(path)
    with open(path, "r+b") as file:
        data = bytearray(file.read())
        file.seek(0)
        file.write(bytes(byte ^ 1 for byte in data))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def _replace(path):
    status = os.stat(path)
    shutil.copyfile(path, f"{path}.other")
    _overwrite(f"{path}.other")
    os.utime(f"{path}.other", ns=(status.st_atime_ns, status.st_mtime_ns))
    os.replace(f"{path}.other", path)


def _remove(path):
    os.unlink(path)


CHANGES = {"truncate": _truncate, "overwrite": _overwrite, "replace": _replace, "remove": _remove}
