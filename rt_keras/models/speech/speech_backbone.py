"""Backbone of speech models, which maps the frames of sounds to hidden states."""

import keras

from rt_keras.layers.dropout import Dropout
from rt_keras.layers.head_options import positive_int
from rt_keras.models.decoder_backbone import DecoderBackbone
from rt_keras.models.speech.speech_embedding import RoutingTransformerSpeechEmbedding
from rt_keras.models.transformer_blocks import (
    BlockOptions,
    groups_of_blocks,
    make_blocks,
    make_final_norm,
)


@keras.saving.register_keras_serializable(package="rt_keras")
class RoutingTransformerSpeechBackbone(DecoderBackbone):
    """An encoder of sounds whose attention mixes heads of several kinds.

    ```
    x = embedding(features)          four frames a position
    x = block_l(x)  for l in 1 ... num_layers
    output = LN(x)  if normalize_first
    ```

    Attention is bidirectional.

    `dropout` is also applied before the first block, and `kernel_initializer` also initializes the
    embedding.

    Args:
        vocabulary_size: int, number of tokens of the texts, with the blank, which is token 0.
        num_layers: int, number of blocks.
        hidden_dim: int, width of the blocks.
        intermediate_dim: int, width of the feed-forward networks. None if `feed_forward` replaces
            all of them.
        head_groups: list of `rt_keras.layers` head groups, copied for each block; or a list of
            such lists, one per block.
        num_mel_bins: int, number of features of a frame. Defaults to 80.
        sinusoidal_positions: bool, whether to add `rt_keras.layers.SinusoidalPositions`. Defaults
            to False.
        frequency_masks, frequency_mask_width, time_masks, time_mask_width: see
            `rt_keras.layers.SpecAugment`. By default, there are no masks.
        dtype: dtype policy. Defaults to Keras's global policy.
        key_dim, value_dim, activation, normalize_first, feed_forward, normalization: options of all
            blocks; see `rt_keras.layers.TransformerBlock`.
        dropout, attention_dropout, activation_dropout, shift_tokens, attention_bias: the same.
        feed_forward_bias, use_head_dense, layer_norm_epsilon, kernel_initializer: the same.
        conv_kernel_size, remat: the same.
        **kwargs: base backbone keyword arguments, such as `name`.

    Call arguments:
        inputs: dictionary of "features", `[batch, frames, num_mel_bins]`; and "padding_mask", bool
            or int `[batch, frames]`, 0 for padding.
        training: bool, whether to apply dropout and masks, and collect statistics of the centroids.
            Defaults to None, for Keras's default.

    Returns:
        `[batch, frames / 4, hidden_dim]`, rounded up.

    Raises:
        ValueError: if a size is not a positive integer or a block has no head groups.

    Source: Vyas et al. 2020, Fast Transformers with Clustered Attention, section 4.2.

    >>> from rt_keras.layers import LocalHeads, RoutingHeads
    >>> backbone = RoutingTransformerSpeechBackbone(
    ...     vocabulary_size=30,
    ...     num_layers=1,
    ...     hidden_dim=32,
    ...     intermediate_dim=64,
    ...     head_groups=[LocalHeads(2, block_size=16), RoutingHeads(2, 4, window_size=16)],
    ... )
    >>> inputs = {"features": keras.ops.ones([1, 80, 80]), "padding_mask": keras.ops.ones([1, 80])}
    >>> backbone(inputs).shape
    TensorShape([1, 20, 32])
    """

    kind = "ctc"
    attention_of_groups = {"head_groups": "encoder"}

    def __init__(
        self,
        vocabulary_size,
        num_layers,
        hidden_dim,
        intermediate_dim,
        head_groups,
        num_mel_bins=80,
        sinusoidal_positions=False,
        frequency_masks=0,
        frequency_mask_width=27,
        time_masks=0,
        time_mask_width=100,
        dtype=None,
        *,
        key_dim=None,
        value_dim=None,
        activation="geglu",
        normalize_first=True,
        feed_forward=None,
        normalization="layer_norm",
        dropout=0.0,
        attention_dropout=None,
        activation_dropout=None,
        shift_tokens=False,
        attention_bias=True,
        feed_forward_bias=True,
        use_head_dense=False,
        layer_norm_epsilon=1e-6,
        kernel_initializer="glorot_uniform",
        conv_kernel_size=None,
        remat=False,
        **kwargs,
    ):
        # === Config ===
        self.vocabulary_size = positive_int("vocabulary_size", vocabulary_size)
        self.num_layers = positive_int("num_layers", num_layers)
        self.hidden_dim = hidden_dim
        self.num_mel_bins = num_mel_bins
        self.block_options = options = BlockOptions(
            intermediate_dim=intermediate_dim,
            key_dim=key_dim,
            value_dim=value_dim,
            activation=activation,
            normalize_first=normalize_first,
            feed_forward=feed_forward,
            normalization=normalization,
            dropout=dropout,
            attention_dropout=attention_dropout,
            activation_dropout=activation_dropout,
            shift_tokens=shift_tokens,
            attention_bias=attention_bias,
            feed_forward_bias=feed_forward_bias,
            use_head_dense=use_head_dense,
            layer_norm_epsilon=layer_norm_epsilon,
            kernel_initializer=kernel_initializer,
            conv_kernel_size=conv_kernel_size,
            remat=remat,
        )

        # === Layers ===
        self.embedding = RoutingTransformerSpeechEmbedding(
            hidden_dim,
            num_mel_bins,
            sinusoidal_positions=sinusoidal_positions,
            frequency_masks=frequency_masks,
            frequency_mask_width=frequency_mask_width,
            time_masks=time_masks,
            time_mask_width=time_mask_width,
            kernel_initializer=kernel_initializer,
            dtype=dtype,
            name="embedding",
        )
        self.input_dropout = Dropout(dropout, dtype=dtype, name="input_dropout")
        self.transformer_blocks = make_blocks(
            options, groups_of_blocks(head_groups, num_layers), dtype, "transformer_block"
        )
        self.layer_norm = make_final_norm(options, dtype, "layer_norm")
        options.refuse_unused()

        # === Functional Model ===
        inputs = {
            "features": keras.Input((None, num_mel_bins), name="features"),
            "padding_mask": keras.Input((None,), dtype="int32", name="padding_mask"),
        }
        embedded = self.embedding(inputs["features"], padding_mask=inputs["padding_mask"])
        mask = positions_of_frames(inputs["padding_mask"])
        outputs = self._run_blocks(embedded, padding_mask=mask)
        super().__init__(inputs=inputs, outputs=outputs, dtype=dtype, **kwargs)

    # Each output depends on all frames.
    cached_decoding = False


def positions_of_frames(padding_mask):
    """Returns the padding mask of the positions, given that of the frames."""
    return padding_mask[:, ::2][:, ::2]
