"""Documents in chunks or sliding windows, for context beyond one sequence."""

import functools

import numpy as np
import tensorflow as tf

from rt_keras.arguments import SHARE_BELOW_1, check, wrong_value
from rt_keras.data.batches import check_at_least_one, whole_batches
from rt_keras.data.order import rows_of_share, shuffled
from rt_keras.data.packing import PackedText, check_whole, document_stream, length_after, starting

# Number of tokens read at once in the search for document starts.
SCANNED_TOKENS = 2**24


def document_chunks(documents, tokenizer, length, start_token_id=None):
    """Splits documents into consecutive chunks; each token is a label exactly once.

    The last chunk of a document is padded at its end.

    Args:
        documents: `tf.data.Dataset` of scalar strings, as from `load_documents`.
        tokenizer: a tokenizer of `rt_keras.data`.
        length: int, number of tokens in a chunk.
        start_token_id: int, token placed before each document. Defaults to end of text.

    Returns:
        `tf.data.Dataset` of ({"token_ids": int32, "padding_mask": bool}, labels int32, weights
        float32), all `[1, length]`, and the position of the chunk's first token in its document, an
        int32 scalar.

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
    chunks = _windows(documents, tokenizer, length, length, start_token_id)
    chunks = chunks.batch(1, drop_remainder=True)
    chunks = chunks.map(lambda *chunk: (*chunk[:3], chunk[3][0]))
    return chunks.prefetch(tf.data.AUTOTUNE)


def sliding_dataset(documents, tokenizer, sequence_length, batch_size, stride, start_token_id=None):
    """Returns batches of overlapping windows of each document; each token is scored once.

    Each window begins `stride` tokens after the previous one. All tokens of a document's first
    window have weight 1. In later windows only the last `stride` tokens do, which no earlier window
    contains.

    Args:
        documents: `tf.data.Dataset` of scalar strings, as from `load_documents`.
        tokenizer: a tokenizer of `rt_keras.data`.
        sequence_length: int, number of tokens in a window.
        batch_size: int, number of windows in a batch.
        stride: int, at most `sequence_length`.
        start_token_id: int or None. If given, every window begins with this token and holds one
            token fewer of its document. If None, end of text precedes each document. Defaults to
            None.

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
        raise wrong_value("stride", f"at most {length}, the length of a window", stride)
    windows = _windows(documents, tokenizer, length, stride, start_token_id)
    windows = windows.map(lambda *window: window[:3])
    if start_token_id is not None:
        windows = windows.map(starting(start_token_id, tokenizer.pad_token_id))
    return whole_batches(windows, batch_size).prefetch(tf.data.AUTOTUNE)


def stateful_dataset(
    packed, length, batch_size, seed=0, first_batch=0, share=(0, 1), state_dropout=0.0
):
    """Returns endless batches for stateful training: rows continue from batch to batch.

    Each document is cut into chunks, the last of which is padded. Each pass concatenates the chunks
    of all documents in a new order of the documents, and splits this list into `batch_size` equal
    parts. Row r of successive batches reads part r, one chunk per batch. A row therefore continues
    its document until it ends; only at the start of a pass may a row begin inside a document. The
    remainder of the list, less than a batch, is covered by other passes.

    A model that rarely starts from an empty state does not learn to do so, for example to continue
    a short prompt. With `state_dropout`, some chunks start from an empty state.

    Batch b depends only on the text, the seed and b, as for `training_dataset`.

    Args:
        packed: path of a folder packed by `pack_documents`.
        length: int, number of tokens in a chunk.
        batch_size: int, number of rows in a batch, over all workers.
        seed: int, seed of the order of documents. Defaults to 0.
        first_batch: int, index of the first batch. Defaults to 0.
        share: pair of ints `(worker, workers)`. Each batch is split into `workers` equal parts, and
            only part `worker` is read. Defaults to `(0, 1)`, the whole batch.
        state_dropout: float, at least 0 and below 1, the fraction of chunks that start from an
            empty state within their document. Defaults to 0.

    Returns:
        `tf.data.Dataset` of ({"token_ids": int32, "padding_mask": bool, "reset_states": bool},
        labels int32, weights float32), all `[batch_size / workers, length]` but "reset_states".
        This is `[batch_size / workers]` and True for rows whose chunk starts from an empty state.

    Raises:
        FileNotFoundError: if the folder holds no packed documents, or a file is missing.
        ValueError: if a number is out of range, if there are fewer chunks than rows, if no document
            is longer than a chunk, or as for `training_dataset`.

    >>> import tempfile
    >>> from rt_keras.data import ByteTokenizer, pack_documents
    >>> documents = tf.data.Dataset.from_tensor_slices(["abcd"])
    >>> packed = pack_documents(documents, ByteTokenizer(), tempfile.mkdtemp())
    >>> for inputs, labels, _ in stateful_dataset(packed, length=3, batch_size=1).take(3):
    ...     print(inputs["reset_states"].numpy(), inputs["token_ids"].numpy(), labels.numpy())
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
        """Returns the documents of a pass in order, and the cumulative count of their chunks."""
        places = tf.range(len(chunks), dtype=tf.int64)
        order = shuffled(places, len(chunks), seed, tf.fill(places.shape, np.int64(number))).numpy()
        return order, np.cumsum(chunks[order])

    def read(batch):
        number, step = divmod(int(batch), steps)
        order, ends = order_of(number)
        # [rows]
        chunk = (first_row + np.arange(rows)) * steps + step
        place = np.searchsorted(ends, chunk, side="right")
        document = order[place]
        inside = chunk - (ends[place] - chunks[document])
        first, stop = bounds[document] + inside * length, bounds[document + 1]
        tokens = [text.row(*pair, length) for pair in zip(first.tolist(), stop.tolist())]
        dropped = np.random.default_rng([seed, int(batch)]).random(batch_size) < state_dropout
        resets = dropped[first_row : first_row + rows] | (inside == 0) | (step == 0)
        return np.stack(tokens), np.minimum(length, stop - first).astype("int32"), resets

    def batch(number):
        tokens, counts, resets = tf.numpy_function(read, [number], [tf.int32, tf.int32, tf.bool])
        inputs, labels, weights = text.batch(tokens, tf.ensure_shape(counts, [rows]), length)
        return {**inputs, "reset_states": tf.ensure_shape(resets, [rows])}, labels, weights

    batches = tf.data.Dataset.counter(first_batch)
    batches = batches.map(batch, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    return batches.prefetch(tf.data.AUTOTUNE)


def _bounds(text):
    """Returns the start of each document in the token stream, and the end of the last."""
    starts = range(0, text.length, SCANNED_TOKENS)
    parts = (text.read(start, min(start + SCANNED_TOKENS, text.length)) for start in starts)
    places = [start + np.flatnonzero(part == text.end) for start, part in zip(starts, parts)]
    return np.concatenate([*places, [text.length]])


def _check_chunks(chunks, length, batch_size):
    """Raises a ValueError if no state can be passed on or a batch cannot be filled."""
    if chunks.max() == 1:
        raise ValueError(
            f"length (data.sequence_length) is {length}, and no document is longer, so no state "
            "would be passed from chunk to chunk"
        )
    if chunks.sum() < batch_size:
        needed = f"at most the number of chunks, {chunks.sum():,}"
        raise wrong_value("batch_size (data.batch_size)", needed, batch_size)


def _windows(documents, tokenizer, length, stride, start_token_id):
    """Returns windows of each document: inputs, labels, weights and their first positions."""
    check_whole(tokenizer)
    pad = tokenizer.pad_token_id

    def document_windows(document):
        stream = document_stream(document, tokenizer, start_token_id)
        total = tf.size(stream) - 1
        count = 1 + tf.maximum(total - length + stride - 1, 0) // stride

        def window(number):
            start = tf.cast(number, tf.int32) * stride
            places = start + tf.range(length)
            real, new = places < total, (start == 0) | (tf.range(length) >= length - stride)
            places = tf.minimum(places, total - 1)
            ids = tf.where(real, tf.gather(stream, places), pad)
            labels = tf.where(real, tf.gather(stream, places + 1), pad)
            inputs = {"token_ids": ids, "padding_mask": real}
            return inputs, labels, tf.cast(real & new, tf.float32), start

        return tf.data.Dataset.range(tf.cast(count, tf.int64)).map(window)

    return documents.flat_map(document_windows)
