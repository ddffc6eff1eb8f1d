"""Attention to a local window and, under the same softmax, to the keys of a cluster."""

import tensorflow as tf

from rt_keras.ops.attend import merge_pair
from rt_keras.ops.blocks import repeat_heads
from rt_keras.ops.convolution import causal_convolution
from rt_keras.ops.local import local_attention
from rt_keras.ops.nearest import nearest_attention


def local_routing_attention(
    query,
    key,
    value,
    centroids,
    *,
    block_size,
    window_size,
    look_back=1,
    shift_keys=False,
    causal=False,
    num_probes=1,
    load_bias=None,
    routed_scale=None,
    routed_bias=None,
    routed_kernel=None,
    query_mask=None,
    key_mask=None,
    relative_embeddings=None,
    normalize=True,
    dropout=0.0,
    seed=None,
    return_logsumexp=False,
):
    """Attention of each query to the keys around it and to the last ones of its cluster.

    With W(i) the window that `local_attention` gives to i, N(i) the positions outside it that
    `nearest_attention` gives to i, and q, k the normalised queries and keys:

    ```
    output_i = sum_j softmax_j(logit_ij) value_j    over j in W(i) and N(i)
    logit_ij = query_i · (key_j + r_(i - j)) / sqrt(depth)    for j in W(i)
    logit_ij = s q_i · k_j / sqrt(depth) + b                  for j in N(i)
    ```

    No key is in both. With `shift_keys` k_j is q_(j - 1), another key than that of the window, and
    N(i) are all positions that `nearest_attention` gives to i with `shift_keys`, those in the
    window too. With a `routed_kernel` w, the queries and keys of clusters tell of the positions
    before their own too:

    ```
    q_i = normalize(sum_s w_s ⊙ query_(i - s))
    ```

    where queries before the first position, and those of padding, are 0. Only positions up to i
    are in it, causal or not. The window keeps the queries as they are.

    The two parts are computed apart and joined by their logsumexp. Grouped queries, of more heads
    than keys: see `nearest_attention`.

    Args:
        query: `[batch, heads, length, depth]`.
        key: `[batch, key_heads, length, depth]`.
        value: `[batch, key_heads, length, value_depth]`.
        centroids: `[key_heads, clusters, depth]`.
        block_size: int, positions in a block of the local window.
        window_size: int, the most keys that a query attends to in one cluster.
        look_back: int, blocks before its own that are in a query's window, and after it if not
            causal. Defaults to 1.
        shift_keys: bool, whether the key that position j has in its cluster is the query of
            position j - 1; see `nearest_attention`. Defaults to False.
        causal: bool, whether query i sees key j only if j <= i. Defaults to False.
        num_probes: int, clusters in which each query attends. Defaults to 1.
        load_bias: `[key_heads, clusters]`, added to the scores, or None for zeros.
        routed_scale: `[heads]`, s above, or None for ones.
        routed_bias: `[heads]`, b above, or None for zeros.
        routed_kernel: `[heads, kernel_size, depth]`, w above, only with `shift_keys`; or None.
        query_mask: bool `[batch, length]`, False for padding, whose output is 0; or None.
        key_mask: bool `[batch, length]`, False for padding; or None.
        relative_embeddings: `[heads, 2 m + 1, depth]`, r above; None for no relative positions.
        normalize: bool, whether q and k in the logits of N(i) are normalised. Defaults to True.
        dropout: float, share of the attention weights set to 0. Defaults to 0.
        seed: int `[2]`, needed if `dropout` is above 0.
        return_logsumexp: bool, whether to return the logsumexp of each query's logits too, with
            which `merge` joins the output with attention to other keys. Defaults to False.

    Returns:
        `[batch, heads, length, value_depth]`. A query without keys gets 0. With `return_logsumexp`
        also `[batch, heads, length]`, float32 (float64 for float64 queries).

    Raises:
        ValueError: if queries and keys differ in length, or there is a `routed_kernel` without
            `shift_keys`.

    Source: ours. One softmax over a window and chosen keys: Wu et al. 2022, Memorizing
    Transformers, has two with a gate instead. The convolution follows Xiao et al. 2025, Optimizing
    Mixture of Block Attention, which has one over the keys.

    >>> x = tf.random.normal([1, 2, 12, 4])
    >>> centroids = tf.random.normal([2, 3, 4])
    >>> local_routing_attention(
    ...     x, x, x, centroids, block_size=2, window_size=4, causal=True
    ... ).shape
    TensorShape([1, 2, 12, 4])
    """
    routed_query = query
    if routed_kernel is not None:
        if not shift_keys:
            raise ValueError("routed_kernel needs shift_keys=True. Received: shift_keys=False")
        routed_query = causal_convolution(query, routed_kernel, mask=query_mask)
    shared = {"causal": causal, "query_mask": query_mask, "key_mask": key_mask}
    shared |= {"dropout": dropout, "return_logsumexp": True}
    seeds = [None, None] if seed is None else tf.unstack(tf.random.split(seed, 2))
    near = local_attention(
        query,
        repeat_heads(key, query.shape[1]),
        repeat_heads(value, query.shape[1]),
        block_size=block_size,
        look_back=look_back,
        relative_embeddings=relative_embeddings,
        seed=seeds[0],
        **shared,
    )
    far = nearest_attention(
        routed_query,
        None if shift_keys else key,
        value,
        centroids,
        window_size=window_size,
        num_probes=num_probes,
        load_bias=load_bias,
        scale=routed_scale,
        seed=seeds[1],
        shift_keys=shift_keys,
        block_size=None if shift_keys else block_size,
        look_back=look_back,
        normalize=normalize,
        **shared,
    )
    return merge_pair(near, far, bias=routed_bias, return_logsumexp=return_logsumexp)
