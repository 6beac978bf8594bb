"""Limits are those of the process: of its control groups, its resource limits and its affinity."""

import os
import subprocess
import sys
import uuid
from pathlib import Path

import numpy as np
import pytest

from ndfeed.files import limits

GB = 1 << 30


def root_of(tmp_path, files):
    """A folder with ``files`` below it, to be taken for the root of the file system."""
    text = {
        "proc/meminfo": f"MemTotal: {16 * GB // 1024} kB\nMemAvailable: {8 * GB // 1024} kB\n",
        **files,
    }
    for name, content in text.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    return os.fspath(tmp_path)


def version_2(group, files, mounted="/"):
    """Version 2: the process is in ``group``."""
    return {
        "proc/self/cgroup": f"0::{group}\n",
        "proc/self/mountinfo": (
            "22 1 8:1 / / rw - ext4 /dev/sda rw\n"
            f"30 22 0:26 {mounted} /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw\n"
        ),
        **{f"sys/fs/cgroup/{name}": text for name, text in files.items()},
    }


def version_1(group, files, mounted="/"):
    """Version 1: a hierarchy for each controller, as the machine and not the group mounts it."""
    return {
        "proc/self/cgroup": f"5:cpu,cpuacct:{group}\n4:memory:{group}\n0::/\n",
        "proc/self/mountinfo": (
            f"31 30 0:27 {mounted} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
            f"32 30 0:28 {mounted} /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
        ),
        **{f"sys/fs/cgroup/{name}": text for name, text in files.items()},
    }


def test_without_groups_the_machine_decides(tmp_path):
    """As on a laptop; a missing file is no limit."""
    root = root_of(tmp_path, {})

    assert limits.memory(root) == 16 * GB
    assert limits.free_memory(root) == 8 * GB


@pytest.mark.parametrize("where", ["a/b/memory.max", "a/memory.max", "memory.max"])
def test_the_lowest_limit_of_all_groups_above_binds(tmp_path, where):
    """Slurm and Kubernetes set it on a group above the process's own."""
    files = {"a/b/memory.max": "max\n", "a/memory.max": "max\n", "memory.max": "max\n"}
    root = root_of(tmp_path, version_2("/a/b", {**files, where: f"{GB}\n"}))

    assert limits.memory(root) == GB


def test_throttling_counts_as_a_limit(tmp_path):
    """Above memory.high a process is not killed, but all but stopped."""
    root = root_of(tmp_path, version_2("/a", {"a/memory.max": "max\n", "a/memory.high": f"{GB}\n"}))

    assert limits.memory(root) == GB


def test_what_a_group_uses_is_not_free(tmp_path):
    """Its page cache is: the kernel gives that up."""
    stat = f"anon {GB // 4}\nfile {GB // 2}\nshmem {GB // 8}\nkernel 0\n"
    files = {"a/memory.max": f"{GB}\n", "a/memory.stat": stat}
    root = root_of(tmp_path, version_2("/a", files))

    assert limits.free_memory(root) == GB - GB // 4 - GB // 8


def test_version_1_is_read_where_it_is_mounted(tmp_path):
    """Older clusters and some containers; the number for no limit is no limit."""
    files = {
        "memory/a/memory.limit_in_bytes": f"{GB}\n",
        "memory/memory.limit_in_bytes": "9223372036854771712\n",
        "memory/a/memory.stat": f"total_rss {GB // 2}\ntotal_shmem 0\ntotal_cache {GB // 4}\n",
    }
    root = root_of(tmp_path, version_1("/a", files))

    assert limits.memory(root) == GB
    assert limits.free_memory(root) == GB // 2


@pytest.mark.parametrize("group", ["/docker/abc", "/docker/abc/inner", "/elsewhere", "/../other"])
def test_a_container_sees_its_own_group_as_the_root(tmp_path, group):
    """The path is the host's, the mount the container's; what cannot be seen is not guessed."""
    files = {
        "memory/memory.limit_in_bytes": f"{GB}\n",
        "memory/inner/memory.limit_in_bytes": f"{2 * GB}\n",
    }
    root = root_of(tmp_path, version_1(group, files, mounted="/docker/abc"))

    assert limits.memory(root) == GB


@pytest.mark.parametrize(("quota", "cores"), [("100000 100000", 1), ("50000 100000", 1)])
def test_processor_time_limits_cores(tmp_path, quota, cores):
    """Half a processor is one thread; version 2."""
    root = root_of(
        tmp_path, version_2("/a", {"a/cpu.max": f"{quota}\n", "cpu.max": "max 100000\n"})
    )

    assert limits.cores(root) == cores


def test_processor_time_of_version_1(tmp_path):
    """A quota of -1 is none."""
    files = {
        "cpu/a/cpu.cfs_quota_us": "40000\n",
        "cpu/a/cpu.cfs_period_us": "100000\n",
        "cpu/cpu.cfs_quota_us": "-1\n",
        "cpu/cpu.cfs_period_us": "100000\n",
    }

    assert limits.cores(root_of(tmp_path, version_1("/a", files))) == 1


def test_more_time_than_processors_is_no_limit(tmp_path):
    """The affinity stays."""
    root = root_of(tmp_path, version_2("/a", {"a/cpu.max": "100000000 1000\n"}))

    assert limits.cores(root) == len(os.sched_getaffinity(0))


@pytest.mark.parametrize("text", ["", "x\n", "1:2\n", "0::\n", "0::/\n\n"])
def test_strange_files_are_no_limit(tmp_path, text):
    """Whatever a kernel writes, asking never fails."""
    files = {"proc/self/cgroup": text, "proc/self/mountinfo": text + "1 2 3 - cgroup2\n"}
    root = root_of(tmp_path, files)

    assert limits.memory(root) == 16 * GB
    assert limits.cores(root) >= 1


def limited(code, *args, before="", limit=None, group=None):
    """Run ``code`` in a process of its own, below a limit of addresses or in a control group."""
    setup = "import os, resource\n"
    if limit:
        setup += f"resource.setrlimit(resource.RLIMIT_AS, ({limit}, {limit}))\n"
    if group:
        setup += f"open({str(group / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))\n"
    return subprocess.run(
        [sys.executable, "-c", before + setup + code, *map(os.fspath, args)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_address_space_is_a_limit_too():
    """``ulimit -v``, as shared machines and batch systems set it."""
    code = (
        "from ndfeed.files.platform_calls import free_memory, memory_bytes\n"
        "print(memory_bytes(), free_memory())\n"
    )
    done = limited(code, limit=2 * GB)
    total, free = map(int, done.stdout.split())

    assert total == 2 * GB
    assert 0 < free < 2 * GB


BEYOND = """
import sys
import ndfeed
ds = ndfeed.open(sys.argv[1], sample="row")
for attempt in (
    lambda: ds[:],
    lambda: ds.in_memory(),
    lambda: next(iter(ndfeed.loader(ds, len(ds), memory="8GB"))),
):
    try:
        attempt()
    except ndfeed.ResourceError as error:
        assert isinstance(error, MemoryError)
        print(error)
print(len(ds[0:3]["data"]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits as Linux counts them")
@pytest.mark.parametrize("mapped", [True, False])
def test_more_than_addresses_allow_is_one_line(tmp_path, mapped):
    """An error of ours that says how much is needed, not OSError 12 out of an allocation."""
    path = tmp_path / "x.npy"
    with open(path, "wb") as file:
        head = {"descr": "|u1", "fortran_order": False, "shape": (2000, 1 << 20)}
        np.lib.format.write_array_header_1_0(file, head)
        file.truncate(file.tell() + 2000 * (1 << 20))
    code = BEYOND if mapped else BEYOND.replace('sample="row"', 'sample="row", mapped=False')
    done = limited(code, path, limit=3 * GB // 2)

    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert len(lines) == 4
    assert all("needed" in line or "cannot be had" in line for line in lines[:3]), lines
    assert lines[3] == "3"


@pytest.fixture
def small_group():
    """A control group of 400 MB, where one can be made."""
    for parent, name in (
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
        ("/sys/fs/cgroup", "memory.max"),
    ):
        folder = Path(parent) / f"ndfeed-test-{uuid.uuid4().hex[:8]}"
        try:
            folder.mkdir()
        except OSError:
            continue
        try:
            (folder / name).write_text(str(400_000_000))
        except OSError:
            folder.rmdir()
            continue
        yield folder
        folder.rmdir()
        return
    pytest.skip("no control group can be made here")


IN_A_GROUP = """
import sys
import numpy as np
import ndfeed
from ndfeed.files import platform_calls
assert platform_calls.memory_bytes() <= 400_000_000, platform_calls.memory_bytes()
ds = ndfeed.open(sys.argv[1], sample="row")
for attempt in (ds.in_memory, lambda: ds[:]):
    try:
        attempt()
    except ndfeed.ResourceError as error:
        print(error)
for shuffle in (False, True):
    with ndfeed.loader(ds, 64, shuffle=shuffle) as loader:
        seen = sum(len(batch["x"]) for batch in loader)
        assert seen == len(ds), seen
"""


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_defaults_survive_in_a_small_control_group(tmp_path, small_group, save):
    """A container of 400 MB on a large machine: more data than that, and nobody is killed."""
    save(tmp_path / "x.npz", x=np.zeros((5000, 100_000), np.uint8))
    done = limited(IN_A_GROUP, tmp_path / "x.npz", group=small_group)

    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2
    assert "cannot be had" in done.stdout
