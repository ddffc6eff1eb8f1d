"""A cell of `rt-keras benchmark pretrained`: a kind of heads in a language model, at one length."""

import functools
import statistics

import numpy as np
import tensorflow as tf

import rt_keras
from rt_keras.benchmarks.machine import describe, resident, resident_peak
from rt_keras.benchmarks.pretrained_kinds import WITH_BLOCKS, parse
from rt_keras.benchmarks.runs import timed
from rt_keras.data.text_tokens import first_tokens_of
from rt_keras.keras_internals import build_cache
from rt_keras.layers.attention_inputs import AttentionInputs
from rt_keras.layers.heads import Heads
from rt_keras.layers.key_sets.selected_blocks import SelectedBlocks
from rt_keras.layers.kinds import FullHeads
from rt_keras.models.adapted.architectures import attention_layers, backbone_of
from rt_keras.models.adapted.attention import num_heads
from rt_keras.models.adapted.default_heads import KEYS, block_options, few_look_far, sets_beside
from rt_keras.models.adapted.folders import load_model
from rt_keras.models.adapted.prompt_reading import state_of_rows
from rt_keras.models.generation import start_tokens
from rt_keras.ops.blocks import ceil_div

# Number of tokens that are repeated at the end of a sequence, and of those that identify them.
PASSAGE, KNOWN = 512, 8
# The sentence that is hidden in a text, and the prompt for its number.
SENTENCE, QUESTION = " The magic number is {}.", "\n\nThe magic number is"
# Number of tokens in a mean loss by position.
STRETCH = 2048
# Number of keys that are counted at once, and in all. In longer sequences, they are evenly spaced.
KEYS_AT_ONCE, KEYS_COUNTED = 512, 4096
# Number of positions that a cache has room for after the sequence.
ROOM = 32
# Number of positions whose logits are computed at once.
LOGITS_AT_ONCE = 512


def measure(model, text, other, kind, length, needles=5, losses_only=False):
    """Measures a kind of heads on sequences of a length.

    Args:
        model: string, folder of a pretrained model.
        text, other: strings, files of the text that is scored and of the text that needles are
            hidden in.
        kind: string, see `head_groups`.
        length: int, number of tokens of a sequence.
        needles: int, number of needles, at depths from the beginning to the end. Defaults to 5.
        losses_only: bool, whether to measure neither needles nor times nor memory. Defaults to
            False.

    Returns:
        A dictionary; see `rt_keras.benchmarks.pretrained.main`.

    Raises:
        ValueError: if the model or the kind does not exist, or a text is too short.
    """
    reader = load(model, kind)
    tokenizer = reader.model.preprocessor.tokenizer
    tokens, hay = (first_tokens_of(path, tokenizer, length) for path in (text, other))
    ids = text_and_passage(tokens, reader.start, length)
    before = resident()
    first, (hidden, _) = timed(reader.read, ids)
    peak = resident_peak()
    keys = keys_seen(kind, length, few=reader.few)
    losses = losses_of(reader.losses(hidden, ids), length)
    losses = {"machine": describe(), "keys": keys, **losses}
    if losses_only:
        return losses
    at_depths, seconds = [], []
    # Without needles, the time is measured too.
    repeats = max(needles, 1)
    for number in range(repeats):
        depth = (number + 0.5) / repeats
        ids, answer = needle(reader, hay, length, depth, number)
        passed, (hidden, cache) = timed(reader.read, ids)
        seconds.append(passed)
        best = np.argmax(reader.logits(hidden[-answer - 1 : -1]), axis=-1)
        at_depths.append(bool(np.all(best == ids[-answer:])))
    return {
        **losses,
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

    The sentence is at a depth from 0 to 1. The sequence ends with the answer, whose number of
    tokens is returned too.
    """
    number = np.random.default_rng(seed).integers(10_000, 100_000)
    texts = SENTENCE.format(number), QUESTION, f" {number}"
    sentence, question, answer = map(reader.tokens, texts)
    rest = length - len(reader.start) - sum(map(len, (sentence, question, answer)))
    place = int(depth * rest)
    parts = [reader.start, hay[:place], sentence, hay[place:rest], question, answer]
    return np.concatenate(parts).astype(np.int32), len(answer)


def token_seconds(reader, cache, position):
    """Returns the time of a token after a sequence, whose cache has room for `ROOM` more."""
    write = tf.function(reader.write, jit_compile=True)

    def run(count):
        return timed(lambda: write(cache, tf.constant(position), tf.constant(count)).numpy())[0]

    # Programs first copy the cache, which is not part of the time of a token.
    run(ROOM), run(0)
    return statistics.median(run(ROOM) - run(0) for _ in range(3)) / ROOM


def keys_seen(kind, length, few=False):
    """Returns the mean number of keys with weights above 0 for a query, in the replaced layers.

    Args:
        kind: string, see `head_groups`.
        length: int, number of tokens of a sequence.
        few: bool, whether few layers look far, see `few_look_far`. Defaults to False.

    Returns:
        A float: the mean over the second half of the sequence. Above `KEYS_COUNTED` tokens, it is
        an estimate.

    >>> keys_seen("full", 8)
    6.5
    """
    (group,) = head_groups(kind, 1, few) or head_groups("full", 1)
    if not isinstance(group, Heads):
        return float(np.mean(np.arange(length // 2, length) + 1))
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
        weights = group.attend(AttentionInputs(x, y, values, rotate=group.rotated_at))
        return tf.math.count_nonzero(weights[0, 0], axis=-1)

    chunks = range(0, ceil_div(length, spacing), KEYS_AT_ONCE)
    counts = spacing * sum(seen(tf.constant(first)).numpy() for first in chunks)
    return round(float(np.mean(counts[length // 2 :])), 1)


def head_groups(name, heads, few=False):
    """Returns the heads of a layer.

    Args:
        name: string, a kind and its options after colons, such as "blocks:block_size=8".
        heads: int, number of heads.
        few: bool, whether few layers of the model look far, see `few_look_far`. Defaults to False.

    Returns:
        A list of one head group; None for the model as KerasHub computes it.

    Raises:
        ValueError: if the kind does not exist or does not have these options.

    >>> head_groups("content_blocks:num_blocks=16", 2)[0].key_sets[2].num_blocks
    16
    """
    kind, options = parse(name)
    if kind == "keras_hub":
        return None
    if kind == "full":
        return [FullHeads(heads)]
    # The first tokens have the distance of the blocks.
    sets = sets_beside(few, options.get("rotary_distance"))
    if kind == "window":
        sets = sets[:1]
    if kind in WITH_BLOCKS:
        options = {**block_options(KEYS, few), "by_content": kind == "content_blocks", **options}
        sets = [*sets, SelectedBlocks(**options)]
    return [Heads(heads, sets)]


class Reader:
    """A language model that reads one sequence at a time, in chunks if its heads support this.

    Args:
        model: a KerasHub task, or an adapted one.
        few: bool, whether few layers of the original look far, see `few_look_far`.
        is_adapted: bool, whether the model is an adapted one.
    """

    def __init__(self, model, few, is_adapted):
        self.model, self.few, self.is_adapted = model, few, is_adapted
        self.start = start_tokens(model.preprocessor)
        forward = model.hidden_states if is_adapted else functools.partial(build_cache, model)
        self._forward = tf.function(forward, jit_compile=True)

    def read(self, ids):
        """Reads a sequence.

        Args:
            ids: int array `[length]`.

        Returns:
            Tuple of the last hidden states, an array `[length, hidden_dim]`, and a cache with room
            for `ROOM` more positions.
        """
        count = len(ids)
        if not self.is_adapted:
            hidden, cache = self._forward(tf.constant(np.pad(ids, [0, ROOM])[None]))
            return hidden[0, :count].numpy(), cache
        if self.model.backbone.reads_chunks:
            prompts = ids[None], np.array([count]), state_of_rows(None, 1, count + ROOM)
            cache, hidden = self.model._read_prompts(*prompts, verbose=0, with_hidden=True)
            return hidden[0], cache
        inputs = {"token_ids": tf.constant(ids[None])}
        inputs["padding_mask"] = tf.ones_like(inputs["token_ids"])
        return self._forward(inputs)[0].numpy(), self.model.new_cache(1, count + ROOM)

    def tokens(self, text):
        """Returns the tokens of a text, int32 `[length]`."""
        return np.asarray(self.model.preprocessor.tokenizer(text), np.int32)

    def logits(self, hidden):
        """Returns the logits of hidden states, `[count, vocabulary_size]`."""
        return self.model.backbone.token_embedding(tf.constant(hidden), reverse=True)

    def losses(self, hidden, ids):
        """Returns the loss of each token except the first, in nats, given the previous tokens."""
        losses = [np.zeros(0)]
        for start in range(0, len(ids) - 1, LOGITS_AT_ONCE):
            labels = ids[start + 1 : start + 1 + LOGITS_AT_ONCE]
            logits = tf.cast(self.logits(hidden[start : start + len(labels)]), tf.float32)
            losses.append(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits).numpy())
        return np.concatenate(losses)

    def write(self, cache, position, count):
        """Generates tokens after a sequence.

        Args:
            cache: cache of the sequence, from `read`.
            position: int, length of the sequence.
            count: int scalar tensor, number of tokens.

        Returns:
            int `[1, 1]`, the last token.
        """

        def step(number, token, cache):
            logits, _, cache = self.model.call_with_cache(token, cache, position + number)
            return number + 1, tf.argmax(logits, axis=-1, output_type=tf.int32), cache

        state = (tf.constant(0), tf.ones([1, 1], tf.int32), cache)
        return tf.while_loop(lambda number, *_: number < count, step, state)[1]


def load(folder, kind):
    """Loads a pretrained model with a kind of heads in the layers without a window.

    Args:
        folder: string, see `rt_keras.adapt`.
        kind: string, see `head_groups`.

    Returns:
        A `Reader`.

    Raises:
        ValueError: if the model or the kind does not exist, or the model is not a language model.
    """
    model, _ = load_model(folder)
    if not hasattr(model, "call_with_cache"):
        raise ValueError(f"--model {folder} must be a causal language model")
    backbone = backbone_of(model)
    few = few_look_far(backbone)
    groups = head_groups(kind, num_heads(attention_layers(backbone)[0]), few)
    if groups is None:
        if getattr(backbone, "adapted_options", {}).get("rotary_options"):
            raise ValueError(f"KerasHub cannot scale the rotary embeddings of --model {folder}")
        return Reader(model, few, is_adapted=False)
    return Reader(rt_keras.adapt(model, groups, layers="global"), few, is_adapted=True)
