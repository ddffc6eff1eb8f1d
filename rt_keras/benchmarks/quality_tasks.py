"""The tasks of `rt-keras benchmark quality`; batches are identical for the same seed and index."""

import functools

import numpy as np

# Held-out batches are drawn with seeds this far above those of training.
HELD_OUT = 10**6
# Number of bytes in a match of a text, including the byte to predict.
MATCH = 5


class Task:
    """Base class of tasks that predict tokens; subclasses draw the sequences.

    A batch depends only on (seed, index), so all kinds of attention see the same batches, in the
    same order, on every machine with the same version of NumPy. Nothing is downloaded.

    Args:
        length: int, tokens per sequence. Defaults to None, for `default_length`.
        directory: string, a folder for the task that reads texts; others ignore it.

    Attributes:
        name: string, the key of the task in `TASKS`.
        length: int, tokens per sequence.
        default_length: int.
        least_length: int, the smallest allowed length.
        vocabulary_size: int, the number of tokens of the vocabulary.
        scored: int, the number of scored positions per sequence.
        group_names: tuple of strings, the groups into which `groups` divides the scored positions.

    Raises:
        ValueError: if the task has no sequences of this length.
    """

    name = None
    default_length = None
    least_length = 1
    vocabulary_size = None
    scored = None
    group_names = ()

    def __init__(self, length=None, directory=None):
        self.length = self.default_length if length is None else length
        self.directory = directory
        if self.length < self.least_length:
            raise self.wrong_length(f"at least {self.least_length:,} for {self.name}")

    def wrong_length(self, needed):
        """Returns the error for the length, given in words what it must be."""
        return ValueError(f"--length must be {needed}. Received: {self.length}")

    def sample(self, rng, batch, held_out):
        """Draws a batch.

        Args:
            rng: `numpy.random.Generator` of this batch.
            batch: int, the number of sequences.
            held_out: bool, whether to draw a validation batch.

        Returns:
            Arrays `[batch, length]` of tokens, targets, and weights, 1 where the prediction is
            scored and 0 elsewhere.
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

        def draw(index):
            tokens, targets, weights = self.sample(
                np.random.default_rng([first, index]), batch, held_out
            )
            return np.int32(tokens), np.int32(targets), np.float32(weights)

        def load(index):
            drawn = tf.numpy_function(draw, [index], [tf.int32, tf.int32, tf.float32])
            return tuple(tf.ensure_shape(x, [batch, self.length]) for x in drawn)

        return tf.data.Dataset.range(2**62).map(load).prefetch(4)


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


class MultiQueryRecall(Task):
    """The value of each repeated key.

    A sequence starts with key-value pairs, all distinct: keys are from the lower half of the
    vocabulary, without 0, and values from the upper half. Slots of two tokens follow, drawn at
    random from the vocabulary. Each key is repeated once, as the first token of a slot. Slot
    i = 1, 2, ... is drawn with p ∝ i^(a - 1), a = 0.01, without replacement, one for each key in
    turn. At these positions, the target is the value of the key; nothing else is scored. The value
    itself does not follow the repeated key.

    Args:
        length: int, one of `pairs`. Defaults to None, for 64.
        directory: ignored.

    Source: Arora et al. 2023, Zoology, and its public code.
    """

    name = "mqar"
    default_length = 64
    vocabulary_size = 8192
    # The number of key-value pairs for each length.
    pairs = {64: 4, 128: 8, 256: 16, 512: 64}

    def __init__(self, length=None, directory=None):
        super().__init__(length, directory)
        if self.length not in self.pairs:
            raise self.wrong_length(f"among {', '.join(map(str, self.pairs))} for mqar")
        self.scored = self.pairs[self.length]

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
        noisy = (0.01 - 1) * np.log(slots) + rng.gumbel(size=[batch, len(slots)])
        return np.argsort(-noisy, axis=1)[:, : self.scored]


class Text(Task):
    """The next byte of a text, with losses grouped by the distance of its last match.

    Sequences start at random positions in the concatenated files of a split, with a byte 0 after
    each file. Held-out sequences come from the split "validation". The loss is grouped by the last
    position in the sequence where the byte to predict followed the same 4 bytes:

    - "near": within the window of local heads;
    - "far": further back;
    - "new": nowhere.

    Args:
        length: int, at least 8. Defaults to None, for 2,048.
        directory: string, a folder with the layout of `rt_keras.data.text_folder`. Defaults to
            None, for the source of Python's standard library.

    Raises:
        ValueError: if the length is too small, or the bytes of a split are too few for it.
    """

    name = "text"
    default_length = 2048
    least_length = 8
    vocabulary_size = 256
    group_names = ("near", "far", "new")

    def __init__(self, length=None, directory=None):
        super().__init__(length, directory)
        self.scored = self.length

    def sample(self, rng, batch, held_out):
        text = read(self.directory, "validation" if held_out else "train")
        if len(text) <= self.length:
            raise self.wrong_length(f"less than the {len(text):,} bytes of the texts")
        starts = rng.integers(len(text) - self.length, size=[batch, 1])
        windows = text[starts + np.arange(self.length + 1)]
        return windows[:, :-1], windows[:, 1:], np.ones([batch, self.length])

    def groups(self, tokens, targets, window):
        """Returns the group of each scored position.

        Args:
            tokens: int array `[batch, length]`.
            targets: int array `[batch, length]`.
            window: int, the maximum distance that local heads see.

        Returns:
            Int array `[batch, length]` of indices into `group_names`.
        """
        near, far, new = range(3)
        distances = np.stack([match_distances(row) for row in match_codes(tokens, targets)])
        return np.where(distances == 0, new, np.where(distances <= window, near, far))


TASKS = {task.name: task for task in (Recall, MultiQueryRecall, Text)}


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


def match_codes(tokens, targets):
    """Returns a code of each target and the bytes before it, equal if the bytes are equal.

    Args:
        tokens: int array `[batch, length]` of bytes.
        targets: int array `[batch, length]`, the byte after each.

    Returns:
        Int array `[batch, length]`. The first positions, with too few bytes before their target,
        have distinct negative codes.

    >>> import numpy as np
    >>> bytes_of = np.frombuffer(b"abcde, abcde", np.uint8)[None]
    >>> codes = match_codes(bytes_of[:, :-1], bytes_of[:, 1:])[0]
    >>> bool(codes[3] == codes[10]), codes[:3].tolist()
    (True, [-1, -2, -3])
    """
    codes, length = targets.astype(np.int64), tokens.shape[1]
    for back in range(MATCH - 1):
        earlier = np.pad(tokens.astype(np.int64), [[0, 0], [back, 0]])[:, :length]
        codes += earlier << 8 * (back + 1)
    codes[:, : MATCH - 2] = -np.arange(1, MATCH - 1)
    return codes


def match_distances(codes):
    """Returns the distance to the last occurrence of each code, or 0 if there is none.

    Args:
        codes: int array `[length]`.

    Returns:
        Int array `[length]`.

    >>> import numpy as np
    >>> match_distances(np.array([7, 8, 7, 7])).tolist()
    [0, 0, 2, 1]
    """
    order = np.argsort(codes, kind="stable")
    same = np.diff(codes[order]) == 0
    distances = np.zeros_like(codes)
    distances[order[1:]] = np.diff(order) * same
    return distances


@functools.lru_cache
def read(directory, split):
    """Reads the bytes of all files of a split, with a byte 0 after each file.

    Args:
        directory: string, the folder; None for the source of Python's standard library.
        split: "train" or "validation".

    Returns:
        `numpy.ndarray` of uint8.

    Raises:
        FileNotFoundError: if the folder does not exist or holds no `.txt` file.
        ValueError: if the split has no files.
    """
    from rt_keras.data.text_folder import PythonSource, TextFolder

    builder = PythonSource() if directory is None else TextFolder(directory)
    if split not in builder.files:
        raise ValueError(
            f"--directory must hold texts for {split}. Received: {directory}, with texts for "
            f"{', '.join(builder.files)}"
        )
    files = (builder.directory / name for name in builder.files[split])
    return np.frombuffer(b"".join(file.read_bytes() + b"\0" for file in files), np.uint8)
