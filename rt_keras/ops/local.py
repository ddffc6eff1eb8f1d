"""Local attention: every query against the blocks around its own, in one dimension or more."""

import functools
import itertools
import math

import tensorflow as tf

from rt_keras.ops.attend import attend, in_parts
from rt_keras.ops.blocks import ceil_div, join_blocks, neighbour_blocks, size, split_blocks
from rt_keras.ops.chunks import over_heads
from rt_keras.ops.relative import window_bias, window_values


def local_attention(
    query,
    key,
    value,
    *,
    block_size,
    look_back=1,
    grid=None,
    key_block_size=None,
    causal=False,
    query_mask=None,
    key_mask=None,
    token_bias=None,
    relative_embeddings=None,
    relative_values=None,
    reference=False,
    dropout=0.0,
    seed=None,
):
    """Attention of each block of queries to its own block and those beside it.

    ```
    output_i = sum_(j in N(i)) softmax_j(query_i · (key_j + r_ij) / sqrt(depth) + t_j)
               (value_j + s_ij)
    ```

    N(i) are the positions of i's block and of the `look_back` blocks before it, those up to i if
    causal; else the `look_back` blocks after it as well. The cost is O(n · block_size).

    In more than one dimension blocks tile an image, and lie on a `grid`. Positions are then in
    the order of `rt_keras.ops.to_blocks`: block by block in raster order, inside a block likewise.
    N(i) are the blocks at most `look_back` away along each dimension; if causal, those of them
    that come before i's in this order, and the positions up to i in its own.

    Args:
        query: `[batch, heads, length, depth]`.
        key: `[batch, heads, keys, depth]`, or None for the queries themselves.
        value: `[batch, heads, keys, value_depth]`.
        block_size: positions in a block. The length need not be a multiple of it.
        look_back: blocks before its own that a query sees; an int, or one for each dimension.
        grid: number of blocks along each dimension, whose product times `block_size` is the
            length; None for a sequence.
        key_block_size: where keys are another sequence: positions in a block of it, so that both
            have as many blocks. None for the same sequence, or one of the same length.
        causal: whether query i sees key j only if j <= i.
        query_mask: bool `[batch, length]`, False for padding, whose output is 0.
        key_mask: bool `[batch, keys]`, False for padding, which no query sees.
        token_bias: `[batch, keys]`, t above.
        relative_embeddings: `[heads, 2 m + 1, depth]`, of r_ij, which depends on i - j; further
            distances count as m. Distances in more than one dimension, or to keys in blocks of
            another size, are those of the places in N(i). A first axis of 1 is for all heads.
        relative_values: `[heads, 2 m + 1, value_depth]`, of s_ij, likewise.
        reference: whether to compute what the code of the paper's authors does, for its
            checkpoints alone: relative distances are those to a block of queries that stands last
            in its window, which differs where N(i) goes on behind i's block; padded queries are
            not masked; a query without keys gets the mean of its window.
        dropout: share of the attention weights set to 0.
        seed: int `[2]`, needed where `dropout` is above 0.

    Returns:
        `[batch, heads, length, value_depth]`. A query that may see no key gets 0.

    Raises:
        ValueError: if queries and keys differ in length without a `key_block_size`, have different
            numbers of blocks with it, or do not fill the grid.

    Source: Roy et al. 2021, Efficient Content-Based Sparse Attention with Routing Transformers,
    section 3.2; images: Parmar et al. 2018, Image Transformer, section 3.1; r and s: Shaw et al.
    2018.

    >>> x = tf.random.normal([1, 2, 10, 4])
    >>> local_attention(x, x, x, block_size=4, causal=True).shape
    TensorShape([1, 2, 10, 4])
    """
    key = query if key is None else key
    query, key, value = (tf.convert_to_tensor(x) for x in (query, key, value))
    length, keys = size(query, 2), size(key, 2)
    _check_blocks(length, block_size, keys, key_block_size, grid)
    key_block_size = key_block_size or block_size
    if causal and key_block_size != block_size:
        raise ValueError("Causal attention needs queries and keys of one sequence.")
    query *= query.shape[-1] ** -0.5
    grid = grid or (ceil_div(length, block_size),)
    look_back = (look_back,) * len(grid) if isinstance(look_back, int) else tuple(look_back)
    logits = size(query, 0) * size(query, 1) * length * key_block_size
    logits *= math.prod(2 * count + 1 for count in look_back)
    options = {
        "block_size": block_size,
        "key_block_size": key_block_size,
        "grid": grid,
        "look_back": look_back,
        "causal": causal,
        "reference": reference,
        "dropout": dropout,
    }
    return over_heads(
        lambda arguments: _local_attention(arguments, length, **options),
        {
            "query": query,
            "key": key,
            "value": value,
            "relative_embeddings": relative_embeddings,
            "relative_values": relative_values,
        },
        {
            "query_mask": query_mask,
            "key_mask": key_mask,
            "token_bias": token_bias,
            "seed": seed,
        },
        logits,
        value.dtype,
    )


def _check_blocks(length, block_size, keys, key_block_size, grid):
    """Says why blocks of queries and of keys do not go together, as far as sizes are known."""
    if not (isinstance(length, int) and isinstance(keys, int)):
        return
    if key_block_size is None and length != keys:
        raise ValueError(
            "Local attention needs as many keys as queries, or a key_block_size. Received: query "
            f"of length {length}, key of length {keys}."
        )
    key_block_size = key_block_size or block_size
    blocks, key_blocks = ceil_div(length, block_size), ceil_div(keys, key_block_size)
    if blocks != key_blocks:
        raise ValueError(
            "Local attention needs as many blocks of keys as of queries. Received: query of length "
            f"{length} in blocks of {block_size}, key of length {keys} in blocks of "
            f"{key_block_size}."
        )
    if grid is not None and math.prod(grid) * block_size != length:
        raise ValueError(
            f"A grid of {'x'.join(map(str, grid))} blocks of {block_size} positions has "
            f"{math.prod(grid) * block_size}. Received: query of length {length}."
        )


def _local_attention(
    arguments, length, block_size, key_block_size, grid, look_back, causal, reference, dropout
):
    after = (0 if causal else look_back[0], *look_back[1:])
    own = place_of_own_block(look_back, after)

    def windows(x, fill=0):
        return neighbour_blocks(x, key_block_size, grid, look_back, after, fill)

    query = split_blocks(arguments["query"], math.prod(grid), block_size)
    key, value = windows(arguments["key"]), windows(arguments["value"])
    real = windows(tf.ones([1, 1, size(arguments["key"], 2)], tf.bool))
    if "key_mask" in arguments:
        real &= windows(tf.cast(arguments["key_mask"], tf.bool)[:, None])
    query_mask = key_bias = None
    if "query_mask" in arguments and not reference:
        query_mask = tf.cast(arguments["query_mask"], tf.bool)[:, None]
        query_mask = split_blocks(query_mask, math.prod(grid), block_size)
    if "token_bias" in arguments:
        key_bias = windows(tf.cast(arguments["token_bias"], query.dtype)[:, None])
    offset = key.shape[3] - block_size if reference else own * key_block_size
    # In more dimensions, keys that stand behind the own block in the window may come before it.
    one_way = causal and len(grid) == 1

    def attend_rows(rows, seen, seed):
        of_rows, start = query[..., rows, :], offset + (rows.start or 0)
        count = len(range(key.shape[3])[seen])
        allowed = (real[..., None, seen],)
        if causal:
            places = tf.range(block_size)[rows, None] + own * block_size
            allowed += (tf.range(count) <= places,)
        if query_mask is not None:
            allowed += (query_mask[..., rows, None],)
        bias = None if key_bias is None else key_bias[..., None, seen]
        relative_values = None
        if "relative_embeddings" in arguments:
            table = arguments["relative_embeddings"]
            relative = window_bias(of_rows, table, count, start, one_way)
            bias = relative if bias is None else bias + relative
        if "relative_values" in arguments:
            relative_values = functools.partial(
                window_values,
                embeddings=arguments["relative_values"],
                offset=start,
                causal=one_way,
            )
        return attend(
            of_rows,
            key[..., seen, :],
            value[..., seen, :],
            allowed,
            bias=bias,
            relative_values=relative_values,
            reference=reference,
            dropout=dropout,
            seed=seed,
        )[0]

    # A query without keys gets the mean of the whole window in the reference.
    in_order = one_way and not (reference and "key_mask" in arguments)
    output = in_parts(attend_rows, block_size, in_order, own * block_size, arguments.get("seed"))
    return join_blocks(output, length)


def place_of_own_block(before, after):
    """How many blocks of a window come before the one that it belongs to."""
    ranges = [range(-low, high + 1) for low, high in zip(before, after)]
    return list(itertools.product(*ranges)).index((0,) * len(ranges))
