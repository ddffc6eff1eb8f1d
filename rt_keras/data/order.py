"""The order of training examples, computed from the index of a batch alone."""

import tensorflow as tf

from rt_keras.arguments import wrong_value
from rt_keras.data.batches import check_at_least_one

# TensorFlow's `index_shuffle` uses 4 rounds. With these, neighbors stay near each other and passes
# over a million examples resemble one another; with 12 or more, neither is measurable.
ROUNDS = 32


def batches_of_numbers(count, batch_size, seed, first_batch=0, share=(0, 1)):
    """Returns endless batches of example indices.

    Each pass over the examples uses another pseudorandom permutation. It is computed one index at a
    time, so nothing is held in memory and any batch takes the same time. A batch may hold the end
    of one pass and the start of the next. Batch b is a function of the number of examples,
    `batch_size`, `seed` and b only.

    Args:
        count: int, number of examples.
        batch_size: int, number of examples in a batch, over all workers.
        seed: int.
        first_batch: int, index of the first batch. Defaults to 0.
        share: pair of ints `(worker, workers)`. Each batch is split into `workers` equal parts, and
            only part `worker` is returned. Defaults to `(0, 1)`, the whole batch.

    Returns:
        `tf.data.Dataset` of int64 `[batch_size / workers]`.

    Raises:
        ValueError: if a number is out of range, or if `batch_size` is not a multiple of the number
            of workers.

    Source: TensorFlow's `RandomIndexShuffle`, with more rounds.

    >>> batches = batches_of_numbers(count=4, batch_size=4, seed=0)
    >>> [sorted(batch.tolist()) for batch in batches.take(2).as_numpy_iterator()]
    [[0, 1, 2, 3], [0, 1, 2, 3]]
    """
    check_at_least_one(count=count, batch_size=batch_size)
    rows = rows_of_share(batch_size, share)
    if first_batch < 0:
        raise wrong_value("first_batch", "at least 0", first_batch)
    worker, _ = share

    def numbers(batch):
        places = batch * batch_size + worker * rows + tf.range(rows, dtype=tf.int64)
        return shuffled(places % count, count, seed, places // count)

    return tf.data.Dataset.counter(first_batch).map(numbers)


def shuffled(places, count, seed, passes):
    """Returns the index of the example at each position of a pass.

    Args:
        places: int64 `[n]`, positions in their passes, from 0 to `count - 1`.
        count: int, number of examples.
        seed: int.
        passes: int64 `[n]`, index of the pass of each position.

    Returns:
        int64 `[n]`.

    >>> places = tf.range(3, dtype=tf.int64)
    >>> sorted(shuffled(places, 3, seed=0, passes=tf.zeros_like(places)).numpy().tolist())
    [0, 1, 2]
    """
    seeds = tf.fill(tf.shape(passes), tf.constant(seed, tf.int64))
    return tf.raw_ops.RandomIndexShuffle(
        index=places,
        seed=tf.stack([tf.zeros_like(passes), seeds, passes], axis=1),
        max_index=tf.constant(count - 1, tf.int64),
        rounds=ROUNDS,
    )


def rows_of_share(batch_size, share):
    """Returns the number of examples of a batch that one worker reads.

    >>> rows_of_share(12, share=(0, 4))
    3
    """
    worker, workers = share
    if not 0 <= worker < workers:
        raise wrong_value("share", "(worker, workers), where 0 <= worker < workers", share)
    if batch_size % workers:
        needed = f"a multiple of the number of workers, {workers}"
        raise wrong_value("batch_size (data.batch_size)", needed, batch_size)
    return batch_size // workers
