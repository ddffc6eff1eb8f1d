"""Recall: a stretch of random tokens comes once more, at a distance that is drawn anew."""

from rt_keras.benchmarks.quality.tasks.task import Task


class Recall(Task):
    """The continuation of a stretch that stood somewhere before.

    Of n random tokens, a stretch of n // 4 is repeated at a distance drawn uniformly from n // 2 to
    n - n // 4, so the next token depends on the place where the current one stood before, and no
    position tells where that is. The tokens of the repetition but its first, which nothing
    announces, are scored.

    Args:
        length: int n of at least 8. Defaults to None, for 128.
        directory: ignored.
    """

    name = "recall"
    default_length = 128
    vocabulary_size = 64

    def __init__(self, length=None, directory=None):
        super().__init__(length, directory)
        self.check_length(8)
        self.scored = self.length // 4 - 1

    def sample(self, rng, batch, held_out):
        import numpy as np

        stretch, count = self.length // 4, self.length + 1
        tokens = rng.integers(self.vocabulary_size, size=[batch, count])
        distance = rng.integers(self.length // 2, self.length - stretch, [batch, 1], endpoint=True)
        places = rng.integers(count - stretch - distance, endpoint=True) + np.arange(stretch)
        again = places + distance
        np.put_along_axis(tokens, again, np.take_along_axis(tokens, places, axis=1), axis=1)
        weights = np.zeros([batch, self.length])
        np.put_along_axis(weights, again[:, :-1], 1, axis=1)
        return tokens[:, :-1], tokens[:, 1:], weights
