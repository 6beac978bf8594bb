"""``ndfeed.loader``: epochs of batches from a dataset.

Passes may run in several threads; each iterator belongs to one. Each ``iter()`` starts the next
epoch, whether or not another is still in progress. Threads persist from one epoch to the next, and
end when a pass is abandoned, after an error, at ``close()``, and with the loader itself.
"""

import copy
import itertools
import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Self

from ndfeed.dataset.arguments import as_count
from ndfeed.dataset.dataset import Dataset
from ndfeed.dataset.grown import list_new_files
from ndfeed.dataset.sampling import SETTLE, Missing
from ndfeed.loading.adapter import Adapter
from ndfeed.loading.batch_maker import list_skipped
from ndfeed.loading.engine import Delivered, count_batches
from ndfeed.loading.epoch_batches import Pass
from ndfeed.loading.growth import leave, refresh, resume
from ndfeed.loading.mixture_growth import begin_anew, continue_mixture, follow, resume_mixture
from ndfeed.loading.options import Request, Shuffle
from ndfeed.loading.order_mixing import order_in_use
from ndfeed.loading.plan import Cuts
from ndfeed.loading.report import Report, make_report
from ndfeed.loading.runtime import Runtime
from ndfeed.loading.runtimes import Runtimes, stop_finally
from ndfeed.loading.setup import Setup
from ndfeed.loading.state import LARGEST_EPOCH, State
from ndfeed.loading.uninterrupted import clean_up
from ndfeed.order.buckets import Buckets
from ndfeed.order.epoch import Share
from ndfeed.order.protocol import OrderInUse, Progress


class Batches(Iterator[Delivered]):
    """One pass over a loader. A batch belongs to the consumer for as long as it is kept.

    Passes are independent: each has its own threads and memory while it is in progress.
    """

    def __init__(self, loader: "Loader", number: int, epoch: int, start: int) -> None:
        self._loader: Loader | None = loader
        self._number = number  # which of the loader's passes
        self._share, self._seed, self._epoch = loader.share, loader._seed, epoch
        self._cut, self._setup = loader.cuts(epoch), loader._setup
        self._begin(loader, start)

    def _begin(self, loader: "Loader", start: int) -> None:
        self._start = start
        self._delivered = 0
        self._runtime = loader._lend_runtime(self._number, self._setup)
        self._count = self._runtime.begin(Pass(self._share, self._seed, self._epoch, start))

    def __iter__(self) -> "Batches":
        return self

    def __next__(self) -> Delivered:
        loader = self._loader
        if loader is None:
            raise StopIteration
        last = self._number == loader._pass  # does this pass determine the loader's position?
        if not last and not loader._runtimes.is_live(self._number):
            self._loader = None
            raise RuntimeError(
                "the loader was closed, or another pass was begun from a state; iterate it again"
            )
        if self._runtime.pid != os.getpid():
            # Forked in the middle: the threads stayed in the parent, so continue with new ones.
            self._begin(loader, self._cut.consumed(self._delivered, self._start))
        if self._delivered == self._count:
            loader._finish_pass(self._number)
            self._loader = None
            raise StopIteration
        try:
            found = self._runtime.next_batch()
            self._delivered += count_batches(found)
            if last:
                loader._position = self._cut.consumed(self._delivered, self._start)
        except BaseException:  # interrupted, closed meanwhile, or an error in the batch
            self._abandon(loader)
            raise
        return found

    def _abandon(self, loader: "Loader") -> None:
        loader._abandon_pass(self._number)
        self._loader = None

    def __del__(
        self,
        _clean_up: Callable[[Callable[[], None]], None] = clean_up,  # modules may be empty at exit
        _partial: type[partial[None]] = partial,
    ) -> None:
        loader = getattr(self, "_loader", None)
        if loader is not None:
            _clean_up(_partial(loader._abandon_pass, self._number))


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
        self._runtimes = Runtimes()
        self._adopt(Setup.of(request, adapt))
        self._coming: Setup | None = None  # what the next epoch begins with, if it is other data
        self._seed = request.options.seed
        self._check = check  # called before every pass, which it may refuse
        self._epoch = 0
        self._position = 0  # samples of the epoch delivered, to all ranks together
        self._begun = False
        self._next: int | None = None  # the epoch to continue with, if set during a pass
        self._numbers = itertools.count(1)
        self._pass = 0  # number of the pass started last, while in progress; else 0
        self._finalizer = weakref.finalize(self, stop_finally, self._runtimes)

    def __len__(self) -> int:
        return self.cuts(self._epoch).batches()

    @property
    def cuts(self) -> Cuts:
        """How the positions of each epoch are cut into batches."""
        return Cuts(self._setup.plan, self.share, self._seed)

    @property
    def share(self) -> Share:
        """Which samples belong to this rank. If it is set, passes that come follow it.

        The rest of an epoch keeps the order in which the epoch was begun.
        """
        return self._setup.request.share

    @share.setter
    def share(self, share: Share) -> None:
        if share != self.share:
            setup = self._setup.with_share(share)
            if self._position:
                setup, _ = self._resume_same(setup, self.state_at(self._epoch, self._position))
            self._adopt(setup)

    @property
    def order(self) -> OrderInUse:
        """How samples are ordered within an epoch. ``order.mixing`` says how well it mixes."""
        return order_in_use(self._setup.plan, self.dataset, self.share, self._seed)

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
        self._adopt_coming()

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

    def _lend_runtime(self, number: int, setup: Setup) -> Runtime:
        """Return the runtime for a pass in this process: one that no other pass uses."""
        return self._runtimes.lend(number, setup.plan, setup.make_runtime)

    def _finish_pass(self, number: int) -> None:
        """Record that a pass has ended; the threads of one runtime wait for the next."""
        self._runtimes.finish(number)
        if number == self._pass:
            self._pass = 0
            self._advance()
            self._begun = False

    def _advance(self) -> None:
        """Advance to the next epoch, or to the one that was set."""
        self._epoch = self._epoch + 1 if self._next is None else self._next
        self._next = None
        self._position = 0
        self._adopt_coming()

    def _abandon_pass(self, number: int) -> None:
        """Record that a pass was abandoned, if it was in progress."""
        self._runtimes.abandon(number)
        if number == self._pass:
            self._pass = 0

    def state_dict(self) -> dict[str, Any]:
        """Return how much was delivered, not prefetched, as JSON of a few hundred bytes."""
        return self.state_at(self._epoch, self._position).as_dict()

    def state_at(self, epoch: int, samples: int) -> State:
        """Return the state after so many samples of an epoch."""
        ds, order = self.dataset, self._setup.plan.order
        more = order.describe(len(ds), epoch, samples)
        return State(self._seed, epoch, samples, order.spec(), len(ds), ds.fingerprint, more)

    def load_state_dict(self, state: Mapping[str, Any], *, grown: "bool | Dataset" = False) -> None:
        """Resume from a state: the next ``iter()`` delivers the rest of its epoch.

        Batch size, ranks, threads, processes and memory may differ. Refuses a state of other data
        or of another order. With ``grown=True`` there may be more files than there were: the rest
        of the epoch has what was not delivered, and what is new. Which files are new is told from
        their names and times; where that is impossible, pass the dataset of the old ones.
        """
        found, last = State.of(state), self._coming or self._setup
        more = grown is not False
        found.check_sources(last.request.ds.fingerprint, last.plan.order.spec(), more)
        continued = resume_mixture(last, found, grown) if more else None
        setup, samples = continued or (resume(last, found, grown), found.samples)
        if setup is None:
            setup, samples = self._resume_same(leave(last), found, grown)
        if samples > (most := setup.plan.order.cut(setup.request.share, found.seed, found.epoch).n):
            raise found.make_count_error(most)
        self._abandon_pass(self._pass)
        self._coming = None
        self._adopt(setup)
        self._seed, self._epoch, self._position = found.seed, found.epoch, samples
        self._begun, self._next = False, None

    def _resume_same(self, setup: Setup, found: State, grown: object = True) -> tuple[Setup, int]:
        """Return what to continue with for a state of the same data, and from which sample on."""
        ds, order = setup.request.ds, setup.plan.order
        found.check_data(ds.fingerprint, len(ds))
        place = dict(found.order), found.epoch, found.samples, found.more
        continued = order.resume(Progress(*place))
        if continued is None:
            raise found.make_order_error(order.spec())
        made, samples = continued
        return setup if made == order else follow(setup, made, grown), samples

    def refresh(self, *, missing: Missing = "raise", settle: float = SETTLE) -> int:
        """Look for files that came, and return how many samples are new.

        The next epoch has the samples of the files there are then; an epoch in progress ends as it
        began. Files that are gone or have changed, or may still be written, are treated as by
        ``Dataset.refresh``.
        """
        return look_again(self, missing, settle)[0]

    def _adopt_coming(self) -> None:
        """Use the data that were found meanwhile, unless an epoch goes on."""
        if self._position:
            return
        setup, self._coming = self._coming or self._setup, None
        setup = setup.with_share(replace(self.share, n=len(setup.request.ds)))
        setup = leave(continue_mixture(self._setup, setup, self._epoch))
        if setup is not self._setup:
            self._adopt(setup)

    def _adopt(self, setup: Setup) -> None:
        """Make the passes that come with another setup."""
        self._setup = setup
        self.request, self.dataset = setup.request, setup.request.ds
        self._runtimes.release_others(setup.plan)

    def report(self) -> Report:
        """Report how fast the current or last pass is, where its time goes, and the bottleneck."""
        runtimes = self._runtimes.every
        found = runtimes[0].snapshot() if runtimes else None
        cut, options = self.cuts(self._epoch), self._setup.request.options
        share, count = replace(self.share, n=cut.n), cut.batches()
        made = make_report(f"{self.order}", self.dataset, options, share, found, batches=count)
        return replace(made, in_use=self.order)

    @property
    def skipped(self) -> Sequence[tuple[int, str]]:
        """Samples skipped by ``on_error="skip"``: row and error of the first 1,000.

        Each is listed once, however many epochs skipped it.
        """
        return list_skipped(runtime.skipped for runtime in self._runtimes.every)

    def close(self) -> None:
        """End threads and processes and release memory. Iterating again starts them anew."""
        self._runtimes.close()
        self._pass = 0

    def __reduce__(self) -> "tuple[Callable[..., Loader], tuple[Any, ...]]":
        # Without anything in use: threads, memory, open files.
        made = self._setup.request, self._setup.adapt, self._check
        coming = None if self._coming is None else self._coming[:2]
        return _restore, (made, self._get_position(), coming)

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


def _restore(
    made: tuple[Any, ...],
    position: tuple[int, int, int, bool, int | None],
    coming: tuple[Request, Callable[[], Adapter]] | None,
) -> Loader:
    """Make a loader like another, at the same position, with what its next epoch begins with."""
    loader = Loader(*made)
    loader._coming = None if coming is None else Setup.of(*coming)
    loader._seed, loader._epoch, loader._position, loader._begun, loader._next = position
    return loader


def look_again(
    loader: Loader, missing: Missing, settle: float, among: Sequence[str] | None = None
) -> tuple[int, Callable[[], list[str]]]:
    """Refresh a loader; return how many samples are new, and what lists the files they lie in.

    If ``among`` is given, those are the new files, as was decided elsewhere.
    """
    before = loader._coming or loader._setup
    coming, new = refresh(before, missing, settle, among)
    between = not (loader._pass or loader._begun or loader._position)
    continue_mixture(loader._setup, coming, loader.epoch + (not between))  # or refuses it
    loader._coming = coming
    if between:
        loader._adopt_coming()
    return new, partial(list_new_files, coming.request.ds, before.request.ds)


def look_anew(loader: Loader, missing: Missing, settle: float) -> tuple[Loader, int]:
    """Return a loader of the files there are now, and how many samples are new.

    It is the same one if nothing has changed. Passes over the other one end as they began.
    """
    setup, new = refresh(loader._coming or loader._setup, missing, settle)
    if setup.request.ds.fingerprint == loader.dataset.fingerprint:
        return loader, new
    request = begin_anew(setup).request
    request = replace(request, options=replace(request.options, seed=loader._seed))
    return Loader(request, setup.adapt, loader._check), new


def reorder(loader: Loader, shuffle: Shuffle) -> Loader:
    """Make a loader of the same batches in another order, at the start of its first epoch.

    A budget of tokens becomes a batch size that is within it whatever samples come.
    """
    setup = leave(loader._setup)
    request = setup.request
    if request.share.tokens and isinstance(request.shuffle, Buckets):
        size = request.shuffle.smallest_batch(request.facts.for_share(request.share))
        request = replace(request, share=replace(request.share, batch_size=size, tokens=0))
    return Loader(replace(request, shuffle=shuffle), setup.adapt, loader._check)
