"""Write the result tables of the README and the documentation from the results files.

    <!-- results: loader-2026-11-15.jsonl warm cold -->
    <!-- end -->

Everything between two such lines is replaced by the measurements of that file: those of the
benchmarks whose names begin with one of the given words, or all of them. ``results: headlines`` is
the table of the README, which picks a few ratios from several files. ``tests/test_results.py``
checks that every page is current, so no page can show a number that no run has printed.

python benchmarks/table.py    # rewrite the tables of all pages in place
"""

import json
import math
import re
import statistics
from pathlib import Path
from typing import Any, NamedTuple

Facts = dict[str, Any]

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
QUICK = "**From a quick run on small data on a busy machine: do not quote these numbers.**"
UNSTEADY = "\\* Unsteady: repeated measurements differed by more than a factor of two."
BLOCK = re.compile(r"^(<!-- results: (\S+)(.*?) -->\n)(.*?)^(<!-- end -->)$", re.M | re.S)

# Results files use short names. A table spells out what was compared, including how many workers.
NAMES = {
    "ours": "ndfeed",
    "ours, torch tensors": "ndfeed as torch tensors",
    "ours, 32 blocks mixed": "ndfeed with `Blocks`, 32 mixed",
    "the best of floor": "floor",
    "np.take of the mapped file": "`np.take` from a memmap",
    "loop over cached memmaps": "a loop over open memmaps",
    "best DataLoader": "DataLoader per sample, best of {workers} workers",
    "DataLoader with __getitems__": "DataLoader per batch, 0 workers",
    "best Grain": "Grain, best of {threads} threads",
    "memmap[rows]": "`memmap[rows]`",
    "best pread or fadvise loop": "fastest loop of `pread`, with or without `fadvise`",
    "a loop over the map": "a loop over a memmap",
    "slices of maps": "slices of memmaps",
    "one block a batch": "one shuffled block per batch, read from memmaps",
    "members / times inflated": "compressed members / times one was decompressed",
    "lower of pinned copy and gather": "slower of pinned copy and gather",
    "fed": "training with ndfeed",
    "fed, through pinned memory": "training with ndfeed through pinned memory",
    "on the GPU already": "training on data already on the GPU",
    "device_put of ready batches": "`device_put` of batches already in memory",
    "the loop / ours": "time of a loop / time of ndfeed",
    "the pool / ours": "time of a process pool / time of ndfeed",
    "dd / ours": "time of `dd` / time of ndfeed",
    "from_generator": "`from_generator`",
    "M rows/s": "million rows/s",
    "M rows/s at batch 1024": "million rows/s, batches of 1,024",
    "a .npy": "one `.npy`",
    "the .npy itself": "ndfeed on the original `.npy`",
    "a loop that reads": "a loop that only reads the files",
    "copies of mapped .npy": "copies of memmapped `.npy` files",
    "200,000 files a second": "200,000 files/s",
}

# What "today" means, the fastest of what people commonly write, for each benchmark of each file.
COMMON = {
    "read npy": "`np.load`, best of 1 and 2 threads",
    "read npz": "`np.load`, best of 1 and 2 threads",
    "read npz_deflated": "best of `np.load` in 1 and 2 threads, and DataLoader per sample with "
    "{workers} workers",
    "read pt": "`torch.load`, best of 1 and 2 threads",
    "read safetensors": "`safe_open`, best of 1 and 2 threads",
    "loader compressed": "`np.load` file by file, best of 1 and 2 threads",
    "loader files stored": "`np.load` in one thread",
    "loader files deflated": "best of `np.load` in 1 and 2 threads, and DataLoader per sample with "
    "{workers} workers",
    "loader u1": "`np.load`, best of 1 and 4 threads",
    "loader u4": "best of `np.load` in 1 thread, and DataLoader per sample with {workers} workers",
    "tf_batches rows": "best of `from_generator`, `numpy_function` and `from_tensor_slices`",
    "tf_batches compressed": "best of parallel `interleave` and `from_generator`",
    "packed ragged": "a copied slice of a memmap per sample",
}

QUESTIONS = {"one_npy": "one .npy,", "npz_deflated": "npz, compressed", "index": "opening",
             "today": "DataLoader,", "buys": ""}  # fmt: skip


class Extra(NamedTuple):
    """A row for a comparison that has no target: the ratio of two rates in a results file."""

    script: str
    below: str  # the benchmark whose row it follows
    question: str
    others: str  # how the names of those ndfeed is compared with begin; the fastest counts
    ndfeed: str
    against: str


WORKERS = "training with a DataLoader per sample, {workers} workers"
EXTRAS = [
    # Stored files have their target against one thread. This is the baseline of deflated files.
    Extra("loader", "files stored", "files stored", "today", "ndfeed",
          COMMON["loader files deflated"]),
    Extra("torch_gpu", "training ResNet-50", "training ResNet-50", "DataLoader",
          "training with ndfeed", WORKERS),
    Extra("torch_gpu", "training ResNet-50", "training small network", "data on the GPU",
          "training with ndfeed", NAMES["on the GPU already"]),
    Extra("torch_gpu", "training ResNet-50", "training small network", "DataLoader",
          "training with ndfeed", WORKERS),
]  # fmt: skip


class Headline(NamedTuple):
    """One row of the README's table: the ratio of two rates that one results file has."""

    what: str
    against: str
    results: str
    question: str
    ndfeed: str  # the name of ndfeed's measurement, or of the other loader's in a file of those
    others: str  # how the names of those it is compared with begin; the fastest counts


DATE = "2026-11-15"
HEADLINES = [
    Headline(
        "one `.npz` file per sample (128×128×3 bytes, uncompressed), 2 cores",
        "`DataLoader` calling `np.load` **per sample**, best of {workers} workers",
        f"loader-{DATE}.jsonl", "files stored", "ours", "today: DataLoader, "),
    Headline(
        "rows of 3 KB from one `.npy`, as torch tensors, 2 cores",
        "`DataLoader` over a memmap **per sample**, best of {workers} workers",
        f"loader-{DATE}.jsonl", "warm 3KB", "ours, torch tensors", "today: DataLoader, "),
    Headline(
        "the same rows, in a separate run",
        "`DataLoader` over a memmap **per batch** (`__getitems__`), best of {workers} workers",
        f"peers-{DATE}.jsonl", "3KB", "torch DataLoader", "getitems"),
    Headline(
        "rows of 3 KB from one `.npy` into the memory of an H200",
        "`DataLoader` over a memmap **per sample**, pinned memory, best of {workers} workers",
        f"torch_gpu-{DATE}.jsonl", "today 3KB", "ours", "DataLoader, "),
]  # fmt: skip


def table(lines: list[str], words: tuple[str, ...] = (), name: str = "") -> str:
    """Return a Markdown table of the measurements in ``lines``, from the results file ``name``."""
    facts = [json.loads(line) for line in lines]
    if any("peer" in one for one in facts):
        return peers(facts)
    if any("backend" in one for one in facts):
        return keras(facts)
    if any("case" in one for one in facts):
        return cores(facts)
    cases = [one for one in facts if "before_per_s" in one and chosen(one, words)]
    return "\n\n".join([before_and_after(cases)] * bool(cases) + [targets(facts, words, name)])


def chosen(one: Facts, words: tuple[str, ...]) -> bool:
    """Return whether the benchmark of a line begins with one of ``words``."""
    return not words or one["question"].startswith(words)


def before_and_after(facts: list[Facts]) -> str:
    """Return a table of samples per second before and after packing, case by case."""
    head = ["case", "files", "samples", "MB", "samples/s before", "samples/s packed",
            "packed / before", "time to pack"]  # fmt: skip
    rows = [head, ["---"] * 2 + ["--:"] * 6]
    for one in facts:
        rates = [
            f"{rate:,.0f}" if rate >= 100 else f"{rate:.1f}"
            for rate in (one["before_per_s"], one["after_per_s"])
        ]
        name = one["question"].split()[-1]
        rows.append([name, one["what"], f"{one['samples']:,}", f"{one['mb']:,}", *rates,
                     f"{one['ratio']:.1f}", f"{one['packed_in_s']:.1f} s"])  # fmt: skip
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def targets(facts: list[Facts], words: tuple[str, ...], name: str) -> str:
    """Return a table of what was compared, the measured ratio, and the target."""
    rows = ["| benchmark | comparison | measured | target |", "|---|---|--:|--:|"]
    below: set[str] = set()
    for one in facts:
        if "bar" in one and chosen(one, words):
            rows.append(
                f"| {benchmark(one['question'])} | {comparison(one, facts, name)} | "
                f"{number(one['ratio'])} | {target(one)} |"
            )
            if one["question"] not in below:
                rows += without_target(one, facts, name)
            below.add(one["question"])
    if len(rows) == 2:
        raise ValueError(f"no measurements of benchmarks that begin with {words}")
    return "\n".join(rows)


def target(one: Facts) -> str:
    """Return the target of a ratio, and whether it was missed."""
    text = f"≥ {one['wanted']:,}"
    if one.get("met", one["ratio"] >= one["wanted"]):
        return text
    return f"{text}, just missed" if one["ratio"] >= one["wanted"] else f"{text}, missed"


def without_target(one: Facts, facts: list[Facts], name: str) -> list[str]:
    """Return the comparisons without a target that belong below a row."""
    rows = []
    for extra in EXTRAS:
        measured = any(found.get("question") == extra.question for found in facts)
        if measured and (extra.script, extra.below) == (stem(name), one["question"]):
            others = fastest(facts, extra.question, extra.others)
            ratio = rate_of(facts, extra.question, "ours") / others
            against = counted(extra.against, ways_of(extra.question, facts))
            text = f"{extra.ndfeed} / {against}"
            rows.append(f"| {extra.question} | {text} | {number(ratio)} | none |")
    return rows


def benchmark(question: str) -> str:
    """Return the name of a benchmark as readers see it."""
    first, _, rest = question.partition(" ")
    return f"{QUESTIONS.get(first, first)} {rest}".strip()


def comparison(one: Facts, facts: list[Facts], name: str) -> str:
    """Return both sides of a ratio, spelled out."""
    sides = NAMES.get(one["bar"], one["bar"]).split(" / ")
    return " / ".join(spelled_out(side, one["question"], facts, name) for side in sides)


def spelled_out(side: str, question: str, facts: list[Facts], name: str) -> str:
    """Return one side of a ratio: what it is, with how many workers or threads."""
    case, colon, way = side.rpartition(": ")  # such as "batches of 64: ours"
    text = f"{case}{colon}{NAMES.get(way, way)}"
    if side.endswith("today"):
        known = f"{stem(name)} {question} "
        text = next(text for key, text in COMMON.items() if known.startswith(f"{key} "))
    return counted(text, ways_of(question, facts))


def ways_of(question: str, facts: list[Facts]) -> list[str]:
    """Return the names of all measurements of a benchmark."""
    return [one["way"] for one in facts if one.get("question") == question and "way" in one]


def counted(text: str, ways: list[str]) -> str:
    """Return ``text`` with the numbers of workers or threads that were tried in its braces."""
    for unit in ("workers", "threads"):
        found = {
            int(a or b)
            for way in ways
            for a, b in re.findall(rf"(?:DataLoader|Grain), (\d+) {unit}|{unit} (\d+)", way)
        }
        *most, last = map(str, sorted(found)) if found else ("",)
        text = text.replace(f"{{{unit}}}", f"{', '.join(most)} and {last}" if most else last)
    return text


def stem(name: str) -> str:
    """Return the name of the script that printed a results file."""
    return name.partition("-")[0]


def number(ratio: float) -> str:
    """Return a ratio with an appropriate number of digits."""
    return f"{ratio:,.0f}" if ratio > 99 else f"{ratio:.2f}"


def fastest(facts: list[Facts], question: str, begins: str) -> float:
    """Return the highest rate among a benchmark's measurements whose names begin so."""
    return max(
        rate_of(facts, question, one["way"])
        for one in facts
        if one.get("question") == question and one.get("way", "").startswith(begins)
    )


def rate_of(facts: list[Facts], question: str, way: str) -> float:
    """Return the rate of one measurement of a benchmark."""
    (found,) = (
        one.get("rows_per_s", one.get("images_per_s"))
        for one in facts
        if one.get("question") == question and one.get("way") == way
    )
    return float(found)


def headlines(results: Path) -> str:
    """Return the README's table: a few ratios, each with what it is compared with."""
    rows = ["| what is read | compared with | speedup |", "|---|---|--:|"]
    for one in HEADLINES:
        lines = (results / one.results).read_text(encoding="utf-8").splitlines()
        ratio, ways = headline(one, [json.loads(line) for line in lines])
        text = f"{ratio:.0f}×" if ratio >= 10 else f"{ratio:.1f}×"
        rows.append(f"| {one.what} | {counted(one.against, ways)} | {text} |")
    return "\n".join(rows)


def headline(one: Headline, facts: list[Facts]) -> tuple[float, list[str]]:
    """Return the ratio, and the names of everything tried on the other side."""
    if stem(one.results) == "peers":
        (found,) = (
            f for f in facts if f.get("peer") == one.ndfeed and f.get("rows") == one.question
        )
        if one.others not in found["setting"]:
            raise ValueError(f"the fastest setting of {one.ndfeed} is now {found['setting']}")
        return found["ratio"], [way for way in found["tried"] if one.others in way]
    ways = [way for way in ways_of(one.question, facts) if way.startswith(one.others)]
    bars = {f["bar"]: f["ratio"] for f in facts if f.get("question") == one.question and "bar" in f}
    ratio = bars.get(f"{one.ndfeed} / best DataLoader")
    if ratio is None:
        mine = rate_of(facts, one.question, one.ndfeed)
        ratio = mine / fastest(facts, one.question, one.others)
    return ratio, ways


def peers(facts: list[Facts]) -> str:
    """Return a table of the other loaders: rows per second, settings, and cost of converting."""
    sizes = list(facts[0]["rows"])
    head = ["loader", "shuffle", "fastest settings", *(f"{size} rows/s" for size in sizes),
            "time to convert", "on disk"]  # fmt: skip
    rows = [head, ["---"] * 3 + ["--:"] * (len(head) - 3), own_row(facts, sizes)]
    notes = [QUICK] if facts[0]["quick"] else []
    of_peers: dict[str, list[Facts]] = {}
    for one in facts[1:]:
        of_peers.setdefault(one["peer"], []).append(one)
    for name, some in sorted(of_peers.items(), key=lambda item: times(item[1])):
        found = {one["rows"]: one for one in some if "rows" in one}
        notes += [f"{name} could not be installed: `{one['not_installed']}`"
                  for one in some if "not_installed" in one]  # fmt: skip
        notes += [f"{name} failed: `{one['failed']}`"
                  for one in some if "failed" in one and "rows" not in one]  # fmt: skip
        if found:
            rows.append([name, some[0]["shuffle"], settings(found, sizes),
                         *(cell(found.get(size, {})) for size in sizes),
                         together(found, sizes, "convert_s", "s"),
                         together(found, sizes, "disk_mb", "MB")])  # fmt: skip
    text = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    unsteady = [UNSTEADY] if any(one.get("steady") is False for one in facts) else []
    return "\n\n".join([text, *unsteady, *notes])


KERAS = {
    "loader": "`ndfeed.loader` alone",
    "fit, ready": "`fit`, one batch in memory again and again",
    "fit, ndfeed": "**`fit`, `ndfeed.keras.dataset`**",
    "fit, tf": "`fit`, `ndfeed.tf.dataset`",
    "fit, files": "`fit`, a `PyDataset` over memmaps, `workers=2`",
    "fit, arrays": "`fit`, all data in memory as arrays",
}


def keras(facts: list[Facts]) -> str:
    """Return a table of microseconds per batch, by backend and size of the rows."""
    facts = [one for one in facts if "us" in one]
    cases = list(dict.fromkeys((one["backend"], one["rows"]) for one in facts))
    found = {(one["backend"], one["rows"], one["way"]): one["us"] for one in facts}
    rows = [["µs per batch", *(f"{backend}, rows of {size}" for backend, size in cases)]]
    rows.append(["---"] + ["--:"] * len(cases))
    for way, name in KERAS.items():
        taken = [found.get((*case, way)) for case in cases]
        rows.append([name, *("" if us is None else f"{us:,}" for us in taken)])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


CORES = {
    "deflated": "deflated `.npz`, 49 KB",
    "deflated-large": "deflated `.npz`, 786 KB",
    "stored": "stored `.npz`, 49 KB",
    "npy": "`.npy`, 49 KB",
    "pt": "`.pt`, 49 KB",
    "map": "rows of a `.npy`, cropped and flipped by a map",
    "many-rows": "rows of deflated `.npz` of 200, an eighth of which fit in `memory=`",
}


def cores(facts: list[Facts]) -> str:
    """Return a table of samples per second by number of cores, and of what they compare with."""
    counts = sorted({one["cores"] for one in facts if one.get("way") == "ndfeed"})
    head = [f"{count} core{'s' * (count > 1)}" for count in counts]
    beside = ["to a GPU", "threads only", "DataLoader, best of 4, 8 and 16", "floor"]
    rows = [["samples/s", *head, *beside]]
    rows.append(["---"] + ["--:"] * (len(rows[0]) - 1))
    for case, name in CORES.items():
        some = [one for one in facts if one["case"] == case and "rate" in one]
        by_cores = {one["cores"]: one["rate"] for one in some if one["way"] == "ndfeed"}
        found = [by_cores.get(count) for count in counts]
        found += [
            max((one["rate"] for one in some if one["way"] == way), default=None)
            for way in ("ndfeed to the GPU", "ndfeed, processes=0", "DataLoader", "floor")
        ]
        if some:
            rows.append([name, *("–" if rate is None else f"{rate:,}" for rate in found)])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def times(some: list[Facts]) -> float:
    """Return ndfeed's rate divided by a peer's: the geometric mean over all row sizes."""
    ratios = [one["ratio"] for one in some if "ratio" in one]
    return statistics.geometric_mean(ratios) if ratios else math.inf


def own_row(facts: list[Facts], sizes: list[str]) -> list[str]:
    """Return ndfeed's own row: the median of its rates next to every peer."""
    rates = [f"{rate(facts, size):,.0f}" for size in sizes]
    return ["**ndfeed**", "exact", "defaults", *rates, "none", "the .npy"]


def rate(facts: list[Facts], size: str) -> float:
    """Return ndfeed's rows per second at one row size."""
    found = sorted(
        one["ndfeed_rows_per_s"]
        for one in facts
        if one.get("rows") == size and "ndfeed_rows_per_s" in one
    )
    return found[len(found) // 2]


def settings(found: dict[str, Facts], sizes: list[str]) -> str:
    """Return the fastest setting, or one for each row size."""
    words = {"getitems": "per batch", "each": "per row", "npy": ".npy", "arrow": "Arrow"}
    used = []
    for size in sizes:
        parts = found.get(size, {}).get("setting", "–").split(", ")
        used.append(", ".join(words.get(p, re.sub(r"^(\w+) (\d+)$", r"\2 \1", p)) for p in parts))
    text = used[0] if len({*used}) == 1 else " / ".join(used)
    return re.sub(r"\b1 (worker|thread)s", r"1 \1", text)


def cell(one: Facts) -> str:
    """Return a rate, and how much slower or faster than ndfeed it is."""
    if "rows_per_s" not in one:
        return "left out" if "left_out" in one else "failed"
    slower = f"{one['ratio']:,.0f}" if one["ratio"] >= 10 else f"{one['ratio']:.2g}"
    text = f"{one['rows_per_s']:,} ({slower}× slower)"
    if one["ratio"] < 1:
        text = f"**{one['rows_per_s']:,} ({1 / one['ratio']:.2g}× faster)**"
    return text if one["steady"] else f"{text} \\*"


def together(found: dict[str, Facts], sizes: list[str], key: str, unit: str) -> str:
    """Return a value for every row size."""
    values = [found.get(size, {}).get(key) for size in sizes]
    if key == "convert_s" and not any(values):
        return "none"
    return " / ".join("–" if one is None else f"{one:,}" for one in values) + f" {unit}"


def filled(page: str, results: Path = ROOT / "benchmarks/results") -> str:
    """Return the page with all its tables filled from the results files."""

    def block(match: re.Match[str]) -> str:
        if match[2] == "headlines":
            return f"{match[1]}\n{headlines(results)}\n\n{match[5]}"
        lines = (results / match[2]).read_text(encoding="utf-8").splitlines()
        return f"{match[1]}\n{table(lines, tuple(match[3].split()), match[2])}\n\n{match[5]}"

    return BLOCK.sub(block, page)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")
