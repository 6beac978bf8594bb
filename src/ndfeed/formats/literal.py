"""Python literals as .npy headers use them, read without compiling anything.

    literal := string | integer ["L"] | "True" | "False" | "None"
             | "(" [items [","]] ")" | "[" [items [","]] "]" | "{" [pairs [","]] "}"

Text, whole numbers, tuples, lists and dicts; nothing else, no nesting beyond ``_DEEPEST``.
Linear in the length of the text.
"""

import re

Literal = str | int | bool | None | tuple["Literal", ...] | list["Literal"] | dict[str, "Literal"]

_DEEPEST = 32
_TOKEN = re.compile(
    r"""\s*(?:(?P<text>'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*")"""
    r"""|(?P<number>-?[0-9]{1,40})L?|(?P<word>True|False|None)|(?P<mark>[()\[\]{},:]))"""
)
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.S)
_WORDS = {"True": True, "False": False, "None": None}
_SIMPLE = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"'}
_PAIRS = {"(": ")", "[": "]", "{": "}"}


def parse(text: str) -> Literal:
    """The value that ``text`` spells; ``ValueError`` where it is no such literal.

    >>> parse("{'descr': '<f4', 'shape': (3, 10L), 'fortran_order': False}")
    {'descr': '<f4', 'shape': (3, 10), 'fortran_order': False}
    """
    reader = _Reader(text)
    value = reader.value(0)
    if text[reader.at :].strip(" \t\r\n\f\x00"):
        raise ValueError(f"unexpected text at character {reader.at}")
    return value


class _Reader:
    """A position in a text, moved forward token by token."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def token(self) -> tuple[str, str]:
        match = _TOKEN.match(self.text, self.at)
        if match is None or match.lastgroup is None:
            raise ValueError(f"not a literal at character {self.at}")
        self.at = match.end()
        return match.lastgroup, match.group(match.lastgroup)

    def value(self, depth: int) -> Literal:
        return self.finish(*self.token(), depth)

    def finish(self, kind: str, token: str, depth: int) -> Literal:
        if kind == "text":
            return _ESCAPE.sub(_unescape, token[1:-1]) if "\\" in token else token[1:-1]
        if kind == "number":
            return int(token)
        if kind == "word":
            return _WORDS[token]
        if token not in _PAIRS or depth == _DEEPEST:
            raise ValueError(f"unexpected {token!r} before character {self.at}")
        if token == "{":
            return self.pairs(depth + 1)
        found, commas = self.items(_PAIRS[token], depth + 1)
        if token == "[":
            return found
        return tuple(found) if commas or not found else found[0]  # (1) is 1, (1,) a tuple

    def items(self, end: str, depth: int) -> tuple[list[Literal], int]:
        found: list[Literal] = []
        commas = 0
        while True:
            kind, token = self.token()
            if token == end and kind == "mark":
                return found, commas
            found.append(self.finish(kind, token, depth))
            kind, token = self.token()
            if kind != "mark" or token not in (",", end):
                raise ValueError(f"',' or {end!r} expected before character {self.at}")
            if token == end:
                return found, commas
            commas += 1

    def pairs(self, depth: int) -> dict[str, Literal]:
        found: dict[str, Literal] = {}
        while True:
            kind, token = self.token()
            if kind == "mark" and token == "}":
                return found
            key = self.finish(kind, token, depth)
            if not isinstance(key, str) or key in found:
                raise ValueError(f"a new key expected before character {self.at}")
            if self.token() != ("mark", ":"):
                raise ValueError(f"':' expected before character {self.at}")
            found[key] = self.value(depth)
            kind, token = self.token()
            if kind == "mark" and token == "}":
                return found
            if (kind, token) != ("mark", ","):
                raise ValueError(f"',' or '}}' expected before character {self.at}")


def _unescape(match: re.Match[str]) -> str:
    two, four, eight, other = match.groups()
    if other is None:
        code = int(two or four or eight, 16)
        if code > 0x10FFFF:
            raise ValueError("a character beyond Unicode")
        return chr(code)
    if other not in _SIMPLE:
        raise ValueError(f"unknown escape \\{other}")
    return _SIMPLE[other]
