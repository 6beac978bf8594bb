"""Bar charts of rates: SVG as plain text, PNG through Matplotlib where that is installed.

Rates differ by factors of hundreds, so the axis is logarithmic: the shortest bar can be read as
well as the longest, and equal ratios are equal distances. Every bar has its value beside it.
"""

import io
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib.util import find_spec
from typing import Any

from ndfeed.cli.console import format_rate
from ndfeed.errors import DeniedError, TargetError, shown
from ndfeed.files import write

_INK, _GREY, _GRID = "#202124", "#5f6368", "#dadce0"
_PLAIN, _MARKED = "#4267ac", "#c44834"
_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', Helvetica, Arial, sans-serif"
_SIZE = 15  # pixels of letters
_WIDE = 0.56  # average width of a letter, relative to its size
_LINE = 40  # pixels from one bar to the next
_THICK = 24
_MARGIN = 24
_LONGEST = 460
_FEWEST = 20.0  # least ratio of the axis' end to its start


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar: what it stands for, its value, and the text beside it."""

    label: str
    value: float
    text: str
    marked: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """What a picture shows. ``axis`` names the values, ``foot`` is a line below."""

    title: str
    bars: Sequence[Bar]
    axis: str
    foot: str = ""


def check(path: str | os.PathLike[str]) -> str:
    """Return the absolute path of a chart, or raise an error if it cannot be written."""
    where = os.path.abspath(path)
    kind = os.path.splitext(where)[1].lower()
    if kind not in (".svg", ".png"):
        raise TargetError(
            where, "charts are written as .svg or .png", remedy="choose another --plot"
        )
    if not os.access(os.path.dirname(where), os.W_OK) or os.path.isdir(where):
        raise DeniedError(
            where, "the chart cannot be written there", remedy="choose another --plot"
        )
    if kind == ".png" and find_spec("matplotlib") is None:
        raise TargetError(
            where, "a PNG needs Matplotlib", remedy="pip install 'ndfeed[plot]', or choose an .svg"
        )
    return where


def save(path: str, picture: bytes) -> str:
    """Write a picture, completely or not at all, and return its path."""
    where = os.path.abspath(path)
    write.write_file(os.fsencode(where), picture)
    return where


def draw(path: str, chart: Chart) -> bytes:
    """Draw a chart in the format of the file's name."""
    return png(chart) if path.lower().endswith(".png") else svg(chart).encode()


def span(values: Sequence[float]) -> tuple[float, float]:
    """Return where the axis starts and ends: below the least value, so that every bar is visible.

    >>> span([300.0, 45_000.0]), span([20.0, 21.0])
    ((100.0, 45000.0), (10.0, 200.0))
    """
    known = [value for value in values if value > 0 and math.isfinite(value)]
    if not known:
        return 1.0, 10.0
    low = 10.0 ** math.floor(math.log10(min(known) / 2))
    return low, max(max(known), _FEWEST * low)


def ticks(low: float, high: float) -> list[float]:
    """Return the powers of ten on the axis."""
    first, last = round(math.log10(low)), math.floor(math.log10(high) + 1e-9)
    return [10.0**power for power in range(first, last + 1)]


def _label_tick(tick: float) -> str:
    return format_rate(tick).replace(".0", "")


def svg(chart: Chart) -> str:
    """Draw the chart as SVG, with text as text."""
    low, high = span([bar.value for bar in chart.bars])
    left = (
        _MARGIN + _estimate_width(max((bar.label for bar in chart.bars), key=len, default="")) + 12
    )
    beside = _estimate_width(max((bar.text for bar in chart.bars), key=len, default="")) + 12
    top = _MARGIN + 44
    bottom = top + _LINE * len(chart.bars)
    height = bottom + 52 + (30 if chart.foot else 0) + _MARGIN - 12
    text = max(
        _estimate_width(chart.title, 1.2),
        _estimate_width(chart.foot, 0.9),
        _estimate_width(chart.axis) + left,
    )
    width = max(left + _LONGEST + beside, text + _MARGIN) + _MARGIN

    def at(value: float) -> float:
        return left + _LONGEST * math.log(max(value, low) / low) / math.log(high / low)

    title = _draw_text(_MARGIN, _MARGIN + 14, chart.title, "size", "bold")
    parts = [
        title,
        *_draw_axis(chart, at(low), [(at(tick), tick) for tick in ticks(low, high)], bottom),
    ]
    for number, bar in enumerate(chart.bars):
        y, end = top + number * _LINE, at(bar.value)
        middle = y + _THICK / 2 + 0.35 * _SIZE
        colour = _MARKED if bar.marked else _PLAIN
        parts.append(_draw_text(left - 12, middle, bar.label, "end"))
        parts.append(
            f'<rect x="{left:.0f}" y="{y}" width="{max(end - left, 2):.1f}" height="{_THICK}" '
            f'rx="2" fill="{colour}"/>'
        )
        parts.append(
            _draw_text(max(end, left + 2) + 10, middle, bar.text, "bold" if bar.marked else "")
        )
    if chart.foot:
        parts.append(_draw_text(_MARGIN, height - _MARGIN, chart.foot, "small"))
    return _make_page(chart.title, round(width), height, parts)


def _draw_axis(
    chart: Chart, left: float, places: Sequence[tuple[float, float]], bottom: int
) -> list[str]:
    """Draw lines for the powers of ten, with their values and what these mean."""
    top = _MARGIN + 36
    parts = [
        f'<path d="M{x:.1f} {top}V{bottom}" stroke="{_GRID}" stroke-width="1"/>'
        + _draw_text(x, bottom + 18, _label_tick(tick), "small", "middle")
        for x, tick in places
    ]
    parts.append(f'<path d="M{left:.1f} {top}V{bottom}" stroke="{_GREY}" stroke-width="1.5"/>')
    parts.append(_draw_text(left, bottom + 38, f"{chart.axis}, logarithmic axis", "small"))
    return parts


def _make_page(title: str, width: int, height: int, parts: Sequence[str]) -> str:
    style = (
        f"text{{font-family:{_FONT};font-size:{_SIZE}px;fill:{_INK};"
        "paint-order:stroke;stroke:#ffffff;stroke-width:4px}"
        f".size{{font-size:{1.2 * _SIZE:.0f}px}}.bold{{font-weight:600}}.end{{text-anchor:end}}"
        f".middle{{text-anchor:middle}}.small{{font-size:{0.87 * _SIZE:.0f}px;fill:{_GREY}}}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img">\n'
        f"<title>{_escape(title)}</title>\n<style>{style}</style>\n"
        f'<rect width="100%" height="100%" fill="#ffffff"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _draw_text(x: float, y: float, text: str, *classes: str) -> str:
    named = f' class="{" ".join(classes)}"' if any(classes) else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{named}>{_escape(text)}</text>'


def _escape(text: str) -> str:
    """Make text from anywhere printable, and escape it for XML."""
    return escape(shown(text), quote=True)


def _estimate_width(text: str, scale: float = 1.0) -> int:
    """Estimate the width of a text in pixels."""
    return math.ceil(len(shown(text)) * _WIDE * _SIZE * scale)


def png(chart: Chart) -> bytes:
    """Draw the chart as PNG, with Matplotlib."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - not everybody has it

    low, high = span([bar.value for bar in chart.bars])
    count = len(chart.bars)
    # Without pyplot: no window, and no state shared with others.
    made: Any = Figure(figsize=(9.0, 1.6 + 0.5 * count), dpi=150, layout="constrained")
    axes = made.add_subplot()
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    colours = [_MARKED if bar.marked else _PLAIN for bar in chart.bars]
    values = [max(bar.value, low) for bar in chart.bars]
    axes.barh(range(count), [v - low for v in values], left=low, height=0.6, color=colours)
    axes.set_yticks(range(count), [shown(bar.label) for bar in chart.bars], parse_math=False)
    axes.invert_yaxis()
    marks = ticks(low, high)
    axes.set_xticks(marks, [_label_tick(tick) for tick in marks])
    axes.minorticks_off()
    axes.grid(axis="x", color=_GRID)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    for number, (value, bar) in enumerate(zip(values, chart.bars, strict=True)):
        axes.annotate(
            shown(bar.text),
            (value, number),
            (6, 0),
            textcoords="offset points",
            va="center",
            fontweight="bold" if bar.marked else "normal",
            parse_math=False,
        )
    axes.set_xlabel(f"{chart.axis}, logarithmic axis", loc="left", color=_GREY, parse_math=False)
    made.suptitle(shown(chart.title), x=0.01, ha="left", parse_math=False)
    if chart.foot:
        made.supxlabel(
            shown(chart.foot), x=0.01, ha="left", fontsize="small", color=_GREY, parse_math=False
        )
    out = io.BytesIO()
    made.savefig(out, format="png")
    return out.getvalue()
