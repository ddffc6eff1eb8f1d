"""Documents to batches: every token of a text is predicted exactly once.

With E the end-of-text token, the documents "ab" and "c" make the stream

    inputs   E a b E c
    labels   a b E c E

of which each label is to be predicted from the inputs up to its own place. The stream is cut into
sequences of fixed length without regard to where documents end; the last one is filled up with
padding of weight 0. A label of one sequence is thus the first input of the next, and nothing is
dropped.
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
    """Batches without end, for `fit` with `steps_per_epoch`.

    In each pass over the text the documents are shuffled, then packed into sequences, and these
    shuffled again. The order depends on the seed and the number of the pass alone, so the batches
    are the same whenever the dataset is read from its beginning.

    Args:
        documents: `tf.data.Dataset` of scalar strings, as from `load_documents`.
        tokenizer: a tokenizer of `rt_keras.data`.
        sequence_length: number of tokens in a sequence.
        batch_size: number of sequences in a batch.
        seed: int, for the order of documents and sequences.
        shuffle_buffer: number of sequences among which the next one is drawn; 1 keeps the order.
        document_buffer: the same for documents; as many are held in memory.

    Returns:
        `tf.data.Dataset` of ({"token_ids": int32, "padding_mask": bool}, labels int32, weights
        float32), all `[batch_size, sequence_length]`.

    Raises:
        ValueError: if a number is less than 1, if there is no document, or if the tokenizer would
            cut documents to a length of its own.

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
    # Passes over nothing would follow one another for ever without a batch.
    if not any(True for _ in documents.take(1)):
        raise ValueError("documents is empty: there is nothing to train on")

    def one_pass(index):
        order = {"seed": seed + index, "reshuffle_each_iteration": False}
        sequences = _pack(documents.shuffle(document_buffer, **order), tokenizer, [sequence_length])
        return sequences.shuffle(shuffle_buffer, **order)

    return passes(one_pass).batch(batch_size, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


def evaluation_dataset(documents, tokenizer, sequence_length, batch_size):
    """Batches in which each token of the documents is a label of weight 1 once, in order.

    Rows follow one another as the text does. What fills up the last batch has weight 0; whole rows
    of it may be padding.

    Args:
        documents: `tf.data.Dataset` of scalar strings, as from `load_documents`.
        tokenizer: a tokenizer of `rt_keras.data`.
        sequence_length: number of tokens in a sequence.
        batch_size: number of sequences in a batch.

    Returns:
        `tf.data.Dataset` of ({"token_ids": int32, "padding_mask": bool}, labels int32, weights
        float32), all `[batch_size, sequence_length]`. The weights sum to the number of tokens, one
        end of text for each document included.

    Raises:
        ValueError: if a number is less than 1, or if the tokenizer would cut documents to a length
            of its own.

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
            f"tokenizer has sequence_length={tokenizer.sequence_length}: it would cut the "
            "documents; make one without it"
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
