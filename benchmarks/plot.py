"""Draw the rates of a results file as a chart for the documentation.

    python benchmarks/plot.py benchmarks/results/torch_gpu-DATE.jsonl docs/images/gpu.svg
    python benchmarks/plot.py benchmarks/results/peers-DATE.jsonl docs/images/peers.svg
    python benchmarks/plot.py benchmarks/results/cores-DATE.jsonl docs/images/cores.svg

Other loaders are drawn on a logarithmic scale, since the slowest and the fastest differ by a factor
of a thousand; lines mark the powers of ten, and every bar is labelled with its rate.
"""

import json
import math
import sys
from collections.abc import Callable
from html import escape
from pathlib import Path

from table import CORES
from table import rate as ours

WIDTH, BAR, GAP, LEFT = 720, 22, 8, 250
COLOURS = {"ours": "#2b6cb0", "today": "#a0aec0", "limit": "#e2e8f0"}
LINES = ["#2b6cb0", "#63b3ed", "#2f855a", "#68d391", "#b7791f", "#c53030", "#805ad5"]
ROW_BYTES = {"150KB": 224 * 224 * 3, "3KB": 3072}

ROOM = WIDTH - LEFT - 110
NEAR = "shuffles within shards, blocks or a buffer; all others shuffle the entire dataset"

Bars = list[tuple[str, float, str]]  # label, rows per second, kind
Scale = Callable[[float], float]  # from rows per second to pixels


def bars(facts: list[dict], label: str) -> Bars:
    """Return the rates for rows of one size, slowest first."""
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


def peers(facts: list[dict], label: str) -> Bars:
    """Return the rates of ndfeed and its peers, fastest first; approximate shuffles are marked."""
    near = {one["peer"] for one in facts if one.get("shuffle", "exact") != "exact"}
    found: Bars = [("ndfeed", ours(facts, label), "ours")]
    for one in facts:
        if one.get("rows") == label and "rows_per_s" in one:
            name = one["peer"] + (" *" if one["peer"] in near else "")
            found.append((name, one["rows_per_s"], "today"))
    return sorted(found, key=lambda one: -one[1])


def scaling(facts: list[dict]) -> str:
    """Return the SVG text of rates by number of cores, relative to one core."""
    counts = sorted({one["cores"] for one in facts if one.get("way") == "ndfeed"})
    left, right, top, bottom = 60, WIDTH - 210, 20, 320
    most = counts[-1]

    def x(count: float) -> float:
        return left + math.log2(count) / math.log2(most) * (right - left)

    def y(times: float) -> float:
        return bottom - math.log2(max(times, 0.5)) / math.log2(most) * (bottom - top)

    parts = [
        f'<line x1="{x(1):.0f}" y1="{y(1):.0f}" x2="{x(most):.0f}" y2="{y(most):.0f}" '
        f'stroke="{COLOURS["limit"]}" stroke-width="6"/>'
    ]
    for count in counts:
        parts.append(f'<text x="{x(count):.0f}" y="{bottom + 20}" '
                     f'text-anchor="middle">{count}</text>')  # fmt: skip
        parts.append(f'<text x="{left - 12}" y="{y(count) + 4:.0f}" '
                     f'text-anchor="end">{count} ×</text>')  # fmt: skip
    ends: list[float] = []
    for number, case in enumerate(CORES):
        rates = {one["cores"]: one["rate"] for one in facts
                 if one["case"] == case and one.get("way") == "ndfeed"}  # fmt: skip
        points = [(x(count), y(rates[count] / rates[counts[0]])) for count in counts]
        path = " ".join(f"{at:.0f},{height:.0f}" for at, height in points)
        colour = LINES[number % len(LINES)]
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        ends.append(points[-1][1])
    place = top
    for number in sorted(range(len(ends)), key=lambda one: ends[one]):
        place = max(place + 18, ends[number] + 4)
        name = escape(list(CORES)[number])
        parts.append(f'<text x="{right + 12}" y="{place:.0f}" '
                     f'fill="{LINES[number % len(LINES)]}">{name}</text>')  # fmt: skip
    below = "cores; on the thick line, every core adds as much as the first"
    middle = (left + right) / 2
    parts.append(f'<text x="{middle:.0f}" y="{bottom + 44}" text-anchor="middle">{below}</text>')
    return _page(parts, bottom + 56)


def drawing(facts: list[dict]) -> str:
    """Return the SVG text of the chart."""
    if any("case" in one for one in facts):
        return scaling(facts)
    parts, y = [], 20
    against = any("peer" in one for one in facts)
    for label in facts[0]["rows"] if against else ROW_BYTES:
        some = peers(facts, label) if against else bars(facts, label)
        scale = logarithmic(some) if against else linear(some)
        scaled = ", logarithmic scale" if against else ""
        parts.append(
            f'<text x="8" y="{y}" font-weight="bold">'
            f"rows of {label}, rows per second{scaled}</text>"
        )
        y += 10
        if against:
            parts += grid(some, scale, y, y + len(some) * (BAR + GAP) - GAP)
        for what, rate, whose in some:
            parts += one_bar(what, rate, whose, scale(rate), y)
            y += BAR + GAP
        y += 24
    if against:
        parts.append(f'<text x="8" y="{y - 8}">* {escape(NEAR)}</text>')
        y += 12
    return _page(parts, y)


def _page(parts: list[str], height: int) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'font-family="sans-serif" font-size="13">\n'
        f'<rect width="100%" height="100%" fill="white"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def one_bar(what: str, rate: float, whose: str, length: float, y: int) -> list[str]:
    """Return label, bar and rate; ndfeed's label is bold."""
    bold = ' font-weight="bold"' if (what, whose) == ("ndfeed", "ours") else ""
    return [
        f'<text x="{LEFT - 8}" y="{y + 16}" text-anchor="end"{bold}>{escape(what)}</text>',
        f'<rect x="{LEFT}" y="{y}" width="{length:.0f}" height="{BAR}" fill="{COLOURS[whose]}"/>',
        f'<text x="{LEFT + length + 6:.0f}" y="{y + 16}"{bold}>{rate:,.0f}</text>',
    ]


def linear(some: Bars) -> Scale:
    """Return a scale in proportion to the rates."""
    most = max(rate for _, rate, _ in some)
    return lambda rate: max(rate / most * ROOM, 1)


def logarithmic(some: Bars) -> Scale:
    """Return a scale of powers of ten that starts with the one below the lowest rate."""
    low = math.floor(math.log10(min(rate for _, rate, _ in some)))
    high = math.log10(max(rate for _, rate, _ in some))
    return lambda rate: max((math.log10(rate) - low) / (high - low) * ROOM, 1)


def grid(some: Bars, scale: Scale, top: int, bottom: int) -> list[str]:
    """Return a line at every power of ten among the rates."""
    rates = [rate for _, rate, _ in some]
    powers = range(math.ceil(math.log10(min(rates))), math.floor(math.log10(max(rates))) + 1)
    return [
        f'<line x1="{LEFT + scale(10**power):.0f}" x2="{LEFT + scale(10**power):.0f}" '
        f'y1="{top}" y2="{bottom}" stroke="{COLOURS["limit"]}"/>'
        for power in powers
    ]


if __name__ == "__main__":
    lines = Path(sys.argv[1]).read_text().splitlines()
    target = Path(sys.argv[2])
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(drawing([json.loads(line) for line in lines]))
