"""Heads that see the keys of their own cluster."""

import keras
import tensorflow as tf

from rt_keras.layers.centroid_heads import CentroidHeads
from rt_keras.layers.head_group import positive_int
from rt_keras.ops.balanced import balanced_attention
from rt_keras.ops.entmax import check_activation
from rt_keras.ops.nearest import nearest_attention
from rt_keras.ops.nearest_decode import nearest_cache, nearest_step
from rt_keras.ops.nearest_piece import nearest_piece

ASSIGNMENTS = ("balanced", "nearest")


@keras.saving.register_keras_serializable(package="rt_keras")
class RoutingHeads(CentroidHeads):
    """Heads whose queries see keys of their own cluster, found by online k-means.

    Queries and keys are layer-normalised over the depth and routed by their scores
    `centroid_c · x`. See `rt_keras.ops.nearest_attention` and `rt_keras.ops.balanced_attention`
    for the equations of the two assignments: with "nearest" output i depends on positions up to i
    alone; with "balanced" (the paper's) it depends on later positions too, through the routing,
    even if attention is causal.

    How centroids learn, and the layer's weights: see `rt_keras.layers.CentroidHeads`.

    Args:
        num_heads: int, heads in the group.
        num_clusters: int, centroids of each head. About sqrt(n) of them cost least.
        window_size: int, how many members of its cluster a query attends among.
        assignment: "nearest", the default, or "balanced": how positions join clusters.
        share_qk: bool, whether queries are their own keys, as in the paper for causal attention.
            Separate ones, the default, cost twice as much with "nearest", and learn recall far
            better.
        num_probes: int, with "nearest", in how many of its nearest clusters a query attends.
            Defaults to 1.
        normalize: bool, whether logits are of normalised queries and keys, as in the paper. False,
            only with "nearest", takes them as they are and normalises them for routing alone, as
            suits a model that was trained with full attention. Defaults to True.
        max_relative_distance: int, reach of the relative positions; None, the default, for none.
        commitment_weight: float β, weight of the commitment loss. Defaults to 1e-4.
        seed: int or None, seed of the initial centroids, normalised Gaussian noise, and of the
            choice of members kept for restarts.
        attention_activation: "softmax", the default, or "sparsemax" or "entmax15", which give most
            keys a weight of exactly 0; see `rt_keras.ops.sparsemax` and `rt_keras.ops.entmax15`.
            They need assignment "nearest" and one probe.
        **kwargs: base layer keyword arguments, such as `name` and `dtype`.

    Raises:
        ValueError: if a number is out of range, `assignment` or `attention_activation` is unknown,
            or `num_probes`, `normalize` or `attention_activation` cannot be combined with the rest.

    Source: Roy et al. 2021, section 4.1.

    >>> heads = RoutingHeads(2, num_clusters=4, window_size=4)
    >>> x = keras.random.normal([1, 2, 10, 8])
    >>> heads(x, x, x, use_causal_mask=True).shape
    TensorShape([1, 2, 10, 8])
    """

    @property
    def normalizes(self):
        """Whether logits are those of layer-normalised queries and keys."""
        return self.normalize

    def __init__(
        self,
        num_heads,
        num_clusters,
        window_size,
        assignment="nearest",
        share_qk=False,
        num_probes=1,
        normalize=True,
        max_relative_distance=None,
        commitment_weight=1e-4,
        seed=None,
        attention_activation="softmax",
        **kwargs,
    ):
        super().__init__(
            num_heads,
            num_clusters,
            window_size,
            share_qk=share_qk,
            max_relative_distance=max_relative_distance,
            commitment_weight=commitment_weight,
            seed=seed,
            **kwargs,
        )
        if assignment not in ASSIGNMENTS:
            raise ValueError(
                f"assignment must be one of {ASSIGNMENTS}. Received: assignment={assignment!r}"
            )
        self.assignment = assignment
        self.num_probes = positive_int("num_probes", num_probes)
        if num_probes > (num_clusters if assignment == "nearest" else 1):
            raise ValueError(
                "num_probes must be at most num_clusters with assignment 'nearest', and 1 with "
                f"'balanced'. Received: num_probes={num_probes}, num_clusters={num_clusters}, "
                f"assignment={assignment!r}"
            )
        if not normalize and assignment != "nearest":
            raise ValueError(
                "normalize must be True unless assignment is 'nearest'. Received: "
                f"assignment={assignment!r}"
            )
        self.normalize = bool(normalize)
        needs_softmax = None
        if assignment == "balanced" or num_probes > 1:
            needs_softmax = f"assignment={assignment!r} and num_probes={num_probes}"
        check_activation(attention_activation, needs_softmax)
        self.attention_activation = attention_activation

    @property
    def takes_global_tokens(self):
        """Whether the assignment is "nearest" and attention softmax."""
        return self.assignment == "nearest" and self.attention_activation == "softmax"

    def attend(self, **arguments):
        if self.assignment == "balanced":
            return balanced_attention(
                centroids=tf.convert_to_tensor(self.centroids),
                window_size=self.window_size,
                **arguments,
            )
        return nearest_attention(
            **self._routing(),
            window_size=self.window_size,
            num_probes=self.num_probes,
            activation=self.attention_activation,
            **arguments,
        )

    @property
    def groups_queries(self):
        """Whether the assignment is "nearest": with "balanced", each head picks its own keys."""
        return self.assignment == "nearest"

    @property
    def cached_decoding(self):
        """Whether the assignment is "nearest": with "balanced", members depend on what follows."""
        return self.assignment == "nearest"

    @property
    def strictly_causal(self):
        """Whether the assignment is "nearest"."""
        return self.assignment == "nearest"

    def fill_cache(self, *, query, **arguments):
        return nearest_cache(
            **self._routing(),
            window_size=self.window_size,
            keep_positions=self.relative_embeddings is not None,
            **arguments,
        )

    def step(self, **arguments):
        return nearest_step(
            **self._routing(),
            num_probes=self.num_probes,
            activation=self.attention_activation,
            **arguments,
        )

    def piece(self, **arguments):
        if not self.reads_pieces:
            # What a query sees in the piece and before it would have to be sorted as one.
            return super().piece(**arguments)
        return nearest_piece(**self._routing(), num_probes=self.num_probes, **arguments)

    @property
    def reads_pieces(self):
        """Whether the assignment is "nearest" and attention softmax."""
        return self.assignment == "nearest" and self.attention_activation == "softmax"

    def _routing(self):
        """The arguments by which the ops of assignment "nearest" route."""
        return {
            "centroids": tf.convert_to_tensor(self.centroids),
            "load_bias": tf.convert_to_tensor(self.load_bias),
            "normalize": self.normalize,
        }

    def _described(self):
        return f"{type(self).__name__} of assignment {self.assignment!r}"

    def get_config(self):
        return {
            **super().get_config(),
            "assignment": self.assignment,
            "num_probes": self.num_probes,
            "normalize": self.normalize,
            "attention_activation": self.attention_activation,
        }
