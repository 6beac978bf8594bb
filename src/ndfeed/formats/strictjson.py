"""JSON from files that are not trusted: bounded before it is parsed, and nothing but the plain.

What is refused: text that is not UTF-8 or has half a surrogate pair, a key that appears twice,
numbers that are not whole or below 0, nesting and counts beyond what the caller allows.
"""

import json
import re
from typing import Any, NoReturn

from ndfeed.errors import LimitError

_SMALL, _FEW = 64 << 10, 64
# A quoted text, or the rest from a quote without its partner: never tried twice.
_TEXT = re.compile(rb'"[^"\\]*+(?:\\.?[^"\\]*+)*+"?', re.S)
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def parse_json(text: bytes, *, objects: int, values: int, deepest: int, what: str) -> Any:  # noqa: ANN401 - any JSON
    """What ``text`` says; ``ValueError`` where it is wrong, ``LimitError`` where too much.

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
    """Refuse deep nesting and masses of values before the JSON parser meets them."""
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
    """Escapes can spell half a surrogate pair, which is no text: it cannot be written back."""
    for name, value in pairs:
        name.encode()
        _check_text(value)
    return _pairs(pairs)


def _check_text(value: object) -> None:
    """Objects were looked through when they were made."""
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
