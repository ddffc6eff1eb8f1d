"""Functions that the naive versions of the ops share.

Each kind of attention begins with a naive version, `naive_...`: its equation in NumPy, with all
pairs of queries and keys at once. It is what to read first, and what the op is tested against.
"""

import numpy as np


def naive_attention(query, key, value, visible, relative_embeddings=None, distance=None):
    """Attention of each query to the keys that it sees; 0 if it sees none.

    ```
    output_i = sum_j softmax_j(query_i · (key_j + r_(i - j)) / sqrt(depth)) value_j
    ```

    Args:
        query: `[batch, heads, queries, depth]`.
        key, value: `[batch, heads, keys, ...]`.
        visible: bool, broadcastable to `[batch, heads, queries, keys]`.
        relative_embeddings: `[heads, 2 m + 1, depth]`, r above, or None.
        distance: int `[queries, keys]`, to use instead of i - j. Defaults to None.

    Returns:
        `[batch, heads, queries, value_depth]`.
    """
    logits = naive_logits(query, key, relative_embeddings, distance)
    return naive_softmax(logits, visible) @ value


def naive_logits(query, key, relative_embeddings=None, distance=None):
    """The logits of all pairs, `[batch, heads, queries, keys]`; see `naive_attention`."""
    logits = np.einsum("bhid,bhjd->bhij", query, key)
    if relative_embeddings is not None:
        if distance is None:
            distance = np.arange(query.shape[2])[:, None] - np.arange(key.shape[2])
        far = relative_embeddings.shape[1] // 2
        vectors = relative_embeddings[:, np.clip(distance, -far, far) + far]
        logits = logits + np.einsum("bhid,hijd->bhij", query, vectors)
    return logits / np.sqrt(query.shape[3])


def naive_softmax(logits, visible):
    """The softmax of each row over the entries that are visible; zeros in a row without any."""
    logits = np.where(visible, logits, -np.inf)
    top = np.max(logits, axis=-1, keepdims=True, initial=-1e30)
    weights = np.exp(logits - top)
    total = np.sum(weights, axis=-1, keepdims=True)
    return weights / np.where(total > 0, total, 1)


def naive_mask(queries, keys, *, causal=False, query_mask=None, key_mask=None):
    """The keys that the masks let each query see, bool `[batch or 1, 1, queries, keys]`."""
    visible = np.ones([1, 1, queries, keys], bool)
    if causal:
        visible &= np.tri(queries, keys, dtype=bool)
    if query_mask is not None:
        visible = visible & np.asarray(query_mask, bool)[:, None, :, None]
    if key_mask is not None:
        visible = visible & np.asarray(key_mask, bool)[:, None, None, :]
    return visible


def naive_shared(query, key, query_mask=None, key_mask=None):
    """The keys and the masks by name, of queries that are keys if `key` is None."""
    if key is None:
        key, key_mask = query, query_mask if key_mask is None else key_mask
    return key, {"query_mask": query_mask, "key_mask": key_mask}


def naive_normalize(x):
    """Normalizes each vector to mean 0 and variance 1; see `rt_keras.ops.normalize`."""
    centered = x - x.mean(axis=-1, keepdims=True)
    return centered / np.sqrt((centered**2).mean(axis=-1, keepdims=True) + 1e-6)
