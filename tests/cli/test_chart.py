"""Charts: files that any program can open, with what they were told to show."""

import struct
import zlib

import numpy as np
import pytest

from ndfeed.cli import chart, glyphs
from ndfeed.cli.chart import Bar

BLUE, RED, WHITE = (66, 103, 172), (196, 72, 52), (255, 255, 255)


def pixels(data):
    """A PNG's pixels, with every length and checksum compared."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, at = {}, 8
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        assert struct.unpack(">I", data[at + 8 + length : at + 12 + length])[0] == zlib.crc32(
            kind + body
        )
        chunks[kind] = body
        at += 12 + length
    width, height, *form = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    assert form == [8, 2, 0, 0, 0]
    lines = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, -1)
    assert not lines[:, 0].any()
    return lines[:, 1:].reshape(height, width, 3)


def lengths(found, colour):
    """Pixels of each bar of a colour, from its first line."""
    hits = (found == colour).all(axis=2).sum(axis=1)
    thick = hits > hits.max() * 0.001
    starts = np.flatnonzero(thick[1:] & ~thick[:-1]) + 1
    return [int(hits[start]) for start in starts]


def test_bars_are_as_long_as_their_values():
    """On a linear scale from nought, or the picture would lie."""
    found = pixels(chart.png("t", [Bar("a", 25, ""), Bar("b", 100, ""), Bar("c", 50, "")]))

    assert lengths(found, BLUE) == [115, 460, 230]


def test_what_is_marked_has_another_colour():
    """That is what the eye looks for."""
    found = pixels(chart.png("t", [Bar("a", 1, ""), Bar("b", 2, "", marked=True)]))

    assert lengths(found, BLUE) == [230]
    assert lengths(found, RED) == [460]


def test_a_bar_that_is_too_long_is_cut_with_a_gap():
    """Or the short ones, which matter, could not be told apart."""
    found = pixels(chart.png("t", [Bar("a", 1, ""), Bar("b", 1000, "")], most=10))

    assert lengths(found, BLUE) == [46, 452]


@pytest.mark.parametrize("values", [[], [0.0], [0.0, 3.0]])
def test_nothing_to_show_is_a_picture_too(values):
    """A rate can be nought."""
    assert pixels(chart.png("", [Bar("x", v, "0") for v in values], "foot")).size


def test_texts_are_never_cut():
    """Neither a long title nor long labels."""
    found = pixels(chart.png("t" * 90, [Bar("l" * 50, 1, "v" * 50)], "f" * 95))

    assert (found[:, -20:] == WHITE).all()
    assert found.shape[1] > 90 * glyphs.WIDTH * 2


def test_letters_are_those_of_ascii():
    """All differ, and what is not there is a question mark."""
    every = "".join(map(chr, range(32, 127)))
    dots = {glyphs.drawn(letter).tobytes() for letter in every}
    i = glyphs.drawn("I")[:7, :5].astype(int).tolist()

    assert len(dots) == len(every)
    assert (glyphs.drawn("×") == glyphs.drawn("?")).all()
    assert i == [[0, 1, 1, 1, 0], *[[0, 0, 1, 0, 0]] * 5, [0, 1, 1, 1, 0]]


def test_saving_replaces_what_was_there(tmp_path):
    """As every -o does; nothing else is left beside it."""
    where = chart.save(str(tmp_path / "x.png"), b"first, and longer")

    assert chart.save(where, b"second") == str(tmp_path / "x.png")
    assert (tmp_path / "x.png").read_bytes() == b"second"
    assert [path.name for path in tmp_path.iterdir()] == ["x.png"]
