"""Ray as a ``concurrent.futures.Executor``: for ``ndfeed.pack(…, executor=ndfeed.ray.Executor())``.

Thin on purpose: a task each, retried by Ray itself where a worker or a machine is lost. Workers
need ndfeed, and the folders of source and target on a file system that they share.
"""

from collections.abc import Callable, Mapping
from concurrent import futures
from typing import Any, ParamSpec, TypeVar

from ndfeed.errors import not_installed

try:
    import ray
    from ray.exceptions import RayTaskError
except ModuleNotFoundError as error:
    raise not_installed(error, "ray", "ray") from None

__all__ = ["Executor"]

P = ParamSpec("P")
T = TypeVar("T")


class Executor(futures.Executor):
    """Runs functions as Ray tasks, on the cluster at ``address`` or on one of its own.

    Without an address it joins the Ray that this process is connected to, or else starts one on
    this machine, which ``shutdown`` ends. ``max_workers`` is the number of the cluster's CPUs.
    """

    def __init__(self, address: str | None = None) -> None:
        self._started = not ray.is_initialized()
        if self._started:
            ray.init(address, log_to_driver=False)
        self._run: Any = ray.remote(_call)
        resources: Callable[[], Mapping[str, float]] = ray.cluster_resources
        self.max_workers = max(int(resources().get("CPU", 1)), 1)
        self._closed = False

    def submit(
        self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> "futures.Future[T]":
        """Start a task that calls ``fn``."""
        if self._closed:
            raise RuntimeError("no new tasks after shutdown")
        result: futures.Future[T] = futures.Future()
        result.set_running_or_notify_cancel()
        task = self._run.remote(fn, args, kwargs).future()
        task.add_done_callback(lambda done: _pass_on(done, result))
        return result

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more tasks, and end the Ray that was started for this."""
        if not self._closed and self._started:
            ray.shutdown()
        self._closed = True


def _call(function: Callable[..., T], args: tuple[object, ...], kwargs: dict[str, object]) -> T:
    return function(*args, **kwargs)


def _pass_on(done: "futures.Future[Any]", result: "futures.Future[Any]") -> None:
    """Give the result or the error of a Ray task to the future that the caller has."""
    error = done.exception()
    if isinstance(error, RayTaskError):
        error = error.cause  # what the function itself raised
    if error is None:
        result.set_result(done.result())
    else:
        result.set_exception(error)
