"""The Routing Transformer that sees whole sequences, without a head."""

import keras

from rt_keras.models.routing_transformer_backbone import RoutingTransformerBackbone


@keras.saving.register_keras_serializable(package="rt_keras")
class RoutingTransformerEncoderBackbone(RoutingTransformerBackbone):
    """A `RoutingTransformerBackbone` in which each position sees those after it too.

    Its blocks, weights and arguments are the same; attention has no causal mask. On it stand
    `RoutingTransformerMaskedLM`, `RoutingTransformerTextClassifier` and
    `RoutingTransformerSpanPredictor`, each of which can start from the weights of another.

    Without a causal mask only positions tell the order of tokens: relative ones of the heads,
    `max_sequence_length` or `sinusoidal_positions`.

    Args:
        *args: positional arguments of `RoutingTransformerBackbone`.
        **kwargs: its keyword arguments.

    Call arguments:
        inputs: dictionary of "token_ids", int `[batch, length]`; and "padding_mask", bool or int
            `[batch, length]`, 0 for padding.
        training: bool, whether dropout is on and statistics of the centroids are collected.
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
        """Raises a ValueError: an encoder does not decode."""
        raise ValueError(
            f"a {type(self).__name__} sees whole sequences and cannot decode token by token; a "
            "RoutingTransformerBackbone can"
        )

    prefill = call_with_cache = new_cache
