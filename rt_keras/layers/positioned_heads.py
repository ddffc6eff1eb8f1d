"""The base class of heads whose logits may tell distances in several ways."""

import math

import keras
import numpy as np
import tensorflow as tf

from rt_keras.layers.head_group import HeadGroup

RELATIVE_POSITIONS = ("learned", "sinusoidal", "bucketed")
# Those of each direction, as in T5's decoder.
BUCKETS = 32


class PositionedHeads(HeadGroup):
    """Heads whose logits are products of queries and keys as they are, with relative positions.

    With m the `max_relative_distance`, beyond which distances count as m, and d = i - j:

    ```
    logit_ij = query_i · (key_j + r_d) / sqrt(depth)                     "learned"
    logit_ij = ((query_i + u) · key_j + (query_i + v) · W R_d) / sqrt(depth)    "sinusoidal"
    logit_ij = query_i · key_j / sqrt(depth) + b_bucket(d)               "bucketed"
    ```

    where r, u, v, W and b are learnt for each head, R_d are sines and cosines of d, and buckets are
    single distances up to 16 and from there on as wide as their distance demands, 32 of them in
    each direction.

    The last two are brought into the form of the first, which all ops know, by one more dimension
    of queries, keys and r.

    Args:
        num_heads: int, heads in the group.
        max_relative_distance: int m; None, the default, for no relative positions.
        relative_positions: "learned", the default, "sinusoidal" or "bucketed"; see above.
        **kwargs: keyword arguments of `HeadGroup`.

    Raises:
        ValueError: if `relative_positions` is unknown, or not "learned" without a
            `max_relative_distance`.

    Source: learned: Shaw et al. 2018, section 3.2; sinusoidal: Dai et al. 2019, Transformer-XL,
    section 3.3; bucketed: Raffel et al. 2020, T5, section 2.1.
    """

    def __init__(
        self,
        num_heads,
        max_relative_distance=None,
        relative_positions="learned",
        **kwargs,
    ):
        super().__init__(num_heads, max_relative_distance, **kwargs)
        self.relative_positions = checked_positions(
            relative_positions, max_relative_distance, RELATIVE_POSITIONS
        )

    @property
    def takes_global_tokens(self):
        """Whether attention is softmax of keys that have no more dimensions than their depth."""
        return self.attention_activation == "softmax" and self.relative_positions == "learned"

    def build_relative_positions(self, depth, value_depth):
        if self.relative_positions == "learned":
            super().build_relative_positions(depth, value_depth)
        elif self.relative_positions == "bucketed":
            self.bucket_bias = self._add_per_head("bucket_bias", 2 * BUCKETS, "zeros")
        else:
            self.relative_kernel = add_relative_kernel(self, depth)
            self.content_bias, self.position_bias = (
                self._add_per_head(name, depth, "zeros")
                for name in ("content_bias", "position_bias")
            )

    def _add_per_head(self, name, size, initializer):
        return self.add_weight(name=name, shape=(self.num_heads, size), initializer=initializer)

    def with_positions(self, query, key):
        if self.max_relative_distance is None or self.relative_positions == "learned":
            return query, key
        depth = query.shape[3]
        if self.relative_positions == "sinusoidal":
            query = query + tf.cast(self.content_bias, query.dtype)[:, None]
        query = tf.concat([query, tf.ones_like(query[..., :1])], axis=3)
        # The ops divide by the root of the new depth.
        query *= math.sqrt((depth + 1) / depth)
        return query, tf.concat([key, tf.zeros_like(key[..., :1])], axis=3)

    def _tables(self):
        if self.max_relative_distance is None or self.relative_positions == "learned":
            return super()._tables()
        if self.relative_positions == "bucketed":
            furthest = self.max_relative_distance
            bias = tf.gather(
                tf.convert_to_tensor(self.bucket_bias),
                buckets(np.arange(-furthest, furthest + 1), furthest),
                axis=1,
            )[..., None]
            depth = self.key_depth
            nothing = tf.zeros([*bias.shape[:2], depth], bias.dtype)
            return {"relative_embeddings": tf.concat([nothing, bias * depth**0.5], axis=2)}
        relative = wave_embeddings(self.relative_kernel, self.max_relative_distance)
        difference = tf.convert_to_tensor(self.position_bias) - self.content_bias
        bias = tf.einsum("hnd,hd->hn", relative, difference)[..., None]
        return {"relative_embeddings": tf.concat([relative, bias], axis=2)}

    def build(self, query_shape, value_shape=None, key_shape=None):
        self.key_depth = query_shape[-1]
        super().build(query_shape, value_shape, key_shape)

    def get_config(self):
        return {**super().get_config(), "relative_positions": self.relative_positions}


def checked_positions(relative_positions, max_relative_distance, allowed):
    """The `relative_positions` of a head group; a ValueError if they are unknown or need a reach.

    Args:
        relative_positions: what the group was given.
        max_relative_distance: int or None.
        allowed: the names that the group knows, "learned" among them.
    """
    if relative_positions not in allowed:
        raise ValueError(
            f"relative_positions must be one of {allowed}. Received: "
            f"relative_positions={relative_positions!r}"
        )
    if relative_positions != "learned" and max_relative_distance is None:
        raise ValueError(
            f"relative_positions={relative_positions!r} needs a max_relative_distance, how far "
            "they reach. Received: max_relative_distance=None"
        )
    return relative_positions


def add_relative_kernel(heads, depth):
    """Adds the weight W of sinusoidal positions to a head group, `[heads, sines, depth]`."""
    sines = 2 * math.ceil(heads.num_heads * depth / 2)
    return heads.add_weight(
        name="relative_kernel",
        shape=(heads.num_heads, sines, depth),
        initializer=keras.initializers.RandomNormal(stddev=sines**-0.5),
    )


def wave_embeddings(relative_kernel, max_relative_distance):
    """The vectors W R_d of the distances -m ... m.

    Args:
        relative_kernel: W, a weight `[heads, sines, depth]`.
        max_relative_distance: int m.

    Returns:
        `[heads, 2 m + 1, depth]`.
    """
    kernel = tf.convert_to_tensor(relative_kernel)
    distances = np.arange(-max_relative_distance, max_relative_distance + 1)
    sines = tf.constant(waves(distances, kernel.shape[1]), kernel.dtype)
    return tf.einsum("ns,hsd->hnd", sines, kernel)


def waves(distances, width):
    """Sines and cosines of distances, as Transformer-XL has them.

    Args:
        distances: int array `[n]`.
        width: even int.

    Returns:
        float array `[n, width]`, sines first.

    >>> waves(np.array([0, 1]), 2).round(2).tolist()
    [[0.0, 1.0], [0.84, 0.54]]
    """
    angles = np.outer(distances, 10_000.0 ** (-np.arange(0, width, 2) / width))
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)


def buckets(distances, furthest):
    """The buckets of distances to earlier positions, and behind them those of later ones.

    Args:
        distances: int array, of i - j.
        furthest: int, the distance from which on all share the last bucket.

    Returns:
        int array, from 0 to 2 `BUCKETS` - 1.

    >>> buckets(np.array([0, 15, 16, 40, 100, -1]), furthest=128).tolist()
    [0, 15, 16, 23, 30, 33]
    """
    single = BUCKETS // 2
    far = np.maximum(np.abs(distances), 1)
    scale = (BUCKETS - single) / math.log(max(furthest, single + 1) / single)
    wide = single + (np.log(far / single) * scale).astype(int)
    found = np.where(np.abs(distances) < single, np.abs(distances), wide)
    return np.minimum(found, BUCKETS - 1) + BUCKETS * (distances < 0)
