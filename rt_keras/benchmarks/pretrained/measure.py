"""A cell of the benchmark: one kind of heads in a language model, at one sequence length."""

import statistics
import time

import numpy as np
import tensorflow as tf

from rt_keras.benchmarks.memory import resident, resident_peak
from rt_keras.benchmarks.pretrained.kinds import head_groups
from rt_keras.benchmarks.pretrained.readers import ROOM, load
from rt_keras.layers import Heads
from rt_keras.models.adapted.text_tokens import first_tokens_of
from rt_keras.ops.blocks import ceil_div

# Number of tokens that are repeated at the end of a sequence, and of those that identify them.
PASSAGE, KNOWN = 512, 8
# The sentence that is hidden in a text, and the prompt for its number.
SENTENCE, QUESTION = " The magic number is {}.", "\n\nThe magic number is"
# Number of tokens in a mean loss by position.
STRETCH = 2048
# Number of keys that are counted at once, and in all. In longer sequences, they are evenly spaced.
KEYS_AT_ONCE, KEYS_COUNTED = 512, 4096


def measure(model, text, other, kind, length, needles=5, losses_only=False):
    """Measures a kind of heads on sequences of a length.

    Args:
        model: string, folder of a pretrained model.
        text, other: strings, files of the text that is scored and of the text that needles are
            hidden in.
        kind: string, see `rt_keras.benchmarks.pretrained.kinds`.
        length: int, number of tokens of a sequence.
        needles: int, number of needles, at depths from the beginning to the end. Defaults to 5.
        losses_only: bool, whether to measure neither needles nor times nor memory. Defaults to
            False.

    Returns:
        A dictionary; see `rt_keras.benchmarks.pretrained.main`.

    Raises:
        ValueError: if the model or the kind does not exist, or a text is too short.
    """
    reader = load(model, kind, length)
    tokenizer = reader.model.preprocessor.tokenizer
    tokens, hay = (first_tokens_of(path, tokenizer, length) for path in (text, other))
    ids = text_and_passage(tokens, reader.start, length)
    before = resident()
    first, (hidden, _) = _timed(reader.read, ids)
    peak = resident_peak()
    keys = keys_seen(kind, length, few=reader.few)
    found = {"kind": kind, "length": length, "keys": keys}
    found |= losses_of(reader.losses(hidden, ids), length)
    if losses_only:
        return found
    at_depths, seconds = [], []
    # Without needles, the time is measured too.
    repeats = max(needles, 1)
    for number in range(repeats):
        depth = (number + 0.5) / repeats
        ids, answer = needle(reader, hay, length, depth, number)
        passed, (hidden, cache) = _timed(reader.read, ids)
        seconds.append(passed)
        best = np.argmax(reader.logits(hidden[-answer - 1 : -1]), axis=-1)
        at_depths.append(bool(np.all(best == ids[-answer:])))
    return {
        **found,
        "needles": sum(at_depths) / needles if needles else None,
        "needles_at_depths": at_depths[:needles],
        "seconds": statistics.median(seconds),
        "first_seconds": first,
        "gigabytes": max(peak - before, 0) / 1e9,
        "token_seconds": token_seconds(reader, cache, length),
    }


def passage_length(length):
    """Returns the number of tokens that are repeated at the end of a sequence.

    >>> passage_length(8000), passage_length(1000)
    (512, 250)
    """
    return min(PASSAGE, length // 4)


def text_and_passage(tokens, start, length):
    """Returns a sequence of a text and its first tokens again.

    >>> text_and_passage(np.arange(10, 30), [1], 8)
    array([ 1, 10, 11, 12, 13, 14, 10, 11])
    """
    again = passage_length(length)
    text = tokens[: length - len(start) - again]
    return np.concatenate([np.array(start, text.dtype), text, text[:again]])


def losses_of(losses, length):
    """Returns the mean losses on the second half of the text and on the repeated passage.

    "by_position" are those on each `STRETCH` tokens of the text.
    """
    end = length - passage_length(length)
    # The loss of the token at i is at i - 1.
    means = {"book": losses[length // 2 - 1 : end - 1], "again": losses[end + KNOWN - 1 :]}
    places = range(0, end - 1, STRETCH)
    return {
        **{name: float(np.mean(x)) for name, x in means.items()},
        "by_position": [float(np.mean(losses[: end - 1][at : at + STRETCH])) for at in places],
    }


def needle(reader, hay, length, depth, seed):
    """Returns a sequence that asks for a number in a sentence hidden in a text.

    Args:
        reader: a `Reader`.
        hay: int array, tokens of the text.
        length: int, length of the sequence.
        depth: float, position of the sentence, from 0 to 1.
        seed: int, seed of the number.

    Returns:
        Tuple of the tokens, which end with the answer, and the number of tokens of the answer.
    """
    number = np.random.default_rng(seed).integers(10_000, 100_000)
    sentence, question, answer = map(
        reader.tokens, (SENTENCE.format(number), QUESTION, f" {number}")
    )
    rest = length - len(reader.start) - sum(map(len, (sentence, question, answer)))
    place = int(depth * rest)
    parts = [reader.start, hay[:place], sentence, hay[place:rest], question, answer]
    return np.concatenate(parts).astype(np.int32), len(answer)


def token_seconds(reader, cache, position):
    """Returns the time of a token that is generated after a sequence.

    Args:
        reader: a `Reader`.
        cache: cache of the sequence, with room for `ROOM` more positions.
        position: int, length of the sequence.
    """
    write = tf.function(reader.write, jit_compile=True)

    def run(count):
        return _timed(lambda: write(cache, tf.constant(position), tf.constant(count)).numpy())[0]

    # Programs first copy the cache, which is not part of the time of a token.
    run(ROOM), run(0)
    return statistics.median(run(ROOM) - run(0) for _ in range(3)) / ROOM


def keys_seen(kind, length, causal=True, few=False):
    """Returns the mean number of keys with weights above 0 for a query, in the replaced layers.

    Args:
        kind: string, see `rt_keras.benchmarks.pretrained.kinds`.
        length: int, number of tokens of a sequence.
        causal: bool, whether the heads belong to a decoder. Defaults to True.
        few: bool, whether few layers look far, see `few_look_far`. Defaults to False.

    Returns:
        A float: the mean over the sequence, or over its second half if `causal`. Heads that see
        keys through centroids see all of them. Above `KEYS_COUNTED` tokens, it is an estimate.

    >>> keys_seen("full", 8)
    6.5
    """
    (group,) = head_groups(kind, 1, causal, few) or head_groups("full", 1)
    if not isinstance(group, Heads):
        return float(np.mean(np.arange(length // 2, length) + 1)) if causal else float(length)
    shape = [1, 1, length, 8]
    # The distance of keys does not change their number.
    group.rotated_at = lambda x, start, position: x
    group.build(shape, [1, 1, length, KEYS_AT_ONCE], shape)
    x, y = tf.unstack(tf.random.stateless_normal([2, *shape], [0, 0]))

    spacing = ceil_div(length, KEYS_COUNTED)

    @tf.function(jit_compile=True)
    def seen(first):
        # Attention to rows of the identity matrix returns the weights of some keys.
        place = tf.range(length)
        number = tf.where(place % spacing == 0, place // spacing - first, -1)
        values = tf.one_hot(number, KEYS_AT_ONCE)[None, None]
        weights = group.attend(query=x, key=y, value=values, causal=causal)
        return tf.math.count_nonzero(weights[0, 0], axis=-1)

    chunks = range(0, ceil_div(length, spacing), KEYS_AT_ONCE)
    counts = spacing * sum(seen(tf.constant(first)).numpy() for first in chunks)
    return round(float(np.mean(counts[length // 2 if causal else 0 :])), 1)


def _timed(function, *arguments):
    start = time.perf_counter()
    found = function(*arguments)
    return time.perf_counter() - start, found
