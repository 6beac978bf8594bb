"""Write the tables of README and documentation from the results files.

    <!-- results: loader-2026-11-15.jsonl warm cold -->
    <!-- end -->

Between two such lines go the bars of that file: those of the questions that begin with one of the
words, or all; before them what was measured before and after something; or every peer of a file
of those. ``tests/test_results.py`` compares, so that no page
can say what no run has printed.

python benchmarks/table.py    # every page, in place
"""

import json
import math
import re
from pathlib import Path
from typing import Any

Facts = dict[str, Any]

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
QUICK = "**From a quick run on small data, with other programs at work: not to be quoted.**"
BLOCK = re.compile(r"^(<!-- results: (\S+)(.*?) -->\n)(.*?)^(<!-- end -->)$", re.M | re.S)


def table(lines: list[str], words: tuple[str, ...] = ()) -> str:
    """A Markdown table of every bar, or of every peer."""
    facts = [json.loads(line) for line in lines]
    if any("peer" in one for one in facts):
        return peers(facts)
    cases = [one for one in facts if "before_per_s" in one and chosen(one, words)]
    return "\n\n".join([before_and_after(cases)] * bool(cases) + [bars(facts, words)])


def chosen(one: Facts, words: tuple[str, ...]) -> bool:
    """Is the question of a line wanted?"""
    return not words or one["question"].startswith(words)


def before_and_after(facts: list[Facts]) -> str:
    """Samples a second as the files were and as they are packed, case by case."""
    rows = [
        ["case", "", "samples", "MB", "samples/s before", "packed", "", "packed in"],
        ["---"] * 2 + ["--:"] * 6,
    ]
    for one in facts:
        rates = [
            f"{rate:,.0f}" if rate >= 100 else f"{rate:.1f}"
            for rate in (one["before_per_s"], one["after_per_s"])
        ]
        name = one["question"].split()[-1]
        rows.append([name, one["what"], f"{one['samples']:,}", f"{one['mb']:,}", *rates,
                     f"{one['ratio']:.1f}×", f"{one['packed_in_s']:.1f} s"])  # fmt: skip
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def bars(facts: list[Facts], words: tuple[str, ...]) -> str:
    """What was compared, the ratio, the bar."""
    rows = ["| question | what is compared | measured | bar |", "|---|---|---|---|"]
    for one in facts:
        if "bar" in one and chosen(one, words):
            ratio = f"{one['ratio']:,.0f}" if one["ratio"] > 99 else f"{one['ratio']:.2f}"
            rows.append(f"| {one['question']} | {one['bar']} | {ratio} | ≥ {one['wanted']:,} |")
    if len(rows) == 2:
        raise ValueError(f"no bars of questions that begin with {words}")
    return "\n".join(rows)


def peers(facts: list[Facts]) -> str:
    """Rows a second, ndfeed's rate over it, seconds to convert and size on disk, peer by peer.

    The fastest come first. A rate above ndfeed's, measured beside it, stands in bold. One with a
    question mark was not steady and is to be measured again.
    """
    sizes = list(facts[0]["rows"])
    head = ["peer", "shuffle", *(f"{size} rows/s" for size in sizes), "converted in", "on disk"]
    rows = [head, ["---"] * 2 + ["--:"] * (len(head) - 2), ours(facts, sizes)]
    said = [QUICK] if facts[0]["quick"] else []
    of_peers: dict[str, list[Facts]] = {}
    for one in facts[1:]:
        of_peers.setdefault(one["peer"], []).append(one)
    for name, some in sorted(of_peers.items(), key=lambda item: times(item[1])):
        found = {one["rows"]: one for one in some if "rows" in one}
        said += [f"{name} could not be installed: `{one['not_installed']}`"
                 for one in some if "not_installed" in one]  # fmt: skip
        said += [f"{name} failed: `{one['failed']}`"
                 for one in some if "failed" in one and "rows" not in one]  # fmt: skip
        if found:
            rows.append([name, some[0]["shuffle"], *(cell(found.get(size, {})) for size in sizes),
                         together(found, sizes, "convert_s", "s"),
                         together(found, sizes, "disk_mb", "MB")])  # fmt: skip
    text = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    return "\n\n".join([text, *said])


def times(some: list[Facts]) -> float:
    """How many times a peer's rate ndfeed's is, all row sizes together."""
    ratios = [one["ratio"] for one in some if "ratio" in one]
    return math.prod(ratios) ** (1 / len(ratios)) if ratios else math.inf


def ours(facts: list[Facts], sizes: list[str]) -> list[str]:
    """ndfeed's own row: the median of its rates beside every peer."""
    rates = [f"{rate(facts, size):,.0f}" for size in sizes]
    return ["**ndfeed**", "exact", *rates, "none", "the .npy"]


def rate(facts: list[Facts], size: str) -> float:
    """ndfeed's rows a second at one row size."""
    found = sorted(
        one["ndfeed_rows_per_s"]
        for one in facts
        if one.get("rows") == size and "ndfeed_rows_per_s" in one
    )
    return found[len(found) // 2]


def cell(one: Facts) -> str:
    """A rate, and how many times ndfeed's is that."""
    if "rows_per_s" not in one:
        return "left out" if "left_out" in one else "failed"
    times = f"{one['ratio']:,.0f}" if one["ratio"] >= 10 else f"{one['ratio']:.2g}"
    text = f"{one['rows_per_s']:,} (1/{times})"
    if one["ratio"] < 1:
        text = f"**{one['rows_per_s']:,} ({1 / one['ratio']:.2g}×)**"
    return text if one["steady"] else f"{text} ?"


def together(found: dict[str, Facts], sizes: list[str], key: str, unit: str) -> str:
    """A fact at every row size."""
    values = [found.get(size, {}).get(key) for size in sizes]
    if key == "convert_s" and not any(values):
        return "none"
    return " / ".join("–" if one is None else f"{one:,}" for one in values) + f" {unit}"


def filled(page: str, results: Path = ROOT / "benchmarks/results") -> str:
    """The page with all its tables as the results files have them."""

    def block(match: re.Match[str]) -> str:
        lines = (results / match[2]).read_text(encoding="utf-8").splitlines()
        return f"{match[1]}\n{table(lines, tuple(match[3].split()))}\n\n{match[5]}"

    return BLOCK.sub(block, page)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")
