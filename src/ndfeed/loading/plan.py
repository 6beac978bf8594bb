"""In which order a dataset is read, and which streams are decoded and kept for that.

Streams that hold many rows must be decoded whole, so they share the memory limit with batches.
"""

from collections.abc import Sequence

import numpy as np

from ndfeed.dataset.decoding import Decoded, Elsewhere, nowhere
from ndfeed.dataset.row_selection import is_ascending
from ndfeed.loading.coded import Coded, make_stream_cache
from ndfeed.loading.options import Request
from ndfeed.loading.order_choice import (
    Places,
    check_weights,
    choose_order,
    count_by_file,
    cover_all,
    plan_mixture,
)
from ndfeed.order.epoch import Cut, Epoch, EpochWindow, Share, Window, Windowed
from ndfeed.order.permutation import Ints
from ndfeed.order.protocol import Order, OrderInUse


class Plan:
    """The order, and what is the same in every process that follows it.

    ``counts`` are the rows of each file for an order that goes by files, ``places`` maps the
    order's rows to the dataset's, ``coded`` are the streams that have to be decoded whole, and
    ``window`` is how many bytes of them the order needs at a time.
    """

    def __init__(
        self,
        order: Order,
        counts: Ints | None,
        places: Places,
        coded: list[Coded],
        *,
        forward: bool = False,
        lanes: Sequence[int] = (),
        window: int | None = None,
    ) -> None:
        self.order = order
        self.counts = counts
        self.places = places
        self.coded = coded
        self.shuffled = order.traits.shuffled
        self.in_use: tuple[tuple[Share, int], OrderInUse] | None = None  # for some share and seed
        self.lanes = lanes  # which of the lanes of an order that divides files, if it does
        every = (_window_bytes(one, order, max(len(lanes), 1)) for one in coded)
        self.window = sum(every) if window is None else window
        self._last_cut: tuple[tuple[Share, int, int], Cut] | None = None
        self._forward = forward  # are rows needed in the order of the files?

    def cut(self, share: Share, seed: int, epoch: int) -> Cut:
        """Return how the positions of an epoch are cut into batches."""
        wanted = share, seed, epoch
        last = self._last_cut
        if last is None or last[0] != wanted:
            last = self._last_cut = wanted, self.order.cut(*wanted)
        return last[1]

    def spans(self, cut: Cut, number: int, start: int) -> list[tuple[int, int, int]]:
        """Return the positions of a batch: start, end and step, for each rank of a share."""
        if self.lanes:
            return cut.stripes(number, start)
        return [(*span, 1) for span in cut.spans(number, start)]

    def begin(self, n: int, seed: int, epoch: int) -> tuple[Epoch, Sequence[Window]]:
        """Return an epoch, and the windows that say which files or blocks arrive when, if any."""
        found = self.order.begin(n, seed, epoch, self.counts)
        if isinstance(found, Windowed):
            return found, found.windows
        if found.arriving(0, 0) is None:
            return found, ()
        many: Sequence[Epoch] = (found,)
        if self.lanes:
            many = self.order.begin_lanes(n, seed, epoch, self.counts, self.lanes)
        return found, [EpochWindow(one, self.order.traits.open_parts) for one in many]

    def make_cache(self, limit: int, elsewhere: Elsewhere = nowhere) -> Decoded:
        """Return the cache that keeps decoded streams within ``limit`` bytes of memory.

        Refuses data whose streams neither memory nor a disk can hold.
        """
        forward = self._forward
        return make_stream_cache(
            self.coded, self.window, limit, forward=forward, elsewhere=elsewhere
        )

    def count_ahead(self, room: int) -> tuple[int, int]:
        """Return how many parts may be decoded at a time beside the window, and their mean size."""
        size = sum(int(one.sizes.mean()) for one in self.coded if len(one.sizes))
        return max(room - self.window, 0) // max(size, 1), size


class Cuts:
    """How the positions of each epoch are cut into batches."""

    def __init__(self, plan: Plan, share: Share, seed: int) -> None:
        self._plan, self._share, self._seed = plan, share, seed

    def __call__(self, epoch: int) -> Cut:
        """Return how one epoch is cut."""
        return self._plan.cut(self._share, self._seed, epoch)

    def count_batches(self, epochs: range) -> int:
        """Return how many batches some epochs have together."""
        if self._plan.order.traits.steady and epochs:
            return len(epochs) * self(epochs[0]).batches()
        return sum(self(epoch).batches() for epoch in epochs)

    def are_full(self, start: int, epoch: int) -> bool:
        """Are all batches of an epoch full from a position on?"""
        cut, share = self(epoch), self._share
        return cut.even and (share.drop_last or (cut.n - start) % share.together == 0)

    @property
    def are_always_full(self) -> bool:
        """Are all batches of every epoch full?"""
        fixed = self._share.drop_last or self._plan.order.traits.steady
        return fixed and self.are_full(0, 0)


def _window_bytes(coded: Coded, order: Order, windows: int) -> int:
    """Return the bytes of streams that an order needs at a time, of the largest there are."""
    sizes = np.sort(coded.sizes)[::-1]
    rows = int(coded.counts.sum()) // max(len(sizes), 1)
    return int(sizes[: order.parts_in_use(len(sizes), rows) * windows].sum())


def make_plan(request: Request) -> Plan:
    """Choose the order that ``shuffle`` means for a dataset, of which a share is read."""
    ds, share = request.ds, request.share
    facts = request.facts.for_share(share)
    coded = [one for one in map(Coded, ds.groups) if one.columns]
    if ds.mixture is not None:
        mixed = plan_mixture(ds, ds.mixture, request.shuffle, coded)
        check_weights((one.order for one in mixed.order.sources), request.facts.ds.classes)
        bound = mixed.order.bind(facts)
        return Plan(bound, mixed.counts, mixed.places, coded, window=mixed.window)
    stretches = cover_all(ds, coded)
    order = choose_order(request.shuffle, stretches)
    check_weights([order], request.facts.ds.classes)
    order = order.bind(facts)
    if not order.traits.by_file:
        every = [ds.rows, *(one.group.rows for one in coded)]
        forward = not order.traits.shuffled and all(map(is_ascending, every))
        return Plan(order, None, Places(None), coded, forward=forward)
    counts, sorted_rows = count_by_file(ds, stretches, range(len(ds)))
    lanes = order.lanes(share.ranks, share.world)
    return Plan(order, counts, Places(sorted_rows), coded, lanes=lanes)
