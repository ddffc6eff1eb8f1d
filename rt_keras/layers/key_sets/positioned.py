"""Base class of sets of keys with several types of relative positions."""

import dataclasses
import math

import numpy as np
import tensorflow as tf

from rt_keras.keys import AT_LEAST_1, key, one_of
from rt_keras.layers.key_sets.by_ops import ByOps

RELATIVE_POSITIONS = ("learned", "sinusoidal")


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Positioned(ByOps):
    """Base class of sets whose logits are products of queries and keys with relative positions.

    With m the `max_relative_distance`, above which distances count as m, and d = i - j:

    ```
    logit_ij = query_i · (key_j + r_d) / sqrt(depth)                     "learned"
    logit_ij = ((query_i + u) · key_j + (query_i + v) · W R_d) / sqrt(depth)    "sinusoidal"
    ```

    where each head learns r, u, v and W, and R_d are sines and cosines of d. Without
    `position_biases`, there are no u and v.

    The last type is reduced to the first, which all ops support, by adding one dimension to
    queries, keys and r.

    A subclass defines four ops: `attention_op` for a whole sequence, `chunk_op` and `step_op` for a
    chunk or one position after a state, and `cross_step_op` for cross-attention of one position.

    Source: learned: Shaw et al. 2018, section 3.2; sinusoidal: Dai et al. 2019, Transformer-XL,
    section 3.3.
    """

    max_relative_distance: int | None = key(
        None, "largest distance of the relative positions, null for none", AT_LEAST_1
    )
    relative_positions: str = key(
        "learned", "type of the relative positions", one_of(*RELATIVE_POSITIONS)
    )
    # Whether sinusoidal positions have query biases, u and v.
    position_biases: bool = True

    def check(self):
        if self.relative_positions != "learned" and self.max_relative_distance is None:
            raise ValueError(
                f"relative_positions={self.relative_positions!r} needs a "
                "max_relative_distance. Received: max_relative_distance=None"
            )

    def build_positions(self, heads, depth):
        if self.max_relative_distance is None:
            return
        if self.relative_positions == "learned":
            heads.add_relative_embeddings(self.max_relative_distance, depth)
        else:
            sines = 2 * math.ceil(heads.num_heads * depth / 2)
            heads.add_head_weight("relative_kernel", sines, depth, initializer=sines**-0.5)
            if self.position_biases:
                heads.add_head_weight("content_bias", depth)
                heads.add_head_weight("position_bias", depth)

    def placed(self, heads, query, key):
        """Returns queries and keys in the form that the ops expect."""
        # Only sinusoidal positions with biases need the additional dimension.
        if self.relative_positions == "learned" or not self.position_biases:
            return query, key
        depth = query.shape[3]
        query = query + tf.cast(heads.content_bias, query.dtype)[:, None]
        query = tf.concat([query, tf.ones_like(query[..., :1])], axis=3)
        # The ops divide by the square root of the new depth.
        query *= math.sqrt((depth + 1) / depth)
        return query, tf.concat([key, tf.zeros_like(key[..., :1])], axis=3)

    def table(self, heads):
        """Returns the vectors r of the distances -m ... m, `[heads, 2 m + 1, depth]`, or None."""
        if self.relative_positions == "learned":
            return self.relative_embeddings(heads)
        relative = wave_embeddings(heads.relative_kernel, self.max_relative_distance)
        if not self.position_biases:
            return relative
        difference = tf.convert_to_tensor(heads.position_bias) - heads.content_bias
        bias = tf.einsum("hnd,hd->hn", relative, difference)[..., None]
        return tf.concat([relative, bias], axis=2)

    def cross_step(self, heads, chunk, **options):
        query, key = self.placed(heads, chunk.query, chunk.keys)
        options |= {"key_mask": chunk.key_mask, **self.op_options(heads, False)}
        del options["return_logsumexp"]
        return self.cross_step_op(query, key, chunk.value, chunk.position, **options)


def wave_embeddings(relative_kernel, max_relative_distance):
    """Computes the vectors W R_d of the distances -m ... m.

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
    """Computes sines and cosines of distances, as in Transformer-XL.

    Args:
        distances: int array `[n]`.
        width: int, an even number.

    Returns:
        float array `[n, width]`, sines first.

    >>> waves(np.array([0, 1]), 2).round(2).tolist()
    [[0.0, 1.0], [0.84, 0.54]]
    """
    angles = np.outer(distances, 10_000.0 ** (-np.arange(0, width, 2) / width))
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
