"""A cell of the benchmark for encoders: the quality of embeddings with one kind of heads."""

import statistics
import time

import keras_hub
import numpy as np
import tensorflow as tf

import rt_keras
from rt_keras.benchmarks.pretrained.kinds import head_groups
from rt_keras.benchmarks.pretrained.measure import keys_seen
from rt_keras.models.adapted.attention_layers import num_heads
from rt_keras.models.adapted.backbones import attention_layers, backbone_of
from rt_keras.models.adapted.folders import load_model
from rt_keras.models.adapted.text_tokens import first_tokens_of

# Number of passages of a text, of spans of each that search for it, and of tokens of a span.
PASSAGES, SPANS, SPAN = 16, 8, 64


def measure(model, text, kind, length):
    """Measures a kind of heads on passages of a length.

    Args:
        model: string, folder of a pretrained encoder.
        text: string, file of the text that passages are taken from.
        kind: string, see `rt_keras.benchmarks.pretrained.kinds`.
        length: int, number of tokens of a passage.

    Returns:
        A dictionary; see `rt_keras.benchmarks.pretrained.main`.

    Raises:
        ValueError: if the model or the kind does not exist, or a text is too short.
    """
    tokenizer = keras_hub.models.Tokenizer.from_preset(model)
    tokens = first_tokens_of(text, tokenizer, PASSAGES * (length - 2))
    passages, spans = passages_and_spans(tokens, length)
    ends = [tokenizer.start_token_id], [tokenizer.end_token_id]
    passages, spans = (_between(ends, x) for x in (passages, spans))
    expected, _ = _embedded(load(model, "full", length), passages)
    adapted = load(model, kind, length)
    found, seconds = _embedded(adapted, passages)
    looking = _normalized(_states(adapted)(spans))
    return {
        "kind": kind,
        "length": length,
        "keys": keys_seen(kind, length, causal=False),
        "cosine": float(np.mean(np.sum(found * expected, axis=-1))),
        "retrieval": found_first(looking, found),
        "seconds": statistics.median(seconds),
    }


def load(folder, kind, length):
    """Loads a pretrained encoder with a kind of heads and positions for a length.

    Args:
        folder: string, see `rt_keras.adapt`.
        kind: string, see `rt_keras.benchmarks.pretrained.kinds`.
        length: int, minimum number of tokens that it takes.

    Returns:
        An adapted backbone.
    """
    backbone = backbone_of(load_model(folder)[0])
    groups = head_groups(kind, num_heads(attention_layers(backbone)[0]), causal=False)
    longer = max(length, backbone.max_sequence_length)
    return rt_keras.adapt(backbone, groups, max_sequence_length=longer)


def passages_and_spans(tokens, length):
    """Returns the passages of a text, and spans of them.

    Args:
        tokens: int array of `PASSAGES` times `length - 2` tokens.
        length: int, number of tokens of a passage with the special tokens at its ends.

    Returns:
        int arrays `[PASSAGES, length - 2]` and `[PASSAGES * SPANS, SPAN - 2]`, with `SPANS`
        consecutive rows for each passage.
    """
    passages = tokens.reshape([PASSAGES, length - 2])
    starts = np.random.default_rng(0).integers(length - SPAN + 1, size=[PASSAGES, SPANS, 1])
    spans = np.take_along_axis(passages[:, None], starts + np.arange(SPAN - 2), axis=2)
    return passages, spans.reshape([-1, SPAN - 2])


def found_first(spans, passages):
    """Returns the share of spans whose most similar passage is their own.

    Args:
        spans, passages: normalized embeddings, `[passages * spans, features]` and
            `[passages, features]`.

    >>> found_first(np.eye(2)[[0, 1, 1, 1]], np.eye(2))
    0.75
    """
    own = np.repeat(np.arange(len(passages)), len(spans) // len(passages))
    return float(np.mean(np.argmax(spans @ passages.T, axis=1) == own))


def _between(ends, rows):
    start, end = (np.repeat([x], len(rows), axis=0) for x in ends)
    return np.concatenate([start, rows, end], axis=1).astype(np.int32)


def _inputs(backbone, rows):
    """Returns the inputs of a backbone for rows without padding."""
    values = {"token_ids": rows, "padding_mask": tf.ones_like(rows)}
    return {name: values.get(name, tf.zeros_like(rows)) for name in backbone.input}


def _states(backbone):
    """Returns the function from token ids to the last hidden states."""

    def states(rows):
        found = backbone(_inputs(backbone, rows))
        return found["sequence_output"] if isinstance(found, dict) else found

    return tf.function(states, jit_compile=True)


def _embedded(backbone, rows):
    """Returns the embeddings of rows, computed one by one, and the time of each in seconds."""
    states, found, seconds = _states(backbone), [], []
    # The first call compiles the function.
    for row in [rows[0], *rows]:
        start = time.perf_counter()
        found.append(states(row[None]).numpy())
        seconds.append(time.perf_counter() - start)
    return _normalized(np.concatenate(found[1:])), seconds[1:]


def _normalized(states):
    """Returns the normalized means of rows of states, as in sentence-transformers."""
    means = np.mean(states, axis=1)
    return means / np.linalg.norm(means, axis=-1, keepdims=True)
