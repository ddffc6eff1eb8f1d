"""Sets of keys whose logits may tell distances in several ways."""

import dataclasses
import math

import numpy as np
import tensorflow as tf

from rt_keras.keys import AT_LEAST_1, key, one_of
from rt_keras.layers.key_sets.by_ops import ByOps

RELATIVE_POSITIONS = ("learned", "sinusoidal", "bucketed")
# Those of each direction, as in T5's decoder.
BUCKETS = 32


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Positioned(ByOps):
    """A set whose logits are products of queries and keys as they are, with relative positions.

    With m the `max_relative_distance`, beyond which distances count as m, and d = i - j:

    ```
    logit_ij = query_i · (key_j + r_d) / sqrt(depth)                     "learned"
    logit_ij = ((query_i + u) · key_j + (query_i + v) · W R_d) / sqrt(depth)    "sinusoidal"
    logit_ij = query_i · key_j / sqrt(depth) + b_bucket(d)               "bucketed"
    ```

    where r, u, v, W and b are learnt for each head, R_d are sines and cosines of d, and buckets are
    single distances up to 16 and from there on as wide as their distance demands, 32 of them in
    each direction. Without `position_biases` there are no u and v.

    The last two are brought into the form of the first, which all ops know, by one more dimension
    of queries, keys and r.

    A subclass has the four ops of its keys: `attention_op` for a whole sequence; `chunk_op` and
    `step_op` for the next positions and for one, given those before; and `cross_step_op` for one
    position's attention to another sequence.

    Source: learned: Shaw et al. 2018, section 3.2; sinusoidal: Dai et al. 2019, Transformer-XL,
    section 3.3; bucketed: Raffel et al. 2020, T5, section 2.1.
    """

    max_relative_distance: int | None = key(
        None, "reach of the relative positions, null for none", AT_LEAST_1
    )
    relative_positions: str = key(
        "learned", "how distances become logits", one_of(*RELATIVE_POSITIONS)
    )
    # Whether sinusoidal positions have biases of the queries, u and v.
    position_biases: bool = True

    def check(self):
        if self.relative_positions != "learned" and self.max_relative_distance is None:
            raise ValueError(
                f"relative_positions={self.relative_positions!r} needs a max_relative_distance, "
                "how far they reach. Received: max_relative_distance=None"
            )

    @property
    def _deepens(self):
        """Whether queries and keys have one more dimension than their depth."""
        if self.max_relative_distance is None or self.relative_positions == "learned":
            return False
        return self.relative_positions == "bucketed" or self.position_biases

    def build_positions(self, heads, depth):
        if self.max_relative_distance is None:
            return
        if self.relative_positions == "learned":
            heads.add_relative_embeddings(self.max_relative_distance, depth)
        elif self.relative_positions == "bucketed":
            heads.add_head_weight("bucket_bias", 2 * BUCKETS)
        else:
            sines = 2 * math.ceil(heads.num_heads * depth / 2)
            heads.add_head_weight("relative_kernel", sines, depth, initializer=sines**-0.5)
            if self.position_biases:
                heads.add_head_weight("content_bias", depth)
                heads.add_head_weight("position_bias", depth)

    def placed(self, heads, query, key):
        """Queries and keys as the ops get them."""
        if not self._deepens:
            return query, key
        depth = query.shape[3]
        if self.relative_positions == "sinusoidal":
            query = query + tf.cast(heads.content_bias, query.dtype)[:, None]
        query = tf.concat([query, tf.ones_like(query[..., :1])], axis=3)
        # The ops divide by the root of the new depth.
        query *= math.sqrt((depth + 1) / depth)
        return query, tf.concat([key, tf.zeros_like(key[..., :1])], axis=3)

    def table(self, heads, depth):
        """The vectors r of the distances -m ... m, `[heads, 2 m + 1, depth]`, or None.

        Args:
            heads: the head group.
            depth: int, that of queries and keys as the heads get them.
        """
        furthest = self.max_relative_distance
        if furthest is None or self.relative_positions == "learned":
            return self.relative_embeddings(heads)
        if self.relative_positions == "bucketed":
            rows = buckets(np.arange(-furthest, furthest + 1), furthest)
            bias = tf.gather(tf.convert_to_tensor(heads.bucket_bias), rows, axis=1)[..., None]
            nothing = tf.zeros([*bias.shape[:2], depth], bias.dtype)
            return tf.concat([nothing, bias * depth**0.5], axis=2)
        relative = wave_embeddings(heads.relative_kernel, furthest)
        if not self.position_biases:
            return relative
        difference = tf.convert_to_tensor(heads.position_bias) - heads.content_bias
        bias = tf.einsum("hnd,hd->hn", relative, difference)[..., None]
        return tf.concat([relative, bias], axis=2)

    def cross_step(self, heads, chunk, **options):
        query, key = self.placed(heads, chunk.query, chunk.keys)
        options |= {"key_mask": chunk.key_mask, **self.op_options(heads, chunk, False)}
        del options["return_logsumexp"]
        return self.cross_step_op(query, key, chunk.value, chunk.position, **options)


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
