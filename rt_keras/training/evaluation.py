"""How well a language model predicts a text, in units that do not depend on its tokens."""

import math

import keras
import tensorflow as tf

from rt_keras import data


def evaluate(model, documents, batch_size=4, verbose=0):
    """Scores a causal language model on documents, each token once.

    With N the sum of -ln p over all tokens, the end of each document included:
    nats per token N / tokens, bits per byte N / (ln 2 · bytes), perplexity per token
    exp(N / tokens), and per word exp(N / words) as for PG-19, with `rt_keras.data.count_text`'s
    words. The documents are cut into sequences of the preprocessor's length; a token sees what
    comes before it in its sequence.

    Args:
        model: a `RoutingTransformerCausalLM` with a preprocessor.
        documents: `tf.data.Dataset` of scalar strings, as from `rt_keras.data.load_documents`.
        batch_size: sequences scored at once.
        verbose: 1 for a progress bar.

    Returns:
        A dict with `nats_per_token`, `bits_per_byte`, `perplexity_per_token`,
        `perplexity_per_word`, and the numbers of `documents`, `bytes`, `words` and `tokens`.

    Raises:
        ValueError: if there is no text.
    """
    counts = data.count_text(documents)
    if counts["bytes"] == 0:
        raise ValueError("there is no text to evaluate: every document is empty")
    preprocessor = model.preprocessor
    batches = data.evaluation_dataset(
        documents, preprocessor.tokenizer, preprocessor.sequence_length, batch_size
    )

    @tf.function(jit_compile=True)
    def sums(inputs, labels, weights):
        logits = tf.cast(model(inputs, training=False), tf.float32)
        nats = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        return tf.reduce_sum(nats * weights), tf.reduce_sum(weights)

    progress = keras.utils.Progbar(None, verbose=verbose, unit_name="batch")
    nats = tokens = 0.0
    for number, batch in enumerate(batches, start=1):
        batch_nats, batch_tokens = sums(*batch)
        nats += float(batch_nats)
        tokens += float(batch_tokens)
        progress.update(number)
    progress.update(number, finalize=True)
    return {
        "nats_per_token": nats / tokens,
        "bits_per_byte": nats / math.log(2) / counts["bytes"],
        "perplexity_per_token": math.exp(nats / tokens),
        "perplexity_per_word": math.exp(nats / max(counts["words"], 1)),
        **counts,
        "tokens": int(tokens),
    }
