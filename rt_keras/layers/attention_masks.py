"""Conversion of Keras attention masks to the masks of head groups."""

import typing

import tensorflow as tf

from rt_keras.ops.blocks import size


class Masks(typing.NamedTuple):
    """An attention mask in the form that head groups take; the other two are None."""

    # bool [batch, queries]
    query: typing.Any = None
    # bool [batch, keys]
    key: typing.Any = None
    # bool [batch or 1, heads or 1, queries, keys or 1]
    pairs: typing.Any = None


def split_attention_mask(attention_mask, num_heads, query, value):
    """Converts an attention mask to a mask of queries, of keys, or of query-key pairs.

    As in `keras.layers.MultiHeadAttention`, a mask is broadcast to `[batch, heads, queries, keys]`.
    A three-dimensional mask has no axis of heads, and a two-dimensional mask also has no batch
    axis. A mask that all queries share becomes a mask of keys, which every head group supports. A
    mask that all keys share becomes a mask of queries.

    Args:
        attention_mask: bool or int `[queries, keys]`, `[batch, queries, keys]` or
            `[batch, heads, queries, keys]`, in which every axis may be 1.
        num_heads: int, number of heads.
        query: `[batch, queries, features]`.
        value: `[batch, keys, features]`.

    Returns:
        `Masks`, of which one is not None.

    Raises:
        ValueError: if the mask does not broadcast.

    >>> x = tf.zeros([2, 5, 8])
    >>> masks = split_attention_mask(tf.ones([2, 1, 1, 5]), num_heads=4, query=x, value=x)
    >>> masks.key.shape.as_list()
    [2, 5]
    """
    mask = tf.cast(attention_mask, tf.bool)
    check_attention_mask(mask.shape, num_heads, query.shape, value.shape)
    if mask.shape.rank == 2:
        mask = mask[None]
    if mask.shape.rank == 3:
        mask = mask[:, None]
    # [batch or 1, heads or 1, queries or 1, keys or 1]
    batch, queries, keys = size(query, 0), size(query, 1), size(value, 1)
    _, heads, mask_queries, mask_keys = mask.shape
    if heads == mask_queries == 1:
        return Masks(key=tf.broadcast_to(mask[:, 0, 0], [batch, keys]))
    if heads == mask_keys == 1:
        return Masks(query=tf.broadcast_to(mask[:, 0, :, 0], [batch, queries]))
    if mask_queries == 1:
        mask = tf.repeat(mask, queries, axis=2)
    return Masks(pairs=mask)


def check_attention_mask(shape, num_heads, query_shape, value_shape):
    """Raises a ValueError if an attention mask of this shape cannot be broadcast.

    Args:
        shape: shape of the mask.
        num_heads: int, number of heads.
        query_shape: `(batch, queries, features)`; None is compatible with every size.
        value_shape: `(batch, keys, features)`.
    """
    wanted = (query_shape[0], num_heads, query_shape[1], value_shape[1])
    shape = tuple(shape)
    expected = wanted if len(shape) == 4 else (wanted[0], *wanted[2:])[-len(shape) :]
    fits = all(a in (1, None) or b in (a, None) for a, b in zip(shape, expected))
    if len(shape) not in (2, 3, 4) or not fits:
        raise ValueError(
            "attention_mask must broadcast to [queries, keys], [batch, queries, keys] or [batch, "
            f"heads, queries, keys], here {wanted} with all axes. Pass a padding mask [batch, "
            f"keys] as value_mask. Received: attention_mask of shape {shape}"
        )
