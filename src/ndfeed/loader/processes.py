"""Processes that run the maps of a dataset, for functions that hold the interpreter's lock.

A thread reads a batch into shared memory, lends itself a process, and waits for what the maps
made of it, which comes back through shared memory too; only what is small goes through a pipe.
The memory has no name: it is gone with the processes that have it mapped.

Guarantees:

- What a map returns is the same as it would be in a thread: same batch, same generators.
- A process that dies is replaced, and whoever waited for it is told (``Died``).
- Processes end when told to, when their pipe is closed, and when the process that started
  them is gone. They ignore Ctrl-C, which is for the process that has the consumer.
"""

import contextlib
import multiprocessing
import os
import signal
import threading
import traceback
import warnings
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ndfeed.dataset.step import Batch, Step, stepped
from ndfeed.errors import WorkerError
from ndfeed.files.shared import Block, Handle, attached
from ndfeed.loader.clock import Clock
from ndfeed.loader.draws import Seeded
from ndfeed.loader.pool import SMALL, Pool, piece_of

_PATIENCE = 1.0  # seconds between looks whether the parent still lives; and for ending kindly
_ALIGNED = 64


class Died(Exception):
    """A process ended while it had a batch; ``status`` is its exit status, negative a signal."""

    def __init__(self, pid: int | None, status: int | None) -> None:
        super().__init__(pid, status)
        self.pid, self.status = pid, status

    def __str__(self) -> str:
        if self.status is not None and self.status < 0:
            with contextlib.suppress(ValueError):
                return f"process {self.pid} was ended by {signal.Signals(-self.status).name}"
        return f"process {self.pid} ended with status {self.status}"


class _Placed(NamedTuple):
    """An array in a block of shared memory."""

    start: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


class _Process:
    """One process, and the pipe to it."""

    def __init__(self, steps: Sequence[Step]) -> None:
        # Forked where that can be: a function need not be found by name then, and begins at once.
        forks = "fork" in multiprocessing.get_all_start_methods() and os.name == "posix"
        context: Any = multiprocessing.get_context("fork" if forks else "spawn")
        self.pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(theirs, tuple(steps), os.getpid()), daemon=True, name="ndfeed-map"
        )
        with warnings.catch_warnings():
            # Python warns of forks beside threads. The child touches none of their locks.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._process.start()
        theirs.close()

    @property
    def pid(self) -> int | None:
        found: int | None = self._process.pid
        return found

    def ask(self, message: object) -> Any:  # noqa: ANN401
        """Send a message and wait for the answer."""
        try:
            self.pipe.send(message)
            wait([self.pipe, self._process.sentinel])
            return self.pipe.recv()
        except (EOFError, OSError):
            self._process.join(_PATIENCE)
            raise Died(self.pid, self._process.exitcode) from None

    def hang_up(self) -> None:
        """Tell it to end; it does so at once even in the middle of a map."""
        self._process.terminate()

    def bury(self) -> None:
        """Wait for its end, and see to it."""
        self._process.join(_PATIENCE)
        if self._process.is_alive():
            self._process.kill()
            self._process.join(_PATIENCE)
        self.pipe.close()


class Processes:
    """Runs the steps of a dataset in ``count`` processes, each lent to one thread at a time."""

    def __init__(self, count: int, steps: Sequence[Step]) -> None:
        self.count = count
        self.pool = Pool(2 * count + 2, Block.of)
        self._steps = steps
        self._free = threading.Condition()
        self._idle: list[_Process] = []
        self._all: list[_Process] = []
        self._room = 0  # bytes that results needed so far
        self._closed = False

    def start(self) -> None:
        """Have all processes running."""
        with self._free:
            self._closed = False
            while len(self._all) < self.count:
                self._add()

    def _add(self) -> None:
        made = _Process(self._steps)
        self._all.append(made)
        self._idle.append(made)
        self._free.notify()

    def __call__(self, batch: Batch, steps: Sequence[Step], draws: Seeded, clock: Clock) -> Batch:
        """What the steps make of the batch, in a process."""
        with self._free:
            while not self._idle:
                if self._closed:
                    raise WorkerError("the loader was closed")
                self._free.wait()
            process = self._idle.pop()
        alive = False
        try:
            made = self._ask(process, batch, draws)
            alive = True
            return made
        except Died:
            raise
        except BaseException:
            alive = True  # an error of the map: the process is as good as before
            raise
        finally:
            self._return(process, alive)

    def _return(self, process: _Process, alive: bool) -> None:
        with self._free:
            if alive and not self._closed:
                self._idle.append(process)
                self._free.notify()
                return
            if process in self._all:
                self._all.remove(process)
            if not self._closed:
                self._add()
        process.bury()

    def _ask(self, process: _Process, batch: Batch, draws: Seeded) -> Batch:
        sent, blocks = _sendable(batch)
        room = self.pool.lend(self._room) if self._room else None
        answer = process.ask((sent, blocks, draws, _handle_of(room)))
        if answer[0] == "room":
            self._room = max(answer[1], self._room)
            room = self.pool.lend(self._room)
            answer = process.ask(_handle_of(room))
        if answer[0] == "error":
            _raise(answer[1], answer[2])
        return {name: _received(value, room) for name, value in answer[1].items()}

    def close(self) -> None:
        """End all processes; those who wait for one are told."""
        with self._free:
            self._closed = True
            ending, self._all, self._idle = self._all, [], []
            self._free.notify_all()
        for process in ending:
            process.hang_up()
        for process in ending:
            process.bury()


def _handle_of(room: NDArray[np.uint8] | None) -> Handle | None:
    piece = None if room is None else piece_of(room)
    return piece.handle if isinstance(piece, Block) else None


def _sendable(batch: Batch) -> tuple[Batch, list[Handle]]:
    """The batch with arrays in shared memory named by their places, and the blocks they are in."""
    sent: Batch = {}
    blocks: list[Handle] = []
    for name, value in batch.items():
        piece = piece_of(value) if isinstance(value, np.ndarray) else None
        if isinstance(piece, Block):
            start = _address(value) - _address(piece)
            sent[name] = len(blocks), _Placed(start, value.dtype, value.shape)
            blocks.append(piece.handle)
        else:
            sent[name] = -1, value
    return sent, blocks


def _address(array: NDArray[Any]) -> int:
    found: int = array.__array_interface__["data"][0]
    return found


def _received(value: Any, room: NDArray[np.uint8] | None) -> Any:  # noqa: ANN401
    if isinstance(value, _Placed) and room is not None:
        return _array(room, value)
    return value


def _array(memory: NDArray[np.uint8], placed: _Placed) -> NDArray[Any]:
    size = int(np.prod(placed.shape, dtype=np.int64)) * placed.dtype.itemsize
    own = memory[placed.start : placed.start + size]
    return own.view(placed.dtype).reshape(placed.shape)


def _raise(error: BaseException, trace: str) -> None:
    error.add_note(f"in a process of the loader:\n{trace}")
    raise error


# What follows runs in the processes.


def _serve(pipe: "Connection[Any, Any]", steps: Sequence[Step], parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(EOFError, OSError):
        while True:
            while not pipe.poll(_PATIENCE):
                if os.getppid() != parent:
                    return
            _answer(pipe, steps, pipe.recv())


def _answer(pipe: "Connection[Any, Any]", steps: Sequence[Step], message: Any) -> None:  # noqa: ANN401
    sent, blocks, draws, handle = message
    try:
        memories = [attached(block) for block in blocks]
        batch = {
            name: value if block < 0 else _array(memories[block], value)
            for name, (block, value) in sent.items()
        }
        made = stepped(batch, steps, draws)
        places, size = _laid_out(made)
        if size > (handle.size if handle is not None else 0):
            pipe.send(("room", size))
            handle = pipe.recv()
        if handle is not None:
            memory = attached(handle)
            for name, placed in places.items():
                _array(memory, placed)[...] = made[name]
        pipe.send(("made", {name: places.get(name, value) for name, value in made.items()}))
    except (EOFError, BrokenPipeError):
        raise
    except BaseException as error:  # noqa: BLE001 - whatever it is, the consumer is to see it
        _send_error(pipe, error)


def _laid_out(made: Batch) -> tuple[dict[str, _Placed], int]:
    """Places for the large arrays of a batch, and the bytes they need together."""
    places: dict[str, _Placed] = {}
    end = 0
    for name, value in made.items():
        if isinstance(value, np.ndarray) and value.nbytes >= SMALL and not value.dtype.hasobject:
            places[name] = _Placed(end, value.dtype, value.shape)
            end += -(-value.nbytes // _ALIGNED) * _ALIGNED
    return places, end


def _send_error(pipe: "Connection[Any, Any]", error: BaseException) -> None:
    trace = "".join(traceback.format_exception(error)).rstrip()
    try:
        pipe.send(("error", error, trace))
    except Exception:  # noqa: BLE001 - it cannot be pickled, for whatever reason
        pipe.send(("error", WorkerError(f"{type(error).__name__}: {error}"), trace))
