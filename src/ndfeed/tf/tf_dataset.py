"""``ndfeed.tf.dataset``: epochs of batches as a ``tf.data.Dataset``, also distributed.

The threads of a loader prefetch batches. TensorFlow takes them through a generator, without a copy,
and small batches several at a time. The graph holds the generator and no data.

Under ``tf.distribute``, one worker with several devices reads as one: the strategy splits every
batch among the devices. With several workers each makes its own dataset, with the context that
``distribute_datasets_from_function`` passes; a batch of it is for one device. A dataset that was
made without a context and is given to ``experimental_distribute_dataset`` reads everything on every
worker, and TensorFlow keeps each worker's part.
"""

from collections.abc import Sequence
from functools import partial

import tensorflow as tf

from ndfeed.dataset.arguments import as_count
from ndfeed.dataset.dataset import Dataset
from ndfeed.loading import ragged as arrays
from ndfeed.loading.argument_hints import with_hints
from ndfeed.loading.budget import estimate_batch_bytes
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
from ndfeed.loading.token_budget import as_batch_size
from ndfeed.tf.batch_format import RAGGED, BatchFormat, Ragged, TfAdapter
from ndfeed.tf.fast_iterator import (
    Batches,
    Generated,
    GeneratorFunctions,
    Made,
    prefetch_directly,
)
from ndfeed.tf.framework_hacks import tensor_that_keeps
from ndfeed.tf.generator import Generator, GeneratorSource, State


def _batch_and_shard(
    size: int,
    shard: tuple[int, int] | None,
    context: tf.distribute.InputContext | None,
    name: str,
) -> tuple[int, tuple[int, int]]:
    """Return the batch size of this reader, or its tokens, and its rank and world size."""
    if context is not None:
        if shard is not None:
            raise ValueError("context already says which part is read; leave out shard=")
        replicas = context.num_replicas_in_sync
        _check_divides(size, replicas, name)
        return size // replicas, (context.input_pipeline_id, context.num_input_pipelines)
    if tf.distribute.has_strategy() and shard is None:
        strategy = tf.distribute.get_strategy()
        if _workers(strategy) > 1:
            raise ValueError(
                "several workers need a dataset each: strategy.distribute_datasets_from_function("
                "lambda context: ndfeed.tf.dataset(ds, batch_size, context=context)), "
                "or pass shard="
            )
        replicas = strategy.num_replicas_in_sync
        if name == "tokens" and replicas > 1:
            raise ValueError(
                f"batches of any number of samples cannot be divided among {replicas} replicas: "
                "strategy.distribute_datasets_from_function(lambda context: ndfeed.tf.dataset("
                "ds, tokens=tokens, shuffle=True, context=context)) makes one for each"
            )
        _check_divides(size, replicas, name)
    return size, shard or (0, 1)


def _auto_shard(own: bool) -> tf.data.experimental.AutoShardPolicy:
    """Return how TensorFlow divides the dataset among workers: by batches, or not at all.

    Not at all where it is divided here already. Never by files, since the graph has none.
    """
    policy = tf.data.experimental.AutoShardPolicy
    return policy.OFF if own else policy.DATA


def _check_divides(size: int, replicas: int, name: str) -> None:
    if size % replicas:
        near = max(size - size % replicas, replicas)
        raise ValueError(
            f"{name} must be a multiple of {replicas}, the replicas that share a batch, got "
            f"{size}; use {near}"
        )


def _workers(strategy: tf.distribute.Strategy) -> int:
    resolver = strategy.cluster_resolver
    if resolver is None or not resolver.cluster_spec():
        return 1
    jobs = resolver.cluster_spec().as_dict()
    return sum(len(jobs.get(job, ())) for job in ("chief", "worker"))


_HELD = 2  # batches, or pieces, that TensorFlow holds besides the one in use
_PIECE = 16 << 20  # bytes of batches that are handed over together, at most
_SMALL_AHEAD = 4  # small batches that TensorFlow prefetches


@with_hints(
    num_epochs="write epochs=",
    repeat="write epochs=, or epochs=None for a pass that never ends",
    strategy="strategy.distribute_datasets_from_function hands over the context for context=",
    input_context="write context=",
)
def dataset(  # noqa: PLR0913 - the arguments that every loader shares, and TensorFlow's
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
    same batches. Each pass over it is the next epoch.

    - ``fields``: a name, or any nest of names in tuples, lists and dicts; ``fit`` takes
      ``("x", "y")``, or ``("x", "y", "weight")`` with the weight of each sample. Lists come out as
      tuples, since TensorFlow takes a list for a tensor.
    - ``epochs``: the number of epochs of a pass; with ``None`` it never ends.
    - ``ragged``: samples of different lengths as a ``tf.RaggedTensor``, or ``"pad"``-ded.
    - ``state``: a ``State``, which says where a pass starts and is saved with a checkpoint.
    - ``context``: the one that ``strategy.distribute_datasets_from_function`` passes. Then
      ``batch_size`` is the global one, and each worker reads its own part.
    """
    if state is not None and not isinstance(state, State):
        raise TypeError(f"state must be a ndfeed.tf.State, got {state!r}")
    if context is not None and not isinstance(context, tf.distribute.InputContext):
        raise TypeError(f"context must be a tf.distribute.InputContext, got {context!r}")
    if ragged not in RAGGED:
        raise ValueError(f"ragged must be one of {', '.join(map(repr, RAGGED))}, got {ragged!r}")
    if epochs is not None:
        as_count("epochs", epochs, 1, 1 << 40)
    packed: arrays.Ragged = "pad" if ragged == "pad" else "packed"
    if ragged != "pad" and not (pad_to is None and pad_value is None):
        raise ValueError(f'pad_to and pad_value are for ragged="pad", got ragged={ragged!r}')
    check_dataset(ds)
    own = None if shard is None else as_shard(shard)
    most, budget = as_batch_size(batch_size, tokens)
    size, part = _batch_and_shard(most, own, context, "tokens" if budget else "batch_size")
    request = settle(
        ds, None if budget else size, tokens=size if budget else None, shard=part,
        drop_last=drop_last, seed=seed, fields=fields, memory=memory, threads=threads,
        processes=processes, ragged=packed, on_error=on_error, pad_to=pad_to,
        pad_value=pad_value, shuffle=shuffle,
    )  # fmt: skip
    ds, options = request.ds, request.options
    bytes_each = estimate_batch_bytes(ds, request.largest_batch, options.memory)
    piece = min(_PIECE, options.memory // 8)
    joint = side_by_side(ds, on_error) and not options.pads and 2 * bytes_each <= piece
    held = _HELD * (piece if joint else bytes_each)
    adapt = partial(TfAdapter, piece, joint, held)
    passes = Generator(Loader(request, adapt), epochs, state)
    policy = _auto_shard(shard is not None or context is not None)
    return Batches(passes, partial(_make, passes, ragged, size, policy, joint=joint))


def _make(
    passes: Generator,
    ragged: Ragged,
    size: int,
    policy: tf.data.experimental.AutoShardPolicy,
    *,
    joint: bool,
) -> Made:
    """Make a dataset of the passes, with what TensorFlow has to know of them now."""
    request = passes.loader.request
    # Where samples are skipped, any batch may be short.
    full = request.options.on_error == "raise" and passes.are_full()
    form = BatchFormat(request.ds, request.options, ragged, size, full=full, joint=joint)
    count = passes.most = passes.count()
    source = GeneratorSource(passes, form, count)
    kept = tensor_that_keeps(passes, passes.mark)
    made = tf.data.Dataset.from_generator(source, args=kept, output_signature=form.generator_spec)
    if form.joint:
        made = made.flat_map(form.split)
    # A pass has exactly this many batches, or fewer if it resumes in the middle. TensorFlow knows
    # that number without reading, and accepts fewer, if it takes them from an endless dataset. So
    # an endless dataset without elements follows. Where epochs differ in length, it does not know.
    if count is not None or passes.endless:
        nothing = tf.data.Dataset.from_generator(tuple, output_signature=made.element_spec)
        made = made.concatenate(nothing.repeat())
    if count is not None:
        made = made.take(count)
    if form.ragged:
        made = made.map(form.element)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = policy
    made = made.prefetch(_ahead(form)).with_options(options)
    return Made(made, partial(_direct, GeneratorSource(passes, form), form))


def _direct(source: GeneratorSource, form: BatchFormat) -> tf.data.Dataset:
    """Make a dataset of the same batches for eager loops, whose passes start sooner."""
    made = Generated(source, GeneratorFunctions(form.generator_spec))
    if form.joint:
        made = made.flat_map(form.split)
    if form.ragged:
        made = made.map(form.element)
    return prefetch_directly(made, _ahead(form))


def _ahead(form: BatchFormat) -> int:
    return _SMALL_AHEAD if form.joint else 1
