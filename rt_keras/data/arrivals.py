"""Arrival times of batches, and the time that training waited for them."""

import tensorflow as tf


def make_arrivals(count):
    """Creates the variable that `note_arrivals` writes to.

    Args:
        count: int, number of batches whose arrival times are kept. It must exceed the number of
            batches read in one step plus those read ahead.

    Returns:
        A `tf.Variable` of zeros, float64 `[count]`, on the CPU.
    """
    with tf.device("CPU:0"):
        return tf.Variable(tf.zeros([count], tf.float64), trainable=False)


def note_arrivals(dataset, arrivals):
    """Records the arrival time of each element of a dataset.

    `fit` reads its data inside a compiled function, and a strategy reads one batch ahead. Only the
    pipeline can therefore tell when a batch was ready. Apply this last.

    Args:
        dataset: `tf.data.Dataset`.
        arrivals: variable from `make_arrivals`. The time of element i of an iterator is written to
            index i modulo its size, in seconds since the Unix epoch.

    Returns:
        `tf.data.Dataset` with the same elements.

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
    """Returns the time that training steps waited for their batches.

    Without waiting, each of the n steps is assumed to take the same time, c seconds. The last one
    then ends at the maximum of `begin + n c` and, for each batch i, `arrivals[i] + (n - i) c`.

    Args:
        begin: float, time of the request for the first batch, in seconds.
        end: float, time at which the last step finished.
        arrivals: list of floats, arrival time of each step's batch; before `begin` if it was read
            ahead.

    Returns:
        A float, `end - begin - n c`, between 0 and `end - begin`.

    >>> seconds_waited(10.0, 14.0, [8.0, 9.0])
    0.0
    >>> seconds_waited(10.0, 14.0, [9.0, 13.0])
    2.0
    """
    count = len(arrivals)
    steps = [(end - arrival) / (count - i) for i, arrival in enumerate(arrivals)]
    return end - begin - count * min((end - begin) / count, *steps)
