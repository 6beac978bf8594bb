"""Print the bars of a results file as the table of the README.

python benchmarks/table.py benchmarks/results/read-DATE.jsonl
"""

import json
import sys
from pathlib import Path


def table(lines: list[str]) -> str:
    """A Markdown table of every bar: what was compared, the ratio, the bar."""
    rows = ["| question | what is compared | measured | bar |", "|---|---|---|---|"]
    for line in lines:
        facts = json.loads(line)
        if "bar" in facts:
            ratio = f"{facts['ratio']:,.0f}" if facts["ratio"] > 99 else f"{facts['ratio']:.2f}"
            rows.append(
                f"| {facts['question']} | {facts['bar']} | {ratio} | ≥ {facts['wanted']:,} |"
            )
    return "\n".join(rows)


if __name__ == "__main__":
    print(table(Path(sys.argv[1]).read_text().splitlines()))
