"""Which part of a batch is whose under ``tf.distribute``.

One worker with several devices: the strategy splits every batch among them, so the dataset is
that of one reader. Several workers: each has a dataset of its own, made with the context that
``distribute_datasets_from_function`` hands over; it gives what one device needs at a time. A
dataset that was told nothing of this and is given to ``experimental_distribute_dataset`` reads
everything on every worker, and TensorFlow keeps each worker's part of it.
"""

import tensorflow as tf


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
