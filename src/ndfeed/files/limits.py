"""How much memory and how many processors this process may use, whatever the machine has.

The result is the minimum of what the machine has, what every control group of the process
allows (cgroup v1 and v2: containers, Slurm, systemd) and what resource limits allow (``ulimit``).
The limit of a parent group applies to its members too, so all groups up to the mount point are
checked.

Files are looked up below ``root``, which only the tests set.
"""

import functools
import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

_GUESS = 4 << 30
# Values from here on mean no limit: version 1 writes the largest number of pages there is.
_UNLIMITED = 1 << 60


class _Group(NamedTuple):
    """A control group's folder, and the version of its files."""

    folder: str
    version: int


def memory(root: str = "/") -> int:
    """Return the bytes of memory that this process may have in total."""
    found = [_machine(root), _resource_limit("RLIMIT_AS"), _resource_limit("RLIMIT_DATA")]
    found += [limit for _, limit in _find_limits(root)]
    return min(size for size in found if size is not None)


def free_memory(root: str = "/") -> int | None:
    """Return the bytes available without swapping, or ``None`` if that is not known."""
    found = [
        _free_on_machine(root),
        _memory_left("RLIMIT_AS", "VmSize:", root),
        _memory_left("RLIMIT_DATA", "VmData:", root),
    ]
    found += [max(limit - _memory_used(group), 0) for group, limit in _find_limits(root)]
    return min((size for size in found if size is not None), default=None)


def cores(root: str = "/") -> int:
    """Return how many processors this process may use, by CPU affinity and CPU quota."""
    most = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        most = len(os.sched_getaffinity(0))
    return max(min([most, *_quotas(root)]), 1)


def cores_of_parent(root: str = "/") -> int:
    """Return how many processors the parent may use, which has perhaps bound its children to fewer.

    0 if that is not known.
    """
    try:
        most = len(os.sched_getaffinity(os.getppid()))
    except (AttributeError, OSError):
        return 0
    return min([most, *_quotas(root)])


# Group limits are read once per process, since it takes a quarter of a millisecond.


@functools.cache
def _find_limits(root: str) -> "list[tuple[_Group, int]]":
    """Return the groups that limit memory, and to how many bytes."""
    every = ((group, _limit_of(group)) for group in _groups(root, "memory"))
    return [(group, limit) for group, limit in every if limit is not None]


@functools.cache
def _quotas(root: str) -> list[int]:
    """Return how many processors each group's quota amounts to."""
    every = map(_quota_of, _groups(root, "cpu"))
    return [-(-quota // period) for quota, period in every if quota > 0 and period > 0]


@functools.cache
def _machine(root: str) -> int:
    facts = facts_of(os.path.join(root, "proc/meminfo"))
    if "MemTotal:" in facts:
        return facts["MemTotal:"] * 1024
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return _GUESS


def _free_on_machine(root: str) -> int | None:
    # One line of fifty, read for every large batch: the others are not parsed.
    for line in _lines(os.path.join(root, "proc/meminfo")):
        if line.startswith("MemAvailable:"):
            number = line.split()[1:2]
            return int(number[0]) * 1024 if number and number[0].isdigit() else None
    return None


# Resource limits. They count addresses, used or not, so what is free is computed from those.


def _resource_limit(name: str) -> int | None:
    if not hasattr(resource, name):
        return None
    soft, _ = resource.getrlimit(getattr(resource, name))
    return None if soft == resource.RLIM_INFINITY else int(soft)


def _memory_left(name: str, used: str, root: str) -> int | None:
    limit = _resource_limit(name)
    if limit is None:
        return None
    facts = facts_of(os.path.join(root, "proc/self/status"))
    return max(limit - facts.get(used, 0) * 1024, 0)


# Control groups.


def _groups(root: str, controller: str) -> list[_Group]:
    """Return the groups whose limits apply to this process: its own and their parents."""
    found: list[_Group] = []
    paths = _paths(root)
    for kind, mounted_root, mount, options in _mounts(root):
        if kind == "cgroup2" and "" in paths:
            found += _upwards(root, mount, mounted_root, paths[""], 2)
        elif kind == "cgroup" and controller in options and controller in paths:
            found += _upwards(root, mount, mounted_root, paths[controller], 1)
    return found


def _upwards(root: str, mount: str, mounted_root: str, path: str, version: int) -> Iterator[_Group]:
    """Yield the group at ``path`` and its parents, as far as they are visible.

    In a container the root of the mount is the container's own group, possibly by its full name.
    """
    inside = os.path.relpath(path, mounted_root)
    if inside == ".." or inside.startswith("../") or ".." in path.split("/"):
        inside = "."  # a group outside of what is mounted here
    at = inside
    while True:
        yield _Group(os.path.normpath(os.path.join(root, mount.lstrip("/"), at)), version)
        if at in ("", "."):
            return
        at = os.path.dirname(at)


def _paths(root: str) -> dict[str, str]:
    """Return the path of this process's group by controller; version 2 has no name."""
    found = {}
    for line in _lines(os.path.join(root, "proc/self/cgroup")):
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if number == "0" and not names:
            found[""] = path
        else:
            found.update(dict.fromkeys(names.split(","), path))
    return found


def _mounts(root: str) -> Iterator[tuple[str, str, str, Sequence[str]]]:
    """Yield for every mount: its kind, the folder that is mounted, where, and its options."""
    for line in _lines(os.path.join(root, "proc/self/mountinfo")):
        before, _, after = line.partition(" - ")
        own, kind = before.split(" "), after.split(" ")
        if len(own) >= 5 and len(kind) >= 3:
            yield kind[0], _plain(own[3]), _plain(own[4]), kind[2].split(",")


def _plain(text: str) -> str:
    """Decode the octal escapes for spaces and the like in mountinfo."""
    if "\\" not in text:
        return text
    for escape, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(escape, character)
    return text


def _limit_of(group: _Group) -> int | None:
    names = ("memory.max", "memory.high") if group.version == 2 else ("memory.limit_in_bytes",)
    found = (_number(os.path.join(group.folder, name)) for name in names)
    return min((n for n in found if n is not None and 0 <= n < _UNLIMITED), default=None)


def _memory_used(group: _Group) -> int:
    """Return the bytes that a group cannot release: its page cache is dropped when necessary."""
    facts = facts_of(os.path.join(group.folder, "memory.stat"))
    if group.version == 2:
        return sum(facts.get(name, 0) for name in ("anon", "shmem", "kernel"))
    kernel = _number(os.path.join(group.folder, "memory.kmem.usage_in_bytes")) or 0
    return facts.get("total_rss", 0) + facts.get("total_shmem", 0) + kernel


def _quota_of(group: _Group) -> tuple[int, int]:
    """Return the microseconds of processor time per period; 0 if there is no limit."""
    if group.version == 2:
        words = " ".join(_lines(os.path.join(group.folder, "cpu.max"))).split()
        if len(words) != 2 or not (words[0].isdigit() and words[1].isdigit()):
            return 0, 0  # "max", or no such file
        return int(words[0]), int(words[1])
    quota, period = (
        _number(os.path.join(group.folder, name)) or 0
        for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")
    )
    return quota, period


# Small files of the kernel.


def kind_of_file_system(device: int, root: str = "/") -> str:
    """Return the type of the file system with this device number; empty if unknown."""
    wanted = f"{os.major(device)}:{os.minor(device)}" if hasattr(os, "major") else ""
    for line in _lines(os.path.join(root, "proc/self/mountinfo")):
        before, _, after = line.partition(" - ")
        if wanted in before.split(" ")[2:3]:
            return after.partition(" ")[0]
    return ""


def facts_of(path: str) -> dict[str, int]:
    """Parse lines of a name and a number."""
    words = [line.split() for line in _lines(path)]
    return {line[0]: int(line[1]) for line in words if len(line) > 1 and line[1].isdigit()}


def _number(path: str) -> int | None:
    try:
        return int("".join(_lines(path)))
    except ValueError:  # no such file, or "max"
        return None


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read().splitlines()
    except OSError:
        return []
