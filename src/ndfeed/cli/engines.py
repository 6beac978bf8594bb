"""Who does the work of a command: this machine, or a cluster of Ray's or Dask's."""

from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import NamedTuple

import typer


class Engine(NamedTuple):
    """An executor, if it is not to be the usual one, and how many work at once in it."""

    executor: Executor | None = None
    workers: int | None = None


@contextmanager
def engine(on: str | None) -> Iterator[Engine]:
    """What ``--on`` means: nothing, ``ray``, ``ray://host:port``, ``dask`` or ``dask://host:port``."""
    if on is None:
        yield Engine()
        return
    name, _, address = on.partition("://")
    if name not in ("ray", "dask"):
        raise typer.BadParameter(f"ray, ray://host:port, dask or dask://host:port, got {on!r}")
    try:
        with _ray(on if address else None) if name == "ray" else _dask(address) as found:
            yield found
    except ModuleNotFoundError as error:
        if error.name not in ("ray", "distributed", "dask"):
            raise
        problem = f"--on {name} needs a package: pip install 'ndfeed[{name}]'"
        raise typer.BadParameter(problem) from None


@contextmanager
def _ray(address: str | None) -> Iterator[Engine]:
    from ndfeed.ray import Executor as RayExecutor  # noqa: PLC0415 - needed by few

    with RayExecutor(address) as executor:
        yield Engine(executor)


@contextmanager
def _dask(address: str) -> Iterator[Engine]:
    from distributed import Client  # noqa: PLC0415 - needed by few

    where = {"address": f"tcp://{address}"} if address else {"dashboard_address": None}
    with (
        Client(**where) as client,  # type: ignore[no-untyped-call]
        client.get_executor() as executor,
    ):
        yield Engine(executor, max(sum(client.nthreads().values()), 1))
