"""The tasks of the models that are adapted, as NumPy batches.

A task is a function of a random generator, the number of sequences, their length and the text to
read. It returns token ids, targets and weights, all `[batch, length]`, except that the targets and
weights of "span" are `[batch, 2]`. Ids from 0 to 255 are bytes or symbols; `MASK` replaces hidden
ones.
"""

import functools

import numpy as np

MASK = 256
VOCABULARY = 257
# Numbers of symbols of "copy", of keys and fillers of "span", and the length of its longest span.
COPIED, KEYS, FILLERS, LONGEST_SPAN = 10, 8, 64, 8


def masked(rng, batch, length, text):
    """Draws bytes of a text, of which 15% are hidden and must be predicted."""
    starts = rng.integers(len(text) - length, size=[batch, 1])
    targets = text[starts + np.arange(length)].astype(np.int32)
    hidden = rng.random([batch, length]) < 0.15
    return np.where(hidden, MASK, targets), targets, hidden.astype(np.float32)


def causal(rng, batch, length, text):
    """Draws bytes of a text; the next byte must be predicted."""
    starts = rng.integers(len(text) - length, size=[batch, 1])
    windows = text[starts + np.arange(length + 1)].astype(np.int32)
    return windows[:, :-1], windows[:, 1:], np.ones([batch, length], np.float32)


def copy(rng, batch, length, text):
    """Draws a random sequence and its copy; 20% of each is hidden, at different positions.

    Source: Vyas et al. 2020, section 4.1, the masked copy task.
    """
    half = rng.integers(COPIED, size=[batch, length // 2]).astype(np.int32)
    draw = rng.random(half.shape)
    hidden = np.concatenate([draw < 0.2, (draw >= 0.2) & (draw < 0.4)], axis=1)
    targets = np.concatenate([half, half], axis=1)
    return np.where(hidden, MASK, targets), targets, hidden.astype(np.float32)


def span(rng, batch, length, text):
    """Draws a key and spans with different keys; the key's span must be found.

    Keys are ids from 0 to 7, and fillers ids from 64 to 127. A span begins with its key and ends
    with the id that is 128 above the key.
    """
    tokens = rng.integers(FILLERS, 2 * FILLERS, size=[batch, length]).astype(np.int32)
    targets = np.zeros([batch, 2], np.int32)
    count = min(KEYS, (length - 1) // (2 * LONGEST_SPAN))
    room = (length - 1) // count
    for row in range(batch):
        keys = rng.permutation(KEYS)[:count]
        starts = 1 + room * np.arange(count) + rng.integers(room - LONGEST_SPAN, size=count)
        ends = starts + rng.integers(1, LONGEST_SPAN, size=count)
        tokens[row, starts], tokens[row, ends] = keys, 2 * FILLERS + keys
        asked = rng.integers(count)
        tokens[row, 0] = keys[asked]
        targets[row] = starts[asked], ends[asked]
    return tokens, targets, np.ones([batch, 2], np.float32)


TASKS = {"masked": masked, "causal": causal, "copy": copy, "span": span}


def batches(name, seed, batch, length, text):
    """Yields endless batches of a task, the same for the same seed.

    Args:
        name: string, a key of `TASKS`.
        seed: int.
        batch: int, sequences per batch.
        length: int, tokens per sequence.
        text: uint8 array of bytes, the text of "masked" and "causal".

    Yields:
        Tuples of token ids, targets and weights.
    """
    index = 0
    while True:
        yield TASKS[name](np.random.default_rng([seed, index]), batch, length, text)
        index += 1


@functools.cache
def unigram_accuracy(length, text_bytes):
    """Computes the accuracy on "masked" of guessing the most common visible byte of a sequence.

    Args:
        length: int, tokens per sequence.
        text_bytes: bytes of the held-out text.

    Returns:
        Float.
    """
    text = np.frombuffer(text_bytes, np.uint8)
    tokens, targets, weights = masked(np.random.default_rng(0), 64, length, text)
    commonest = [np.bincount(row[row < MASK]).argmax() for row in tokens]
    right = targets == np.array(commonest)[:, None]
    return float((right * weights).sum() / weights.sum())
