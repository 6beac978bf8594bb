"""Bar charts as PNG, drawn with NumPy and zlib alone.

A chart is horizontal bars from one origin, on a linear scale. With ``most`` given, a bar that
would be longer than so many times the shortest is cut, and drawn with a gap to say so.
"""

import os
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ndfeed.cli import glyphs
from ndfeed.files import write

Canvas = NDArray[np.uint8]
Colour = tuple[int, int, int]

_WHITE, _INK, _GREY = (255, 255, 255), (32, 33, 36), (95, 99, 104)
_PLAIN, _MARKED = (66, 103, 172), (196, 72, 52)
_SCALE = 2  # of letters
_LINE = 44  # pixels from one bar to the next
_THICK = 26
_MARGIN = 24
_LONGEST = 460
_GAP = 8


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar: how long it is, what stands before it and behind it."""

    label: str
    value: float
    text: str
    marked: bool = False


def png(title: str, bars: Sequence[Bar], foot: str = "", most: float | None = None) -> bytes:
    """A bar chart, as the bytes of a PNG file."""
    labels = max((_wide(bar.label) for bar in bars), default=0)
    texts = max((_wide(bar.text) for bar in bars), default=0)
    left = _MARGIN + labels + 14
    width = max(left + _LONGEST + 14 + texts, _wide(title) + _MARGIN, _wide(foot) + _MARGIN)
    height = 2 * _MARGIN + 30 + _LINE * len(bars) + (30 if foot else 0)
    canvas = np.full((height, width + _MARGIN, 3), 255, np.uint8)
    _write(canvas, _MARGIN, _MARGIN, title, _INK)
    top = _MARGIN + 42
    longest = _longest([bar.value for bar in bars], most)
    for number, bar in enumerate(bars):
        y = top + number * _LINE
        colour = _MARKED if bar.marked else _PLAIN
        letters = y + (_THICK - glyphs.HEIGHT * _SCALE) // 2
        _write(canvas, left - 14 - _wide(bar.label), letters, bar.label, _INK)
        length = round(_LONGEST * min(bar.value / longest, 1.0)) if longest else 0
        _fill(canvas, left, y, max(length, 2), _THICK, colour)
        if bar.value > longest:
            _fill(canvas, left + length - 4 * _GAP, y, _GAP, _THICK, _WHITE)
        _write(canvas, left + length + 14, letters, bar.text, colour if bar.marked else _GREY)
    _fill(canvas, left - 2, top - 6, 2, _LINE * len(bars) - 6, _GREY)
    if foot:
        _write(canvas, _MARGIN, height - _MARGIN - glyphs.HEIGHT * _SCALE, foot, _GREY)
    return _encoded(canvas)


def save(path: str, picture: bytes) -> str:
    """Write a picture, whole or not at all; where it is."""
    where = os.path.abspath(path)
    write.write_file(os.fsencode(where), picture)
    return where


def _longest(values: Sequence[float], most: float | None) -> float:
    """The value that a bar of full length stands for."""
    known = [value for value in values if value > 0]
    if not known:
        return 0.0
    return max(known) if most is None else min(max(known), most * min(known))


def _wide(text: str) -> int:
    return glyphs.WIDTH * _SCALE * len(text)


def _fill(canvas: Canvas, x: int, y: int, width: int, height: int, colour: Colour) -> None:
    canvas[y : y + height, x : x + width] = colour


def _write(canvas: Canvas, x: int, y: int, text: str, colour: Colour) -> None:
    dots = np.kron(glyphs.drawn(text), np.ones((_SCALE, _SCALE), bool))
    canvas[y : y + dots.shape[0], x : x + dots.shape[1]][dots] = colour


def _encoded(canvas: Canvas) -> bytes:
    """Eight bits of red, green and blue each, no filter; as in the PNG specification."""
    height, width, _ = canvas.shape
    lines = np.zeros((height, 1 + 3 * width), np.uint8)  # each line begins with its filter: 0
    lines[:, 1:] = canvas.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 9)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in parts)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
