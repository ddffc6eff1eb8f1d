"""How well a model predicts texts or images, in units that do not depend on its tokens."""

import math

import keras
import tensorflow as tf

from rt_keras import data
from rt_keras.ops.chunks import LOGITS_AT_ONCE
from rt_keras.training import datasets, experiment


def evaluate(model, examples, batch_size=4, verbose=0):
    """Scores a model on examples, each thing that it predicts once.

    With N the sum of -ln p over all tokens, the end of each text included: nats per token
    N / tokens, bits per byte N / (ln 2 · bytes), perplexity per token exp(N / tokens), and per word
    exp(N / words) as for PG-19, with `rt_keras.data.count_text`'s words. Documents are cut into
    sequences of the preprocessor's length; a token sees what comes before it in its sequence. Of
    pairs the second text is scored, as far as the preprocessor's length goes. Of images every value
    of every channel is a token: bits per dimension N / (ln 2 · tokens).

    Args:
        model: a `RoutingTransformerCausalLM` or `RoutingTransformerSeq2SeqLM` with a preprocessor,
            or a `RoutingTransformerImageLM`.
        examples: `tf.data.Dataset` of documents, pairs or images, as from
            `rt_keras.data.load_documents`, `load_pairs` or `load_images`.
        batch_size: sequences, pairs or images scored at once.
        verbose: 1 for a progress bar.

    Returns:
        A dict. For text `nats_per_token`, `bits_per_byte`, `perplexity_per_token`,
        `perplexity_per_word`, and the numbers of `documents`, `bytes`, `words` and `tokens`; for
        pairs the same without what goes by bytes and words; for images `bits_per_dimension`,
        `nats_per_token`, and the numbers of `images` and `tokens`.

    Raises:
        ValueError: if there is nothing to score.
    """
    kind = experiment.kind_of(model)
    counts = _count(kind, examples)
    batches = datasets.evaluation_batches(
        kind,
        examples,
        batch_size,
        model.preprocessor,
        class_conditional=kind == "image_lm" and model.backbone.num_classes is not None,
    )
    nats, tokens = _sum_nats(model, batches, verbose)
    scores = {"nats_per_token": nats / tokens, **counts, "tokens": int(tokens)}
    if kind == "image_lm":
        return {"bits_per_dimension": nats / tokens / math.log(2), **scores}
    scores["perplexity_per_token"] = math.exp(nats / tokens)
    if kind == "causal_lm":
        scores["bits_per_byte"] = nats / math.log(2) / counts["bytes"]
        scores["perplexity_per_word"] = math.exp(nats / max(counts["words"], 1))
    return scores


def _count(kind, examples):
    """What the examples hold; a ValueError if that is nothing."""
    if kind == "causal_lm":
        counts = data.count_text(examples)
        if counts["bytes"] == 0:
            raise ValueError("there is no text to evaluate: every document is empty")
        return counts
    name = "images" if kind == "image_lm" else "documents"
    count = int(examples.reduce(0, lambda number, _: number + 1))
    if count == 0:
        raise ValueError(f"there are no {name} to evaluate")
    return {name: count}


def _sum_nats(model, batches, verbose):
    """The sum of -ln p over all that has weight, and the sum of the weights."""

    @tf.function(jit_compile=True)
    def sums(inputs, labels, weights):
        nats = _nats(model, inputs, labels)
        return tf.reduce_sum(nats * weights), tf.reduce_sum(weights)

    progress = keras.utils.Progbar(None, verbose=verbose, unit_name="batch")
    nats = tokens = 0.0
    for number, batch in enumerate(batches, start=1):
        batch_nats, batch_tokens = sums(*batch)
        nats += float(batch_nats)
        tokens += float(batch_tokens)
        progress.update(number)
    progress.update(number, finalize=True)
    return nats, tokens


def _nats(model, inputs, labels):
    """-ln p of each label, computed a few positions at a time where the vocabulary is large."""
    if experiment.kind_of(model) == "image_lm":
        logits = tf.cast(model(inputs, training=False), tf.float32)
        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    chunk_size = max(1, LOGITS_AT_ONCE // model.backbone.vocabulary_size)
    chunk_size = min(chunk_size, labels.shape[0] * labels.shape[1])
    return model.token_losses(model.hidden_states(inputs, False), labels, chunk_size)[0]
