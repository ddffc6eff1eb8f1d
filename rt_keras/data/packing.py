"""Packing of documents into batches in which every token is predicted exactly once.

With the end-of-text token E, the documents "ab" and "c" form the stream

    inputs   E a b E c
    labels   a b E c E

where each label is predicted from the inputs up to its position. The stream is cut into sequences
of fixed length regardless of where documents end, and the last sequence is padded, with weight 0.
The last label of a sequence is the first input of the next, so no token is dropped.

For training, the inputs of the stream are stored in files, so that a sequence of any length can be
read from any position. The files are plain arrays of fixed-size tokens: a record format would need
an index and would fix the sequence length.
"""

import bisect
import itertools
from pathlib import Path

import numpy as np
import tensorflow as tf

from rt_keras.arguments import wrong_value
from rt_keras.data import shards
from rt_keras.data.batches import check_at_least_one
from rt_keras.data.order import batches_of_numbers
from rt_keras.data.tokenizer import fingerprint

# Tokens per file: these are held in memory, and lost if packing is interrupted.
SHARD_TOKENS = 2**26


def pack_documents(documents, tokenizer, folder, identity=None):
    """Packs documents as one stream of tokens into the files of a folder.

    `training_dataset` reads the folder. Each file, such as `00000.npy`, is a NumPy array of whole
    documents, uint16 if the vocabulary's ids fit and int32 otherwise. Interrupted packing resumes
    where it stopped, and a completed folder is left unchanged. If another process packs into the
    same folder, this one waits for it. A file that is missing or has the wrong size is written
    again.

    Args:
        documents: `tf.data.Dataset` of scalar strings in a fixed order, as from `load_documents`.
        tokenizer: a tokenizer of `rt_keras.data`.
        folder: string or `Path`, the folder to write to or to resume in.
        identity: JSON value that identifies the documents, such as a name and a version. A folder
            packed with another identity or tokenizer raises an error. Defaults to None.

    Returns:
        The `Path` of the folder.

    Raises:
        ValueError: if there are no documents, if the tokenizer has a `sequence_length` and would
            truncate them, or if the folder holds other data or a damaged manifest.
        OSError: if the disk is full.

    Example:

    >>> import tempfile
    >>> from rt_keras.data import ByteTokenizer
    >>> documents = tf.data.Dataset.from_tensor_slices(["ab", "c"])
    >>> packed = pack_documents(documents, ByteTokenizer(), tempfile.mkdtemp())
    >>> np.load(packed / "00000.npy")
    array([  1,  99, 100,   1, 101], dtype=uint16)
    """
    check_whole(tokenizer)
    dtype = "uint16" if tokenizer.vocabulary_size() <= 2**16 else "int32"
    end = tf.constant([tokenizer.end_token_id], dtype)

    def tokens(document):
        return tf.concat([end, tf.cast(tokenizer(document), dtype)], axis=0)

    def read(first):
        rows = documents.skip(first).map(
            tokens, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
        )
        return rows.prefetch(tf.data.AUTOTUNE).as_numpy_iterator()

    contents = {
        "unit": "documents",
        "dtype": dtype,
        "end_token_id": tokenizer.end_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "tokenizer": fingerprint(tokenizer),
        "identity": identity,
    }
    count = int(documents.cardinality())
    return shards.write(folder, contents, read, _save, ".npy", SHARD_TOKENS, count)


def _save(path, rows):
    """Writes rows of tokens to a file, one after another."""
    np.save(path, np.concatenate(rows))


def training_dataset(
    packed, sequence_length, batch_size, seed=0, first_batch=0, share=(0, 1), start_token_id=None
):
    """Returns endless batches to `fit` a causal language model with `steps_per_epoch`.

    Batch b depends only on the text, the seed and b: each pass uses a new random order, computed
    one index at a time. Training can therefore start at any batch without delay, and each of
    several workers can read its part of every batch.

    Args:
        packed: path of a folder packed by `pack_documents`.
        sequence_length: int, number of tokens in a sequence.
        batch_size: int, number of sequences in a batch, over all workers.
        seed: int, seed of the order. Defaults to 0.
        first_batch: int, index of the first batch. Defaults to 0.
        share: pair of ints `(worker, workers)`. Each batch is split into `workers` equal parts, and
            only part `worker` is read. Defaults to `(0, 1)`, the whole batch.
        start_token_id: int or None, as for `evaluation_dataset`. Defaults to None.

    Returns:
        `tf.data.Dataset` of ({"token_ids": int32, "padding_mask": bool}, labels int32, weights
        float32), all `[batch_size / workers, sequence_length]`.

    Raises:
        FileNotFoundError: if the folder holds no packed documents, or a file is missing.
        ValueError: if a number is out of range, if `batch_size` is not a multiple of the number of
            workers, if packing is incomplete, or if a file is damaged.

    Example:

    >>> import tempfile
    >>> from rt_keras.data import ByteTokenizer
    >>> documents = tf.data.Dataset.from_tensors("tick tock")
    >>> packed = pack_documents(documents, ByteTokenizer(), tempfile.mkdtemp())
    >>> batches = training_dataset(packed, sequence_length=4, batch_size=2)
    >>> inputs, labels, weights = next(iter(batches))
    >>> inputs["token_ids"].shape, labels.shape, weights.shape
    (TensorShape([2, 4]), TensorShape([2, 4]), TensorShape([2, 4]))
    """
    check_at_least_one(sequence_length=sequence_length, batch_size=batch_size)
    text, length = PackedText(packed), length_after(start_token_id, sequence_length)

    def read(numbers):
        starts = [int(number) * length for number in numbers]
        return np.stack([text.row(start, text.length, length) for start in starts])

    def batch(numbers):
        rows = tf.numpy_function(read, [numbers], tf.int32)
        return text.batch(rows, text.length - numbers * length, length)

    numbers = batches_of_numbers(-(-text.length // length), batch_size, seed, first_batch, share)
    batches = numbers.map(batch, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    if start_token_id is not None:
        batches = batches.map(starting(start_token_id, text.pad))
    return batches.prefetch(tf.data.AUTOTUNE)


class PackedText:
    """The tokens of packed documents as one stream.

    Args:
        packed: path of a folder packed by `pack_documents`.

    Raises:
        FileNotFoundError: if the folder holds no packed documents, or a file is missing.
        ValueError: if packing is incomplete or a file is damaged.
    """

    def __init__(self, packed):
        manifest = shards.read_finished(packed, "documents")
        contents, self._files = manifest["contents"], manifest["shards"]
        self.end, self.pad = contents["end_token_id"], contents["pad_token_id"]
        self._folder, self._dtype = Path(packed), np.dtype(contents["dtype"])
        self._starts = [0, *itertools.accumulate(file["length"] for file in self._files)]
        # The number of all tokens.
        self.length = self._starts[-1]

    def read(self, start, stop):
        """Returns the tokens from position `start` up to `stop`."""
        parts, place = [], bisect.bisect_right(self._starts, start) - 1
        while start < stop:
            end_of_part = min(stop, self._starts[place + 1])
            file = self._files[place]
            offset = file["bytes"] + (start - self._starts[place + 1]) * self._dtype.itemsize
            path = self._folder / file["file"]
            # Read instead of memory-mapped: thousands of files need not stay open, and a truncated
            # file raises an error instead of killing the process.
            parts.append(np.fromfile(path, self._dtype, end_of_part - start, offset=offset))
            if len(parts[-1]) < end_of_part - start:
                raise OSError(f"{path} is shorter than at the start of training")
            start, place = end_of_part, place + 1
        return np.concatenate(parts)

    def row(self, start, stop, length):
        """Returns `length + 1` tokens from `start`: up to `stop`, then end of text and padding."""
        row = np.full([length + 1], self.pad, np.int32)
        tokens = self.read(start, min(start + length + 1, stop))
        row[: len(tokens)] = tokens
        row[len(tokens) : len(tokens) + 1] = self.end
        return row

    def batch(self, rows, counts, length):
        """Returns inputs, labels and weights, from rows and their numbers of real positions."""
        rows = tf.ensure_shape(rows, [counts.shape[0], length + 1])
        mask = tf.range(length, dtype=counts.dtype) < counts[:, None]
        inputs = {"token_ids": tf.where(mask, rows[:, :-1], self.pad), "padding_mask": mask}
        return inputs, rows[:, 1:], tf.cast(mask, tf.float32)


def evaluation_dataset(documents, tokenizer, sequence_length, batch_size, start_token_id=None):
    """Returns batches in which each token is a label of weight 1 exactly once, in order.

    Each row continues the previous one. Padding at the end of the last batch, which may fill whole
    rows, has weight 0.

    Args:
        documents: `tf.data.Dataset` of scalar strings, as from `load_documents`.
        tokenizer: a tokenizer of `rt_keras.data`.
        sequence_length: int, number of tokens in a sequence.
        batch_size: int, number of sequences in a batch.
        start_token_id: int or None. If given, every sequence begins with this token; some models
            trained that way fail without it. If None, end of text precedes each document. Defaults
            to None.

    Returns:
        `tf.data.Dataset` of ({"token_ids": int32, "padding_mask": bool}, labels int32, weights
        float32), all `[batch_size, sequence_length]`. The weights sum to the number of tokens,
        including one end of text per document.

    Raises:
        ValueError: if a number is out of range, or if the tokenizer has a `sequence_length` and
            would truncate documents.

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
    check_whole(tokenizer)
    length = length_after(start_token_id, sequence_length)
    size, pad = batch_size * length, tokenizer.pad_token_id

    def sequence(document):
        stream = document_stream(document, tokenizer, start_token_id)
        return stream[:-1], stream[1:], tf.ones_like(stream[1:], tf.bool)

    def batch(*parts):
        inputs, labels, real = (tf.reshape(part, [batch_size, length]) for part in parts)
        return {"token_ids": inputs, "padding_mask": real}, labels, tf.cast(real, tf.float32)

    stream = documents.map(sequence, num_parallel_calls=tf.data.AUTOTUNE).rebatch(size)
    batches = stream.padded_batch(1, ([size],) * 3, (pad, pad, False)).map(batch)
    if start_token_id is not None:
        batches = batches.map(starting(start_token_id, pad))
    return batches.prefetch(tf.data.AUTOTUNE)


def document_stream(document, tokenizer, start_token_id=None):
    """Returns the tokens of a document after a start token and before end of text, int32.

    The start token is end of text if None is given.
    """
    end = tokenizer.end_token_id
    start = end if start_token_id is None else start_token_id
    return tf.concat([[start], tf.cast(tokenizer(document), tf.int32), [end]], axis=0)


def length_after(start_token_id, sequence_length):
    """Returns the length of a sequence without its start token, if it has one.

    Raises:
        ValueError: if no tokens remain.
    """
    if start_token_id is None:
        return sequence_length
    if sequence_length < 2:
        raise wrong_value("sequence_length", "at least 2 with a start token", sequence_length)
    return sequence_length - 1


def starting(start_token_id, pad_token_id):
    """Returns a function that prepends a start token to sequences that do not begin with one.

    The token after it has weight 0, since it is already a label in the previous sequence. A
    sequence that begins with a start token is padded at its end instead.

    Args:
        start_token_id, pad_token_id: ints.

    Returns:
        A function that maps inputs, labels and weights of shape `[..., length]` to those of shape
        `[..., length + 1]`.

    >>> weights = tf.ones([2, 2])
    >>> inputs = {"token_ids": tf.constant([[5, 6], [1, 8]]), "padding_mask": weights > 0}
    >>> labels = tf.constant([[6, 7], [8, 9]])
    >>> found, labels, weights = starting(1, 0)(inputs, labels, weights)
    >>> print(found["token_ids"].numpy(), labels.numpy(), weights.numpy(), sep="\\n")
    [[1 5 6]
     [1 8 0]]
    [[5 6 7]
     [8 9 0]]
    [[0. 1. 1.]
     [1. 1. 0.]]
    """

    def start(inputs, labels, weights):
        ids, mask = inputs["token_ids"], inputs["padding_mask"]
        first = ids[..., :1]

        def with_one_more(x, before, after):
            at_end, at_start = tf.concat([x, after], axis=-1), tf.concat([before, x], axis=-1)
            return tf.where(first == start_token_id, at_end, at_start)

        pad, nothing = tf.fill(tf.shape(first), pad_token_id), tf.zeros_like(weights[..., :1])
        inputs = {
            "token_ids": with_one_more(ids, tf.fill(tf.shape(first), start_token_id), pad),
            "padding_mask": with_one_more(mask, mask[..., :1], tf.zeros_like(mask[..., :1])),
        }
        labels = with_one_more(labels, first, pad)
        return inputs, labels, with_one_more(weights, nothing, nothing)

    return start


def separate_documents(end_token_id):
    """Returns a function that marks the documents of packed batches, which then stay apart.

    With "segment_ids", positions of a `rt_keras.models.RoutingTransformerCausalLM` do not see other
    documents in their row, and count from the start of their own.

    Args:
        end_token_id: int, the token that begins each document.

    Returns:
        A function for `map` of `training_dataset` and `evaluation_dataset`. It maps inputs, labels
        and weights to the same, with "segment_ids" among the inputs, int32 `[..., length]`.

    >>> inputs = {"token_ids": tf.constant([[5, 1, 6, 7, 1]])}
    >>> found, _, _ = separate_documents(1)(inputs, None, None)
    >>> found["segment_ids"].numpy().tolist()
    [[0, 1, 1, 1, 2]]
    """

    def separate(inputs, labels, weights):
        begins = tf.cast(inputs["token_ids"] == end_token_id, tf.int32)
        return {**inputs, "segment_ids": tf.cumsum(begins, axis=-1)}, labels, weights

    return separate


def check_whole(tokenizer):
    """Raises a ValueError if a tokenizer truncates documents."""
    if tokenizer.sequence_length is not None:
        raise ValueError(
            "tokenizer must have sequence_length=None, or it truncates the documents. Received: "
            f"sequence_length={tokenizer.sequence_length}"
        )
