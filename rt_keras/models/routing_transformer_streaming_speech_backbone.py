"""Causal backbone of speech models, which can read a sound as it comes."""

import keras

from rt_keras.models.routing_transformer_speech_backbone import RoutingTransformerSpeechBackbone


@keras.saving.register_keras_serializable(package="rt_keras")
class RoutingTransformerStreamingSpeechBackbone(RoutingTransformerSpeechBackbone):
    """A `RoutingTransformerSpeechBackbone` with causal convolutions and causal attention.

    Its blocks, weights and arguments are the same. With heads that support `cached_decoding`, no
    output depends on a later frame, and a sound can be read in parts: `call_with_cache` computes
    the outputs of the next frames from those and a cache of the previous ones.

    Args:
        vocabulary_size, num_layers, hidden_dim, intermediate_dim: see the base class.
        head_groups, num_mel_bins, sinusoidal_positions, frequency_masks: see the base class.
        frequency_mask_width, time_masks, time_mask_width, dtype: see the base class.
        **kwargs: see the base class.

    Call arguments:
        inputs, training: see `RoutingTransformerSpeechBackbone`.

    Returns:
        `[batch, frames / 4, hidden_dim]`, rounded up.

    Raises:
        ValueError: as for `RoutingTransformerSpeechBackbone`.

    >>> from rt_keras.layers import LocalHeads
    >>> heads = [LocalHeads(2, block_size=4)]
    >>> backbone = RoutingTransformerStreamingSpeechBackbone(30, 1, 32, 64, heads, num_mel_bins=8)
    >>> features = keras.random.normal([1, 48, 8], seed=0)
    >>> expected = backbone({"features": features, "padding_mask": keras.ops.ones([1, 48])})
    >>> first, cache = backbone.call_with_cache(features[:, :32], backbone.new_cache(1, 12), 0)
    >>> second, _ = backbone.call_with_cache(features[:, 32:], cache, 8)
    >>> output = keras.ops.concatenate([first, second], axis=1)
    >>> bool(keras.ops.max(keras.ops.abs(output - expected)) < 1e-4)
    True
    """

    kind = "streaming_ctc"
    attention_of_groups = {"head_groups": "decoder"}
    causal = True
    _embedding_options = {"causal": True}

    def new_cache(self, batch, max_length):
        """Creates an empty cache for `call_with_cache`.

        Args:
            batch: int or scalar tensor, batch size.
            max_length: int, maximum number of positions; full heads cache this many.

        Returns:
            Nested tuples and dictionaries of tensors with the batch on axis 0.
        """
        return self.embedding.new_state(batch), super().new_cache(batch, max_length)

    def call_with_cache(self, features, cache, position):
        """Runs the model on the next frames, given the cache of the previous ones.

        Args:
            features: `[batch, frames, num_mel_bins]`, a multiple of 4 frames.
            cache: cache from `new_cache` or the previous call.
            position: int scalar, number of previous positions.

        Returns:
            Outputs, `[batch, frames / 4, hidden_dim]`, and the cache with these frames added.

        Raises:
            ValueError: if `cached_decoding` is False or the cache belongs to another model.
        """
        state, caches = cache
        x, state = self.embedding.call_with_state(features, state, position)
        x, caches = self._call_blocks_with_cache(x, caches, position)
        return x, (state, caches)
