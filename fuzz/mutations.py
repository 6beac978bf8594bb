"""Changes of bytes and of text that are the same for the same seed, for runs without coverage."""

import random
from collections.abc import Iterator

from fuzz.harness import Target

_NUMBERS = (
    *(0, 1, 2, 7, 8, 63, 64, 127, 128, 255, 256, 4095, 4096, 65535, 65536, (1 << 31) - 1),
    *(1 << 31, (1 << 32) - 1, 1 << 32, (1 << 61) - 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1),
)
_WORDS = (
    *(b"M8[s/0]", b"|O", b"<f8", b"|V0", b"\x1b[31m", b"\n", b"\0", b"..", b"/", b"null", b"[[[["),
    *(b"-1", b"1e9", b"9223372036854775807", b"2305843009213693951", b"\\ud800", b'"', b"}", b"]"),
    *(b"NaN", b"true", b"cos\nsystem\n", b"\x8a\x0a", b"\x94", b"PK\x01\x02", b"PK\x05\x06"),
)
_MOST = 1 << 16


def mutated(target: Target, count: int, seed: int = 0) -> Iterator[bytes]:
    """``count`` inputs made of the corpus; most of them with their checksums put right."""
    rng = random.Random(f"{target.name} {seed}")
    seeds = target.seeds()
    for _ in range(count):
        data = bytearray(rng.choice(seeds))
        for _ in range(rng.choice((1, 1, 1, 2, 2, 4, 8))):
            rng.choice(_CHANGES)(rng, data, seeds)
        made = bytes(data[:_MOST])
        yield target.repair(made) if rng.random() < 0.8 else made


def _flip(rng: random.Random, data: bytearray, seeds: list[bytes]) -> None:
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _byte(rng: random.Random, data: bytearray, seeds: list[bytes]) -> None:
    if data:
        data[rng.randrange(len(data))] = rng.randrange(256)


def _number(rng: random.Random, data: bytearray, seeds: list[bytes]) -> None:
    width = rng.choice((1, 2, 4, 8))
    at = rng.randrange(len(data) + 1)
    number = rng.choice(_NUMBERS) + rng.choice((-1, 0, 0, 1))
    data[at : at + width] = (number % (1 << 8 * width)).to_bytes(width, "little")


def _digits(rng: random.Random, data: bytearray, seeds: list[bytes]) -> None:
    """Another number in place of one that is written in digits."""
    places = [i for i, byte in enumerate(data) if 48 <= byte < 58]
    if places:
        start = end = rng.choice(places)
        while end < len(data) and 48 <= data[end] < 58:
            end += 1
        data[start:end] = b"%d" % (rng.choice(_NUMBERS) + rng.choice((-1, 0, 1)))


def _word(rng: random.Random, data: bytearray, seeds: list[bytes]) -> None:
    at = rng.randrange(len(data) + 1)
    word = rng.choice(_WORDS)
    data[at : at + rng.choice((0, len(word)))] = word


def _cut(rng: random.Random, data: bytearray, seeds: list[bytes]) -> None:
    start = rng.randrange(len(data) + 1)
    del data[start : rng.choice((start + rng.randrange(1, 17), len(data)))]


def _copy(rng: random.Random, data: bytearray, seeds: list[bytes]) -> None:
    source = rng.choice((bytes(data), rng.choice(seeds)))
    start, at = rng.randrange(len(source) + 1), rng.randrange(len(data) + 1)
    data[at : at + rng.choice((0, 8))] = source[start : start + rng.randrange(1, 65)]


def _double(rng: random.Random, data: bytearray, seeds: list[bytes]) -> None:
    start = rng.randrange(len(data) + 1)
    data[start:start] = data[start : start + rng.randrange(1, 65)] * rng.choice((1, 2, 100))


_CHANGES = (_flip, _byte, _number, _number, _digits, _word, _cut, _copy, _double)
