"""Names of types: NumPy's own, where it has one, and never text that NumPy would run."""

import re
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from children import examples
from hostile import watch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ndfeed.formats import dtypes

plain = st.one_of(
    hnp.boolean_dtypes(),
    hnp.integer_dtypes(endianness="?"),
    hnp.unsigned_integer_dtypes(endianness="?"),
    hnp.floating_dtypes(endianness="?", sizes=(16, 32, 64, 128)),
    hnp.complex_number_dtypes(endianness="?", sizes=(64, 128, 256)),
    hnp.datetime64_dtypes(endianness="?"),
    hnp.timedelta64_dtypes(endianness="?"),
    hnp.byte_string_dtypes(min_len=1),
    hnp.unicode_string_dtypes(endianness="?", min_len=1),
    st.integers(1, 99).map(lambda n: np.dtype(f"V{n}")),
)


@settings(max_examples=examples(300))
@given(dtype=plain)
def test_names_of_numpy_are_their_own(dtype):
    """What NumPy writes into a header stands for itself."""
    assert dtypes.canonical(dtype.str) == dtype.str
    assert dtypes.named(dtype) == dtype.str
    assert dtypes.itemsize(dtype.str) == dtype.itemsize
    assert dtypes.swapped(dtype.str) is not dtype.isnative
    assert dtypes.delivered(dtype.str) == dtype.newbyteorder("=")
    assert dtypes.plain(dtype.str) == dtype.newbyteorder("=").str


@settings(max_examples=examples(600))
@given(
    text=st.one_of(
        st.text("<>|=biufcSaUVmM?0123456789[]nsDYμ/", max_size=9),
        st.from_regex(r"[<>|=]?[a-zA-Z?][0-9]{0,3}(\[[0-9]{0,3}[a-zμ]{0,3}\])?", fullmatch=True),
    )
)
def test_any_other_spelling_means_what_numpy_says(text):
    """Or is refused; the name it gets is one that gives itself."""
    try:
        with watch():
            name = dtypes.canonical(text)
    except ValueError:
        return
    assert dtypes.canonical(name) == name
    if name not in dtypes.EXTENDED:
        assert name == np.dtype(re.sub("^([<>|=]?)a", r"\1S", text)).str  # NumPy's old letter


@pytest.mark.parametrize("name", dtypes.EXTENDED)
def test_extended_types_are_those_of_ml_dtypes(name):
    """Same width and same name, so that a header, a caller and a framework mean one thing."""
    if not hasattr(ml_dtypes, name):
        pytest.skip("not in this version of ml_dtypes")
    dtype = np.dtype(getattr(ml_dtypes, name))

    assert dtypes.canonical(name) == dtypes.named(name) == dtypes.named(dtype) == name
    assert dtypes.itemsize(name) == dtype.itemsize == dtypes.EXTENDED[name]
    assert dtypes.delivered(name) == dtype
    assert dtypes.plain(name) == name
    assert not dtypes.swapped(name)


def test_without_ml_dtypes_the_bits_are_delivered():
    """It is optional: unsigned integers of the same width stand in."""
    code = (
        "import sys; sys.modules['ml_dtypes'] = None\n"
        "from ndfeed.formats.dtypes import EXTENDED, delivered\n"
        "assert all(delivered(n).str[1:] == f'u{size}' for n, size in EXTENDED.items())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("?", "|b1"),
        ("bool", "|b1"),
        ("<b1", "|b1"),
        ("uint8", "|u1"),
        ("float32", np.dtype("f4").str),
        ("=f4", np.dtype("f4").str),
        ("f4", np.dtype("f4").str),
        (">i1", "|i1"),
        ("a5", "|S5"),
        ("<S5", "|S5"),
        ("S05", "|S5"),
        ("<V2", "|V2"),
        ("<f1", "float8_e5m2"),
        ("<M8[μs]", "<M8[us]"),
        ("<M8[1s]", "<M8[s]"),
        ("<M8", "<M8"),
    ],
)
def test_spellings_of_others(text, name):
    """Each type has one name here, however it is spelled there."""
    assert dtypes.canonical(text) == name


@pytest.mark.parametrize(
    "text",
    ["", "b", "B", "l", "<d", "f", "f3", "i16", "u0", "c4", "?1", "b2", "O", "O8", "T", "<g2",
     "<W4", "f4 ", "f4,f4", "(2,)f4", "f4[s]", "M4", "M8[]", "M8[s", "M8[s/0]", "M8[0s]", "M8[s]s",
     "V536870912", "U536870912", "S99999999999", "float", "float128", "bfloat16 ", "<bfloat16"],
)  # fmt: skip
def test_unknown_spellings_are_refused(text):
    """C's letters mean another width on another machine; the rest means nothing, or harm."""
    with pytest.raises(ValueError, match="unknown dtype"):
        dtypes.canonical(text)


@pytest.mark.parametrize("text", ["S0", "V0", "<U0", "S00"])
def test_elements_of_no_bytes_are_refused(text):
    """Any number of them fits in any file."""
    with pytest.raises(ValueError, match="elements of no bytes"):
        dtypes.canonical(text)


@pytest.mark.parametrize("dtype", ["O", "f4,f4", [("a", "f4")], ("f4", 3)])
def test_callers_dtype_must_be_plain(dtype):
    """Records and objects are no elements."""
    with pytest.raises(ValueError, match="plain element type"):
        dtypes.named(dtype)


def test_why_text_from_files_is_checked_before_numpy_sees_it():
    """The day this fails NumPy has been mended, and the check can be milder."""
    code = "import numpy; numpy.dtype('M8[s/0]')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True)

    assert done.returncode < 0
