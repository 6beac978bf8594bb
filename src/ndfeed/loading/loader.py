"""``ndfeed.loader``: epochs of batches from a dataset.

Passes may run in several threads; each iterator belongs to one. Each ``iter()`` starts the next
epoch, whether or not another is still in progress. Threads persist from one epoch to the next, and
end when a pass is abandoned, after an error, at ``close()``, and with the loader itself.
"""

import copy
import itertools
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Self

from ndfeed.dataset.arguments import as_count
from ndfeed.dataset.dataset import Dataset
from ndfeed.loading.adapter import Adapter
from ndfeed.loading.argument_hints import with_hints
from ndfeed.loading.batch_maker import list_skipped
from ndfeed.loading.budget import estimate_batch_bytes, make_budget
from ndfeed.loading.engine import Delivered, count_batches
from ndfeed.loading.epoch_batches import Pass
from ndfeed.loading.options import Fields, OnError, Request, Shuffle, as_shard, settle
from ndfeed.loading.plan import make_plan
from ndfeed.loading.ragged import PadTo, PadValue, Ragged
from ndfeed.loading.report import Report, make_report
from ndfeed.loading.runtime import Runtime
from ndfeed.loading.state import LARGEST_EPOCH, State
from ndfeed.loading.uninterrupted import clean_up
from ndfeed.order.epoch import Share
from ndfeed.order.orders import Order


class Batches(Iterator[Delivered]):
    """One pass over a loader. A batch belongs to the consumer for as long as it is kept.

    Passes are independent: each has its own threads and memory while it is in progress.
    """

    def __init__(self, loader: "Loader", number: int, epoch: int, start: int) -> None:
        self._loader: Loader | None = loader
        self._number = number  # which of the loader's passes
        self._share, self._seed, self._epoch = loader.share, loader._seed, epoch
        self._begin(loader, start)

    def _begin(self, loader: "Loader", start: int) -> None:
        self._start = start
        self._delivered = 0
        self._runtime = loader._lend_runtime(self._number)
        self._count = self._runtime.begin(Pass(self._share, self._seed, self._epoch, start))

    def __iter__(self) -> "Batches":
        return self

    def __next__(self) -> Delivered:
        loader = self._loader
        if loader is None:
            raise StopIteration
        last = self._number == loader._pass  # does this pass determine the loader's position?
        if not last and self._number not in loader._live:
            self._loader = None
            raise RuntimeError(
                "the loader was closed, or another pass was begun from a state; iterate it again"
            )
        if self._runtime.pid != os.getpid():
            # Forked in the middle: the threads stayed in the parent, so continue with new ones.
            self._begin(loader, self._share.consumed(self._delivered, self._start))
        if self._delivered == self._count:
            loader._finish_pass(self._number)
            self._loader = None
            raise StopIteration
        try:
            found = self._runtime.next_batch()
            self._delivered += count_batches(found)
            if last:
                loader._position = self._share.consumed(self._delivered, self._start)
        except BaseException:  # interrupted, closed meanwhile, or an error in the batch
            self._abandon(loader)
            raise
        return found

    def _abandon(self, loader: "Loader") -> None:
        loader._abandon_pass(self._number)
        self._loader = None

    def __del__(self) -> None:
        loader = getattr(self, "_loader", None)
        if loader is not None:
            clean_up(lambda: self._abandon(loader))


class Loader:
    """Epochs of batches; made by ``ndfeed.loader``.

    Each ``for batch in loader`` is one epoch, and the next loop is the next epoch. ``epoch`` is the
    one in progress, or the next if none is; it can be set. ``order`` says how samples are ordered,
    and ``share`` which of them belong to this rank.

    Several iterators may be in use at a time, as in ``zip(loader, loader)``: each is a separate
    epoch with its own threads and its own ``memory``, and the loader's position is that of the
    iterator started last. A loader can be pickled, and copies resume from its position.
    """

    def __init__(
        self,
        request: Request,
        adapt: Callable[[], Adapter] = Adapter,
        check: "Callable[[Loader], None] | None" = None,
    ) -> None:
        ds, options = request.ds, request.options
        self.dataset = ds
        self._request = request
        self._seed = options.seed
        self._plan = make_plan(ds, request.shuffle, request.share)
        self._batch_bytes = estimate_batch_bytes(ds, request.share.size, options.memory)
        budget = make_budget(options.memory, self._batch_bytes, decodes=bool(self._plan.coded))
        self._plan.make_cache(budget.streams)  # refuses streams that do not fit, if any does not
        self._adapt = adapt
        self._check = check  # called before every pass, which it may refuse
        self._epoch = 0
        self._position = 0  # samples of the epoch delivered, to all ranks together
        self._begun = False
        self._next: int | None = None  # the epoch to continue with, if set during a pass
        self._numbers = itertools.count(1)
        self._pass = 0  # number of the pass started last, while in progress; else 0
        self._live: dict[int, Runtime] = {}  # passes in progress, each with its runtime
        self._runtimes: list[Runtime] = []  # the one used last comes first
        self._lending = threading.RLock()
        self._finalizer = weakref.finalize(self, _stop_finally, self._runtimes)

    def __len__(self) -> int:
        return self.share.batches()

    @property
    def share(self) -> Share:
        """Which samples belong to this rank. If it is set, passes that come follow it."""
        return self._request.share

    @share.setter
    def share(self, share: Share) -> None:
        if share == self._request.share:
            return
        self._request = replace(self._request, share=share)
        plan = make_plan(self.dataset, self._request.shuffle, share)
        if plan.lanes != self._plan.lanes:  # other files are decoded: runtimes would not know
            self._plan = plan
            with self._lending:
                used = {id(one) for one in list(self._live.values())}
                idle = [one for one in self._runtimes if id(one) not in used]
                self._runtimes[:] = [one for one in self._runtimes if id(one) in used]
            _stop_all(idle)

    @property
    def order(self) -> Order:
        """How samples are ordered within an epoch."""
        return self._plan.order

    @property
    def epoch(self) -> int:
        """The epoch in progress, or the one that ``iter()`` will start.

        An epoch that was abandoned counts as started: ``iter()`` continues with the next. Set it to
        choose the epoch that comes next.
        """
        return self._epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        number = as_count("epoch", epoch, 0, LARGEST_EPOCH)
        if self._pass:
            self._next = number
            return
        if number != self._epoch or self._begun:
            self._position = 0
        self._epoch, self._begun = number, False

    def __iter__(self) -> Batches:
        self._pass = 0
        if self._begun:
            self._advance()
            self._begun = False
        if self._check is not None:
            self._check(self)
        self._begun = True
        self._pass = number = next(self._numbers)
        try:
            return Batches(self, number, self._epoch, self._position)
        except BaseException:
            self._abandon_pass(number)
            raise

    def at(self, epoch: int, samples: int = 0) -> Batches:
        """Return the batches of an epoch after its first ``samples``, independent of ``iter()``.

        The loader's position does not change.
        """
        return Batches(self, next(self._numbers), epoch, samples)

    def _lend_runtime(self, number: int) -> Runtime:
        """Return the runtime for a pass in this process: one that no other pass uses."""
        with self._lending:
            runtimes, pid = self._runtimes, os.getpid()
            runtimes[:] = [one for one in runtimes if one.pid == pid]
            used = {id(runtime) for runtime in list(self._live.values())}
            idle = next((one for one in runtimes if id(one) not in used), None)
            if idle is None:
                options, adapter = self._request.options, self._adapt()
                idle = Runtime(self.dataset, options, self._plan, self._batch_bytes, adapter)
            else:
                runtimes.remove(idle)
            runtimes.insert(0, idle)
            self._live[number] = idle
            return idle

    def _finish_pass(self, number: int) -> None:
        """Record that a pass has ended; the threads of one runtime wait for the next."""
        with self._lending:
            runtime = self._live.get(number)
            used = {id(one) for one in list(self._live.values())}
            spare = {-id(one): one for one in self._runtimes if id(one) not in used}
            self._live |= spare  # nobody else gets one that is being stopped
        try:
            if runtime is not None:
                runtime.end()
            _stop_all(list(spare.values()))
        finally:
            for key in (number, *spare):
                self._live.pop(key, None)
        if number == self._pass:
            self._pass = 0
            self._advance()
            self._begun = False

    def _advance(self) -> None:
        """Advance to the next epoch, or to the one that was set."""
        self._epoch = self._epoch + 1 if self._next is None else self._next
        self._next = None
        self._position = 0

    def _abandon_pass(self, number: int) -> None:
        """Record that a pass was abandoned, if it was in progress."""
        runtime = self._live.get(number)
        if runtime is not None:
            _stop_all([runtime])
        self._live.pop(number, None)
        if number == self._pass:
            self._pass = 0

    def state_dict(self) -> dict[str, Any]:
        """Return the consumer's position as JSON of a few hundred bytes.

        It counts what was delivered, not what was prefetched.
        """
        return self._state().as_dict()

    def _state(self) -> State:
        ds = self.dataset
        return State(
            self._seed, self._epoch, self._position, self.order.spec(), len(ds), ds.fingerprint
        )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state: the next ``iter()`` delivers the rest of its epoch.

        Batch size, ranks, threads, processes and memory may differ. Refuses a state of other data
        or of another order.
        """
        found = State.of(state)
        mine = self._state()
        found.check(mine.data, mine.rows, mine.order)
        self._abandon_pass(self._pass)
        self._seed, self._epoch, self._position = found.seed, found.epoch, found.samples
        self._begun, self._next = False, None

    def report(self) -> Report:
        """Report how fast the current or last pass is, where its time goes, and the bottleneck."""
        found = self._runtimes[0].snapshot() if self._runtimes else None
        return make_report(f"{self.order}", self.dataset, self._request.options, self.share, found)

    @property
    def skipped(self) -> Sequence[tuple[int, str]]:
        """Samples skipped by ``on_error="skip"``: row and error of the first 1,000.

        Each is listed once, however many epochs skipped it.
        """
        return list_skipped(runtime.skipped for runtime in self._runtimes)

    def close(self) -> None:
        """End threads and processes and release memory. Iterating again starts them anew."""
        _stop_all(self._runtimes)
        self._live.clear()
        self._pass = 0

    def __reduce__(self) -> "tuple[Callable[..., Loader], tuple[Any, ...]]":
        # Without anything in use: threads, memory, open files.
        return _restore, ((self._request, self._adapt, self._check), self._get_position())

    def __copy__(self) -> "Loader":
        remake, arguments = self.__reduce__()
        return remake(*arguments)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Loader":
        return copy.copy(self)  # a dataset is immutable, so it need not be copied

    def _get_position(self) -> tuple[int, int, int, bool, int | None]:
        return self._seed, self._epoch, self._position, self._begun and not self._pass, self._next

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{self.report()}"


def _restore(made: tuple[Any, ...], position: tuple[int, int, int, bool, int | None]) -> Loader:
    """Make a loader like another, at the same position."""
    loader = Loader(*made)
    loader._seed, loader._epoch, loader._position, loader._begun, loader._next = position
    return loader


def reorder(loader: Loader, shuffle: Shuffle) -> Loader:
    """Make a loader of the same batches in another order, at the start of its first epoch."""
    return Loader(replace(loader._request, shuffle=shuffle), loader._adapt, loader._check)


def _stop_all(runtimes: list[Runtime]) -> None:
    for runtime in runtimes:
        if runtime.pid == os.getpid():  # a forked copy has no threads, and perhaps a held lock
            runtime.stop()


def _stop_finally(runtimes: list[Runtime]) -> None:
    clean_up(lambda: _stop_all(runtimes))


@with_hints()
def loader(  # noqa: PLR0913 - the arguments that every loader shares
    ds: Dataset,
    batch_size: int,
    *,
    shuffle: Shuffle = False,
    seed: int = 0,
    drop_last: bool = False,
    fields: Fields | None = None,
    shard: Sequence[int] | None = None,
    memory: int | str | None = None,
    threads: int | None = None,
    processes: int | None = None,
    ragged: Ragged = "list",
    pad_to: PadTo | None = None,
    pad_value: PadValue | None = None,
    on_error: OnError = "raise",
) -> Loader:
    """Return a loader: batches of a dataset, prefetched, epoch after epoch.

    - ``shuffle``: ``True``, or an order such as ``ndfeed.Blocks(rows=4096)``. True is an exact
      permutation wherever rows can be read alone, and a window over files where they are
      compressed together; ``loader.order`` says which. It is fixed by ``seed`` and the epoch.
    - ``drop_last``: leave out a last batch that is not full.
    - ``fields``: which fields, and in which structure: ``"x"`` gives the bare array, ``("x", "y")``
      tuples, and any nest of tuples, lists and dicts such as ``({"a": "x", "b": "z"}, "y")`` the
      same nest of arrays. By default batches are dicts of all fields.
    - ``shard=(rank, world)``: this rank's part of every global batch of ``batch_size * world``.
    - ``memory``: limit for prefetched batches and decoded streams together, in bytes or as text
      such as ``"2GB"``; by default an eighth of what the process may have, at most 2 GiB.
    - ``threads``: by default chosen by what is read, and adapted.
    - ``processes``: how many worker processes read files that are opened for every sample, or run
      the functions given to ``map``. By default files are read by processes if that is faster, and
      functions run in threads; 0 for none.
    - ``ragged``: samples of different shapes as a ``"list"``, ``"pad"``-ded, or ``"packed"``.
    - ``pad_to``: the length to which samples are padded in every batch, instead of the longest in
      the batch, or a tuple with one for each axis that differs; for all ragged fields, or as a
      dict of field name to length. Only with ``ragged="pad"``.
    - ``pad_value``: what to pad with instead of 0, for all ragged fields or as such a dict.
    - ``on_error="skip"``: skip samples that cannot be read; ``loader.skipped`` lists them.
    """
    request = settle(
        ds, batch_size, shuffle=shuffle, shard=as_shard(shard), drop_last=drop_last, seed=seed,
        fields=fields, memory=memory, threads=threads, processes=processes, ragged=ragged,
        on_error=on_error, pad_to=pad_to, pad_value=pad_value,
    )  # fmt: skip
    return Loader(request, partial(Adapter, request.options.structure))
