"""Recall: a stretch of random tokens is repeated at a random distance."""

import numpy as np

from rt_keras.benchmarks.quality.tasks.task import Task


class Recall(Task):
    """The continuation of a repeated stretch.

    Among n random tokens, a stretch of s = 3 n // 8 tokens is repeated after a gap drawn uniformly
    from 0 to n - 2 s. The next token therefore depends on the earlier position of the current one,
    which no other position reveals. The tokens of the repetition are scored, except the first,
    which is unpredictable.

    Args:
        length: int n, at least 8. Defaults to None, for 128.
        directory: ignored.
    """

    name = "recall"
    default_length = 128
    least_length = 8
    vocabulary_size = 64

    def __init__(self, length=None, directory=None):
        super().__init__(length, directory)
        self.stretch = 3 * self.length // 8
        self.scored = self.stretch - 1

    def sample(self, rng, batch, held_out):
        stretch, count = self.stretch, self.length + 1
        tokens = rng.integers(self.vocabulary_size, size=[batch, count])
        distance = rng.integers(stretch, self.length - stretch, [batch, 1], endpoint=True)
        places = rng.integers(count - stretch - distance, endpoint=True) + np.arange(stretch)
        again = places + distance
        np.put_along_axis(tokens, again, np.take_along_axis(tokens, places, axis=1), axis=1)
        weights = np.zeros([batch, self.length])
        np.put_along_axis(weights, again[:, :-1], 1, axis=1)
        return tokens[:, :-1], tokens[:, 1:], weights
