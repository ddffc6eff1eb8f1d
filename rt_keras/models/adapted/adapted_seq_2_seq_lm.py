"""Generation with KerasHub's encoder-decoder models on adapted backbones."""

import contextvars
import functools

import tensorflow as tf

from rt_keras.models.adapted.attention import decoding
from rt_keras.models.adapted.decoding import Decoding
from rt_keras.models.generation import shortest_prompt
from rt_keras.models.left_padding import generate_from_first_tokens
from rt_keras.ops.blocks import size

# Number of positions of a prompt in the cache, while a thread reads a prompt.
COUNT = contextvars.ContextVar("count", default=None)


class AdaptedSeq2SeqLM(Decoding):
    """Mixin of adapted encoder-decoder models; see `Decoding`."""

    def make_generate_function(self):
        """Returns the function that `generate` calls on a batch of prompts."""
        generate = super().make_generate_function()
        return functools.partial(generate_from_first_tokens, self, generate, "decoder_padding_mask")

    def generate_step(self, inputs, stop_token_ids=None):
        """Continues a batch of prompts, as the original model does."""
        self._check_cached()
        # The first step reads the last token of the shortest prompt.
        mask = tf.cast(inputs["decoder_padding_mask"], tf.bool)
        token = COUNT.set(shortest_prompt(mask) - 1)
        try:
            return super().generate_step(inputs, stop_token_ids)
        finally:
            COUNT.reset(token)

    def call_decoder_with_cache(
        self,
        encoder_hidden_states,
        encoder_padding_mask,
        decoder_token_ids,
        self_attention_cache=None,
        self_attention_cache_update_index=None,
        cross_attention_cache=None,
        cross_attention_cache_update_index=None,
    ):
        """Runs the decoder on prompts, or on one token given the caches of the previous tokens.

        Args:
            encoder_hidden_states: `[batch, encoder_length, hidden_dim]`.
            encoder_padding_mask: `[batch, encoder_length]`.
            decoder_token_ids: int `[batch, length]` for prompts, otherwise `[batch, 1]`.
            self_attention_cache: caches from the last call; ignored for prompts.
            self_attention_cache_update_index: int scalar, position of the first token.
            cross_attention_cache: tensor of the keys and values of the encoder's outputs.
            cross_attention_cache_update_index: 0 for prompts, to fill that tensor; otherwise None.

        Returns:
            Tuple of the logits, the last hidden states, and both caches.
        """
        batch, length = size(decoder_token_ids, 0), size(decoder_token_ids, 1)

        def attend(layer, inputs):
            if cross_attention_cache_update_index is not None:
                count = COUNT.get()
                output, cache = layer.prefill(inputs, length if count is None else count, length)
            else:
                cache = self_attention_cache[len(caches)]
                output, cache = layer.call_with_cache(
                    inputs, cache, self_attention_cache_update_index
                )
            caches.append(cache)
            return output

        # Replaces KerasHub's cache, which is sliced by batch and layer.
        layers, caches = len(self._causal_attention()), []
        placeholder = tf.zeros([batch, layers, 2, 1, 1, 1], self.compute_dtype)
        with decoding(attend):
            logits, hidden_states, _, cross_attention_cache = super().call_decoder_with_cache(
                encoder_hidden_states,
                encoder_padding_mask,
                decoder_token_ids,
                placeholder,
                self_attention_cache_update_index,
                cross_attention_cache,
                cross_attention_cache_update_index,
            )
        return logits, hidden_states, tuple(caches), cross_attention_cache
