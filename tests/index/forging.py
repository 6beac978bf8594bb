"""Caches as somebody would forge them who can do all that this user can, signature included."""

import json
import os
from dataclasses import replace

import numpy as np

from ndfeed.files import cache_files
from ndfeed.formats.inflate import crc32
from ndfeed.index import cache, codec

SIGNATURE = 32


def checked(body):
    """``body`` with the CRC-32 that belongs to it."""
    if len(body) < 12:
        return body
    return body[:8] + crc32(body[12:]).to_bytes(4, "little") + body[12:]


def signed(path, body):
    """``body`` as this user would write it to ``path``."""
    path = os.fsencode(path)
    return body + cache._signature(cache_files.secret(make=True), path, [body])


def with_columns(data, **columns):
    """A cache's bytes, unsigned, with other columns or values in its table.

    A column is given as a function of the old one, which it may change in place.
    """
    table, extra = codec.decode(data[:-SIGNATURE], checked=True)
    for name, change in columns.items():
        old = getattr(table, name)
        new = old.copy() if isinstance(old, np.ndarray) else old
        found = change(new)
        table = replace(table, **{name: new if found is None else found})
    return b"".join(codec.encode(table, extra))


def header_of(data):
    """The header of a cache's bytes, and what comes behind it."""
    end = 24 + int.from_bytes(data[16:24], "little")
    return json.loads(data[24:end]), data[end:-SIGNATURE]


def with_header(text, columns):
    """A cache's bytes, unsigned, with that header."""
    text += b" " * (-len(text) % 8)
    body = codec.MAGIC + bytes(4) + codec.VERSION.to_bytes(4, "little")
    return checked(body + len(text).to_bytes(8, "little") + text + columns)
