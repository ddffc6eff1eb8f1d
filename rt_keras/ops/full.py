"""Full attention: every query against every key."""

import tensorflow as tf

from rt_keras.ops import chunks
from rt_keras.ops.attend import accumulation_dtype, attend
from rt_keras.ops.blocks import (
    ceil_div,
    join_blocks,
    move_axis,
    repeat_heads,
    size,
    sizes,
    split_blocks,
)
from rt_keras.ops.devices import runs_on_cpu_kernels
from rt_keras.ops.lengths import larger
from rt_keras.ops.relative import window_bias
from rt_keras.ops.spans import Spans, attend_to_spans


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

    Time is O(n²). Memory is bounded if shapes are static: at most `chunks.logits_at_once()` logits,
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
    _, heads, length, _ = sizes(query)
    keys = size(key, 2)
    query *= query.shape[-1] ** -0.5
    if runs_on_cpu_kernels() and attention_mask is None and relative_embeddings is None:
        spans = Spans(causal=causal, numbers=documents)
        found = attend_to_spans(query, key, value, spans, query_mask, key_mask, dropout, seed)
        return found if return_logsumexp else found[0]
    # An unknown batch counts as one row.
    num_blocks, block_size = _blocks_of_queries(query.shape[0] or 1, heads, length, keys)

    def in_blocks(x):
        """Splits `[batch, heads, queries, ...]` to `[blocks, batch, heads, block_size, ...]`."""
        return move_axis(split_blocks(x, num_blocks, block_size), 2, 0)

    sliced = {"query": in_blocks(query)}
    sliced["start"] = tf.range(num_blocks) * block_size
    whole = {"key": repeat_heads(key, heads), "value": repeat_heads(value, heads)}
    if query_mask is not None:
        sliced["query_mask"] = in_blocks(tf.cast(query_mask, tf.bool)[:, None])
    if attention_mask is not None:
        of_pairs = tf.cast(attention_mask, tf.bool)
        sliced["attention_mask"] = in_blocks(
            of_pairs[:, None] if of_pairs.shape.rank == 3 else of_pairs
        )
    if key_mask is not None:
        whole["key_mask"] = tf.cast(key_mask, tf.bool)
    if documents is not None:
        sliced["documents"], whole["documents_of_keys"] = in_blocks(documents[:, None]), documents
    if relative_embeddings is not None:
        whole["relative_embeddings"] = tf.convert_to_tensor(relative_embeddings)
    if dropout:
        sliced["seed"] = tf.random.split(seed, num_blocks)

    def attend_block(part, whole):
        found = _attend_block({**part, **whole}, causal, dropout)
        return found if return_logsumexp else found[0]

    if num_blocks > 1:
        dtype = value.dtype
        if return_logsumexp:
            dtype = dtype, accumulation_dtype(query.dtype)
        found = chunks.map_chunks(attend_block, sliced, whole, dtype)
    else:
        found = attend_block({name: x[0] for name, x in sliced.items()}, whole)
        found = tf.nest.map_structure(lambda x: x[None], found)
    return tf.nest.map_structure(lambda x: join_blocks(move_axis(x, 0, 2), length), found)


def _blocks_of_queries(batch, heads, length, keys):
    """Returns the number and size of the blocks of queries whose logits stay within the limit."""
    if not all(isinstance(x, int) for x in (batch, heads, length, keys)):
        return 1, larger(length, 1)
    logits_of_one = max(1, batch * heads * keys)
    block_size = max(1, min(length, chunks.logits_at_once() // logits_of_one))
    return max(1, ceil_div(length, block_size)), block_size


def _attend_block(block, causal, dropout):
    """Computes the attention of one block of queries to all keys, and the logsumexp."""
    query, key, value = block["query"], block["key"], block["value"]
    keys = size(key, 2)
    allowed = tf.ones([1, 1, 1, 1], tf.bool)
    if causal:
        of_keys, of_queries = _positions(query, keys, block["start"])
        allowed = (of_keys <= of_queries[:, None])[None, None]
    if "key_mask" in block:
        allowed &= tf.expand_dims(block["key_mask"][:, None], 1)
    if "query_mask" in block:
        allowed &= tf.expand_dims(block["query_mask"], -1)
    if "attention_mask" in block:
        allowed &= block["attention_mask"]
    if "documents" in block:
        allowed &= block["documents"][..., None] == block["documents_of_keys"][:, None, None]
    bias = None
    if "relative_embeddings" in block:
        table = block["relative_embeddings"]
        bias = window_bias(query[:, :, None], table, keys, block["start"])[:, :, 0]
    return attend(query, key, value, allowed, bias=bias, dropout=dropout, seed=block.get("seed"))


def _positions(query, keys, start):
    """Returns the positions of all keys, and of a block of queries that begins at `start`.

    TensorFlow would fold their comparison into a constant of n² bytes, so they are made to depend
    on an input: the argmax of a single number, which is 0. They are floats, exact up to 2²⁴, which
    XLA on a CPU compares as fast as it reads such a constant.
    """
    zero = tf.reduce_sum(tf.argmax(query[:1, :1, :1, :1], axis=-1, output_type=tf.int32))
    positions = tf.range(keys), start + tf.range(size(query, 2))
    return (tf.cast(zero + x, tf.float32) for x in positions)
