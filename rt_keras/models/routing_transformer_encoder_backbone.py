"""Routing Transformer backbone with bidirectional attention."""

import keras

from rt_keras.models.routing_transformer_backbone import RoutingTransformerBackbone


@keras.saving.register_keras_serializable(package="rt_keras")
class RoutingTransformerEncoderBackbone(RoutingTransformerBackbone):
    """A `RoutingTransformerBackbone` with bidirectional attention.

    Its blocks, weights and arguments are the same, but attention has no causal mask.
    `RoutingTransformerMaskedLM`, `RoutingTransformerTextClassifier` and
    `RoutingTransformerSpanPredictor` are built on this backbone. Each of them can start from the
    weights of another.

    Without a causal mask, the order of tokens comes only from positions: relative positions of the
    heads, `max_sequence_length` or `sinusoidal_positions`.

    Args:
        *args: positional arguments of `RoutingTransformerBackbone`.
        **kwargs: its keyword arguments.

    Call arguments:
        inputs: dictionary of "token_ids", int `[batch, length]`; and "padding_mask", bool or int
            `[batch, length]`, 0 for padding.
        training: bool, whether to apply dropout and collect statistics of the centroids.
            Defaults to None, Keras's default.

    Returns:
        `[batch, length, hidden_dim]`.

    Raises:
        ValueError: as for `RoutingTransformerBackbone`.

    >>> from rt_keras.layers import LocalHeads, RoutingHeads
    >>> backbone = RoutingTransformerEncoderBackbone(
    ...     vocabulary_size=259,
    ...     num_layers=2,
    ...     hidden_dim=32,
    ...     intermediate_dim=64,
    ...     head_groups=[LocalHeads(2, block_size=16), RoutingHeads(2, 4, window_size=16)],
    ...     sinusoidal_positions=True,
    ... )
    >>> ids = keras.ops.ones([1, 40], dtype="int32")
    >>> backbone({"token_ids": ids, "padding_mask": ids}).shape
    TensorShape([1, 40, 32])
    """

    kind = "masked_lm"
    causal = False
    attention_of_groups = {"head_groups": "encoder"}

    # Each output depends on all tokens.
    cached_decoding = False

    def new_cache(self, *args, **kwargs):
        """Raises a ValueError, since an encoder does not decode."""
        raise ValueError(
            f"a {type(self).__name__} has bidirectional attention and cannot decode token by "
            "token; use a RoutingTransformerBackbone"
        )

    prefill = call_with_cache = new_cache
