"""Parse Python literals and JSON from untrusted files.

Python literals, as .npy headers use them, are read without compiling anything:

    literal := ["u"] string | ["-"] integer ["L"] | "True" | "False" | "None"
             | "(" [items [","]] ")" | "[" [items [","]] "]" | "{" [pairs [","]] "}"

Text, integers, tuples, lists and dicts with text as keys; nothing else, no nesting deeper than
``_DEEPEST``, no duplicate keys. Accepted text means what ``ast.literal_eval`` makes of it, except
for the L of Python 2. Parsing is linear in the length of the text.

The size of JSON is checked before it is parsed. Refused are text that is not UTF-8 or has half a
surrogate pair, duplicate keys, numbers that are not integers or are negative, and nesting and
counts beyond what the caller allows.
"""

import json
import re
from typing import Any, NoReturn, TypeAlias, cast

from ndfeed.errors import LimitError

Literal = str | int | bool | None | tuple["Literal", ...] | list["Literal"] | dict[str, "Literal"]

_DEEPEST = 32
# One of text, number, word, opening or closing bracket, and the comma or colon after it.
_TOKEN = re.compile(
    r"""[ \t\n\r\f]*(?:
        [uU]?( '(?:[^'\\\n\r\0]|\\[^\n\r\0])*' | "(?:[^"\\\n\r\0]|\\[^\n\r\0])*" )
        | ( -?(?:0|[1-9][0-9]{0,39}) )L?
        | ( True | False | None )
        | ( [(\[{] )
        | ( [)\]}] )
    )[ \t\n\r\f]*([,:]?)""",
    re.VERBOSE,
)
Json: TypeAlias = Any  # any JSON, to be checked value by value
_Token = tuple[str | None, str | None, str | None, str | None, str | None, str]
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.S)
_WORDS = {"True": True, "False": False, "None": None}
_SIMPLE = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"'}
_PAIRS = {"(": ")", "[": "]", "{": "}"}


def parse(text: str) -> Literal:
    """Return the value of ``text``; ``ValueError`` if it is not such a literal.

    >>> parse("{'descr': '<f4', 'shape': (3, 10L), 'fortran_order': False}")
    {'descr': '<f4', 'shape': (3, 10), 'fortran_order': False}
    """
    reader = _Reader(text)
    value, separator = reader.value(reader.token(), 0)
    if separator or reader.at != len(text):
        raise ValueError(f"unexpected text at character {reader.at}")
    return value


class _Reader:
    """A position in a text, moved forward token by token."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def token(self) -> _Token:
        match = _TOKEN.match(self.text, self.at)
        if match is None:
            raise ValueError(f"not a literal at character {self.at}")
        self.at = match.end()
        return cast("_Token", match.groups())

    def value(self, token: _Token, depth: int) -> tuple[Literal, str]:
        """Return the value that begins with ``token``, and the separator after it."""
        text, number, word, opening, _, separator = token
        if text is not None:
            return _ESCAPE.sub(_unescape, text[1:-1]) if "\\" in text else text[1:-1], separator
        if number is not None:
            return int(number), separator
        if word is not None:
            return _WORDS[word], separator
        if opening is None or separator or depth == _DEEPEST:
            raise ValueError(f"unexpected bracket before character {self.at}")
        if opening == "{":
            return self.pairs(depth + 1)
        found, commas, separator = self.items(_PAIRS[opening], depth + 1)
        if opening == "(":  # (1) is 1, (1,) is a tuple
            return tuple(found) if commas or not found else found[0], separator
        return found, separator

    def items(self, end: str, depth: int) -> tuple[list[Literal], int, str]:
        """Return the items up to the bracket ``end``, the number of commas, and the separator."""
        found: list[Literal] = []
        commas = 0
        while True:
            token = self.token()
            if token[4] == end:
                return found, commas, token[5]
            if commas < len(found):
                raise ValueError(f"expected ',' or {end!r} before character {self.at}")
            value, separator = self.value(token, depth)
            found.append(value)
            if separator == ",":
                commas += 1
            elif separator:
                raise ValueError(f"unexpected ':' before character {self.at}")

    def pairs(self, depth: int) -> tuple[dict[str, Literal], str]:
        """Return the pairs up to the closing bracket, and the separator after it."""
        found: dict[str, Literal] = {}
        separator = ","
        while True:
            token = self.token()
            if token[4] == "}":
                return found, token[5]
            key, colon = self.value(token, depth)
            if separator != "," or colon != ":" or not isinstance(key, str) or key in found:
                raise ValueError(f"expected a new key and ':' before character {self.at}")
            found[key], separator = self.value(self.token(), depth)
            if separator == ":":
                raise ValueError(f"unexpected ':' before character {self.at}")


def _unescape(match: re.Match[str]) -> str:
    two, four, eight, other = match.groups()
    if other is None:
        code = int(two or four or eight, 16)
        if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
            raise ValueError("an escape that is no character")
        return chr(code)
    if other not in _SIMPLE:
        raise ValueError(f"unknown escape \\{other}")
    return _SIMPLE[other]


_SMALL, _FEW = 64 << 10, 64
# A quoted text, or the rest after an unclosed quote: no part is matched twice.
_TEXT = re.compile(rb'"[^"\\]*+(?:\\.?[^"\\]*+)*+"?', re.S)
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def parse_json(text: bytes, *, objects: int, values: int, deepest: int, what: str) -> Json:
    """Parse ``text``; ``ValueError`` if it is malformed, ``LimitError`` if it is too large.

    At most ``objects`` objects, which the message calls ``what``, and ``values`` values, nested
    at most ``deepest`` deep.
    """
    if len(text) > _SMALL or text.count(b"{") + text.count(b"[") > _FEW:
        _check_size(text, objects, values, deepest, what)
    escaped = b"\\u" in text
    found = json.loads(
        text.decode(),
        object_pairs_hook=_escaped_pairs if escaped else _pairs,
        parse_int=_natural if b"-" in text else int,
        parse_float=_no_number,
        parse_constant=_no_number,
    )
    if escaped:
        _check_text(found)
    return found


def _check_size(text: bytes, objects: int, values: int, deepest: int, what: str) -> None:
    """Refuse deep nesting and too many values before the JSON parser sees them."""
    outside = _TEXT.sub(b"", text)
    brackets = outside.translate(None, _NO_BRACKETS)
    if outside.count(b",") > values or brackets.count(b"{") > objects + 2:
        raise LimitError("", f"expected at most {objects:,} {what}, found more")
    for _ in range(deepest):
        brackets = brackets.replace(b"[]", b"").replace(b"{}", b"")
    if brackets:
        raise ValueError(f"brackets must match and be nested at most {deepest} deep")


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key appears twice")
    return found


def _escaped_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Check for escapes of half a surrogate pair, which is not text and cannot be written back."""
    for name, value in pairs:
        name.encode()
        _check_text(value)
    return _pairs(pairs)


def _check_text(value: object) -> None:
    """Check text outside of objects, which were checked when they were made."""
    if isinstance(value, str):
        value.encode()
    elif isinstance(value, list):
        for one in value:
            _check_text(one)


def _natural(text: str) -> int:
    if text.startswith("-"):
        _no_number(text)
    return int(text)


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"expected whole numbers, found {text:.40}")
