"""Scores of documents of any length, read in chunks that share a cache."""

import numpy as np
import tensorflow as tf

from rt_keras import data as data_lib
from rt_keras.data import progress
from rt_keras.models.chunked_loss import positions_at_once
from rt_keras.models.programs import make_once
from rt_keras.models.stateful import NO_END, head_groups_inside
from rt_keras.models.training import is_replicated

# Ranges of positions, each twice as long as the previous one.
RANGES = 31
STARTS = 2 ** np.arange(RANGES)


def stateful_sums(model, examples, length, verbose, start_token_id=None):
    """Sums -ln p over the tokens of documents, each token given all previous ones.

    A document is read in chunks. Each chunk starts from the cache of the previous one, so heads see
    the same keys as in one pass over the whole document, in constant memory.

    Args:
        model: a `RoutingTransformerCausalLM`, or an adapted causal language model.
        examples: `tf.data.Dataset` of documents.
        length: int, tokens in a chunk.
        verbose: int, 1 for a progress bar.
        start_token_id: int, the token before each document. Defaults to None, for end of text.

    Returns:
        A dictionary of floats "nats" and "labels", the number of tokens; and of "by_position", a
        NumPy array `[2, RANGES]` of both. Range i holds the tokens after at least 2^i and fewer
        than 2^(i + 1) tokens, the start of the document included.

    Raises:
        ValueError: if the model has no cache of bounded size, has learned positions, or has several
            replicas.
    """
    _check(model)
    sums_of_chunk = make_once(model, "stateful evaluation", lambda: _make_sums(model))
    chunks = data_lib.document_chunks(
        examples, model.preprocessor.tokenizer, length, start_token_id
    )
    sums, empty = np.zeros([2, RANGES]), model.new_cache(1, NO_END)
    cache = empty
    for chunk in progress.track(chunks, "evaluating", verbose=verbose):
        inputs, labels, weights, position = chunk
        if position == 0:
            cache = empty
        found, cache = sums_of_chunk(inputs["token_ids"], labels, weights, cache, position)
        sums += found.numpy()
    nats, count = sums.sum(axis=1)
    return {"nats": nats, "labels": count, "by_position": sums}


def _make_sums(model):
    """Returns the compiled function that scores one chunk."""

    @tf.function(jit_compile=True, autograph=False)
    def sums(token_ids, labels, weights, cache, position):
        # The logits of all tokens may not fit in memory. Unused, they are not computed.
        _, hidden, cache = model.call_with_cache(token_ids, cache, position)
        chunk_size = positions_at_once(model.backbone.vocabulary_size, labels.shape[1])
        nats, _ = model.token_losses(hidden, labels, chunk_size)
        before = position + 1 + tf.range(tf.shape(labels)[1])
        ranges = tf.reduce_sum(tf.cast(before[:, None] >= STARTS[1:], tf.int32), 1)
        here = tf.one_hot(ranges, RANGES)
        return tf.einsum("fbn,nr->fr", tf.stack([nats * weights, weights]), here), cache

    return sums


def bits_by_position(sums, num_bytes):
    """Computes bits per byte as a function of the number of previous tokens.

    Args:
        sums: array `[2, RANGES]`; see `stateful_sums`.
        num_bytes: int, the bytes of all documents. Each token counts as the mean number of bytes.

    Returns:
        A list of dictionaries for the ranges with tokens: `first` and `last`, the minimum and
        maximum number of previous tokens, `tokens`, and `bits_per_byte`.

    >>> sums = np.zeros([2, RANGES])
    >>> sums[:, 1] = 2 * np.log(2), 2
    >>> bits_by_position(sums, num_bytes=2)
    [{'first': 2, 'last': 3, 'tokens': 2, 'bits_per_byte': 1.0}]
    """
    bytes_of_token = num_bytes / sums[1].sum()
    return [
        {
            "first": int(start),
            "last": int(2 * start - 1),
            "tokens": int(count),
            "bits_per_byte": float(nats / count / np.log(2) / bytes_of_token),
        }
        for start, nats, count in zip(STARTS, *sums)
        if count
    ]


def _check(model):
    """Raises a ValueError if the model has no cache, or one that grows with the document."""
    backbone = model.backbone
    groups = head_groups_inside(backbone)
    whole = sorted({x.kind for x in groups if not (x.abilities.cached and x.abilities.bounded)})
    if whole:
        raise ValueError(
            f'context="stateful" needs heads whose cache is bounded; {" and ".join(whole)} see the '
            'whole sequence. Use "sliding" or "window".'
        )
    learned = getattr(backbone, "max_sequence_length", None)
    if learned is not None:
        raise ValueError(
            'context="stateful" needs a model without learned positions; this one has '
            f'max_sequence_length={learned}. Use "sliding" or "window".'
        )
    if is_replicated(model.distribute_strategy):
        raise ValueError('context="stateful" reads one document at a time, on one device')
