"""Reading chunks with several documents into caches, of which each begins with an empty one."""

import tensorflow as tf

from rt_keras.arguments import wrong_value
from rt_keras.ops.blocks import pad_axis, size
from rt_keras.ops.caches import where_counted
from rt_keras.ops.documents import count_documents, number_documents, positions_in_documents
from rt_keras.ops.left_padding import leading_padding, roll_rows


def read_documents(layer, inputs, cache, position, count, training, segment_ids, reads_chunks):
    """Reads the documents of a chunk one after the other.

    Args:
        layer: layer with `new_cache` and `call_with_cache`, such as `MultiHeadAttention`.
        inputs: `[batch, length, ...]`.
        cache: the cache of the positions before the chunk.
        position: int scalar or `[batch]`, number of positions of the chunk's first document before
            the chunk. If it is 0, that document begins here.
        count: int `[batch]`, number of positions that are not padding; or None for all.
        training: bool, which must be False.
        segment_ids: int `[batch, length]`; see `number_documents`.
        reads_chunks: bool, whether the layer reads chunks with padding; if not, it reads one
            position at a time.

    Returns:
        `[batch, length, features]`, and the cache of the last document of each row.

    Raises:
        ValueError: if `training` is True.
    """
    if training:
        raise wrong_value("training", "False with segment_ids and a cache", training)
    empty = _empty_like(cache, layer.new_cache(size(inputs, 0), 1))
    documents, length = number_documents(segment_ids), size(inputs, 1)
    positions = positions_in_documents(documents)
    positions += tf.where(documents == 0, tf.reshape(position, [-1, 1]), 0)
    pieces = documents if reads_chunks else tf.zeros_like(documents) + tf.range(length)
    is_real = tf.range(length) < (length if count is None else count[:, None])

    def read_piece(piece, cache):
        here = (pieces == piece) & is_real
        before, real_count = leading_padding(here), tf.reduce_sum(tf.cast(here, tf.int32), axis=1)
        start = tf.gather(positions, before, batch_dims=1)
        begun = tf.where(start == 0, real_count, 0)
        cache = tf.nest.map_structure(lambda x, y: where_counted(begun, x, y), empty, cache)
        chunk = roll_rows(inputs, -before)
        chunk = chunk if reads_chunks else chunk[:, :1]
        output, cache = layer.call_with_cache(chunk, cache, start, count=real_count)
        output = roll_rows(pad_axis(output, 1, 0, length - size(output, 1)), before)
        return tf.where(here[..., None], output, tf.zeros([], output.dtype)), cache

    def step(piece, outputs, cache):
        output, cache = read_piece(piece, cache)
        return piece + 1, outputs + output, cache

    outputs, cache = read_piece(0, cache)
    loop = tf.constant(1), outputs, cache
    _, outputs, cache = tf.while_loop(lambda x, *_: x < count_documents(pieces), step, loop)
    return outputs, cache


def _empty_like(cache, short):
    """Returns an empty cache of the structure of another, given one for short sequences.

    Caches that grow with the sequence, or that only long ones need, begin with zeros.
    """
    if isinstance(cache, dict):
        return {name: _empty_like(x, (short or {}).get(name)) for name, x in cache.items()}
    if isinstance(cache, tuple):
        return tuple(map(_empty_like, cache, short))
    return tf.zeros_like(cache) if short is None or short.shape != cache.shape else short
