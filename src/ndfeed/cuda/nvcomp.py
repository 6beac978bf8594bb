"""nvCOMP, called through its C library: deflated streams decoded, and checksums, many at a time.

An optional package (``nvidia-libnvcomp-cu13`` or ``-cu12``). Nothing here waits: work is queued on
a stream, and where it fails is known when the stream gets there.
"""

import ctypes
import functools
import importlib.util
from pathlib import Path
from typing import Any, NamedTuple

from ndfeed.cuda.driver import Refused

_OLDEST = 6000  # 6.0: before, functions of the same names had other parameters
_WHERE = ("lib64/libnvcomp.so.*", "lib/libnvcomp.so.*", "bin/nvcomp64_*.dll")
_ONE_PIECE = 0  # checksums are of one piece each


class Streams(NamedTuple):
    """Streams on the device: the addresses of columns of eight bytes for each, unless stated."""

    number: int
    largest: int  # bytes of the largest, decoded
    total: int  # bytes of all of them, decoded
    sources: int  # where each lies
    lengths: int  # its bytes
    targets: int  # where it goes, decoded
    sizes: int  # the bytes that it has then
    found: int  # how many there were
    statuses: int  # 0 where decoding it succeeded; of four bytes
    checksums: int  # of what was decoded; of four bytes


class _Options(ctypes.Structure):
    """nvcompBatchedDeflateDecompressOpts_t."""

    _fields_ = [
        ("backend", ctypes.c_int),
        ("sort", ctypes.c_int),
        ("reserved", ctypes.c_char * 56),
    ]


class _Alignments(ctypes.Structure):
    """nvcompAlignmentRequirements_t."""

    _fields_ = [("source", ctypes.c_size_t), ("target", ctypes.c_size_t), ("room", ctypes.c_size_t)]


class _Properties(ctypes.Structure):
    """nvcompProperties_t."""

    _fields_ = [("version", ctypes.c_uint32), ("cuda", ctypes.c_uint32)]


class _Polynomial(ctypes.Structure):
    """nvcompCRC32Spec_t."""

    _fields_ = [
        ("polynomial", ctypes.c_uint32),
        ("first", ctypes.c_uint32),
        ("reflected_in", ctypes.c_bool),
        ("reflected_out", ctypes.c_bool),
        ("last", ctypes.c_uint32),
        ("reserved", ctypes.c_char * 16),
    ]


class _Kernel(ctypes.Structure):
    """nvcompCRC32KernelConf_t."""

    _fields_ = [
        ("kind", ctypes.c_int),
        ("bytes_per_read", ctypes.c_int32),
        ("blocks", ctypes.c_int32),
        ("reserved", ctypes.c_char * 20),
    ]


class _ChecksumOptions(ctypes.Structure):
    """nvcompBatchedCRC32Opts_t."""

    _fields_ = [("spec", _Polynomial), ("kernel", _Kernel), ("reserved", ctypes.c_char * 64)]


_DEFAULT = _Options()
_ZIP = _Polynomial(0x04C11DB7, 0xFFFFFFFF, True, True, 0xFFFFFFFF)


class Nvcomp:
    """The library. Thread-safe; the calling thread must have the device's context."""

    def __init__(self, path: Path) -> None:
        try:
            self._calls: Any = ctypes.CDLL(str(path))
        except OSError as error:
            raise Refused(f"nvCOMP cannot be loaded: {error}") from None
        found = _Properties()
        self._calls.nvcompGetProperties(ctypes.byref(found))
        if found.version < _OLDEST:
            raise Refused("this nvCOMP is older than 6.0")
        _declare(self._calls)
        needed = _Alignments()
        call = self._calls.nvcompBatchedDeflateDecompressGetRequiredAlignments
        _check("reports no alignment", call(_DEFAULT, ctypes.byref(needed)))
        self.alignment: int = max(needed.source, needed.target, needed.room)

    def room(self, streams: Streams, stream: int) -> int:
        """Return how many bytes of device memory decoding takes besides."""
        found = ctypes.c_size_t()
        call = self._calls.nvcompBatchedDeflateDecompressGetTempSize
        status = call(
            streams.number, streams.largest, _DEFAULT, ctypes.byref(found), streams.total, stream
        )
        _check("does not say how much memory it needs", status)
        return found.value

    def decode(self, streams: Streams, room: tuple[int, int], stream: int) -> None:
        """Decode streams; ``room`` is the address and size of the memory that this takes."""
        status = self._calls.nvcompBatchedDeflateDecompressAsync(
            streams.sources, streams.lengths, streams.sizes, streams.found, streams.number,
            *room, streams.targets, _DEFAULT, streams.statuses, stream,
        )  # fmt: skip
        _check("refuses to decode", status)

    @functools.lru_cache(maxsize=64)  # noqa: B019 - the library lives as long as the process
    def _kernel(self, number: int, largest: int) -> _Kernel:
        found = _Kernel()
        call = self._calls.nvcompBatchedCRC32GetHeuristicConf
        status = call(None, number, ctypes.byref(found), largest, None)
        _check("cannot compute checksums", status)
        return found

    def compute_checksums(self, streams: Streams, stream: int) -> None:
        """Compute the CRC-32 of what streams were decoded to, if each had its size."""
        kernel = self._kernel(streams.number, max(streams.largest, 1))
        status = self._calls.nvcompBatchedCRC32Async(
            streams.targets, streams.sizes, streams.number, streams.checksums,
            _ChecksumOptions(_ZIP, kernel), _ONE_PIECE, None, stream,
        )  # fmt: skip
        _check("cannot compute checksums", status)


def _declare(calls: Any) -> None:  # noqa: ANN401 - functions by name
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    for name, types in {
        "nvcompBatchedDeflateDecompressGetRequiredAlignments": [_Options, pointer],
        "nvcompBatchedDeflateDecompressGetTempSize": [
            size, size, _Options, pointer, size, pointer,
        ],
        "nvcompBatchedDeflateDecompressAsync": [
            *[pointer] * 4, size, pointer, size, pointer, _Options, pointer, pointer,
        ],
        "nvcompBatchedCRC32GetHeuristicConf": [pointer, size, pointer, size, pointer],
        "nvcompBatchedCRC32Async": [
            pointer, pointer, size, pointer, _ChecksumOptions, ctypes.c_int, pointer, pointer,
        ],
    }.items():  # fmt: skip
        getattr(calls, name).argtypes = types


def _check(problem: str, status: int) -> None:
    if status:
        raise Refused(f"nvCOMP {problem} ({status})")


@functools.cache
def load_nvcomp() -> Nvcomp:
    """Load the library, if it is installed."""
    try:
        found = importlib.util.find_spec("nvidia.libnvcomp")
    except ModuleNotFoundError:
        found = None
    for folder in (found and found.submodule_search_locations) or ():
        for pattern in _WHERE:
            for path in sorted(Path(folder).glob(pattern)):
                return Nvcomp(path)
    raise Refused("nvCOMP is not installed: pip install 'ndfeed[nvcomp]'")
