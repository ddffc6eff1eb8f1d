"""Routing Transformer backbone with bidirectional attention."""

import keras

from rt_keras.models.causal_lm.causal_lm_backbone import RoutingTransformerBackbone


@keras.saving.register_keras_serializable(package="rt_keras")
class RoutingTransformerEncoderBackbone(RoutingTransformerBackbone):
    """A `RoutingTransformerBackbone` with bidirectional attention.

    Its blocks, weights and arguments are the same, but attention has no causal mask.
    `RoutingTransformerTextEmbedder` is built on this backbone. With a dense layer, it is a masked
    language model, a classifier or a model that finds answers in a text.

    Without a causal mask, the order of tokens comes only from positions: relative positions of the
    heads, `max_sequence_length` or `sinusoidal_positions`.

    Args:
        vocabulary_size: int, number of token ids.
        num_layers: int, number of blocks.
        hidden_dim: int, width of the blocks.
        intermediate_dim: int, width of the feed-forward networks. None if `feed_forward` replaces
            all of them.
        head_groups: list of `rt_keras.layers` head groups, copied for each block; or a list of
            such lists, one per block.
        embedding_dim: int, width of the embedding, which a dense layer then projects to
            `hidden_dim` instead of scaling it by sqrt(hidden_dim). Defaults to None, for an
            embedding as wide as the blocks and no dense layer.
        tie_embeddings: bool, whether the output layer of a language model shares the weights of the
            embedding. If False, it is a dense layer with a bias. Defaults to True.
        embedding_dropout: float, dropout rate of the embedding. Defaults to 0.0.
        token_dropout: float, probability of replacing a token by 0 in training. Defaults to 0.0.
        max_sequence_length: int, number of position embeddings. Defaults to None, for no position
            embedding.
        sinusoidal_positions: bool, whether to add `rt_keras.layers.SinusoidalPositions`. Defaults
            to False.
        dtype: dtype policy. Defaults to Keras's global policy.
        key_dim, value_dim, activation, normalize_first, feed_forward, normalization: options of all
            blocks; see `rt_keras.layers.TransformerBlock`.
        dropout, attention_dropout, activation_dropout, shift_tokens, attention_bias: the same.
        feed_forward_bias, use_head_dense, layer_norm_epsilon, kernel_initializer: the same.
        conv_kernel_size, remat: the same.
        **kwargs: base backbone keyword arguments, such as `name`.

    Call arguments:
        inputs: dictionary of "token_ids", int `[batch, length]`; and "padding_mask", bool or int
            `[batch, length]`, 0 for padding.
        training: bool, whether to apply dropout and collect statistics of the centroids.
            Defaults to None, for Keras's default.

    Returns:
        `[batch, length, hidden_dim]`.

    Raises:
        ValueError: as for `RoutingTransformerBackbone`.

    >>> from rt_keras.layers import LocalHeads, RoutingHeads
    >>> backbone = RoutingTransformerEncoderBackbone(
    ...     vocabulary_size=258,
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

    kind = "retriever"
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
