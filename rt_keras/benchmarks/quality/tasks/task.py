"""The base class of tasks, whose batches are identical for the same seed and index."""

import numpy as np

# Held-out batches are drawn with seeds this far above those of training.
HELD_OUT = 10**6


class Task:
    """Base class of tasks that predict tokens or labels; subclasses draw the sequences.

    A batch depends only on (seed, index), so all kinds of attention see the same batches, in the
    same order, on every machine with the same version of NumPy. Nothing is downloaded.

    Args:
        length: int, tokens per sequence. Defaults to None, for `default_length`.
        directory: string, a folder for the task that reads texts; others ignore it.

    Attributes:
        name: string, the key of the task in `TASKS`.
        length: int, tokens per sequence.
        default_length: int.
        least_length, greatest_length: ints, the range of allowed lengths; None for no limit.
        vocabulary_size: int, the number of tokens of the vocabulary.
        scored: int, the number of scored positions per sequence.
        classes: int, the number of labels of a whole sequence; None if tokens are predicted.
        padding: int, the token that pads short sequences; None if there is no padding.
        score: "accuracy" or "loss", the score that reports compare.
        group_names: tuple of strings, the groups into which `groups` divides the scored positions.

    Raises:
        ValueError: if the task has no sequences of this length.
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
            held_out: bool, whether to draw a validation batch.

        Returns:
            Arrays of tokens `[batch, length]`, targets, and weights, 1 where the prediction is
            scored and 0 elsewhere. Targets and weights are `[batch, length]`, or `[batch]` if
            sequences have labels.
        """
        raise NotImplementedError

    def batches(self, seed, batch, held_out=False):
        """Returns endless batches.

        Args:
            seed: int from 0 to `HELD_OUT` - 1.
            batch: int, the number of sequences per batch.
            held_out: bool, whether to draw validation batches. Defaults to False.

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
        """Returns the group of each scored position, for tasks with `group_names`.

        Args:
            tokens: int array `[batch, length]`.
            targets: int array `[batch, length]`.
            window: int, the maximum distance that local heads see.

        Returns:
            Int array `[batch, length]` of indices into `group_names`.
        """
        raise NotImplementedError
