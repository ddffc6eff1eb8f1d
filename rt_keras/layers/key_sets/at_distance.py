"""Base class of sets of keys that rotary embeddings can place at one distance."""

import dataclasses

from rt_keras.keys import NOT_NEGATIVE, key
from rt_keras.layers.key_sets.by_ops import ByOps


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class AtDistance(ByOps):
    """Base class of sets whose keys can all have the same distance from a query.

    With R_p the rotation of rotary embeddings at position p, and D the `rotary_distance`,

    ```
    logit_ij = (R_i query_i) · (R_j key_j) / sqrt(depth)     without a rotary_distance
    logit_ij = (R_D query_i) · (R_0 key_j) / sqrt(depth)     with a rotary_distance
    ```

    A model then sees no distance above those of its window and D, however long the sequence is, so
    it can read sequences longer than those that it was trained on.

    Source: Xiao et al. 2024, InfLLM: Training-Free Long-Context Extrapolation for LLMs with an
    Efficient Context Memory, section 3.3.
    """

    rotary_distance: int | None = key(
        None, "distance of all keys for rotary embeddings, null for their own", NOT_NEGATIVE
    )

    def build(self, heads, depth, value_depth):
        if self.rotary_distance is not None and heads.rotated_at is None:
            raise ValueError(
                f"{type(self).__name__} with a rotary_distance requires a layer with a "
                f"rotary_embedding. Received: rotary_distance={self.rotary_distance}"
            )

    def at_distance(self, heads, chunk):
        """Returns a chunk whose queries and keys have the distance of the set."""
        if self.rotary_distance is None:
            return chunk
        return chunk._replace(
            query=heads.rotated_at(chunk.query, chunk.position, self.rotary_distance),
            key=heads.rotated_at(chunk.keys, chunk.position, 0),
        )

    def _inputs(self, heads, chunk):
        return super()._inputs(heads, self.at_distance(heads, chunk))
