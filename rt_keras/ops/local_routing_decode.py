"""Local and routed attention of one position at a time."""

import tensorflow as tf

from rt_keras.ops.attend import merge_pair
from rt_keras.ops.convolution import causal_convolution, last_vectors
from rt_keras.ops.local_decode import local_cache, local_step
from rt_keras.ops.nearest_decode import nearest_cache, nearest_step


def local_routing_cache(
    query,
    key,
    value,
    centroids,
    count,
    *,
    block_size,
    window_size,
    look_back=1,
    shift_keys=False,
    load_bias=None,
    routed_kernel=None,
    max_length=None,
    normalize=True,
):
    """The cache of `local_routing_step`.

    Unless keys are shifted, clusters keep their last `window_size` members and as many again as the
    local window is long: those in it join what a query sees of its cluster once they have left it.

    Args:
        query: `[batch, heads, length, depth]`, of positions from the first on.
        key: `[batch, key_heads, length, depth]`.
        value: `[batch, key_heads, length, value_depth]`.
        centroids: `[key_heads, clusters, depth]`.
        count: int scalar, how many of these positions count.
        block_size, window_size, look_back, shift_keys: see `local_routing_attention`.
        load_bias: `[key_heads, clusters]`, or None for zeros.
        routed_kernel: `[heads, kernel_size, depth]`, see `local_routing_attention`; or None.
        max_length: int, how many positions there will be; None, the default, for any number.
        normalize: bool, see `local_routing_attention`. Defaults to True.

    Returns:
        A dictionary of "local", see `local_cache`; "routed", see `nearest_cache`; and with a
        `routed_kernel`, "queries", `[batch, heads, kernel_size - 1, depth]`, the last ones.

    >>> x = tf.random.normal([1, 2, 50, 4])
    >>> sizes = {"block_size": 8, "window_size": 6}
    >>> cache = local_routing_cache(x, x, x, tf.random.normal([2, 3, 4]), 50, **sizes)
    >>> cache["local"]["key"].shape, cache["routed"]["key"].shape
    (TensorShape([1, 2, 16, 4]), TensorShape([1, 2, 3, 22, 4]))
    """
    kept = {}
    if routed_kernel is not None:
        kept["queries"] = last_vectors(query, count, routed_kernel.shape[1] - 1)
        query = causal_convolution(query, routed_kernel)
    return {
        **kept,
        "local": local_cache(
            key, value, count, block_size=block_size, look_back=look_back, max_length=max_length
        ),
        "routed": nearest_cache(
            query if shift_keys else key,
            value,
            centroids,
            count,
            window_size=window_size + (0 if shift_keys else (look_back + 1) * block_size),
            load_bias=load_bias,
            shift_keys=shift_keys,
            keep_positions=not shift_keys,
            normalize=normalize,
            max_length=max_length,
        ),
    }


def local_routing_step(
    query,
    key,
    value,
    cache,
    position,
    centroids,
    *,
    block_size,
    window_size,
    look_back=1,
    num_probes=1,
    load_bias=None,
    routed_scale=None,
    routed_bias=None,
    routed_kernel=None,
    relative_embeddings=None,
    normalize=True,
    return_logsumexp=False,
):
    """Causal `local_routing_attention` of one position, given those before it.

    Args:
        query: `[batch, heads, 1, depth]`.
        key: `[batch, key_heads, 1, depth]`.
        value: `[batch, key_heads, 1, value_depth]`.
        cache: the cache of `local_routing_cache` or of the last step.
        position: int scalar, the query's position.
        centroids: `[key_heads, clusters, depth]`.
        block_size, window_size, look_back, num_probes, load_bias, routed_scale, routed_bias,
            routed_kernel, relative_embeddings, normalize: see `local_routing_attention`.
        return_logsumexp: bool, whether to return the logsumexp of the logits too. Defaults to
            False.

    Returns:
        `[batch, heads, 1, value_depth]`, or the pair of it and the logsumexp `[batch, heads, 1]`;
        and the cache with this position in it.

    >>> x, centroids = tf.random.normal([1, 2, 50, 4]), tf.random.normal([2, 3, 4])
    >>> sizes = {"block_size": 8, "window_size": 6}
    >>> cache = local_routing_cache(x, x, x, centroids, 49, **sizes)
    >>> last = x[:, :, 49:]
    >>> output, cache = local_routing_step(last, last, last, cache, 49, centroids, **sizes)
    >>> output.shape
    TensorShape([1, 2, 1, 4])
    """
    near, local = local_step(
        query,
        key,
        value,
        cache["local"],
        position,
        block_size=block_size,
        look_back=look_back,
        relative_embeddings=relative_embeddings,
        return_logsumexp=True,
    )
    kept = {}
    if routed_kernel is not None:
        before = cache["queries"]
        kept["queries"] = tf.concat([before, tf.cast(query, before.dtype)], axis=2)[:, :, 1:]
        query = causal_convolution(query, routed_kernel, before=before)
    shifted = "query" in cache["routed"]
    far, routed = nearest_step(
        query,
        key,
        value,
        cache["routed"],
        position,
        centroids,
        num_probes=num_probes,
        load_bias=load_bias,
        scale=routed_scale,
        before=None if shifted else (position // block_size - look_back) * block_size,
        window_size=window_size,
        normalize=normalize,
        return_logsumexp=True,
    )
    output = merge_pair(near, far, bias=routed_bias, return_logsumexp=return_logsumexp)
    return output, {**kept, "local": local, "routed": routed}
