"""Documents in chunks: tokens with more before them than their own sequence has."""

import functools

import numpy as np
import tensorflow as tf

from rt_keras.data.batches import check_at_least_one, whole_batches
from rt_keras.data.order import rows_of_share, shuffled
from rt_keras.data.packing import PackedText, before, check_whole, length_after, starting
from rt_keras.keys import SHARE_BELOW_1, check

# Tokens that are read at once while the starts of documents are looked for.
SCANNED_TOKENS = 2**24


def document_chunks(documents, tokenizer, length, start_token_id=None):
    """The chunks of each document in turn, each token of which is a label once.

    Padding is at the end of a document's last chunk.

    Args:
        documents: `tf.data.Dataset` of scalar strings, as from `load_documents`.
        tokenizer: a tokenizer of `rt_keras.data`.
        length: int, number of tokens in a chunk.
        start_token_id: int, the token before each document. Defaults to end of text.

    Returns:
        `tf.data.Dataset` of ({"token_ids": int32, "padding_mask": bool}, labels int32, weights
        float32), all `[1, length]`, and the position of the chunk's first token, an int32 scalar.

    Raises:
        ValueError: if `length` is less than 1, or the tokenizer has a `sequence_length`.

    >>> from rt_keras.data import ByteTokenizer
    >>> documents = tf.data.Dataset.from_tensor_slices(["abc", "d"])
    >>> for inputs, labels, _, position in document_chunks(documents, ByteTokenizer(), 3):
    ...     print(int(position), inputs["token_ids"].numpy(), labels.numpy())
    0 [[  1  99 100]] [[ 99 100 101]]
    3 [[101   0   0]] [[1 0 0]]
    0 [[  1 102   0]] [[102   1   0]]
    """
    check_at_least_one(length=length)
    chunks = _windows(documents, tokenizer, length, length, before(tokenizer, start_token_id))
    chunks = chunks.batch(1, drop_remainder=True)
    chunks = chunks.map(lambda *chunk: (*chunk[:3], chunk[3][0]))
    return chunks.prefetch(tf.data.AUTOTUNE)


def sliding_dataset(documents, tokenizer, sequence_length, batch_size, stride, start_token_id=None):
    """Batches of overlapping windows of each document, each token of which is scored once.

    A window begins `stride` tokens after the one before it. All tokens of a document's first window
    have weight 1, and the last `stride` of each other one, those that no window had before.

    Args:
        documents: `tf.data.Dataset` of scalar strings, as from `load_documents`.
        tokenizer: a tokenizer of `rt_keras.data`.
        sequence_length: int, number of tokens in a window.
        batch_size: int, number of windows in a batch.
        stride: int, at most `sequence_length`.
        start_token_id: int, the token before each document, which every window then begins with,
            so that it has one token fewer of the document. Defaults to None, for end of text before
            a document and nothing more.

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
    length = length_after(start_token_id, sequence_length)
    if stride > length:
        raise ValueError(
            f"stride must be at most {length}, the length of a window. Received: stride={stride}"
        )
    windows = _windows(documents, tokenizer, length, stride, before(tokenizer, start_token_id))
    windows = windows.map(lambda *window: window[:3])
    if start_token_id is not None:
        windows = windows.map(starting(start_token_id, tokenizer.pad_token_id))
    return whole_batches(windows, batch_size).prefetch(tf.data.AUTOTUNE)


def carried_dataset(
    packed, length, batch_size, seed=0, first_batch=0, share=(0, 1), state_dropout=0.0
):
    """Endless batches whose rows go on from batch to batch, to train models that carry a state.

    Each document is cut into chunks, the last of which is padded. A pass takes the documents in an
    order of its own; their chunks, one after the other, make a list, of which each row of a batch
    takes an equal stretch, one chunk for each batch. So a row goes on where it was until its
    document ends, but for the start of a pass, where rows may begin inside of a document. What is
    left of the list, less than a batch, comes in other passes.

    A model that seldom has little before it gets no practice in it, such as in going on from a
    short prompt. With `state_dropout` some chunks are read as if nothing came before them.

    Batch b depends on the text, the seed and b alone, as for `training_dataset`.

    Args:
        packed: folder that `pack_documents` filled.
        length: int, number of tokens in a chunk.
        batch_size: int, number of rows of a batch, those of all workers together.
        seed: int, for the order of documents. Defaults to 0.
        first_batch: int, the number of the batch to start with. Defaults to 0.
        share: pair of ints (worker, workers), to read only one of `workers` equal parts of each
            batch. Defaults to (0, 1), all of it.
        state_dropout: float, at least 0 and below 1, the share of chunks that start anew although
            their document goes on. Defaults to 0.

    Returns:
        `tf.data.Dataset` of ({"token_ids": int32, "padding_mask": bool, "starts": bool}, labels
        int32, weights float32), all `[batch_size / workers, length]` but "starts",
        `[batch_size / workers]`: whether nothing that a row has read comes before its chunk.

    Raises:
        FileNotFoundError: if the folder holds no packed documents, or lacks a file.
        ValueError: if a number is out of range, if there are fewer chunks than rows, if no document
            is longer than a chunk, or for what `training_dataset` refuses.

    >>> import tempfile
    >>> from rt_keras.data import ByteTokenizer, pack_documents
    >>> documents = tf.data.Dataset.from_tensor_slices(["abcd"])
    >>> packed = pack_documents(documents, ByteTokenizer(), tempfile.mkdtemp())
    >>> for inputs, labels, _ in carried_dataset(packed, length=3, batch_size=1).take(3):
    ...     print(inputs["starts"].numpy(), inputs["token_ids"].numpy(), labels.numpy())
    [ True] [[  1  99 100]] [[ 99 100 101]]
    [False] [[101 102   0]] [[102   1   0]]
    [ True] [[  1  99 100]] [[ 99 100 101]]
    """
    check_at_least_one(length=length, batch_size=batch_size)
    check("state_dropout", state_dropout, SHARE_BELOW_1)
    text = PackedText(packed)
    bounds = _bounds(text)
    chunks = -(-np.diff(bounds) // length)
    _check_chunks(chunks, length, batch_size)
    steps = int(chunks.sum()) // batch_size
    rows = rows_of_share(batch_size, share)
    first_row = share[0] * rows

    @functools.lru_cache(maxsize=2)
    def order_of(number):
        """The documents of a pass, and how many chunks there are up to the end of each."""
        places = tf.range(len(chunks), dtype=tf.int64)
        order = shuffled(places, len(chunks), seed, tf.fill(places.shape, np.int64(number))).numpy()
        return order, np.cumsum(chunks[order])

    def read(batch):
        number, step = divmod(int(batch), steps)
        order, ends = order_of(number)
        tokens, counts = [], np.zeros([rows], np.int32)
        dropped = np.random.default_rng([seed, int(batch)]).random(batch_size) < state_dropout
        starts = dropped[first_row : first_row + rows]
        for row in range(rows):
            chunk = (first_row + row) * steps + step
            place = np.searchsorted(ends, chunk, side="right")
            document = order[place]
            inside = chunk - (ends[place] - chunks[document])
            first, stop = bounds[document] + inside * length, bounds[document + 1]
            tokens.append(text.row(int(first), int(stop), length))
            counts[row] = min(length, stop - first)
            starts[row] |= inside == 0 or step == 0
        return np.stack(tokens), counts, starts

    def batch(number):
        dtypes = [tf.int32, tf.int32, tf.bool]
        tokens, counts, starts = tf.numpy_function(read, [number], dtypes)
        inputs, labels, weights = text.batch(tokens, tf.ensure_shape(counts, [rows]), length)
        return {**inputs, "starts": tf.ensure_shape(starts, [rows])}, labels, weights

    batches = tf.data.Dataset.counter(first_batch)
    batches = batches.map(batch, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    return batches.prefetch(tf.data.AUTOTUNE)


def _bounds(text):
    """Where documents start in the stream of all tokens, and where the last one ends."""
    starts = range(0, text.length, SCANNED_TOKENS)
    parts = (text.read(start, min(start + SCANNED_TOKENS, text.length)) for start in starts)
    found = [start + np.flatnonzero(part == text.end) for start, part in zip(starts, parts)]
    return np.concatenate([*found, [text.length]])


def _check_chunks(chunks, length, batch_size):
    """Raises a ValueError if rows of a batch would have nothing to go on with."""
    if chunks.max() == 1:
        raise ValueError(
            f"length (data.sequence_length) is {length}, and no document is longer, so that no "
            "state would be carried"
        )
    if chunks.sum() < batch_size:
        raise ValueError(
            f"batch_size (data.batch_size) must be at most the number of chunks, "
            f"{chunks.sum():,}. Received: batch_size={batch_size}"
        )


def _windows(documents, tokenizer, length, stride, start_token):
    """The inputs, labels and weights of windows of each document, and their first positions."""
    check_whole(tokenizer)
    pad = tokenizer.pad_token_id
    end = tf.constant([tokenizer.end_token_id], tf.int32)

    def of_document(document):
        tokens = tf.cast(tokenizer(document), tf.int32)
        stream = tf.concat([start_token, tokens, end], axis=0)
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
