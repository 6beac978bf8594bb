"""Ray as a ``concurrent.futures.Executor``: for ``ndfeed.pack(…, executor=ndfeed.ray.Executor())``.

Thin on purpose: a task each, retried by Ray itself where a worker or a machine is lost. Workers
need ndfeed, and the folders of source and target on a file system that they share.
"""

from collections.abc import Callable
from concurrent import futures
from typing import Any

from ndfeed.errors import not_installed

try:
    import ray
    from ray.exceptions import RayTaskError
except ModuleNotFoundError as error:
    raise not_installed(error, "ray", "ray") from None

__all__ = ["Executor"]


class Executor(futures.Executor):
    """Runs functions as Ray tasks, on the cluster at ``address`` or on one of its own.

    Without an address it joins the Ray that this process is connected to, or else starts one on
    this machine, which ``shutdown`` ends.
    """

    def __init__(self, address: str | None = None) -> None:
        self._started = not ray.is_initialized()
        if self._started:
            ray.init(address, log_to_driver=False)
        self._run = ray.remote(_call)
        found = ray.cluster_resources()  # type: ignore[no-untyped-call]
        self._max_workers = max(int(found.get("CPU", 1)), 1)
        self._closed = False

    def submit(
        self,
        function: Callable[..., Any],
        /,
        *args: Any,
        **kwargs: Any,
    ) -> "futures.Future[Any]":
        """A task that calls ``function``."""
        if self._closed:
            raise RuntimeError("no new tasks after shutdown")
        made: futures.Future[Any] = futures.Future()
        made.set_running_or_notify_cancel()
        self._run.remote(function, args, kwargs).future().add_done_callback(_passed_on(made))
        return made

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more tasks, and end the Ray that was started for this."""
        if not self._closed and self._started:
            ray.shutdown()
        self._closed = True


def _call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
    return function(*args, **kwargs)


def _passed_on(made: "futures.Future[Any]") -> Callable[["futures.Future[Any]"], None]:
    def done(found: "futures.Future[Any]") -> None:
        error = found.exception()
        if isinstance(error, RayTaskError):
            error = error.cause  # what the function itself raised
        if error is None:
            made.set_result(found.result())
        else:
            made.set_exception(error)

    return done
