"""Base class of sets of keys that rotary embeddings can place at one distance."""

from rt_keras.layers.head_options import positive_int_or_none
from rt_keras.layers.key_sets.key_set import KeySet


class AtDistance(KeySet):
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

    def __init__(self, rotary_distance=None, **kwargs):
        super().__init__(**kwargs)
        self.rotary_distance = positive_int_or_none("rotary_distance", rotary_distance, least=0)

    def check_rotation(self, rotated_at):
        if self.rotary_distance is not None and rotated_at is None:
            raise ValueError(
                f"{type(self).__name__} with a rotary_distance requires a layer with a "
                f"rotary_embedding. Received: rotary_distance={self.rotary_distance}"
            )

    def at_distance(self, inputs):
        """Returns the queries and keys at the distance of the set."""
        if self.rotary_distance is None:
            return inputs.query, inputs.keys
        query = inputs.rotate(inputs.query, inputs.position, self.rotary_distance)
        return query, inputs.rotate(inputs.keys, inputs.position, 0)

    def get_config(self):
        return {**super().get_config(), "rotary_distance": self.rotary_distance}
