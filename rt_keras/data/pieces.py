"""Documents one by one, to be scored with more before each token than its own sequence has."""

import tensorflow as tf

from rt_keras.data.batches import check_at_least_one
from rt_keras.data.packing import check_whole


def document_pieces(documents, tokenizer, length):
    """The pieces of each document in turn, each token of which is a label once.

    The first token that a model reads of a document is the end of text. Padding is at the end of
    a document's last piece.

    Args:
        documents: `tf.data.Dataset` of scalar strings, as from `load_documents`.
        tokenizer: a tokenizer of `rt_keras.data`.
        length: int, number of tokens in a piece.

    Returns:
        `tf.data.Dataset` of ({"token_ids": int32, "padding_mask": bool}, labels int32, weights
        float32), all `[1, length]`, and the position of the piece's first token, an int32 scalar.

    Raises:
        ValueError: if `length` is less than 1, or the tokenizer has a `sequence_length`.

    >>> from rt_keras.data import ByteTokenizer
    >>> documents = tf.data.Dataset.from_tensor_slices(["abc", "d"])
    >>> for inputs, labels, _, position in document_pieces(documents, ByteTokenizer(), 3):
    ...     print(int(position), inputs["token_ids"].numpy(), labels.numpy())
    0 [[  1  99 100]] [[ 99 100 101]]
    3 [[101   0   0]] [[1 0 0]]
    0 [[  1 102   0]] [[102   1   0]]
    """
    check_at_least_one(length=length)
    pieces = _windows(documents, tokenizer, length, length).batch(1, drop_remainder=True)
    pieces = pieces.map(lambda *piece: (*piece[:3], piece[3][0]))
    return pieces.prefetch(tf.data.AUTOTUNE)


def sliding_dataset(documents, tokenizer, sequence_length, batch_size, stride):
    """Batches of overlapping windows of each document, each token of which is scored once.

    A window begins `stride` tokens after the one before it. All tokens of a document's first window
    have weight 1, and the last `stride` of each other one, those that no window had before.

    Args:
        documents: `tf.data.Dataset` of scalar strings, as from `load_documents`.
        tokenizer: a tokenizer of `rt_keras.data`.
        sequence_length: int, number of tokens in a window.
        batch_size: int, number of windows in a batch.
        stride: int, at most `sequence_length`.

    Returns:
        `tf.data.Dataset` of ({"token_ids": int32, "padding_mask": bool}, labels int32, weights
        float32), all `[batch_size, sequence_length]`, as from `evaluation_dataset`.

    Raises:
        ValueError: if a number is out of range, or the tokenizer has a `sequence_length`.

    >>> from rt_keras.data import ByteTokenizer
    >>> documents = tf.data.Dataset.from_tensor_slices(["abcd"])
    >>> for _, labels, weights in sliding_dataset(documents, ByteTokenizer(), 3, 2, stride=2):
    ...     print(labels.numpy(), weights.numpy(), sep="\\n")
    [[ 99 100 101]
     [101 102   1]]
    [[1. 1. 1.]
     [0. 1. 1.]]
    """
    check_at_least_one(sequence_length=sequence_length, batch_size=batch_size, stride=stride)
    if stride > sequence_length:
        raise ValueError(
            f"stride must be at most {sequence_length}, the length of a window. Received: "
            f"stride={stride}"
        )
    windows = _windows(documents, tokenizer, sequence_length, stride)
    windows = windows.map(lambda *window: window[:3])
    # So that the last batch is full too.
    nothing = tf.nest.map_structure(
        lambda spec: tf.zeros(spec.shape, spec.dtype), windows.element_spec
    )
    windows = windows.concatenate(tf.data.Dataset.from_tensors(nothing).repeat(batch_size - 1))
    return windows.batch(batch_size, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


def _windows(documents, tokenizer, length, stride):
    """The inputs, labels and weights of windows of each document, and their first positions."""
    check_whole(tokenizer)
    pad = tokenizer.pad_token_id
    end = tf.constant([tokenizer.end_token_id], tf.int32)

    def of_document(document):
        tokens = tf.cast(tokenizer(document), tf.int32)
        stream = tf.concat([end, tokens, end], axis=0)
        total = tf.size(stream) - 1
        count = 1 + tf.maximum(total - length + stride - 1, 0) // stride

        def window(number):
            start = tf.cast(number, tf.int32) * stride
            places = start + tf.range(length)
            real, new = places < total, (start == 0) | (tf.range(length) >= length - stride)
            places = tf.minimum(places, total - 1)
            ids, labels = (
                tf.where(real, tf.gather(stream, places + shift), pad) for shift in (0, 1)
            )
            inputs = {"token_ids": ids, "padding_mask": real}
            return inputs, labels, tf.cast(real & new, tf.float32), start

        return tf.data.Dataset.range(tf.cast(count, tf.int64)).map(window)

    return documents.flat_map(of_document)
