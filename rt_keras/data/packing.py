"""Documents packed into batches, so that every token is predicted exactly once.

With E the end-of-text token, the documents "ab" and "c" make the stream

    inputs   E a b E c
    labels   a b E c E

where each label is predicted from the inputs up to its position. The stream is cut into sequences
of fixed length, wherever documents end; the last one is padded, with weight 0. So the last label of
a sequence is the first input of the next, and nothing is dropped.
"""

import math

import tensorflow as tf

from rt_keras.data.batches import check_at_least_one, passes


def training_dataset(
    documents,
    tokenizer,
    sequence_length,
    batch_size,
    seed=0,
    shuffle_buffer=4096,
    document_buffer=1024,
):
    """Endless batches to `fit` a causal language model with `steps_per_epoch`.

    In each pass over the text, documents are shuffled and packed into sequences, which are shuffled
    again. The order depends only on the seed and the number of the pass, so the dataset gives the
    same batches each time it is read from the start.

    Args:
        documents: `tf.data.Dataset` of scalar strings, as from `load_documents`.
        tokenizer: a tokenizer of `rt_keras.data`.
        sequence_length: int, number of tokens in a sequence.
        batch_size: int, number of sequences in a batch.
        seed: int, for the order of documents and sequences. Defaults to 0.
        shuffle_buffer: int, number of sequences that the next one is drawn from; 1 keeps the order.
            Defaults to 4096.
        document_buffer: int, number of documents, held in memory, that the next one is drawn from;
            1 keeps the order. Defaults to 1024.

    Returns:
        `tf.data.Dataset` of ({"token_ids": int32, "padding_mask": bool}, labels int32, weights
        float32), all `[batch_size, sequence_length]`.

    Raises:
        ValueError: if a number is less than 1, if there are no documents, or if the tokenizer has
            a `sequence_length`, to which it would truncate them.

    Example:

    >>> from rt_keras.data import ByteTokenizer
    >>> documents = tf.data.Dataset.from_tensors("tick tock")
    >>> batches = training_dataset(documents, ByteTokenizer(), sequence_length=4, batch_size=2)
    >>> inputs, labels, weights = next(iter(batches))
    >>> inputs["token_ids"].shape, labels.shape, weights.shape
    (TensorShape([2, 4]), TensorShape([2, 4]), TensorShape([2, 4]))
    """
    check_at_least_one(
        sequence_length=sequence_length,
        batch_size=batch_size,
        shuffle_buffer=shuffle_buffer,
        document_buffer=document_buffer,
    )
    # Passes over no documents would go on forever without yielding a batch.
    if not any(True for _ in documents.take(1)):
        raise ValueError("documents must not be empty: there is nothing to train on.")

    def one_pass(index):
        order = {"seed": seed + index, "reshuffle_each_iteration": False}
        sequences = _pack(documents.shuffle(document_buffer, **order), tokenizer, [sequence_length])
        return sequences.shuffle(shuffle_buffer, **order)

    return passes(one_pass).batch(batch_size, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


def evaluation_dataset(documents, tokenizer, sequence_length, batch_size):
    """Batches in which each token of the documents is a label of weight 1 once, in order.

    Rows continue one another as the text does. Padding at the end of the last batch, which may be
    whole rows, has weight 0.

    Args:
        documents: `tf.data.Dataset` of scalar strings, as from `load_documents`.
        tokenizer: a tokenizer of `rt_keras.data`.
        sequence_length: int, number of tokens in a sequence.
        batch_size: int, number of sequences in a batch.

    Returns:
        `tf.data.Dataset` of ({"token_ids": int32, "padding_mask": bool}, labels int32, weights
        float32), all `[batch_size, sequence_length]`. The weights sum to the number of tokens,
        including one end of text per document.

    Raises:
        ValueError: if a number is less than 1, or if the tokenizer has a `sequence_length`, to
            which it would truncate documents.

    Example:

    >>> from rt_keras.data import ByteTokenizer
    >>> documents = tf.data.Dataset.from_tensor_slices(["ab", "c"])
    >>> for inputs, labels, weights in evaluation_dataset(documents, ByteTokenizer(), 4, 2):
    ...     print(inputs["token_ids"].numpy(), labels.numpy(), weights.numpy(), sep="\\n")
    [[  1  99 100   1]
     [101   0   0   0]]
    [[ 99 100   1 101]
     [  1   0   0   0]]
    [[1. 1. 1. 1.]
     [1. 0. 0. 0.]]
    """
    check_at_least_one(sequence_length=sequence_length, batch_size=batch_size)
    batches = _pack(documents, tokenizer, [batch_size, sequence_length])
    return batches.prefetch(tf.data.AUTOTUNE)


def _pack(documents, tokenizer, shape):
    """The stream of all tokens, cut into pieces of a shape and padded at its end."""
    if tokenizer.sequence_length is not None:
        raise ValueError(
            "tokenizer must have sequence_length=None, or it truncates the documents. Received: "
            f"sequence_length={tokenizer.sequence_length}"
        )
    size = math.prod(shape)

    def inputs_and_labels(document):
        tokens = tf.cast(tokenizer(document), tf.int32)
        end = tf.constant([tokenizer.end_token_id], tf.int32)
        return tf.concat([end, tokens], axis=0), tf.concat([tokens, end], axis=0)

    def pad(inputs, labels):
        count = tf.size(labels)

        def fill(values, value):
            padding = [[0, size - count]]
            return tf.reshape(tf.pad(values, padding, constant_values=value), shape)

        inputs = {
            "token_ids": fill(inputs, tokenizer.pad_token_id),
            "padding_mask": fill(tf.ones([count], tf.bool), False),
        }
        return inputs, fill(labels, tokenizer.pad_token_id), fill(tf.ones([count]), 0.0)

    stream = documents.map(inputs_and_labels, num_parallel_calls=tf.data.AUTOTUNE)
    return stream.rebatch(size).map(pad)
