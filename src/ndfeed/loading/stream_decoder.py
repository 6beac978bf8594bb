"""Decodes streams of many rows in worker processes, into shared memory.

Rows are then gathered from there by threads, as from streams that were decoded here.
"""

from ndfeed.dataset.column import Column
from ndfeed.dataset.dataset import Dataset
from ndfeed.dataset.decoding import Bytes, decoded_bytes
from ndfeed.errors import ResourceError, shown
from ndfeed.files.shared_memory import Block
from ndfeed.files.worker_process import Message
from ndfeed.loading.buffer_pool import Pool
from ndfeed.loading.pool_worker import Stream, get_handle
from ndfeed.loading.process_builder import raise_sent
from ndfeed.loading.process_pool import ProcessPool, ask_into, try_twice

_LEAST = 256 << 10  # bytes of a stream that are worth asking for
_KEPT = 64  # blocks of one size that are used again
_MOST_SHARED = 256  # blocks: each takes a file descriptor


class StreamDecoder:
    """Decodes the streams of a dataset in processes, while they are in use. Thread-safe."""

    def __init__(self, ds: Dataset, processes: ProcessPool) -> None:
        self._processes = processes
        self._blocks = Pool(_KEPT, Block.of)
        self._numbers = {
            id(column): (g, c)
            for g, group in enumerate(ds.groups)
            for c, column in enumerate(group.columns)
        }

    def decode(self, column: Column, part: int) -> Bytes | None:
        """Return the whole stream of a part; ``None`` where it is better decoded here."""
        if not self._processes.active:
            return None
        size, number = decoded_bytes(column, part), self._numbers.get(id(column))
        if size < _LEAST or number is None:
            return None
        stream = Stream(*number, part)
        return try_twice(
            lambda: self._ask(stream, size),
            lambda: f"decoding {shown(column.table.path(int(column.file[part])))}",
        )

    def _ask(self, stream: Stream, size: int) -> Bytes | None:
        try:
            memory = self._lend(size)
        except ResourceError:  # too many open files, say
            return None
        question = stream, get_handle(memory)
        answer: Message = self._processes.run(0, lambda one: ask_into(one, question, memory))
        if answer is None:
            return None
        if answer[0] == "error":
            raise_sent(*answer[1:])
        # Shared memory takes file descriptors.
        return memory.copy() if self._blocks.lent > _MOST_SHARED else memory

    def _lend(self, size: int) -> Bytes:
        """Lend a block; those of other sizes are freed, so that no more is held than is used."""
        if not self._blocks.has(size):
            self._blocks.clear()
        return self._blocks.lend(size)

    def clear(self) -> None:
        """Free all blocks that nobody uses."""
        self._blocks.clear()
