"""``ndfeed.tf.dataset``: epochs of batches as a ``tf.data.Dataset``, also distributed.

Which part of a batch is whose under ``tf.distribute``.

One worker with several devices: the strategy splits every batch among them, so the dataset is
that of one reader. Several workers: each has a dataset of its own, made with the context that
``distribute_datasets_from_function`` hands over; it gives what one device needs at a time. A
dataset that was told nothing of this and is given to ``experimental_distribute_dataset`` reads
everything on every worker, and TensorFlow keeps each worker's part of it.

``ndfeed.tf.dataset``: epochs of batches as a ``tf.data.Dataset``.

Threads of a loader make batches ahead of use; TensorFlow takes them through a generator, the
memory of arrays as it is, small batches several at a time. What is in the graph is the generator
and no data.
"""

from collections.abc import Sequence
from functools import partial

import tensorflow as tf

from ndfeed.dataset.arguments import as_count
from ndfeed.dataset.dataset import Dataset
from ndfeed.loading import ragged as arrays
from ndfeed.loading.argument_hints import with_hints
from ndfeed.loading.budget import batch_bytes
from ndfeed.loading.loader import Loader
from ndfeed.loading.options import (
    Fields,
    OnError,
    Shuffle,
    as_shard,
    check_dataset,
    settle,
    side_by_side,
)
from ndfeed.loading.ragged import PadTo, PadValue
from ndfeed.tf.batch_format import RAGGED, BatchFormat, Pieces, Ragged
from ndfeed.tf.fast_iterator import Batches, Generated
from ndfeed.tf.generator import Generator, GeneratorSource, State, owner


def batch_and_shard(
    batch_size: int, shard: tuple[int, int] | None, context: tf.distribute.InputContext | None
) -> tuple[int, tuple[int, int]]:
    """Samples of a batch of this reader, its rank and the world."""
    if context is not None:
        if shard is not None:
            raise ValueError("context says which part is read; leave out shard")
        _check_divides(batch_size, context.num_replicas_in_sync)
        replicas = context.num_replicas_in_sync
        return batch_size // replicas, (context.input_pipeline_id, context.num_input_pipelines)
    if tf.distribute.has_strategy() and shard is None:
        strategy = tf.distribute.get_strategy()
        if _workers(strategy) > 1:
            raise ValueError(
                "several workers need a dataset each: strategy.distribute_datasets_from_function("
                "lambda context: ndfeed.tf.dataset(ds, batch_size, context=context)), "
                "or say shard="
            )
        _check_divides(batch_size, strategy.num_replicas_in_sync)
    return batch_size, shard or (0, 1)


def auto_shard(own: bool) -> tf.data.experimental.AutoShardPolicy:
    """How TensorFlow divides the dataset among workers: not at all where that is done here.

    By batches otherwise. There are no files in the graph, which it would look for first.
    """
    policy = tf.data.experimental.AutoShardPolicy
    return policy.OFF if own else policy.DATA


def _check_divides(batch_size: int, replicas: int) -> None:
    if batch_size % replicas:
        near = max(batch_size - batch_size % replicas, replicas)
        raise ValueError(
            f"batch_size must be a multiple of {replicas}, the replicas that share a batch, got "
            f"{batch_size}; use {near}"
        )


def _workers(strategy: tf.distribute.Strategy) -> int:
    resolver = strategy.cluster_resolver
    if resolver is None or not resolver.cluster_spec():
        return 1
    jobs = resolver.cluster_spec().as_dict()
    return sum(len(jobs.get(job, ())) for job in ("chief", "worker"))


_HELD = 2  # batches, or pieces, that TensorFlow holds besides that in use: handed over, waiting
_PIECE = 16 << 20  # bytes of batches that are handed over together, at most
_SMALL_AHEAD = 4


@with_hints(
    num_epochs="write epochs=",
    repeat="write epochs=, or epochs=None for a pass that never ends",
    strategy="strategy.distribute_datasets_from_function hands over the context for context=",
    input_context="write context=",
)
def dataset(  # noqa: PLR0913 - the arguments that every loader shares, and TensorFlow's
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
    processes: int = 0,
    ragged: Ragged = "ragged",
    pad_to: PadTo | None = None,
    pad_value: PadValue | None = None,
    on_error: OnError = "raise",
    epochs: int | None = 1,
    state: State | None = None,
    context: tf.distribute.InputContext | None = None,
) -> tf.data.Dataset:
    """Batches of a dataset as a ``tf.data.Dataset``, for ``fit``, loops and ``tf.function``.

    Takes all arguments of ``ndfeed.loader``, with the same meaning, and the same seed gives the
    same batches. Each pass over it is the next epoch, one pass at a time.

    - ``fields``: a name, or any nest of names in tuples, lists and dicts; ``fit`` takes
      ``("x", "y")``, or ``("x", "y", "weight")`` with the weight of each sample. Lists come out as
      tuples, since TensorFlow takes a list for a tensor.
    - ``epochs``: a pass has so many epochs, one after the other; with ``None`` it never ends.
    - ``ragged``: samples of different lengths as a ``tf.RaggedTensor``, or ``"pad"``-ded.
    - ``state``: a ``State``, which says where a pass begins and is saved with a checkpoint.
    - ``context``: that of ``strategy.distribute_datasets_from_function``. Then ``batch_size`` is
      the global one, and each worker reads its own part.
    """
    if state is not None and not isinstance(state, State):
        raise TypeError(f"state must be a ndfeed.tf.State, got {state!r}")
    if context is not None and not isinstance(context, tf.distribute.InputContext):
        raise TypeError(f"context must be a tf.distribute.InputContext, got {context!r}")
    if ragged not in RAGGED:
        raise ValueError(f"ragged must be one of {', '.join(map(repr, RAGGED))}, got {ragged!r}")
    if epochs is not None:
        as_count("epochs", epochs, 1, 1 << 40)
    form: arrays.Ragged = "pad" if ragged == "pad" else "packed"
    if ragged != "pad" and not (pad_to is None and pad_value is None):
        raise ValueError(f'pad_to and pad_value are for ragged="pad", got ragged={ragged!r}')
    check_dataset(ds)
    own = None if shard is None else as_shard(shard)
    size, part = batch_and_shard(batch_size, own, context)
    request = settle(
        ds, size, shard=part, drop_last=drop_last, seed=seed, fields=fields, memory=memory,
        threads=threads, processes=processes, ragged=form, on_error=on_error, pad_to=pad_to,
        pad_value=pad_value, shuffle=shuffle,
    )  # fmt: skip
    ds, share, options = request.ds, request.share, request.options
    bytes_each = batch_bytes(ds, size, options.memory)
    piece = min(_PIECE, options.memory // 8)
    joint = side_by_side(ds, on_error) and not options.pads and 2 * bytes_each <= piece
    held = _HELD * (piece if joint else bytes_each)
    adapt = partial(Pieces, piece, joint, held)
    loader = Loader(request, adapt)
    if state is not None:
        state.bind(loader, epochs)
    starts = {0, 0 if state is None else state.samples}  # of epochs, this and the next ones
    even = all((len(ds) - start) % share.together == 0 for start in starts)
    full = on_error == "raise" and (bool(drop_last) or even)
    made = BatchFormat(ds, options, ragged, size, full=full, joint=joint)
    policy = auto_shard(shard is not None or context is not None)
    return _built(Generator(loader, made, epochs, state), made, len(loader), epochs, policy)


def _built(
    passes: Generator,
    form: BatchFormat,
    count: int,
    epochs: int | None,
    policy: tf.data.experimental.AutoShardPolicy,
) -> tf.data.Dataset:
    source = GeneratorSource(passes)
    made = tf.data.Dataset.from_generator(source, args=owner(passes), output_signature=form.given)
    if form.joint:
        made = made.flat_map(form.cut)
    # A pass is exactly so many batches by construction, or fewer where it goes on in the middle.
    # TensorFlow can tell without reading, and is content with fewer, where it takes them from
    # something endless; so nothing comes behind, of which it cannot tell how often.
    nothing = tf.data.Dataset.from_generator(tuple, output_signature=made.element_spec)
    made = made.concatenate(nothing.repeat())
    if epochs is not None:
        made = made.take(count * epochs)
    if form.ragged:
        made = made.map(form.element)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = policy
    made = made.prefetch(_ahead(form)).with_options(options)
    return Batches(made, passes, partial(_direct, source, form))


def _direct(source: GeneratorSource, form: BatchFormat) -> tf.data.Dataset:
    """The same batches for loops outside of graphs, whose passes begin sooner."""
    made = Generated(source, form.given)
    if form.joint:
        made = made.flat_map(form.cut)
    if form.ragged:
        made = made.map(form.element)
    options = tf.data.Options()
    options.autotune.enabled = False  # there is nothing to tune and nothing to rewrite
    options.experimental_optimization.apply_default_optimizations = False
    return made.prefetch(_ahead(form)).with_options(options)


def _ahead(form: BatchFormat) -> int:
    return _SMALL_AHEAD if form.joint else 1
