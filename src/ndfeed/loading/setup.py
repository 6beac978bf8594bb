"""What the passes of a loader are made with: data, order, memory and adapter, checked together.

It is a value: a loader that gets other data, or another order, gets another one between two epochs.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from ndfeed.loading.adapter import Adapter
from ndfeed.loading.budget import estimate_batch_bytes, make_budget
from ndfeed.loading.options import Request, Shuffle
from ndfeed.loading.plan import Plan, make_plan
from ndfeed.loading.runtime import Runtime
from ndfeed.order.epoch import Share


class Setup(NamedTuple):
    """A request, and what follows from it; ``adapt`` makes the adapter of a runtime."""

    request: Request
    adapt: Callable[[], Adapter]
    plan: Plan
    batch_bytes: int

    @classmethod
    def of(cls, request: Request, adapt: Callable[[], Adapter]) -> "Setup":
        """Make the plan; refuses streams that do not fit into memory, if any does not."""
        plan, options = make_plan(request), request.options
        size = estimate_batch_bytes(request.ds, request.largest_batch, options.memory)
        plan.make_cache(make_budget(options.memory, size, decodes=bool(plan.coded)).streams)
        return cls(request, adapt, plan, size)

    def with_share(self, share: Share) -> "Setup":
        """Return it for another share; the plan is kept if it is the same."""
        if share == self.request.share:
            return self
        request = replace(self.request, share=share)
        plan = make_plan(request)
        same = plan.lanes == self.plan.lanes and plan.order == self.plan.order
        return self._replace(request=request, plan=self.plan if same else plan)

    def with_order(self, shuffle: Shuffle) -> "Setup":
        """Return it with another order."""
        request = replace(self.request, shuffle=shuffle)
        return self._replace(request=request, plan=make_plan(request))

    def make_runtime(self) -> Runtime:
        """Make a runtime for passes in this process."""
        adapter = self.adapt()
        ds, options = adapter.reads(self.request.ds, self.request.options, self.batch_bytes)
        return Runtime(ds, options, self.plan, self.batch_bytes, adapter)
