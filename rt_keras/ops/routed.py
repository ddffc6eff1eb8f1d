"""Queries and keys of nearest routing attention, with their clusters."""

from typing import NamedTuple

import tensorflow as tf

from rt_keras.ops.blocks import ceil_div, move_axis, size, split_blocks
from rt_keras.ops.routing import centroid_scores, prepare
from rt_keras.ops.slices import num_slices

# The vectors that may serve as the key of a position.
ROUTED_KEYS = ("previous_query", "key")


def shifts_keys(routed_key):
    """Returns whether the key of a position is the query of the previous position.

    Args:
        routed_key: string, one of `ROUTED_KEYS`.

    Raises:
        ValueError: if `routed_key` is unknown.
    """
    if routed_key not in ROUTED_KEYS:
        raise ValueError(
            f"routed_key must be one of {ROUTED_KEYS}. Received: routed_key={routed_key!r}"
        )
    return routed_key == "previous_query"


class Routed(NamedTuple):
    """Queries and keys for the logits, and their clusters.

    Args:
        query: `[batch, heads, queries, depth]`.
        key: `[batch, key_heads, keys, depth]`; `query` itself if queries and keys are shared.
        of_queries: int32 `[batch, heads, num_probes, queries]`, the clusters of queries.
        of_keys: int32 `[batch, key_heads, 1, keys]`, the clusters of keys.
    """

    query: tf.Tensor
    key: tf.Tensor
    of_queries: tf.Tensor
    of_keys: tf.Tensor


class Routing(NamedTuple):
    """Options that determine clusters and logits; see `nearest_attention`.

    Args:
        centroids: `[key_heads, clusters, depth]`.
        num_probes: int, number of clusters in which a query attends. Defaults to 1.
        load_bias: `[key_heads, clusters]`, or None for zeros.
        scale: `[heads]`, a factor of the logits besides 1 / sqrt(depth), or None for ones.
        use_query_key_norm: bool, whether logits use normalized vectors. Defaults to True.
    """

    centroids: tf.Tensor
    num_probes: int = 1
    load_bias: tf.Tensor | None = None
    scale: tf.Tensor | None = None
    use_query_key_norm: bool = True

    def route(self, query, key, query_mask=None, key_mask=None):
        """Returns the `Routed` queries and keys; `key` is None for the queries themselves."""
        routed_query, routed_key = prepare(query, key)
        of_queries = self._clusters(routed_query, query_mask, self.num_probes)
        if key is None and key_mask is query_mask:
            of_keys = of_queries[:, :, :1]
        else:
            of_keys = self._clusters(routed_key, key_mask, 1)
        if self.use_query_key_norm:
            return Routed(routed_query, routed_key, of_queries, of_keys)
        return Routed(*prepare(query, key, normalized=False), of_queries, of_keys)

    def scaled(self, query):
        """Scales queries such that their products with keys are logits."""
        query = query * query.shape[3] ** -0.5
        if self.scale is None:
            return query
        return query * tf.cast(self.scale, query.dtype)[:, None, None]

    def _clusters(self, x, mask, count):
        """Returns the `count` nearest clusters of each position, `[batch, heads, count, length]`.

        Padding gets an extra cluster after the last one, in which no query attends.
        """

        def nearest(x):
            scores = centroid_scores(x, self.centroids, self.load_bias)
            if count == 1:
                return tf.argmax(scores, axis=-1, output_type=tf.int32)[:, :, None]
            return tf.linalg.matrix_transpose(tf.math.top_k(scores, count).indices)

        length, num_clusters = size(x, 2), self.centroids.shape[1]
        chunks = num_slices(length * size(x, 0) * x.shape[1] * num_clusters)
        if chunks == 1:
            clusters = nearest(x)
        else:
            at_once = ceil_div(length, chunks)
            x = split_blocks(tf.stop_gradient(x), ceil_div(length, at_once), at_once)
            clusters = tf.map_fn(nearest, move_axis(x, 2, 0), fn_output_signature=tf.int32)
            clusters = tf.concat(tf.unstack(clusters), axis=3)[..., :length]
        if mask is not None:
            clusters = tf.where(tf.cast(mask, tf.bool)[:, None, None], clusters, num_clusters)
        return clusters
