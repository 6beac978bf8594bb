"""Builds batches here or in processes, whichever is wanted at the moment.

Functions given to map may depend on what another process does not have. So unless processes were
asked for, the first batches are built both ways and compared, and a function that fails in a
process is tried here: where that makes a difference, batches are built here from then on. If the
processes are of an earlier epoch, only until the end of this one: the program may have changed
something since, and processes forked later would have it.
"""

import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ndfeed.dataset.map_steps import Batch, SampleFailed
from ndfeed.errors import WorkerError
from ndfeed.loading.batch_builder import BatchBuilder
from ndfeed.loading.map_rng import SampleSeeds
from ndfeed.loading.process_builder import ProcessBuilder
from ndfeed.loading.process_pool import ProcessPool, Unanswered
from ndfeed.loading.timing import Timing
from ndfeed.order.permutation import Ints

_COMPARED = 8  # batches
_PATIENCE = 20.0  # seconds that a batch may take, or as many times what it takes here


class Switch:
    """Builds batches by processes if they are wanted and run, otherwise in this process.

    ``careful`` says that functions given to map run in processes without having been asked to.
    """

    def __init__(
        self,
        local: BatchBuilder,
        elsewhere: ProcessBuilder,
        processes: ProcessPool,
        *,
        careful: bool,
    ) -> None:
        self._local = local
        self._elsewhere = elsewhere
        self._processes = processes
        self._careful = careful
        self._left = _COMPARED if careful else 0  # batches that are still to be compared
        self._comparing = threading.Lock()
        self._earlier = False  # are the processes of an earlier epoch?
        self.proven = not careful  # were enough batches of processes compared?
        self.outdated = False  # did processes of an earlier epoch build other batches?

    def read(self, rows: Ints, timing: Timing) -> Batch | None:
        """Return the stored fields of several batches; ``None`` where each is better read alone."""
        return (self._elsewhere if self._processes.active else self._local).read(rows, timing)

    def build(
        self, rows: Ints, seeds: SampleSeeds | None, timing: Timing, batch: Batch | None = None
    ) -> Batch:
        """Return the batch of ``rows``."""
        if not self._processes.active:
            return self._local.build(rows, seeds, timing, batch)
        if not self._careful:
            return self._elsewhere.build(rows, seeds, timing, batch)
        if self._left and not (self.proven and self._comparing.locked()):
            return self._compare(rows, seeds, timing)
        made, problem = self._try_there(rows, seeds, timing, batch)
        if made is None:
            made = self._local.build(rows, seeds, timing)  # a function may have modified the batch
        if problem:
            self._give_up(problem)
        return made

    def _try_there(
        self, rows: Ints, seeds: SampleSeeds | None, timing: Timing, batch: Batch | None
    ) -> tuple[Batch | None, str]:
        """Return the batch as a process built it, or ``None`` and what went wrong with it.

        Processes are at work while a batch is compared; if that one is different, this one may be
        wrong as well.
        """
        compares = bool(self._left)
        try:
            made = self._elsewhere.build(rows, seeds, timing, batch)
        except SampleFailed as failed:
            return None, _say_failed(failed.error)
        except Exception as error:
            died = isinstance(error, WorkerError) and not isinstance(error, Unanswered)
            if died and not self._processes.problem:
                raise
            return None, _say_failed(error)
        if compares:
            with self._comparing:
                return (None if self._left else made), ""
        return made, ""

    def renew(self, *, earlier: bool) -> None:
        """Compare a batch again: the program may have changed what functions depend on.

        One, or short epochs would consist of little else. ``earlier`` says that the processes are
        those of an earlier epoch.
        """
        self._earlier, self.outdated = earlier, False
        if self._careful:
            self._left = max(self._left, 1)

    def build_several(
        self, rows: Sequence[Ints], seeds: Sequence[SampleSeeds], timing: Timing
    ) -> list[Batch] | None:
        """Return several small batches that maps make; ``None`` where that is no faster."""
        if not self._processes.active or self._left:
            return None
        return self._elsewhere.build_several(rows, seeds, timing)

    def _compare(self, rows: Ints, seeds: SampleSeeds | None, timing: Timing) -> Batch:
        """Build a batch both ways."""
        with self._comparing:
            if self._left and self._processes.active:
                began = time.perf_counter()
                here = self._local.build(rows, seeds, timing)
                taken = time.perf_counter() - began
                # From now on: a process that waits for something it does not have is noticed.
                self._processes.patience = max(_PATIENCE, _PATIENCE * taken)
                try:
                    problem = self._find_difference(here, rows, seeds)
                except SampleFailed as failed:
                    problem = _say_failed(failed.error)
                except Exception as error:  # noqa: BLE001 - of a function, or of what it made
                    problem = _say_failed(error)
                if problem:
                    self._give_up(problem)
                else:
                    self._left -= 1
                    self.proven = self.proven or not self._left
                return here
        return self.build(rows, seeds, timing)

    def _find_difference(self, here: Batch, rows: Ints, seeds: SampleSeeds | None) -> str:
        """Build a batch in a process, and say what is different from the same one made here."""
        there, drew = self._elsewhere.build_watched(rows, seeds)
        # What global generators give cannot be compared. A fork has everything else that is here.
        loosely = drew and not self._processes.lean
        for name in here.keys() | there.keys():
            if name not in here or name not in there or not _same(here[name], there[name], loosely):
                drawn = " (it draws from a global random generator; use its argument rng)"
                return f"map() makes another {name!r} in a process{drawn * drew}"
        return ""

    def _give_up(self, problem: str) -> None:
        if self._earlier and self.proven:
            self.outdated = True
        else:
            self._processes.wanted = False
        self._processes.abandon(problem)


def _say_failed(error: BaseException) -> str:
    lines = f"{error}".splitlines()
    return f"map() fails in a process: {type(error).__name__}: {lines[0] if lines else ''}"


def _same(one: object, other: object, loosely: bool) -> bool:
    """Are two values the same, bit for bit? ``loosely``: of the same kind."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray) or hasattr(one, "detach"):
        return _same_arrays(_as_array(one), _as_array(other), loosely)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        every = zip(one, other, strict=False)
        return len(one) == len(other) and all(_same(a, b, loosely) for a, b in every)
    if isinstance(one, dict) and isinstance(other, dict):
        return _same([*one.items()], [*other.items()], loosely)
    return loosely or bool(one == other) or repr(one) == repr(other)


def _as_array(value: Any) -> NDArray[Any]:  # noqa: ANN401 - an array or a tensor
    if isinstance(value, np.ndarray):
        return value
    # As bytes: NumPy lacks some dtypes of tensors.
    flat = value.detach().cpu().contiguous().reshape(-1)
    made = np.asarray(flat.view(sys.modules["torch"].uint8))
    return made.reshape(*value.shape, -1) if value.numel() else made


def _same_arrays(one: NDArray[Any], other: NDArray[Any], loosely: bool) -> bool:
    if one.dtype != other.dtype or one.ndim != other.ndim or loosely:
        return loosely and one.dtype == other.dtype and one.ndim == other.ndim
    if one.dtype.hasobject:
        return _same(one.tolist(), other.tolist(), loosely)
    return one.shape == other.shape and one.tobytes() == other.tobytes()
