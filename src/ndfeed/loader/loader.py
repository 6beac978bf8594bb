"""``ndfeed.loader``: epochs of batches out of a dataset.

A loader is used by one thread at a time. Each ``iter()`` begins the next epoch; threads live
from one epoch to the next and end when a pass is left early, when something went wrong, at
``close()``, and with the loader itself.
"""

import os
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self

from ndfeed.dataset.arguments import as_count
from ndfeed.dataset.dataset import Dataset
from ndfeed.loader.adapter import Adapter
from ndfeed.loader.engine import Failure, counted
from ndfeed.loader.machine import Machine
from ndfeed.loader.options import OnError, Options, Shuffle, as_shard, only
from ndfeed.loader.plan import batch_bytes, planned
from ndfeed.loader.ragged import Ragged
from ndfeed.loader.report import Report, reported
from ndfeed.loader.state import State
from ndfeed.order.orders import Order
from ndfeed.order.share import Share


def _raised(found: Any) -> Any:  # noqa: ANN401
    if isinstance(found, Failure):
        try:
            raise found.error
        finally:
            del found  # or the error would refer to itself through this frame
    return found


class Batches(Iterator[Any]):
    """One pass over a loader. A batch is the consumer's own, for as long as it is kept."""

    def __init__(self, loader: "Loader", number: int) -> None:
        self._loader: Loader | None = loader
        self._number = number  # which of the loader's passes
        self._start = loader._position
        self._given = 0
        self._sent: deque[Any] = deque()  # taken, and on their way to where they are used
        self._machine = loader._machine()
        self._count = self._machine.begin(loader.share, loader._seed, loader._epoch, self._start)

    def __iter__(self) -> "Batches":
        return self

    def __next__(self) -> Any:  # noqa: ANN401
        loader = self._loader
        if loader is None:
            raise StopIteration
        if loader._pass != self._number:
            self._loader = None
            raise RuntimeError("another pass over this loader was begun, or it was closed")
        machine = self._machine
        if machine.pid != os.getpid():
            # Forked in the middle: the threads stayed behind, so go on with some of our own.
            Batches.__init__(self, loader, self._number)
            machine = self._machine
        if self._given == self._count:
            self._loader = None
            loader._finished()
            raise StopIteration
        try:
            found = self._next(machine)
        except BaseException:  # interrupted, closed meanwhile, or an error of the batch's own
            self._leave(loader)
            raise
        self._given += counted(found)
        loader._position = loader.share.consumed(self._given, self._start)
        machine.look()
        return found

    def _next(self, machine: Machine) -> Any:  # noqa: ANN401
        """The next batch, with some behind it on their way if a framework wants that."""
        adapter, engine, sent = machine.adapter, machine.engine, self._sent
        if not adapter.ahead:
            return _raised(engine.take())
        while len(sent) <= adapter.ahead and engine.given < self._count:
            found = engine.take(wait=not sent)
            if found is None:
                break
            sent.extend((found,) if isinstance(found, Failure) else adapter.send(found))
        return adapter.receive(_raised(sent.popleft()))

    def _leave(self, loader: "Loader") -> None:
        self._loader = None
        loader._left()

    def __del__(self) -> None:
        loader = getattr(self, "_loader", None)
        if loader is not None and loader._pass == self._number:
            self._leave(loader)


class Loader:
    """Epochs of batches; made by ``ndfeed.loader``.

    ``for batch in loader`` is one epoch, and each such loop the next one. ``epoch`` is the one in
    progress, or the next if none is; it can be set. ``order`` says how samples are ordered, and
    ``share`` which of them are this rank's.
    """

    def __init__(
        self,
        ds: Dataset,
        share: Share,
        shuffle: Shuffle,
        options: Options,
        adapt: Callable[[], Adapter] = Adapter,
        check: "Callable[[Loader], None] | None" = None,
    ) -> None:
        self.dataset = ds
        self.share = share
        self._options = options
        self._seed = options.seed
        self._plan = planned(ds, shuffle)
        self._batch_bytes = batch_bytes(ds, share.size, options.memory)
        self._plan.share_out(options.memory, self._batch_bytes)  # refused here, if at all
        self._adapt = adapt
        self._check = check  # called before every pass, which it may refuse
        self._epoch = 0
        self._position = 0  # samples of the epoch delivered, to all ranks together
        self._begun = False
        self._next: int | None = None  # the epoch to go on with, where it was said in a pass
        self._passes = 0
        self._pass = 0  # the one under way, or none
        self._machines: list[Machine] = []
        self._end = weakref.finalize(self, _end, self._machines)

    def __len__(self) -> int:
        return self.share.batches()

    @property
    def order(self) -> Order:
        """How samples are ordered within an epoch."""
        return self._plan.order

    @property
    def epoch(self) -> int:
        """The epoch in progress, or the one that ``iter()`` will begin.

        One that was left early counts as begun: ``iter()`` goes on with the next. Setting it
        says which one comes next.
        """
        return self._epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        number = as_count("epoch", epoch, 0, 1 << 62)
        if self._pass:
            self._next = number
            return
        if number != self._epoch or self._begun:
            self._position = 0
        self._epoch, self._begun = number, False

    def __iter__(self) -> Batches:
        self._left()
        if self._begun:
            self._advance()
            self._begun = False
        if self._check is not None:
            self._check(self)
        self._begun = True
        self._passes += 1
        self._pass = self._passes
        return Batches(self, self._pass)

    def _machine(self) -> Machine:
        """What makes batches in this process."""
        if not self._machines or self._machines[0].pid != os.getpid():
            self._machines[:] = [
                Machine(self.dataset, self._options, self._plan, self._batch_bytes, self._adapt())
            ]
        return self._machines[0]

    def _finished(self) -> None:
        """A pass came to its end."""
        self._machine().end()
        self._pass = 0
        self._advance()
        self._begun = False

    def _advance(self) -> None:
        """On to the next epoch, or to the one that was asked for."""
        self._epoch = self._epoch + 1 if self._next is None else self._next
        self._next = None
        self._position = 0

    def _left(self) -> None:
        """A pass was left before its end, if one was under way."""
        if self._pass:
            self._pass = 0
            _end(self._machines)

    def state_dict(self) -> dict[str, Any]:
        """Where the consumer stands, as JSON of a few hundred bytes.

        It counts what was delivered, not what was made ahead.
        """
        return self._state().as_dict()

    def _state(self) -> State:
        ds = self.dataset
        return State(
            self._seed, self._epoch, self._position, self.order.spec(), len(ds), ds.fingerprint
        )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state: the next ``iter()`` delivers what is left of its epoch.

        Batch size, ranks, threads, processes and memory may be others than they were. Refuses a
        state of other data or of another order.
        """
        found = State.of(state)
        mine = self._state()
        found.check(mine.data, mine.rows, mine.order)
        self._left()
        self._seed, self._epoch, self._position = found.seed, found.epoch, found.samples
        self._begun, self._next = False, None

    def report(self) -> Report:
        """How fast the current or the last pass is, where its time goes, and what limits it."""
        return reported(self.dataset, self._options, f"{self.order}", self._machines, self.share)

    @property
    def skipped(self) -> Sequence[tuple[int, str]]:
        """Samples left out by ``on_error="skip"``: the row and what was wrong, the first 1,000."""
        return tuple(self._machines[0].skipped.listed) if self._machines else ()

    def close(self) -> None:
        """End threads and processes and let go of memory. Iterating begins anew."""
        self._pass = 0
        _end(self._machines)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{self.report()}"


def _end(machines: list[Machine]) -> None:
    for machine in machines:
        if machine.pid == os.getpid():  # a fork's copy has no threads, and perhaps a held lock
            machine.stop()


def loader(  # noqa: PLR0913 - the words that every loader shares
    ds: Dataset,
    batch_size: int,
    *,
    shuffle: Shuffle = False,
    seed: int = 0,
    drop_last: bool = False,
    fields: Sequence[str] | None = None,
    shard: Sequence[int] | None = None,
    memory: int | str | None = None,
    threads: int | None = None,
    processes: int = 0,
    ragged: Ragged = "list",
    on_error: OnError = "raise",
) -> Loader:
    """Batches of a dataset, made ahead of use, epoch after epoch.

    - ``shuffle``: ``True``, or an order such as ``ndfeed.Blocks(rows=4096)``. True is an exact
      permutation wherever rows can be read alone, and a window over files where they are
      compressed together; ``loader.order`` says which. It is fixed by ``seed`` and the epoch.
    - ``drop_last``: leave out a last batch that is not full.
    - ``fields``: a tuple of names, which makes batches tuples; else they are dicts.
    - ``shard=(rank, world)``: this rank's part of every global batch of ``batch_size * world``.
    - ``memory``: bytes or text such as ``"2GB"`` for batches under way and decoded streams
      together; by default an eighth of what the process may have, at most 2 GiB.
    - ``threads``: by default chosen by what is read, and adapted.
    - ``processes``: run the functions given to ``map`` in so many processes. Worth it for those
      that hold the interpreter's lock.
    - ``ragged``: samples of different shapes as a ``"list"``, ``"pad"``-ded, or ``"packed"``.
    - ``on_error="skip"``: leave samples out that cannot be read; ``loader.skipped`` lists them.
    """
    options = Options.of(
        ds,
        seed=seed,
        fields=fields,
        memory=memory,
        threads=threads,
        processes=processes,
        ragged=ragged,
        on_error=on_error,
    )
    rank, world = as_shard(shard)
    share = Share(len(ds), batch_size, rank, world, bool(drop_last))
    return Loader(only(ds, options.fields, ragged), share, shuffle, options)
