"""Mutated documents, for contract tests of formats that carry a checksum of their own.

A file of ours may be edited by somebody who repairs its checksum afterwards. ``json_texts`` and
``binaries`` make such edits; the caller repairs the checksum and compares what comes of it with
the untouched document: the same result, or a typed error, and nothing else.

The same seed gives the same mutations. No mutation is taller than ``DEEP`` levels or longer than
the document by more than a few times ``LONG`` characters, so a slow case is the reader's fault.
"""

import json
import pickle
import random
from collections.abc import Iterator
from copy import deepcopy

DEEP = 50_000
LONG = 100_000

INTEGERS = [
    *(-(1 << 64), -(1 << 63) - 1, -(1 << 63), -(1 << 62), -4096, -8, -1, 0, 1, 2, 7, 8, 63, 255),
    *(4095, 4096, 65_535, 65_536, (1 << 31) - 1, 1 << 31, 1 << 32, 1 << 53, 1 << 62),
    *((1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1 << 64, 10**30, 10**300),
]
TEXTS = [
    *("", " ", "0", "00000", "1", "-1", "None", "..", ".", "/", "../..", "/etc/passwd", "a/b"),
    *(
        "x\0y",
        "x\ny",
        "\x1b[31m",
        "\u202e",
        "\ufeff",
        "é",
        "e\u0301",
        "\U0001d518",
        "\ud800",
        "ﬁ",
        "İ",
    ),
    *("|O", "O", "M8[s/0]", "<f8", ">f8", "|V0", "<U1000000000", "x" * 300, "ndfeed.json", "CON"),
]
# What ``json.dumps`` cannot write is put in behind it, in place of a text that stands for it.
RAW = {
    "raw:deep-list": "[" * DEEP + "]" * DEEP,
    "raw:deep-object": '{"a":' * DEEP + "1" + "}" * DEEP,
    "raw:open-list": "[" * DEEP,
    "raw:long": '"' + "x" * LONG + '"',
    "raw:digits": "9" * 5000,
    "raw:exponent": "1e999999",
    "raw:minus-zero": "-0",
    "raw:nan": "NaN",
    "raw:infinity": "-Infinity",
    "raw:half": '"\\ud800"',
    "raw:nothing": "",
    "raw:twice": '{"a":1,"a":2}',
}
OTHERS = [None, True, False, 0.5, 1.0, -0.0, [], {}, [[]], [None], {"": None}, [1, 2, 3]]


def json_texts(document: object, count: int, seed: int = 0) -> Iterator[bytes]:
    """``count`` JSON texts, each with one to three changes somewhere in ``document``."""
    rng = random.Random(seed)
    pickled = pickle.dumps(document)  # which is copied faster than by deepcopy
    for _ in range(count):
        changed = [pickle.loads(pickled)]
        for _ in range(rng.choice([1, 1, 1, 2, 3])):
            _change(changed, rng)
        text = json.dumps(changed[0], separators=(",", ":"))
        for stand_in, raw in RAW.items():
            text = text.replace(f'"{stand_in}"', raw)
        yield text.encode("utf-8", "surrogatepass")


def binaries(data: bytes, count: int, seed: int = 0) -> Iterator[bytes]:
    """``count`` changes of bytes: bits, numbers of 1 to 8 bytes, stretches cut, doubled, moved."""
    rng = random.Random(seed)
    for _ in range(count):
        made = bytearray(data)
        for _ in range(rng.choice([1, 1, 1, 2, 4])):
            _spoil(made, rng)
        yield bytes(made)


def _places(holder: object) -> Iterator[tuple[object, object]]:
    """Every (container, key) below ``holder``."""
    for key in holder if isinstance(holder, dict) else range(len(holder)):
        yield holder, key
        if isinstance(holder[key], dict | list):
            yield from _places(holder[key])


def _change(holder: list[object], rng: random.Random) -> None:
    """Change one place below ``holder``."""
    places = list(_places(holder))
    inside, key = rng.choice(places)
    kind = rng.randrange(6)
    if kind == 0:
        inside[key] = _value(rng)
    elif kind == 1:
        inside[key] = _near(inside[key], rng)
    elif kind == 2 and len(inside) and inside is not holder:
        del inside[key]
    elif kind == 3 and isinstance(inside, list) and inside is not holder:
        inside.insert(rng.randrange(len(inside) + 1), deepcopy(inside[key]))
    elif kind == 4 and isinstance(inside, dict):
        name = rng.choice([*TEXTS, *inside, str(key) + "x"])
        inside[name] = inside.pop(key) if rng.random() < 0.5 else _value(rng)
    else:  # what stands elsewhere in the document, which is of its own making
        other, place = rng.choice(places)
        inside[key] = deepcopy(other[place])


def _value(rng: random.Random) -> object:
    kind = rng.choice([INTEGERS, INTEGERS, TEXTS, OTHERS, list(RAW)])
    return deepcopy(rng.choice(kind))


def _near(value: object, rng: random.Random) -> object:
    """A value of the same type that differs a little."""
    if isinstance(value, bool) or value is None:
        return rng.choice([not value, 0, 1])
    if isinstance(value, float):
        return rng.choice([-value, value + 1, int(value)])
    if isinstance(value, int):
        return rng.choice(
            [value + 1, value - 1, -value, value * 2, value // 2, value << 32, ~value]
        )
    if isinstance(value, str):
        at = rng.randrange(len(value) + 1)
        return rng.choice(
            [value[:at], value[at:], value[:at] + rng.choice("0f9z/\0é") + value[at:], value * 2]
        )
    if isinstance(value, list):
        return rng.choice([value[::-1], value * 2, value[:-1], [value]])
    return rng.choice([[value], list(value), {**value, "x": 0}] if value else [[value], None])


def _spoil(data: bytearray, rng: random.Random) -> None:
    """Change one place of ``data``."""
    at = rng.randrange(len(data) + 1)
    end = min(at + rng.choice([1, 2, 4, 8, 16, 64, 1024]), len(data))
    kind = rng.randrange(7)
    if kind == 0 and at < len(data):
        data[at] ^= 1 << rng.randrange(8)
    elif kind == 1:
        del data[at:end]
    elif kind == 2:
        data[at:at] = data[at:end]
    elif kind == 3:
        del data[at:]
    elif kind == 4:
        data[at:at] = rng.randbytes(rng.choice([1, 4, 8, 64]))
    else:  # a number, at a place where numbers stand more often than not
        size = rng.choice([1, 2, 4, 8, 8])
        number = rng.choice(INTEGERS) % (1 << (8 * size))
        at -= at % size
        data[at : at + size] = number.to_bytes(size, rng.choice(["little", "big"]))
