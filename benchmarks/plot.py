"""Draw the rates of a results file of ``torch_gpu.py`` as a picture for the documentation.

python benchmarks/plot.py benchmarks/results/torch_gpu-DATE.jsonl docs/images/gpu.svg
"""

import json
import sys
from html import escape
from pathlib import Path

WIDTH, BAR, GAP, LEFT = 720, 22, 8, 250
COLOURS = {"ours": "#2b6cb0", "today": "#a0aec0", "limit": "#e2e8f0"}
ROW_BYTES = {"150KB": 224 * 224 * 3, "3KB": 3072}

Bars = list[tuple[str, float, str]]  # what, rows a second, whose


def bars(facts: list[dict], label: str) -> Bars:
    """The ways that rows of one size can take, slowest first."""
    size = ROW_BYTES[label]
    bus = max(one["gb_per_s"] for one in facts if one.get("way") == "pinned copy") * 1e9 / size
    found: Bars = [("the bus: a pinned copy", bus, "limit")]
    today = [one for one in facts if one["question"] == f"today {label}" and "rows_per_s" in one]
    best = max(today, key=lambda one: one["rows_per_s"])
    found.append((f"torch {best['way']}", best["rows_per_s"], "today"))
    for way, text in (("pinned", "ndfeed, pinned memory"), ("files", "ndfeed, GPU reads the file")):
        rates = [one["rows_per_s"] for one in facts
                 if one["question"] == f"{way} {label}" and "rows_per_s" in one]  # fmt: skip
        found.append((text, max(rates), "ours"))
    return sorted(found, key=lambda one: one[1])


def drawing(facts: list[dict]) -> str:
    """The whole picture."""
    parts, y = [], 20
    for label in ROW_BYTES:
        some = bars(facts, label)
        most = max(rate for _, rate, _ in some)
        parts.append(
            f'<text x="8" y="{y}" font-weight="bold">rows of {label}, rows a second</text>'
        )
        y += 10
        for what, rate, whose in some:
            length = max(rate / most * (WIDTH - LEFT - 110), 1)
            parts.append(
                f'<text x="{LEFT - 8}" y="{y + 16}" text-anchor="end">{escape(what)}</text>'
            )
            parts.append(
                f'<rect x="{LEFT}" y="{y}" width="{length:.0f}" height="{BAR}" '
                f'fill="{COLOURS[whose]}"/>'
            )
            parts.append(f'<text x="{LEFT + length + 6:.0f}" y="{y + 16}">{rate:,.0f}</text>')
            y += BAR + GAP
        y += 24
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y}" '
        f'font-family="sans-serif" font-size="13">\n'
        f'<rect width="100%" height="100%" fill="white"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


if __name__ == "__main__":
    lines = Path(sys.argv[1]).read_text().splitlines()
    target = Path(sys.argv[2])
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(drawing([json.loads(line) for line in lines]))
