"""Full attention: every query against every key, in one pass, in chunks and in decode steps."""

import functools

import tensorflow as tf

from rt_keras.ops.attend import (
    accumulation_dtype,
    attend,
    attend_folded,
    attend_step,
    merge_sets,
    no_attention,
    without_padding,
)
from rt_keras.ops.blocks import (
    ceil_div,
    join_blocks,
    larger,
    move_axis,
    places_of_rows,
    real_positions,
    repeat_heads,
    repeat_rows,
    size,
    sizes,
    split_blocks,
)
from rt_keras.ops.caches import check_position, from_rows, pad_to, write, write_chunk
from rt_keras.ops.cpu_kernels import attend_to_spans
from rt_keras.ops.devices import runs_on_cpu_kernels
from rt_keras.ops.local.neighborhood import Neighborhood
from rt_keras.ops.naive import naive_attention, naive_mask
from rt_keras.ops.relative import pair_bias, window_bias
from rt_keras.ops.slices import logits_at_once, map_slices

# Number of keys that the queries of a chunk attend to at once, in longer caches.
KEYS_AT_ONCE = 1024


def naive_full_attention(
    query, key, value, *, attention_mask=None, relative_embeddings=None, **masks
):
    """Computes `full_attention` by its equation, in NumPy. `masks` are those of `naive_mask`."""
    key = query if key is None else key
    allowed = naive_mask(query.shape[2], key.shape[2], **masks)
    if attention_mask is not None:
        allowed = allowed & attention_mask[:, None]
    return naive_attention(query, key, value, allowed, relative_embeddings)


def full_attention(
    query,
    key,
    value,
    *,
    causal=False,
    query_mask=None,
    key_mask=None,
    attention_mask=None,
    documents=None,
    relative_embeddings=None,
    dropout=0.0,
    seed=None,
    return_logsumexp=False,
):
    """Computes scaled dot-product attention of every query to every key.

    ```
    output_i = sum_j softmax_j(query_i · (key_j + r_(i - j)) / sqrt(depth)) value_j
    ```

    Time is O(n²). Memory is bounded if shapes are static: at most `slices.logits_at_once()` logits,
    or those of one query position, exist at once.

    Args:
        query: `[batch, heads, queries, depth]`.
        key: `[batch, key_heads, keys, depth]`, or None for the queries themselves. Each key head
            serves heads / key_heads consecutive query heads.
        value: `[batch, key_heads, keys, value_depth]`.
        causal: bool, whether query i sees key j only if j <= i. Defaults to False.
        query_mask: bool `[batch, queries]`, False for padding, whose output is 0; or None.
        key_mask: bool `[batch, keys]`, False for padding, which no query sees; or None.
        attention_mask: bool `[batch, queries, keys]` or `[batch, heads, queries, keys]`, True for
            keys that a query may see; or None. All axes but that of the queries may be of size 1.
        documents: int `[batch, length]`, see `rt_keras.ops.documents.number_documents`, which do
            not see one another; or None.
        relative_embeddings: `[heads, 2 m + 1, depth]`, r above; distances are clipped to ±m. None
            for no relative positions.
        dropout: float, share of the attention weights set to 0. Defaults to 0.
        seed: int `[2]`, needed if `dropout` is above 0.
        return_logsumexp: bool, whether to also return the logsumexp of each query's logits, which
            `merge` needs to combine the output with attention to other keys. Defaults to False.

    Returns:
        `[batch, heads, queries, value_depth]`. A query that may see no key gets 0. With
        `return_logsumexp` also the logsumexp `[batch, heads, queries]`, float32 (float64 for
        float64 queries).

    Source: Vaswani et al. 2017, Attention Is All You Need, section 3.2.1; r: Shaw et al. 2018.

    >>> x = tf.random.normal([1, 2, 5, 4])
    >>> full_attention(x, x, x, causal=True).shape
    TensorShape([1, 2, 5, 4])
    """
    key = query if key is None else key
    query, key, value = (tf.convert_to_tensor(x) for x in (query, key, value))
    query *= query.shape[-1] ** -0.5
    if runs_on_cpu_kernels() and attention_mask is None and relative_embeddings is None:
        # Documents are blocks that do not see one another.
        neighborhood = Neighborhood(look_back=0, causal=causal)
        options = {"block_numbers": documents, "dropout": dropout, "seed": seed}
        attended = attend_to_spans(query, key, value, neighborhood, key_mask=key_mask, **options)
    else:
        whole = {
            "key": repeat_heads(key, query.shape[1]),
            "value": repeat_heads(value, query.shape[1]),
            "key_mask": None if key_mask is None else tf.cast(key_mask, tf.bool),
            "documents": documents,
            "relative_embeddings": relative_embeddings,
        }
        attended = _attend_in_blocks(query, whole, attention_mask, causal, dropout, seed)
    output, logsumexp = without_padding(*attended, query_mask)
    return (output, logsumexp) if return_logsumexp else output


def _attend_in_blocks(query, whole, attention_mask, causal, dropout, seed):
    """Computes the attention of scaled queries to `whole` arguments, some queries at a time."""
    (_, heads, length, _), keys = sizes(query), size(whole["key"], 2)
    whole = {name: tf.convert_to_tensor(x) for name, x in whole.items() if x is not None}
    # An unknown batch counts as one row.
    num_blocks, block_size = _blocks_of_queries(query.shape[0] or 1, heads, length, keys)
    blocks = {"query": query}
    if attention_mask is not None:
        mask = tf.cast(attention_mask, tf.bool)
        blocks["attention_mask"] = mask[:, None] if mask.shape.rank == 3 else mask
    if "documents" in whole:
        blocks["documents"] = whole["documents"][:, None]
    for name, x in blocks.items():
        # [batch, heads or 1, queries, ...] to [blocks, batch, heads or 1, block_size, ...]
        blocks[name] = move_axis(split_blocks(x, num_blocks, block_size), 2, 0)
    blocks["start"] = tf.range(num_blocks) * block_size
    if dropout:
        blocks["seed"] = tf.random.split(seed, num_blocks)
    attend_block = functools.partial(_attend_block, causal=causal, dropout=dropout)
    if num_blocks > 1:
        dtypes = whole["value"].dtype, accumulation_dtype(query.dtype)
        attended = map_slices(attend_block, blocks, whole, dtypes)
    else:
        attended = attend_block({name: x[0] for name, x in blocks.items()}, whole)
        attended = [x[None] for x in attended]
    # [blocks, batch, heads, block_size, ...] to [batch, heads, length, ...]
    return tuple(join_blocks(move_axis(x, 0, 2), length) for x in attended)


def _blocks_of_queries(batch, heads, length, keys):
    """Returns the number and size of the blocks of queries whose logits stay within the limit."""
    if not all(isinstance(x, int) for x in (batch, heads, length, keys)):
        return 1, larger(length, 1)
    logits_of_one = max(1, batch * heads * keys)
    block_size = max(1, min(length, logits_at_once() // logits_of_one))
    return max(1, ceil_div(length, block_size)), block_size


def _attend_block(block, whole, causal, dropout):
    """Computes the attention of a block of queries from "start" on to all keys; see `attend`."""
    query, start, keys, bias = block["query"], block["start"], size(whole["key"], 2), None
    allowed = tf.ones([1, 1, 1, 1], tf.bool)  # broadcastable to [batch, heads, block_size, keys]
    if causal:
        key_positions, query_positions = _positions(query, keys, start)
        allowed = (key_positions <= query_positions[:, None])[None, None]
    if "key_mask" in whole:
        allowed &= whole["key_mask"][:, None, None]
    if "attention_mask" in block:
        allowed &= block["attention_mask"]
    if "documents" in block:
        allowed &= block["documents"][..., None] == whole["documents"][:, None, None]
    if "relative_embeddings" in whole:
        table = whole["relative_embeddings"]
        bias = window_bias(query[:, :, None], table, keys, start)[:, :, 0]
    options = {"bias": bias, "dropout": dropout, "seed": block.get("seed")}
    return attend(query, whole["key"], whole["value"], allowed, **options)


def _positions(query, keys, start):
    """Returns the positions of all keys, and of a block of queries that begins at `start`.

    TensorFlow would fold their comparison into a constant of n² bytes, so they are made to depend
    on an input: the argmax of a single number, which is 0. They are floats, exact up to 2²⁴, which
    XLA on a CPU compares as fast as it reads such a constant.
    """
    zero = tf.reduce_sum(tf.argmax(query[:1, :1, :1, :1], axis=-1, output_type=tf.int32))
    positions = tf.range(keys), start + tf.range(size(query, 2))
    return (tf.cast(zero + x, tf.float32) for x in positions)


def full_cache(key, value, *, max_length):
    """Builds the cache of `full_step`: the keys and values of all positions.

    Args:
        key: `[batch, heads, length, depth]`, from the first position. Each step overwrites its own
            position and ignores later ones.
        value: `[batch, heads, length, value_depth]`.
        max_length: int, maximum length of the sequence.

    Returns:
        A dictionary of "key" and "value", `[batch, heads, max_length, ...]`.

    >>> x = tf.random.normal([1, 2, 5, 4])
    >>> full_cache(x, x, max_length=9)["key"].shape
    TensorShape([1, 2, 9, 4])
    """
    return {"key": pad_to(key, max_length), "value": pad_to(value, max_length)}


def full_step(
    query,
    key,
    value,
    cache,
    position,
    *,
    count=None,
    relative_embeddings=None,
    return_logsumexp=False,
):
    """Computes causal `full_attention` of one position, given the cache of earlier ones.

    Args:
        query: `[batch, heads, 1, depth]`.
        key: `[batch, heads, 1, depth]`.
        value: `[batch, heads, 1, value_depth]`.
        cache: the cache of `full_cache` or of the last step.
        position: int scalar, the query's position; or int `[batch]`, one for each row.
        count: int `[batch]`, 0 for rows whose position is padding: their cache is unchanged, and
            their outputs are undefined. Defaults to None, for no padding.
        relative_embeddings, return_logsumexp: see `full_attention`.

    Returns:
        `[batch, heads, 1, value_depth]`, or a pair of it and the logsumexp `[batch, heads, 1]`; and
        the cache with this position added.

    Raises:
        ValueError: if the position is known to be outside of the cache.

    >>> x = tf.random.normal([1, 2, 5, 4])
    >>> cache = full_cache(x[:, :, :4], x[:, :, :4], max_length=9)
    >>> last = x[:, :, 4:]
    >>> output, cache = full_step(last, last, last, cache, 4)
    >>> output.shape
    TensorShape([1, 2, 1, 4])
    """
    check_position(position, size(cache["key"], 2), count)
    cache = write(cache, places_of_rows(position, 0), count, key=key, value=value)
    distance = from_rows(position, -tf.range(size(cache["key"], 2)))  # [keys] or [batch, 1, keys]
    keys = cache["key"], cache["value"], distance[..., None, :] >= 0, distance
    options = {"relative_embeddings": relative_embeddings, "return_logsumexp": return_logsumexp}
    return attend_step(query, *keys, **options), cache


def full_cross_step(query, key, value, position, *, key_mask=None, relative_embeddings=None):
    """Computes `full_attention` of one position to another sequence.

    Args:
        query: `[batch, heads, queries, depth]`, any number of queries at the same position.
        key: `[batch, heads, keys, depth]`.
        value: `[batch, heads, keys, value_depth]`.
        position: int scalar, the queries' position.
        key_mask: bool `[batch, keys]`, False for padding; or None.
        relative_embeddings: `[heads, 2 m + 1, depth]`; or None.

    Returns:
        `[batch, heads, queries, value_depth]`.

    >>> x = tf.random.normal([1, 2, 5, 4])
    >>> full_cross_step(x[:, :, :1], x, x, 7).shape
    TensorShape([1, 2, 1, 4])
    """
    allowed = real_positions(size(key, 2), key_mask)[:, None, None]  # [batch or 1, 1, 1, keys]
    tables = {"relative_embeddings": relative_embeddings}
    distance = position - tf.range(size(key, 2))
    return attend_step(query, key, value, allowed, distance, causal=False, **tables)


def full_chunk(
    query,
    key,
    value,
    cache,
    position,
    *,
    count=None,
    relative_embeddings=None,
    dropout=0.0,
    seed=None,
    return_logsumexp=False,
):
    """Computes causal `full_attention` of a chunk, given the cache of earlier positions.

    In caches of more than `KEYS_AT_ONCE` slots, keys are read in blocks up to the last position,
    and the attention to each block is merged with that to the blocks before it. The number of
    logits in memory therefore does not grow with the cache, and empty slots cost nothing. XLA
    cannot compile the gradient of this loop.

    Args:
        query: `[batch, heads, length, depth]`.
        key: `[batch, key_heads, length, depth]`.
        value: `[batch, key_heads, length, value_depth]`.
        cache: the cache of `full_cache`, `full_step` or of the last chunk, with room for this one.
        position: int scalar, the chunk's first position; or int `[batch]`, one for each row.
        count: int scalar or `[batch]`, number of the chunk's positions that are not padding, the
            first ones. Outputs of padding are undefined. Defaults to None, for no padding.
        dropout, seed: see `full_attention`.
        relative_embeddings: `[heads, 2 m + 1, depth]`; or None.
        return_logsumexp: bool, whether to also return the logsumexp of the logits. Defaults to
            False.

    Returns:
        `[batch, heads, length, value_depth]`, or a pair of it and the logsumexp
        `[batch, heads, length]`; and the cache with these positions added.

    Raises:
        ValueError: if the chunk is known to exceed the cache.

    >>> x = tf.random.normal([1, 2, 9, 4])
    >>> cache = full_cache(x[:, :, :4], x[:, :, :4], max_length=9)
    >>> rest = x[:, :, 4:]
    >>> output, cache = full_chunk(rest, rest, rest, cache, 4)
    >>> output.shape
    TensorShape([1, 2, 5, 4])
    """
    length, room, heads = size(query, 2), size(cache["key"], 2), query.shape[1]
    count = length if count is None else count
    check_position(tf.reduce_max(position + count) - 1, room)
    cache = write_chunk(cache, position, count, key=key, value=value)
    query = query * query.shape[3] ** -0.5
    positions = places_of_rows(position, tf.range(length))  # [batch or 1, length]
    # The query heads of one key head become more queries of it: fewer and larger products.
    key_heads = key.shape[1] if relative_embeddings is None and not dropout else heads

    def attend_keys(first, number, start=0, seed=seed):
        """Computes attention to some keys of the cache; those before `start` are masked."""
        places, bias = first + tf.range(number), None
        distance = positions[:, :, None] - places  # [batch or 1, length, number]
        if relative_embeddings is not None:
            rows = tf.broadcast_to(positions[:, None], sizes(query)[:3])[:, :, None]
            bias = pair_bias(query[:, :, None], relative_embeddings, rows, places)[:, :, 0]
        allowed = ((distance >= 0) & (places >= start))[:, None]
        allowed = repeat_rows(allowed, heads // key_heads)
        keys = repeat_heads(_keys_at(cache["key"], first, number), key_heads)
        values = repeat_heads(_keys_at(cache["value"], first, number), key_heads)
        options = {"bias": bias, "dropout": dropout, "seed": seed}
        return attend_folded(query, keys, values, allowed, **options)

    if not isinstance(room, int) or room <= KEYS_AT_ONCE:
        attended = attend_keys(0, room)
    else:
        filled = tf.minimum(tf.reduce_max(position + count), room)
        nothing = no_attention(query, value)
        attended = _over_keys(attend_keys, nothing, room, filled, dropout, seed)
    return attended if return_logsumexp else attended[0], cache


def _over_keys(attend_keys, nothing, room, filled, dropout, seed):
    """Computes attention to the first `filled` keys, `KEYS_AT_ONCE` after the other."""
    blocks = ceil_div(room, KEYS_AT_ONCE)
    seeds = tf.random.split(seed, blocks) if dropout else None

    def attend_block(number, *attended):
        start = number * KEYS_AT_ONCE
        # The last block is as long as the others, and overlaps the previous one if needed.
        first = tf.minimum(start, room - KEYS_AT_ONCE)
        block_seed = None if seeds is None else seeds[number]
        block = attend_keys(first, KEYS_AT_ONCE, start, block_seed)
        return number + 1, *merge_sets(attended, block, return_logsumexp=True)

    _, *attended = tf.while_loop(
        lambda number, *_: number * KEYS_AT_ONCE < filled,
        attend_block,
        (0, *nothing),
        maximum_iterations=blocks,
    )
    return tuple(attended)


def _keys_at(x, first, number):
    """Slices `number` places of a cache, `[batch, key_heads, number, depth]`."""
    batch, heads, _, depth = sizes(x)
    return tf.slice(x, [0, 0, first, 0], [batch, heads, number, depth])
