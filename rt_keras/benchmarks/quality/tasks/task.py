"""What all tasks share: batches that are the same bits for the same seed and index."""

import numpy as np

# Held-out batches are drawn with seeds this far above those of training.
HELD_OUT = 10**6


class Task:
    """Sequences in which something has to be predicted; subclasses draw them.

    A batch depends on (seed, index) alone, so that all kinds of attention see the same ones, in
    the same order, on every machine with the same NumPy. Nothing is downloaded.

    Args:
        length: int, tokens in a sequence. Defaults to None, for `default_length`.
        directory: string, a folder for the task that reads texts; others ignore it.

    Attributes:
        name: string, as in the table of tasks.
        length: int, tokens in a sequence.
        default_length: int.
        least_length, greatest_length: ints, from what to what lengths may be; None for any.
        vocabulary_size: int, tokens are from 0 up to it.
        scored: int, the number of positions of a sequence whose prediction counts.
        classes: int, the number of labels of a sequence as a whole; None if tokens are predicted.
        padding: int, the token that fills up short sequences; None if there are none.
        score: "accuracy" or "loss", what reports compare.
        group_names: tuple of strings, into which `groups` divides the scored positions.

    Raises:
        ValueError: if there are no sequences of this length.
    """

    name = None
    default_length = None
    least_length = 1
    greatest_length = None
    vocabulary_size = None
    scored = None
    classes = None
    padding = None
    score = "accuracy"
    group_names = ()

    def __init__(self, length=None, directory=None):
        self.length = self.default_length if length is None else length
        self.directory = directory
        least, most = self.least_length, self.greatest_length
        if not least <= self.length <= (most or self.length):
            allowed = f"from {least:,} to {most:,}" if most else f"at least {least:,}"
            raise ValueError(f"--length must be {allowed} for {self.name}. Received: {self.length}")

    def sample(self, rng, batch, held_out):
        """Draws a batch.

        Args:
            rng: `numpy.random.Generator` of this batch.
            batch: int, the number of sequences.
            held_out: bool, whether the batch is for validation.

        Returns:
            Integer arrays of tokens `[batch, length]` and of targets, what each position has to
            predict, and their weights, 1 where the prediction counts and else 0; both
            `[batch, length]`, or `[batch]` if sequences have labels.
        """
        raise NotImplementedError

    def batches(self, seed, batch, held_out=False):
        """Endless batches.

        Args:
            seed: int from 0 to `HELD_OUT` - 1.
            batch: int, the number of sequences in each.
            held_out: bool, whether they are for validation. Defaults to False, for training.

        Returns:
            A `tf.data.Dataset` of (tokens, targets, weights), int32, int32 and float32; see
            `sample`.
        """
        import tensorflow as tf

        first = seed + HELD_OUT * held_out
        shapes = [batch, self.length], [batch] if self.classes else [batch, self.length]

        def draw(index):
            tokens, targets, weights = self.sample(
                np.random.default_rng([first, index]), batch, held_out
            )
            return np.int32(tokens), np.int32(targets), np.float32(weights)

        def load(index):
            drawn = tf.numpy_function(draw, [index], [tf.int32, tf.int32, tf.float32])
            return tuple(
                tf.ensure_shape(x, shape) for x, shape in zip(drawn, (*shapes, shapes[-1]))
            )

        return tf.data.Dataset.range(2**62).map(load).prefetch(4)

    def groups(self, tokens, targets, window):
        """The group of each scored position, for tasks with `group_names`.

        Args:
            tokens: int array `[batch, length]`.
            targets: int array `[batch, length]`.
            window: int, how far local heads see.

        Returns:
            Int array `[batch, length]` of places in `group_names`.
        """
        raise NotImplementedError
