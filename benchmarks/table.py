"""Write the tables of README and documentation from the results files.

    <!-- results: loader-2026-11-15.jsonl warm cold -->
    <!-- end -->

Between two such lines go the bars of that file: those of the questions that begin with one of the
words, or all. ``tests/test_results.py`` compares, so that no page can say what no run has printed.

python benchmarks/table.py    # every page, in place
"""

import json
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^(<!-- results: (\S+)(.*?) -->\n)(.*?)^(<!-- end -->)$", re.M | re.S)


def table(lines: list[str], words: tuple[str, ...] = ()) -> str:
    """A Markdown table of every bar: what was compared, the ratio, the bar."""
    rows = ["| question | what is compared | measured | bar |", "|---|---|---|---|"]
    for line in lines:
        facts = json.loads(line)
        if "bar" in facts and (not words or facts["question"].startswith(words)):
            ratio = f"{facts['ratio']:,.0f}" if facts["ratio"] > 99 else f"{facts['ratio']:.2f}"
            rows.append(
                f"| {facts['question']} | {facts['bar']} | {ratio} | ≥ {facts['wanted']:,} |"
            )
    if len(rows) == 2:
        raise ValueError(f"no bars of questions that begin with {words}")
    return "\n".join(rows)


def filled(page: str, results: Path = ROOT / "benchmarks/results") -> str:
    """The page with all its tables as the results files have them."""

    def block(match: re.Match[str]) -> str:
        lines = (results / match[2]).read_text(encoding="utf-8").splitlines()
        return f"{match[1]}\n{table(lines, tuple(match[3].split()))}\n\n{match[5]}"

    return BLOCK.sub(block, page)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")
