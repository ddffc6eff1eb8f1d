"""The divergence between the attention weights of heads."""

import collections
import itertools
import math

import tensorflow as tf


def jensen_shannon(p, q):
    """Computes the Jensen-Shannon divergence of distributions, in nats.

    ```
    JS(p, q) = KL(p ‖ m) / 2 + KL(q ‖ m) / 2,   m = (p + q) / 2,   KL(p ‖ m) = Σ_j p_j ln(p_j / m_j)
    ```

    Args:
        p: `[..., keys]`.
        q: `[..., keys]`. Since the divergence is a sum over keys, both may contain only some of the
            keys of two distributions.

    Returns:
        `[...]`, from 0 for equal distributions to ln 2 = 0.6931 for distributions without a common
        key.

    Source: Roy et al. 2021, section 6.

    >>> p = tf.constant([[1.0, 0.0], [0.5, 0.5]])
    >>> [round(float(x), 4) for x in jensen_shannon(p, p[:, ::-1])]
    [0.6931, 0.0]
    """
    middle = (p + q) / 2
    return tf.reduce_sum(_relative_entropy(p, middle) + _relative_entropy(q, middle), -1) / 2


def _relative_entropy(p, q):
    """Returns the terms of KL(p ‖ q); 0 where p is 0."""
    return tf.math.xlogy(p, tf.math.divide_no_nan(p, q))


def head_divergences(call, pairs):
    """Computes the Jensen-Shannon divergence between heads at each position.

    Attention weights that do not sum to 1 are divided by their sum.

    Args:
        call: an `AttentionCall`.
        pairs: list of at least one pair of heads, two numbers from 0.

    Returns:
        float32 array `[pairs, batch, queries]`, NaN if one of the two heads attends to no key.

    >>> import keras
    >>> from rt_keras.layers import FullHeads, LocalHeads, MultiHeadAttention
    >>> from rt_keras.layers.attention_calls import attention_calls
    >>> inputs = keras.Input([12, 8])
    >>> attention = MultiHeadAttention([LocalHeads(1, 4), FullHeads(1)])
    >>> model = keras.Model(inputs, attention(inputs, inputs))
    >>> (call,) = attention_calls(model, keras.random.normal([1, 12, 8]))
    >>> head_divergences(call, [(0, 1)]).shape
    (1, 1, 12)
    """
    total, sums = 0.0, call.sums()
    for weights in call.weights():
        weights = tf.math.divide_no_nan(weights, sums[..., None])
        total += tf.stack([jensen_shannon(weights[:, i], weights[:, j]) for i, j in pairs])
    # The sum is 0, up to rounding errors, if there is no visible key.
    attends = sums > 1e-3
    both = tf.stack([attends[:, i] & attends[:, j] for i, j in pairs])
    # Rounding errors may exceed the range.
    return tf.where(both, tf.clip_by_value(total, 0.0, math.log(2)), math.nan).numpy()


def pairs_by_kind(kinds):
    """Returns the pairs of heads of a layer, grouped by their kinds.

    Args:
        kinds: list of strings, the kind of each head.

    Returns:
        A dictionary from sorted pairs of kinds to lists of pairs of heads.

    >>> pairs_by_kind(["RoutingHeads", "LocalHeads", "LocalHeads"])
    {('LocalHeads', 'LocalHeads'): [(1, 2)], ('LocalHeads', 'RoutingHeads'): [(0, 1), (0, 2)]}
    """
    pairs = collections.defaultdict(list)
    for i, j in itertools.combinations(range(len(kinds)), 2):
        pairs[tuple(sorted((kinds[i], kinds[j])))].append((i, j))
    return dict(sorted(pairs.items()))
