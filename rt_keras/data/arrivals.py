"""When batches come out of an input pipeline, and how long training waited for them."""

import tensorflow as tf


def make_arrivals(count):
    """Makes the variable that `note_arrivals` writes to.

    Args:
        count: int, the number of batches whose times are remembered: more than are read at once,
            and ahead of their use.

    Returns:
        A `tf.Variable` of zeros, float64 `[count]`, in the memory of this machine.
    """
    with tf.device("CPU:0"):
        return tf.Variable(tf.zeros([count], tf.float64), trainable=False)


def note_arrivals(dataset, arrivals):
    """Notes when each element of a data set comes.

    `fit` reads its data inside a compiled function, and a strategy reads one batch ahead. So only
    the pipeline knows when a batch was there. Place this last.

    Args:
        dataset: `tf.data.Dataset`.
        arrivals: variable from `make_arrivals`. The time of element i of an iterator is written to
            place i modulo its size, in seconds since the epoch of Unix.

    Returns:
        `tf.data.Dataset` of the same elements.

    >>> arrivals = make_arrivals(2)
    >>> [int(x) for x in note_arrivals(tf.data.Dataset.range(3), arrivals)]
    [0, 1, 2]
    >>> bool(arrivals[0] >= arrivals[1] > 0)
    True
    """
    size = arrivals.shape[0]

    def note(number, element):
        arrivals.scatter_update(tf.IndexedSlices(tf.timestamp(), number % size))
        return element

    return dataset.enumerate().map(note)


def seconds_waited(begin, end, arrivals):
    """How long steps of training waited for their batches.

    The steps are taken to be equally long without the waiting, c seconds, so that they end at the
    latest of `begin + n c` and, for each batch i of n, `arrivals[i] + (n - i) c`.

    Args:
        begin: float, when the first batch was asked for, in seconds.
        end: float, when the last step was done.
        arrivals: list of floats, when the batch of each step came; before `begin` if it was read
            ahead.

    Returns:
        A float, `end - begin - n c`, from 0 to `end - begin`.

    >>> seconds_waited(10.0, 14.0, [8.0, 9.0])
    0.0
    >>> seconds_waited(10.0, 14.0, [9.0, 13.0])
    2.0
    """
    count = len(arrivals)
    step = min(
        (end - begin) / count,
        *((end - arrival) / (count - i) for i, arrival in enumerate(arrivals)),
    )
    return end - begin - count * step
