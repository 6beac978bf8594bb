"""Literals mean what Python says they mean, or are refused."""

import ast
import warnings

import pytest
from children import examples
from hostile import watch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ndfeed.formats.untrusted_text import parse

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
literals = st.recursive(
    st.one_of(
        texts,
        st.integers(-(10**39), 10**39),
        st.booleans(),
        st.none(),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(texts, inner, max_size=3),
    ),
    max_leaves=12,
)


@settings(max_examples=examples(300))
@given(value=literals)
def test_what_python_spells_is_read(value):
    """NumPy writes headers with repr."""
    assert parse(repr(value)) == value


def pythons(text):
    """What Python says, or its error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.literal_eval(text)


@settings(max_examples=examples(600))
@given(text=st.text("()[]{},:'\"\\ \n\tuLx0123456789-TrueFalsNoé\0", max_size=14))
@example("(1)")
@example("(1,)")
@example("05")
@example("'\\x41'")
@example("{'a': 1, 'a': 2}")
@example("[1:]")
@example("{'a': 1: 2}")
@example("(True: 1)")
@example("1,")
@example("{'a': 1 'b': 2}")
def test_what_is_accepted_means_what_python_says(text):
    """Less may be accepted, never something else; the L of Python 2 apart."""
    try:
        with watch():
            found = parse(text)
    except ValueError:
        return
    if "L" in text.replace("'L", ""):
        return

    expected = pythons(text.strip())
    assert found == expected
    assert repr(found) == repr(expected)  # True is no 1


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("10L", 10),
        ("(3L, -4L)", (3, -4)),
        ("u'<f4'", "<f4"),
        ('"a"', "a"),
        ("  {'a' :\t[ ] ,\n}  ", {"a": []}),
        (r"'\x41\u00e9\U0001f600\n\t\r\\\'\"'", "Aé\U0001f600\n\t\r\\'\""),
    ],
)
def test_odd_spellings(text, value):
    """Python 2, other languages, and escapes."""
    assert parse(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "x",
        "1.5",
        "1e3",
        "0x10",
        "1_000",
        "b'a'",
        "'a",
        "'a\nb'",
        "'a' 'b'",
        "{1: 2}",
        "{'a'}",
        "{'a': 1, 'a': 1}",
        "[1",
        "1]",
        "(,)",
        "[1,,2]",
        "1 + 1",
        "f()",
        "()()",
        "...",
        "'\\q'",
        "'\\ud800'",
        "'\\U00110000'",
        "'\\x4'",
        "9" * 41,
        "1 # comment",
        "[" * 33 + "]" * 33,
    ],
)
def test_everything_else_is_refused(text):
    """Half of these are Python, and none has a place in a header."""
    with pytest.raises(ValueError, match=r"(literal|unexpected|expected|escape)"):
        parse(text)


def test_depth_is_bounded():
    """A thousand brackets must not use up the stack."""
    assert parse("[" * 32 + "]" * 32)
    with pytest.raises(ValueError, match="bracket"):
        parse("[" * 100_000)
