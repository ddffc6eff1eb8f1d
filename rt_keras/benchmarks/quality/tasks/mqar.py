"""Multi-query associative recall: the value of a repeated key."""

import numpy as np

from rt_keras.benchmarks.quality.tasks.task import Task

# The number of key-value pairs for each length.
PAIRS = {64: 4, 128: 8, 256: 16, 512: 64}
# Exponent of the power law of the gaps.
POWER = 0.01


class MultiQueryRecall(Task):
    """The value of each repeated key.

    A sequence starts with key-value pairs, all distinct: keys are from the lower half of the
    vocabulary, without 0, and values from the upper half. Slots of two tokens follow, drawn at
    random from the vocabulary. Each key is repeated once, as the first token of a slot. Slot
    i = 1, 2, ... is drawn with p ∝ i^(a - 1), a = 0.01, without replacement, one for each key in
    turn. At these positions, the target is the value of the key; nothing else is scored. The value
    itself does not follow the repeated key.

    Args:
        length: int, one of `PAIRS`. Defaults to None, for 64.
        directory: ignored.

    Source: Arora et al. 2023, Zoology, and its public code.
    """

    name = "mqar"
    default_length = 64
    vocabulary_size = 8192

    def __init__(self, length=None, directory=None):
        super().__init__(length, directory)
        if self.length not in PAIRS:
            raise ValueError(
                f"--length must be among {', '.join(map(str, PAIRS))} for mqar. Received: "
                f"{self.length}"
            )
        self.scored = PAIRS[self.length]

    def sample(self, rng, batch, held_out):
        context, half = 2 * self.scored, self.vocabulary_size // 2
        keys = distinct(rng, 1, half, [batch, self.scored])
        values = distinct(rng, half, self.vocabulary_size, [batch, self.scored])
        tokens = rng.integers(self.vocabulary_size, size=[batch, self.length])
        tokens[:, 0:context:2], tokens[:, 1:context:2] = keys, values
        queries = context + 2 * self._slots(rng, batch)
        np.put_along_axis(tokens, queries, keys, axis=1)
        targets, weights = np.zeros_like(tokens), np.zeros(tokens.shape)
        np.put_along_axis(targets, queries, values, axis=1)
        np.put_along_axis(weights, queries, 1, axis=1)
        return tokens, targets, weights

    def _slots(self, rng, batch):
        """Draws the slot of each key, `[batch, pairs]`, counted from 0."""
        slots = np.arange(1, (self.length - 2 * self.scored) // 2 + 1)
        # The largest sums of log p and Gumbel noise, in descending order, are draws without
        # replacement.
        noisy = (POWER - 1) * np.log(slots) + rng.gumbel(size=[batch, len(slots)])
        return np.argsort(-noisy, axis=1)[:, : self.scored]


def distinct(rng, low, high, shape):
    """Draws random integers that are distinct within each row.

    Args:
        rng: `numpy.random.Generator`.
        low: int, the minimum value.
        high: int, the maximum value plus 1.
        shape: `[rows, count]`.

    Returns:
        Int array of that shape.

    >>> import numpy as np
    >>> sorted(distinct(np.random.default_rng(0), 2, 5, [1, 3])[0].tolist())
    [2, 3, 4]
    """
    drawn = rng.integers(low, high, shape)
    while True:
        twice = (np.diff(np.sort(drawn, axis=1), axis=1) == 0).any(axis=1)
        if not twice.any():
            return drawn
        drawn[twice] = rng.integers(low, high, [twice.sum(), shape[1]])
