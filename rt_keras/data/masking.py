"""Random masking of tokens, for masked language models."""

import tensorflow as tf

from rt_keras.data.order import rows_of_share


def masked_batches(batches, preprocessor, batch_size, seed=0, first_batch=0, share=(0, 1)):
    """Masks random tokens of each sequence and returns them as labels.

    This is `keras_hub.layers.MaskedLMMaskGenerator` with two differences. The masked tokens of a
    sequence depend only on the seed and the index of the sequence, so that training can start at
    any batch and each of several workers can process its part of every batch. And
    `mask_selection_rate` is the fraction of tokens selected in each sequence, not a probability.

    Args:
        batches: `tf.data.Dataset` of (inputs, labels, weights), as from `training_dataset` or
            `evaluation_dataset`. Its labels and weights are ignored.
        preprocessor: a `RoutingTransformerMaskedLMPreprocessor`, which defines the rates.
        batch_size: int, number of sequences in a batch, over all workers.
        seed: int, seed of the masks. Defaults to 0.
        first_batch: int, index of the first batch. Defaults to 0.
        share: pair of ints `(worker, workers)`: `batches` holds part `worker` of `workers` equal
            parts of each batch. Defaults to `(0, 1)`, the whole batch.

    Returns:
        `tf.data.Dataset` of (inputs, labels, weights). The inputs are a dictionary of "token_ids",
        int32, and "padding_mask", bool, both `[rows, length]`, and "mask_positions", int32. The
        positions, the labels, int32, and the weights, float32, have the shape `[rows, masks]`.

    Raises:
        ValueError: if `batch_size` is not a multiple of the number of workers.

    Source: Devlin et al. 2019, BERT, section 3.1.

    Example:

    >>> from rt_keras.data import ByteTokenizer, evaluation_dataset
    >>> from rt_keras.models import RoutingTransformerMaskedLMPreprocessor
    >>> preprocessor = RoutingTransformerMaskedLMPreprocessor(ByteTokenizer(), sequence_length=8)
    >>> documents = tf.data.Dataset.from_tensor_slices(["tick tock"])
    >>> batches = evaluation_dataset(documents, ByteTokenizer(), 8, batch_size=2)
    >>> inputs, labels, weights = next(iter(masked_batches(batches, preprocessor, batch_size=2)))
    >>> inputs["token_ids"].shape, labels.shape, weights.numpy()
    (TensorShape([2, 8]), TensorShape([2, 2]), array([[1., 0.], [1., 0.]], dtype=float32))
    """
    rows, (worker, _) = rows_of_share(batch_size, share), share

    def mask(number, batch):
        inputs, _, _ = batch
        numbers = number * batch_size + worker * rows + tf.range(rows, dtype=tf.int64)
        return _mask(inputs["token_ids"], inputs["padding_mask"], numbers, seed, preprocessor)

    return batches.enumerate(first_batch).map(
        mask, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
    )


def _mask(token_ids, padding_mask, numbers, seed, preprocessor):
    """Masks tokens of the sequences with these indices."""
    order, fate, other = _random_numbers(numbers, seed, token_ids.shape[1])
    chosen = _choose(order, _is_maskable(token_ids, padding_mask, preprocessor), preprocessor)
    # The chosen tokens from left to right, then others, which have weight 0.
    found, positions = tf.math.top_k(tf.cast(chosen, tf.int32), preprocessor.mask_selection_length)
    labels = tf.gather(token_ids, positions, batch_dims=1)
    random = tf.cast(other * preprocessor.vocabulary_size, tf.int32)
    masked, replaced = preprocessor.mask_token_rate, preprocessor.random_token_rate
    hidden = tf.where(fate < masked + replaced, random, token_ids)
    hidden = tf.where(fate < masked, preprocessor.mask_token_id, hidden)
    inputs = {
        "token_ids": tf.where(chosen, hidden, token_ids),
        "padding_mask": padding_mask,
        "mask_positions": positions,
    }
    return inputs, labels, tf.cast(found, tf.float32)


def _random_numbers(numbers, seed, length):
    """Draws three `[rows, length]` arrays in [0, 1); a row depends on its index and the seed."""

    def draw(number):
        return tf.random.stateless_uniform([3, length], tf.stack([seed, number]))

    seed = tf.constant(seed, tf.int64)
    return tf.unstack(tf.map_fn(draw, numbers, fn_output_signature=tf.float32), axis=1)


def _is_maskable(token_ids, padding_mask, preprocessor):
    special = tf.constant(preprocessor.tokenizer.special_token_ids, tf.int32)
    return padding_mask & tf.reduce_all(token_ids[..., None] != special, axis=-1)


def _choose(order, maskable, preprocessor):
    """Selects the tokens to predict, at least one: those with the lowest random numbers."""
    counts = tf.math.count_nonzero(maskable, axis=1, dtype=tf.int32)
    share = tf.round(tf.cast(counts, tf.float32) * preprocessor.mask_selection_rate)
    share = tf.clip_by_value(tf.cast(share, tf.int32), 1, preprocessor.mask_selection_length)
    places = tf.argsort(tf.argsort(tf.where(maskable, order, 1.0), axis=1), axis=1)
    return maskable & (places < share[:, None])
