"""What a loader of arrays is told, so that its batches become arrays of JAX where they are wanted.

On the CPU JAX uses memory of NumPy's as it is if it begins at 64 bytes, and copies it elsewhere,
large arrays behind the caller's back; to a device it is copied behind the caller's back, too.
Either way JAX holds a reference to the NumPy array for as long as it reads its memory, and the
pool's memory is lent again only when the last reference is gone. So nothing has to be waited for.
"""

from collections.abc import Callable
from typing import Any

import jax

from ndfeed.jax.form import Form, memory
from ndfeed.jax.layout import Layout
from ndfeed.loader.fill import Source
from ndfeed.loader.host import Host
from ndfeed.loader.pool import Bytes

_AHEAD = 2  # batches on their way to a device


class Feed:
    """Arrays of JAX, on the CPU made in the thread that read them, else sent ahead of use."""

    def __init__(self, form: Form, layout: Layout | None) -> None:
        self.allocate: Callable[[int], Bytes] | None = None
        self.threads: int | None = None
        self.together = 8 << 20  # as for arrays
        self.joint = False
        self._form = form
        self._layout = layout
        # The consumer's: threads have one of their own.
        self._default: Any = jax.config.jax_default_device
        self._pool = memory()
        self._platform = self._where()
        self._on_host = self._platform == "cpu"
        self.ahead = 0 if self._on_host else _AHEAD

    def _where(self) -> str:
        if self._layout is not None:
            return self._layout.platform
        device = self._default or jax.local_devices()[0]
        return device if isinstance(device, str) else device.platform

    def source(self, host: Host) -> Source:
        """The files."""
        return host

    def finish(self, made: Any) -> Any:  # noqa: ANN401
        """Types and lengths as JAX is to get them; on the CPU the arrays themselves."""
        form, pool = self._form, self._pool
        named = {name: form.array(name, a, pool) for name, a in form.named(made).items()}
        return self._put(named) if self._on_host else named

    def send(self, made: Any) -> Any:  # noqa: ANN401
        """On its way to the devices; all from one thread, so that few are there at a time."""
        return made if self._on_host else self._put(made)

    def receive(self, made: Any) -> Any:  # noqa: ANN401
        """The same: whoever computes with it waits for it on the device."""
        return made

    def _put(self, named: dict[str, Any]) -> Any:  # noqa: ANN401
        layout = self._layout
        if layout is None:
            with jax.default_device(self._default):
                arrays = jax.device_put(list(named.values()))  # of a dict it would sort the names
        else:
            arrays = [layout.put(name, rows) for name, rows in named.items()]
        if self._form.names is not None:
            return tuple(arrays)  # they are named in that order
        return dict(zip(named, arrays, strict=True))

    def describe(self) -> str:
        """How batches get to where they are used."""
        if self._layout is None:
            return "" if self._on_host else f"to a {self._platform}, {_AHEAD} batches ahead"
        count = len(self._layout.devices)
        return f"on {count} {self._platform} devices of this process"

    def close(self) -> None:
        """Let go of memory for arrays that are cast or padded."""
        self._pool.clear()
