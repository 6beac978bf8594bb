"""Attack ndfeed as somebody would who prepares files, folders and caches, and count the damage.

    python tests/faults/attacks.py

Every attack runs in a process of its own, beside a folder of somebody's files. Prints a line for
each, and the counts: files outside the dataset that were touched, wrong results, crashes, calls
that took over 5 s of processor time (or a minute in all), raw control characters in any output,
tracebacks, but not what Python prints of interrupts in callbacks of weak references. The exit
status is 1 if anything went wrong. Attacks that only root can try are skipped for others.
"""

import gc
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

import test_growth
import test_mutations
import test_printable
from children import short_lease_breaks
from faults.stops import Stop, run_all
from faults.tally import SLOW, STUCK, Stopwatch, Tally
from index.forging import signed, with_columns
from packing import making
from packing.attacking import IN_THE_WAY, NAMES, damaged, everything, replaced, two

import ndfeed
from ndfeed.cli import chart
from ndfeed.files.platform_calls import can
from ndfeed.index import cache
from ndfeed.index.source import spell_source

WRONG = ("outside", "wrong", "crashed", "hung", "escapes", "tracebacks")
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]")
ROOT = hasattr(os, "geteuid") and os.geteuid() == 0
longest = [0.0]


def attempt(function, *args, **options):
    """What a call gives, or the error of ours that it raises, which is printed."""
    watch = Stopwatch()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return function(*args, **options)
    except ndfeed.Error as error:
        print(error)
        return error
    finally:
        longest[0] = max(longest[0], watch.seconds)


def command(place, *arguments):
    """Run ndfeed's command line; its output is part of this process's."""
    watch = Stopwatch()
    status = subprocess.run([sys.executable, "-m", "ndfeed", *arguments], cwd=place).returncode
    longest[0] = max(longest[0], watch.seconds)
    return status


def same_rows(found, wanted):
    """An error of ours, or these rows."""
    assert isinstance(found, ndfeed.Error) or np.array_equal(found[:]["data"], wanted)


def a_part_in_the_way(place):
    """1. Links, files and folders where a part is to go, and where work is done."""
    wanted = two(place)
    shutil.copytree(place / "packed", place / "base")
    for name in ("packed/00001", *NAMES):
        for put in IN_THE_WAY.values():
            put(place / name, place.parent / "precious")
            before = everything(place / name) if (place / name).is_dir() else None
            same_rows(attempt(ndfeed.pack, place / "b.npy", place / "packed", append=True), wanted)
            assert before is None or everything(place / name) == before
            for made in (place / name, place / "packed"):
                made.unlink() if not made.is_dir() or made.is_symlink() else shutil.rmtree(made)
            shutil.copytree(place / "base", place / "packed")
    (place / "packed/00001").symlink_to(place.parent / "precious")
    assert command(place, "pack", "b.npy", "packed/", "--append") == 1


def links_for_columns(place):
    """2. Links in place of columns and part folders, repaired."""
    ds, _ = damaged(place)
    shutil.copytree(place / "packed", place / "base")
    for name in ("00000/label.npy", "00001/text.offsets.npy", "00001"):
        for what in IN_THE_WAY:
            replaced(place / "packed" / name, what, place.parent / "precious")
            attempt(ndfeed.pack, ds, place / "packed", repair=True)
            shutil.rmtree(place / "packed")
            shutil.copytree(place / "base", place / "packed")


def prepared_work(place):
    """2. A work folder that came with a download, with links in it."""
    ds = making.npz_of_rows(place / "source", files=4, rows=50)
    journal, _ = making.interrupted(ds, place / "packed")
    prepared = place / "download" / journal.parent.name
    prepared.parent.mkdir()
    shutil.copytree(journal.parent, prepared)
    (prepared / "data/00000/label.npy").unlink()
    (prepared / "data/00000/label.npy").symlink_to(place.parent / "precious/notes")
    packed = attempt(ndfeed.pack, ds, place / "download/packed", **making.PIECES)
    assert making.same(packed, ds)


def chart_through_links(place):
    """2. The demo's chart, with links under all names that it has had."""
    for name in ("chart.svg", "chart.svg.new", ".chart.svg.new"):
        (place / name).symlink_to(place.parent / "precious/notes")
    chart.save(str(place / "chart.svg"), b"a picture")
    assert (place / "chart.svg").read_bytes() == b"a picture"


def forged_caches(place):
    """3. An index whose dtype divides by zero, whose offsets or paths lead elsewhere, edits."""
    test_mutations.make_files(place / "data")
    wanted = attempt(test_mutations.rows, place / "data", cache=False)
    attempt(test_mutations.rows, place / "data")
    path = Path(os.fsdecode(cache.place(spell_source(place / "data"), None)))
    data = path.read_bytes()
    outside = os.fsencode(place.parent / "precious") + b"/"
    for change in (
        {"dtypes": lambda old: ("M8[s/0]",) * len(old)},
        {"offset": lambda old: old * 0 - 4096},
        {"base": lambda _: outside},
    ):
        path.write_bytes(signed(path, with_columns(data, **change)))
        assert attempt(test_mutations.rows, place / "data") == wanted
    if ROOT:
        path.write_bytes(signed(path, with_columns(data, base=lambda _: outside)))
        os.chown(path, 65534, 65534)
        assert attempt(test_mutations.rows, place / "data") == wanted
    (place / "edits").mkdir()
    found = test_mutations.caches(place / "edits", 1000, forged=False)
    assert not found["other"]


def linked_cache(place):
    """3. A cache folder that is a link to somebody's files."""
    (place / "cache/ndfeed").mkdir(parents=True)
    (place / "cache/ndfeed/index").symlink_to(place.parent / "precious")
    os.environ["XDG_CACHE_HOME"] = str(place / "cache")
    test_mutations.make_files(place / "data")
    attempt(test_mutations.rows, place / "data")


def costly_files(place):
    """4. Keys of one hash, fields and members by the hundred thousand, trees of links."""
    for name, make, count in (
        ("keys.pt", test_growth.pt_colliding_keys, 240_000),
        ("fields.npy", test_growth.npy_fields, 99_000),
        ("tensors.safetensors", test_growth.safetensors_tensors, 99_000),
        ("members.npz", test_growth.npz_members, 200_000),
    ):
        make(place / name, count)
        attempt(ndfeed.open, place / name, sample="file", cache=False)
    for i in range(22):
        (place / f"tree/{i}").mkdir(parents=True)
        for link in ("a", "b"):
            (place / f"tree/{i}" / link).symlink_to(f"../{i + 1}")
    (place / "tree/22").mkdir()
    np.save(place / "tree/22/x.npy", np.zeros(3))
    attempt(ndfeed.open, place / "tree/0", cache=False)


def stopped_readers(place):
    """5. Readers that are stopped for longer than a writer waits."""
    tally = Tally()
    names = ("rows of a mapped file", "rows of many mapped files", "stored archives", "a loader")
    ways = ("truncate", "overwrite")
    cases = [Stop(name, at, way) for name in names for at in (0, 1, 3, 5) for way in ways]
    with short_lease_breaks(1):
        run_all(cases, place, tally, random.Random(0))
    assert tally.sound, tally.examples


def escape_sequences(place):
    """6. Control characters wherever a file has text."""
    for number, (name, data) in enumerate(test_printable.FILES.values()):
        (place / str(number)).mkdir()
        (place / str(number) / name).write_bytes(data)
        for sample in ("file", "row"):
            found = attempt(ndfeed.open, place / str(number) / name, sample=sample, cache=False)
            print(found)
    command(place, "inspect", "0/x.pt")
    command(place, "inspect", "15/x.npy")


def interrupts(place):
    """7. Ctrl-C at any moment of a pass: threads end, and closing is quick."""

    def interrupt(*_):
        if iterating:  # the kernel may deliver it a moment after the timer was stopped
            raise KeyboardInterrupt

    # Python itself prints interrupts that come while it calls a weak reference back.
    sys.unraisablehook = lambda lost: (
        lost.exc_type is KeyboardInterrupt or sys.__unraisablehook__(lost)
    )
    np.save(place / "x.npy", np.zeros((3000, 16)))
    ds = ndfeed.open(place / "x.npy", cache=False)
    signal.signal(signal.SIGALRM, interrupt)
    before, iterating = _threads(), False
    for number in range(300):
        try:
            iterating = True
            signal.setitimer(signal.ITIMER_REAL, 0.0005 + 0.00003 * (number % 150))
            with ndfeed.loader(ds, 16, threads=2) as loader:
                for _ in loader:
                    pass
            iterating = False
        except KeyboardInterrupt:
            iterating = False
        signal.setitimer(signal.ITIMER_REAL, 0)
    gc.collect()
    until = time.monotonic() + STUCK
    while _threads() > before and time.monotonic() < until:
        time.sleep(0.05)
    assert _threads() <= before, threading.enumerate()


def _threads():
    """The system's count where it gives one: Python lists threads of C's after their end."""
    tasks = Path("/proc/self/task")
    return len(list(tasks.iterdir())) if tasks.exists() else threading.active_count()


def strange_documents(place):
    """8. Empty files, and documents that say what nobody expects."""
    test_growth._pt(place / "empty.pt", b"\x80\x02}.")
    (place / "empty.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    np.arange(8).tofile(place / "x.bin")
    for name in ("empty.pt", "empty.safetensors"):
        attempt(ndfeed.open, place / name, cache=False)
    for text in ('{"dtype": "u2", "shape": [4611686018427387904]}', "[" * 60_000):
        (place / "x.bin.json").write_text(text)
        attempt(ndfeed.open, place / "x.bin", cache=False)
    (place / "x.bin.json").write_text('{"dtype": "u2"}', encoding="utf-16")
    attempt(ndfeed.open, place / "x.bin", cache=False)
    two(place)
    manifest = place / "packed/ndfeed.json"
    says = json.loads(manifest.read_text())
    del says["digest"]
    for edit in ({"source": {"packs": [5]}}, {"source": {"packs": "x"}}, {"parts": "x"}):
        manifest.write_bytes(test_mutations.repaired(json.dumps({**says, **edit}).encode()))
        for options in ({"append": True}, {"repair": True}):
            attempt(ndfeed.pack, place / "b.npy", place / "packed", **options)
        attempt(ndfeed.verify, place / "packed", progress=False)


def forged_journals(place):
    """8. Lines of a journal that somebody made up."""
    test_mutations.journals(place, 200)


def times_put_back(place):
    """9. Files that are written over, their time put back."""
    for i in range(6):
        np.save(place / f"{i}.npy", np.full((50, 8), i))
    for mapped in (True, False):
        ds = ndfeed.open(place, sample="row", cache=False, mapped=mapped)
        right = ds[:]["data"]
        for i in range(6):
            before = os.stat(place / f"{i}.npy")
            with open(place / f"{i}.npy", "r+b") as file:
                np.save(file, np.full((50, 8), -1))
            os.utime(place / f"{i}.npy", ns=(before.st_atime_ns, before.st_mtime_ns))
            found = attempt(ds.read, np.arange(50 * i, 50 * i + 50))
            assert isinstance(found, ndfeed.ChangedError)
            found = attempt(ndfeed.pack, ds, place / "packed")
            assert isinstance(found, ndfeed.ChangedError)
            np.save(place / f"{i}.npy", np.full((50, 8), i))
            ds = ndfeed.open(place, sample="row", cache=False, mapped=mapped)
            assert np.array_equal(ds[:]["data"], right)


def bombs(place):
    """10. A file that is a thousand times larger once it is decompressed."""
    making.huge_npz(place / "x.npz", 400_000_000, compressed=True)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    ds = ndfeed.open(place / "x.npz", fields="x", sample="row")

    def read():
        with ndfeed.loader(ds, 1, memory="64MB") as loader:
            return next(iter(loader))

    attempt(read)
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    assert grown < 200e6, f"{grown} bytes"
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 200_000_000,) * 2)
    found = attempt(lambda: ndfeed.open(place / "x.npz", fields="x", sample="row")[3])
    block = np.arange(1_000_000, dtype=np.uint8).reshape(1000, 1000)  # of which it is made
    assert isinstance(found, ndfeed.Error) or (found["x"] == block[3]).all()


def files_without_leases(place):
    """11. Files that cannot be leased, as those of another user, shortened while they are read."""
    can.lease = False
    for _ in range(5):
        np.save(place / "x.npy", np.ones((4000, 1024), "<f4"))
        ds = ndfeed.open(place / "x.npy", cache=False)
        ds[0]
        child = os.fork()
        if not child:
            time.sleep(0.05)
            os.truncate(place / "x.npy", 5000)
            os._exit(0)
        found = None
        until = time.monotonic() + STUCK
        while not isinstance(found, ndfeed.Error) and time.monotonic() < until:
            found = attempt(ds.read, np.arange(0, 4000, 7))
            assert isinstance(found, ndfeed.ChangedError) or (found["data"] == 1).all()
        assert isinstance(found, ndfeed.ChangedError)
        os.waitpid(child, 0)


def flipped_columns(place):
    """12. A flipped bit of a packed column, with checks while it is read."""
    two(place)
    column = place / "packed/00000/data.npy"
    data = bytearray(column.read_bytes())
    data[-3] ^= 1
    column.write_bytes(data)
    ds = ndfeed.open(place / "packed", verify=True)
    assert isinstance(attempt(lambda: ds[:]), ndfeed.Error)
    assert not ndfeed.verify(place / "packed", progress=False).ok


ATTACKS = {
    attack.__name__.replace("_", " "): attack
    for attack in (
        a_part_in_the_way, links_for_columns, prepared_work, chart_through_links, forged_caches,
        linked_cache, costly_files, stopped_readers, escape_sequences, interrupts,
        strange_documents, forged_journals, times_put_back, bombs, files_without_leases,
        flipped_columns,
    )
}  # fmt: skip


def run(name):
    """Try an attack in a process of its own; what went wrong, and why."""
    with tempfile.TemporaryDirectory() as made:
        place, precious = Path(made) / "place", Path(made) / "precious"
        place.mkdir()
        precious.mkdir(mode=0o700)
        for i in range(300):  # as many as a cache would not keep, by names that it would have
            (precious / f"{i:032x}").write_bytes(b"mine")
        (precious / "notes").write_bytes(b"years of work")
        (precious / "data.npy").write_bytes(b"other years of work")
        before = everything(precious)
        environment = os.environ | {"XDG_CACHE_HOME": os.path.join(made, "cache")}
        command = [sys.executable, __file__, "--attack", name, str(place)]
        try:
            done = subprocess.run(command, env=environment, capture_output=True, timeout=300)
        except subprocess.TimeoutExpired:
            return {"hung": 1}, "over 300 s"
        out, err = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
        last = out.rstrip().rpartition("\n")[2]
        found = {
            "outside": sum(before.get(n) != d for n, d in (everything(precious) | before).items())
            + (everything(precious) != before),
            "crashed": int(done.returncode < 0),
            "tracebacks": out.count("Traceback (most recent") + err.count("Traceback (most recent"),
            "escapes": len(CONTROL.findall(out + err)),
        }
        if done.returncode == 0:
            said = json.loads(last)
            found |= {"wrong": int(said["wrong"] is not None), "hung": int(said["longest"] > SLOW)}
            return found, said["wrong"] or f"{said['longest']:.1f} s at most"
        return found, err[-1000:]


def _in_child(name, place):
    wrong = None
    try:
        ATTACKS[name](Path(place))
    except AssertionError as error:
        wrong = f"{name}: {error!r}"[:500]
    sys.stdout.flush()
    print(json.dumps({"wrong": wrong, "longest": longest[0]}))


def main():
    """Try every attack; exit status 1 if anything went wrong."""
    if sys.argv[1:2] == ["--attack"]:
        _in_child(*sys.argv[2:])
        return 0
    total = dict.fromkeys(WRONG, 0)
    for name in ATTACKS:
        found, why = run(name)
        for how in WRONG:
            total[how] += found.get(how, 0)
        bad = {how: count for how, count in found.items() if count}
        print(f"{name:24} {bad or 'nothing went wrong'} ({why})", flush=True)
    print(json.dumps({"attacks": len(ATTACKS)} | total))
    return 1 if any(total.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
