"""Documents that share a row and do not see one another."""

import tensorflow as tf

from rt_keras.ops.blocks import size, sizes
from rt_keras.ops.nearest.assign import sums_before


def number_documents(segment_ids):
    """Numbers the documents of each row, which are runs of equal segment ids.

    Args:
        segment_ids: int `[batch, length]`.

    Returns:
        int32 `[batch, length]`, 0 for the positions of a row's first document.

    >>> number_documents([[7, 7, 3, 3, 7]]).numpy().tolist()
    [[0, 0, 1, 1, 2]]
    """
    ids = tf.convert_to_tensor(segment_ids)
    # A row may be empty, and then has no position before another.
    before = tf.concat([ids[:, :1], ids[:, :-1]], axis=1)
    return _count_up_to(ids != before)


def positions_in_documents(documents):
    """Returns the position of each token in its document.

    Args:
        documents: int `[batch, length]`; see `number_documents`.

    Returns:
        int32 `[batch, length]`.

    >>> positions_in_documents(tf.constant([[0, 0, 1, 1, 1]])).numpy().tolist()
    [[0, 1, 0, 1, 2]]
    """
    places = tf.zeros_like(documents) + tf.range(size(documents, 1))
    return places - reduce_in_documents(tf.math.unsorted_segment_min, places, documents)


def blocks_of_documents(documents, block_size, look_back):
    """Numbers the blocks of all documents, such that no block is near one of another document.

    Args:
        documents: int `[batch, length]`; see `number_documents`.
        block_size: int, positions in a block, the first of which begins with its document.
        look_back: int, number of blocks that are near a block on each side.

    Returns:
        int32 `[batch, length]`. Positions are in blocks that are at most `look_back` apart only if
        they are in one document.

    >>> blocks_of_documents(tf.constant([[0, 0, 0, 1]]), block_size=2, look_back=1).numpy().tolist()
    [[0, 0, 1, 4]]
    """
    position = positions_in_documents(documents)
    start = tf.range(size(documents, 1)) - position
    # At most one block begins at each position.
    return start + position // block_size + documents * look_back


def number_long_documents(documents, longest):
    """Numbers the documents of each row that are longer than a number of positions.

    Args:
        documents: int `[batch, length]`; see `number_documents`.
        longest: int, number of positions.

    Returns:
        int32 `[batch, length]`, -1 for the positions of other documents.

    >>> number_long_documents(tf.constant([[0, 0, 1, 2, 2, 2]]), 1).numpy().tolist()
    [[0, 0, -1, 1, 1, 1]]
    """
    position = positions_in_documents(documents)
    is_long = reduce_in_documents(tf.math.unsorted_segment_max, position, documents) >= longest
    return tf.where(is_long, _count_up_to(is_long & (position == 0)) - 1, -1)


def count_documents(documents):
    """Returns the largest number of documents in a row, an int scalar."""
    # A row may be empty.
    return tf.reduce_max(tf.pad(documents, [[0, 0], [0, 1]])) + 1


def _count_up_to(mask):
    """Counts the positions up to each one at which a mask `[batch, length]` is True, int32."""
    # [batch, 1, 1, length, 1]
    ones = tf.cast(mask, tf.float32)[:, None, None, :, None]
    return tf.cast((sums_before(ones) + ones)[:, 0, 0, :, 0], tf.int32)


def reduce_in_documents(reduce, x, documents):
    """Reduces a number of each position over those of its document, `[batch, length]`."""
    batch, length = sizes(documents)
    rows = tf.range(batch)[:, None] * length + documents
    return tf.gather(reduce(x, rows, batch * length), rows)
