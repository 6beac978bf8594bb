"""``ndfeed.loader``: a loader whose batches are NumPy arrays."""

from collections.abc import Sequence
from functools import partial

from ndfeed.dataset.dataset import Dataset
from ndfeed.loading.adapter import Adapter
from ndfeed.loading.argument_hints import with_hints
from ndfeed.loading.loader import Loader
from ndfeed.loading.options import Fields, OnError, Shuffle, as_shard, settle
from ndfeed.loading.ragged import PadTo, PadValue, Ragged


@with_hints()
def loader(  # noqa: PLR0913 - the arguments that every loader shares
    ds: Dataset,
    batch_size: int | None = None,
    *,
    shuffle: Shuffle = False,
    tokens: int | None = None,
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
      For a mixture (``ndfeed.mix``) it may be a dict with one for each source.
    - ``tokens``: in place of ``batch_size``, batches of similar length whose longest sample times
      their number is at most this. The lengths are those of the only ragged field, with
      ``shuffle=True``, or of the field of ``shuffle=ndfeed.Buckets("text")``.
    - ``drop_last``: leave out a last batch that is not full.
    - ``fields``: which fields, and in which structure: ``"x"`` gives the bare array, ``("x", "y")``
      tuples, and any nest of tuples, lists and dicts such as ``({"a": "x", "b": "z"}, "y")`` the
      same nest of arrays. By default batches are dicts of all fields.
    - ``shard=(rank, world)``: this rank's part of every global batch of ``batch_size * world``.
    - ``memory``: limit for prefetched batches and decoded streams together, in bytes or as text
      such as ``"2GB"``; by default an eighth of what the process may have, at most 2 GiB.
    - ``threads``: by default chosen by what is read, and adapted.
    - ``processes``: how many worker processes read files that are opened for every sample,
      decompress, and run the functions given to ``map``. By default as many as there are cores, if
      that is faster and changes nothing; 0 for none.
    - ``ragged``: samples of different shapes as a ``"list"``, ``"pad"``-ded, or ``"packed"``.
    - ``pad_to``: the length to which samples are padded in every batch, instead of the longest in
      the batch, or a tuple with one for each axis that differs; for all ragged fields, or as a
      dict of field name to length. Only with ``ragged="pad"``.
    - ``pad_value``: what to pad with instead of 0, for all ragged fields or as such a dict.
    - ``on_error="skip"``: skip samples that cannot be read; ``loader.skipped`` lists them.
    """
    request = settle(
        ds, batch_size, tokens=tokens, shuffle=shuffle, shard=as_shard(shard),
        drop_last=drop_last, seed=seed, fields=fields, memory=memory, threads=threads,
        processes=processes, ragged=ragged, on_error=on_error, pad_to=pad_to,
        pad_value=pad_value,
    )  # fmt: skip
    return Loader(request, partial(Adapter, request.options.structure))
