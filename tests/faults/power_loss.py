"""What a disk may hold after a power loss: a model of the page cache.

``Disk`` performs the calls of a run and notes those that change files and folders. From the notes
it makes the states that the disk may be in if the power fails after any of them. What was synced
is there. Of the rest:

    nothing    none of it reached the disk
    names      names and sizes did, the bytes of files did not: they are zeros
    bytes      the bytes did, new names did not
    some       names up to some moment, any of the writes, and one of them torn
"""

import os
import shutil
from dataclasses import dataclass, field

from faults.seam import Fault, watch

STATES = ("nothing", "names", "bytes", "some")
_SECTOR = 512


@dataclass
class _Node:
    """A file or a folder: what happened to it, in order, with the number of the call."""

    mode: int
    is_folder: bool
    events: list = field(default_factory=list)
    start: object = None  # what it held before the run


class Disk:
    """The calls that changed what is below ``root``."""

    def __init__(self, root):
        self.root = os.fspath(root)
        self.length = 0  # calls so far
        self._nodes = []
        self._numbers = {}  # (device, inode) now -> node
        self._names = []  # (call, [(folder, name, node or None), …]) changes of names, in order
        self._kept = {}
        self._top = self._adopt(self.root)

    def _adopt(self, path):
        """Note what is there before the run."""
        status = os.lstat(path)
        folder = os.path.isdir(path)
        node = self._new(status, folder)
        if folder:
            self._nodes[node].start = {
                name: self._adopt(os.path.join(path, name)) for name in sorted(os.listdir(path))
            }
        else:
            with open(path, "rb") as file:
                self._nodes[node].start = file.read()
        return node

    def _new(self, status, is_folder):
        self._nodes.append(_Node(status.st_mode & 0o777, is_folder, start={} if is_folder else b""))
        self._numbers[status.st_dev, status.st_ino] = len(self._nodes) - 1
        return len(self._nodes) - 1

    def _node(self, status):
        return self._numbers.get((status.st_dev, status.st_ino))

    def _place(self, path, at):
        """The folder that a name is in, and the name, if it is below the root."""
        folder, name = os.path.split(os.fsdecode(path))
        status = os.stat(folder or ".", dir_fd=at) if at is not None or folder else os.stat(".")
        return self._node(status), name

    def happen(self, name, call, args):
        """Perform a call of the run, and note it."""
        at = call.keywords.get("dir_fd")
        if name in ("rename", "replace"):
            return self._rename(call, args)
        if name == "open":
            return self._open(call, args, at)
        if name in ("unlink", "rmdir"):
            folder, base = self._place(args[0], at)
            done = call(*args)
            self._note_names([(folder, base, None)])
            return done
        if name in ("mkdir", "link"):
            return self._make(name, call, args, at)
        done = call(*args)
        if name in ("pwrite", "ftruncate", "posix_fallocate", "fsync"):
            self._note_bytes(name, args, done)
        return done

    def _rename(self, call, args):
        old = self._place(args[0], call.keywords.get("src_dir_fd"))
        new = self._place(args[1], call.keywords.get("dst_dir_fd"))
        status = os.lstat(args[0], dir_fd=call.keywords.get("src_dir_fd"))
        done = call(*args)
        self._note_names([(*old, None), (*new, self._node(status))])
        return done

    def _open(self, call, args, at):
        fd = call(*args)
        if args[1] & os.O_EXCL:
            folder, name = self._place(args[0], at)
            if folder is not None:
                self._note_names([(folder, name, self._new(os.fstat(fd), False))])
        return fd

    def _make(self, name, call, args, at):
        if name == "link":
            at = call.keywords.get("dst_dir_fd")
        path = args[1] if name == "link" else args[0]
        done = call(*args)
        folder, base = self._place(path, at)
        if folder is not None:
            status = os.lstat(path, dir_fd=at)
            node = self._node(status) if name == "link" else self._new(status, True)
            self._note_names([(folder, base, node)])
        return done

    def _note_names(self, changes):
        known = [change for change in changes if change[0] is not None]
        if known:
            self.length += 1
            self._names.append((self.length, known))

    def _note_bytes(self, name, args, done):
        node = self._node(os.fstat(args[0]))
        if node is not None:
            self.length += 1
            what = (args[2], bytes(args[1][:done])) if name == "pwrite" else args[1:]
            self._nodes[node].events.append((self.length, name, what))

    def restore(self, call, state, rng):
        """Make the root hold what the disk may, if the power failed after a number of calls."""
        entries = self._entries(call, state, rng)
        self._kept = self._clear()
        self._write(self._top, self.root, entries, call, state, rng)
        shutil.rmtree(f"{self.root}.kept", ignore_errors=True)

    def _clear(self):
        """Remove all there is, but for folders, which keep their inode: node -> empty folder."""
        os.mkdir(f"{self.root}.kept")
        kept = {}
        for path, _, files in os.walk(self.root, topdown=False):
            for name in files:
                os.unlink(os.path.join(path, name))
            node = self._node(os.lstat(path))
            kept[node] = f"{self.root}.kept/{node}"
            os.rename(path, kept[node])
        return kept

    def _entries(self, call, state, rng):
        """The names in every folder."""
        synced = {
            number: max((c for c, n, _ in node.events if n == "fsync" and c <= call), default=0)
            for number, node in enumerate(self._nodes)
        }
        until = rng.randint(0, call) if state == "some" else call if state == "names" else 0
        entries = {
            number: dict(node.start) for number, node in enumerate(self._nodes) if node.is_folder
        }
        for moment, changes in self._names:
            # A rename is one step on the disk: it is there once one of its folders is synced.
            lasting = any(synced[folder] >= moment for folder, _, _ in changes)
            if moment <= call and (lasting or moment <= until):
                for folder, name, node in changes:
                    entries[folder].pop(name, None)
                    if node is not None:
                        entries[folder][name] = node
        return entries

    def _write(self, node, path, entries, call, state, rng):
        known = self._nodes[node]
        if known.is_folder:
            if node in self._kept:
                os.rename(self._kept[node], path)
            else:
                os.mkdir(path)
            os.chmod(path, known.mode)
            for name, inner in entries[node].items():
                self._write(inner, os.path.join(path, name), entries, call, state, rng)
        else:
            with open(path, "wb") as file:
                file.write(self._content(known, call, state, rng))
            os.chmod(path, known.mode)

    def _content(self, node, call, state, rng):
        events = [event for event in node.events if event[0] <= call]
        synced = max((moment for moment, name, _ in events if name == "fsync"), default=0)
        data = bytearray(node.start)
        for moment, name, what in events:
            if name == "pwrite":
                _apply_write(data, *what, _kept(moment, synced, state, rng, len(what[1])))
            elif name != "fsync":
                size = what[0] if name == "ftruncate" else max(len(data), what[0] + what[1])
                if moment <= synced or state != "nothing" or rng.random() < 0.5:
                    del data[size:]
                    data.extend(bytes(size - len(data)))
        return bytes(data)


def _kept(moment, synced, state, rng, length):
    """How many bytes of a write are on the disk."""
    if moment <= synced or state == "bytes":
        return length
    if state == "some":
        return rng.choice([0, length, rng.randrange(0, length + 1) // _SECTOR * _SECTOR])
    return 0


def _apply_write(data, start, written, kept):
    if kept:
        data.extend(bytes(max(start + kept - len(data), 0)))
        data[start : start + kept] = written[:kept]


def record(root, run):
    """The disk of a run that ends well, and how many calls changed it."""
    disk = Disk(root)
    with watch(Fault(disk.happen, at=1, sticky=True)):
        run()
    return disk
