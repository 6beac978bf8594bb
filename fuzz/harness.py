"""What every target shares: what no input may do, and how that is noticed.

An input is *refused* by an ``ndfeed.Error`` of one printable line, or *accepted*. A ``Failure`` is
anything else: another exception, code that is imported, compiled or run, a file opened that has
nothing to do with the input, an array that reaches beyond its file, values that differ from those
of the format's own reader, or more than ``LIMIT`` seconds.
"""

import os
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import numpy as np

import ndfeed
from ndfeed.dataset.column import Column
from ndfeed.formats.description import INLINE, RAW
from ndfeed.formats.dtypes import itemsize

sys.path.append(os.fspath(Path(__file__).parent.parent / "tests"))

from hostile import watch

LIMIT = 5.0  # seconds for one input
CORPUS = Path(__file__).parent / "corpus"
_MOST_READ = 1 << 20  # bytes of samples; of more, only the description is looked at
_folder = Path(tempfile.mkdtemp(prefix="ndfeed-fuzz-"))


class Failure(Exception):
    """Something that no input may make the library do."""


class Hang(BaseException):
    """An input took too long. Not an ``Exception``: nothing may catch it on the way."""


@dataclass(frozen=True)
class Target:
    """Something that reads bytes of others.

    ``check`` says whether it accepts an input, and raises whatever goes wrong. ``repair`` puts
    checksums right, so that what lies behind them is reached.
    """

    name: str
    check: Callable[[bytes], bool]
    repair: Callable[[bytes], bytes] = bytes

    def seeds(self) -> list[bytes]:
        """The corpus, in a fixed order."""
        return [path.read_bytes() for path in sorted((CORPUS / self.name).iterdir())]


def attempt(target: Target, data: bytes) -> bool:
    """Whether a target accepts an input; whatever is wrong is raised as a ``Failure``."""
    try:
        with _limited(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return target.check(data)
    except Failure:
        raise
    except Hang:
        raise Failure(f"{target.name}: over {LIMIT:.0f} s") from None
    except Exception as error:
        raise Failure(f"{target.name}: {type(error).__name__}: {error!s:.300}") from error


@contextmanager
def _limited() -> Iterator[None]:
    """Stop what takes too long, if Python runs at all; else a parent must."""
    before = signal.signal(signal.SIGALRM, _hang)
    signal.setitimer(signal.ITIMER_REAL, LIMIT)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _hang(signum: int, frame: FrameType | None) -> NoReturn:
    raise Hang


Sample = dict[str, Any]
Compare = Callable[[bytes, Sample], None]


def checked_file(
    name: str, compare: Compare | None = None, beside: bytes | None = None
) -> Callable[[bytes], bool]:
    """A check of a file called ``name``, or of the JSON beside one that holds ``beside``."""
    path = _folder / name

    def check(data: bytes) -> bool:
        if beside is None:
            path.write_bytes(data)
        else:
            path.write_bytes(beside)
            path.with_name(f"{name}.json").write_bytes(data)
        try:
            with watch(path, f"{path}.json"):
                sample = _sample(path)
        except ndfeed.Error as error:
            check_message(error, os.fspath(path))
            return False
        if compare is not None and sample is not None:
            compare(data, sample)
        return True

    return check


def check_message(error: ndfeed.Error, path: str | None = None) -> None:
    """An error is one printable line, which begins with the file."""
    text = str(error)
    if not text.isprintable():
        raise Failure(f"an error that is not printable: {text!r:.300}")
    if path is not None and not text.startswith((f"{path}:", f"{path} at ", f"{path}.json:")):
        raise Failure(f"an error without its file: {text!r:.300}")


def _sample(path: Path) -> Sample | None:
    """All arrays of a file, or nothing where they are large."""
    ds = ndfeed.open(path, sample="file", cache=False)
    size = path.stat().st_size
    for group in ds.groups:
        for column in group.columns:
            _check_within(column, size)
    if not all(line.isprintable() for line in repr(ds).split("\n")):
        raise Failure(f"a dataset that is not printable: {ds!r:.300}")
    return ds[0] if ds.nbytes <= _MOST_READ else None


def _check_within(column: Column, size: int) -> None:
    """The array of a column must lie in its stream, and that in its file."""
    table, array = column.table, int(column.arrays[0])
    offset, length, skip = (int(c[array]) for c in (table.offset, table.length, table.skip))
    coding = int(table.coding[array])
    if coding == INLINE:
        return
    if min(offset, length, skip) < 0 or offset + length > size:
        raise Failure(f"{column.field}: bytes [{offset}, {offset + length}) of {size}")
    shape = table.dimensions(int(table.shape[array]))
    element = itemsize(table.dtypes[int(table.dtype[array])])
    extent = element * int(np.prod(shape, dtype=object))
    if extent and int(table.strides[array]) >= 0:
        steps = table.dimensions(int(table.strides[array]))
        extent = element + sum((n - 1) * step for n, step in zip(shape, steps, strict=True))
    held = length if coding == RAW else int(table.decoded[array])
    if extent and skip + extent > held:
        raise Failure(f"{column.field}: ends at {skip + extent} of a stream of {held}")


def same(name: str, ours: Any, theirs: np.ndarray) -> None:  # noqa: ANN401 - whatever was read
    """Both readers must have read the same bytes in the same shape."""
    native = theirs.astype(theirs.dtype.newbyteorder("="), copy=False)
    if ours.shape != native.shape or ours.tobytes() != native.tobytes():
        raise Failure(f"{name}: {ours!r:.100} here, {native!r:.100} in the format's own reader")
