"""Charts: files that any program can open, with what they were told to show."""

import itertools
import math
import xml.etree.ElementTree as ET

import pytest

from ndfeed.cli import chart
from ndfeed.cli.chart import Bar, Chart
from ndfeed.errors import DeniedError, TargetError

NAMESPACE = "{http://www.w3.org/2000/svg}"
BLUE, RED = "#4267ac", "#c44834"


def parsed(bars, title="t", foot=""):
    """An SVG's root, which must be sound XML."""
    return ET.fromstring(chart.svg(Chart(title, bars, "rows per second", foot)))


def bars_of(root):
    """Colour and length of every bar."""
    found = [one for one in root.iter(f"{NAMESPACE}rect") if one.get("rx")]
    return [(one.get("fill"), float(one.get("width"))) for one in found]


def texts_of(root):
    return [one.text for one in root.iter(f"{NAMESPACE}text")]


def test_equal_ratios_are_equal_distances():
    """Rates differ by hundreds: on a linear axis the short bars would all look alike."""
    lengths = [
        length
        for _, length in bars_of(parsed([Bar("", v, "") for v in (500, 5_000, 50_000, 500_000)]))
    ]
    steps = [longer - shorter for shorter, longer in itertools.pairwise(lengths)]

    assert steps == pytest.approx([steps[0]] * 3, abs=0.2)
    assert lengths[0] > 50  # the shortest can be seen


def test_the_axis_says_where_values_are():
    """Powers of ten, each at its place, and what they are."""
    root = parsed([Bar("a", 300, ""), Bar("b", 45_000, "")])
    places = {one.text: float(one.get("x")) for one in root.iter(f"{NAMESPACE}text")}

    assert [place for place in places if place in {"100", "1 k", "10 k"}] == ["100", "1 k", "10 k"]
    assert places["10 k"] - places["1 k"] == pytest.approx(places["1 k"] - places["100"], abs=0.2)
    assert "rows per second, logarithmic axis" in places


def test_what_is_marked_has_another_colour():
    """That is what the eye looks for."""
    assert [colour for colour, _ in bars_of(parsed([Bar("a", 1, ""), Bar("b", 2, "", True)]))] == [
        BLUE,
        RED,
    ]


def test_text_is_text_and_means_nothing_to_xml():
    """Also a path that somebody chose with care: names of files come into the picture."""
    hard = "a<script>&\"' \x1b[31m\x00 ×"
    root = parsed([Bar(hard, 1, "1 row/s"), Bar("jumping", 2, "")], hard, hard)
    said = "a<script>&\"' \\x1b[31m\\x00 ×"

    assert texts_of(root).count(said) == 3
    assert root.find(f"{NAMESPACE}title").text == said
    assert {"jumping", "1 row/s"} <= set(texts_of(root))
    assert not list(root.iter(f"{NAMESPACE}script"))


@pytest.mark.parametrize("values", [[], [0.0], [0.0, 3.0], [7.0, 7.0]])
def test_nothing_to_show_is_a_picture_too(values):
    """A rate can be nought."""
    found = bars_of(parsed([Bar("x", v, "0") for v in values], foot="foot"))

    assert len(found) == len(values)
    assert all(length > 0 and math.isfinite(length) for _, length in found)


def test_texts_are_never_cut():
    """Neither a long title nor long labels: a letter is about half as wide as it is high."""
    root = parsed([Bar("l" * 50, 1, "v" * 50)], "t" * 90, "f" * 95)

    assert float(root.get("width")) > 90 * 0.5 * 18
    assert float(root.get("width")) > (50 + 50) * 0.5 * 15 + 460


def test_png_through_matplotlib(tmp_path):
    """Where it is installed; signs that it takes for formulas are text as well."""
    pytest.importorskip("matplotlib")
    bars = [Bar("a$x_1$ $", 10, "$10"), Bar("b", 0, "0", True)]
    where = chart.check(tmp_path / "x.PNG")
    made = chart.draw(where, Chart("$ t", bars, "rows per second", "$f$"))

    assert made.startswith(b"\x89PNG\r\n\x1a\n")
    assert chart.png(Chart("", [], "rows per second")).startswith(b"\x89PNG")


def test_a_png_without_matplotlib_names_the_extra(tmp_path, monkeypatch):
    """Before anything is measured."""
    monkeypatch.setattr(chart, "find_spec", lambda name: None)

    with pytest.raises(TargetError, match=r"Matplotlib; pip install 'ndfeed\[plot\]', or .* \.svg"):
        chart.check(tmp_path / "x.png")
    assert chart.check(tmp_path / "x.svg") == str(tmp_path / "x.svg")


@pytest.mark.parametrize(
    ("name", "error"),
    [("x.gif", TargetError), ("x", TargetError), ("none/x.svg", DeniedError)],
)
def test_where_no_chart_can_be(tmp_path, name, error):
    """Of a kind that is not written, or in a folder that is not there."""
    with pytest.raises(error, match="choose another --plot"):
        chart.check(tmp_path / name)


def test_saving_replaces_what_was_there(tmp_path):
    """As every -o does; nothing else is left beside it."""
    where = chart.save(str(tmp_path / "x.svg"), b"first, and longer")

    assert chart.save(where, b"second") == str(tmp_path / "x.svg")
    assert (tmp_path / "x.svg").read_bytes() == b"second"
    assert [path.name for path in tmp_path.iterdir()] == ["x.svg"]
