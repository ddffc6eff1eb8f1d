"""Generation with KerasHub's encoder-decoder models on adapted backbones."""

import contextvars
import functools

import tensorflow as tf

from rt_keras.models.adapted.attention import DecodingStep
from rt_keras.models.generation import shortest_prompt
from rt_keras.models.left_padding import generate_from_first_tokens
from rt_keras.ops.blocks import size

# Number of positions of a prompt in the cache, which KerasHub does not pass on.
COUNT = contextvars.ContextVar("count", default=None)


class AdaptedSeq2SeqLM:
    """Mixin of adapted encoder-decoder models: a cache for each kind of heads of the decoder."""

    def make_generate_function(self):
        """Returns the function that `generate` calls on a batch of prompts."""
        generate = super().make_generate_function()
        return functools.partial(generate_from_first_tokens, self, generate, "decoder_padding_mask")

    def generate_step(self, inputs, stop_token_ids=None):
        """Continues a batch of prompts, as the original model does."""
        self.backbone.check_cached()
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
            cross_attention_cache: keys and values of the encoder's outputs, `[batch, layers, 2,
                encoder_length, heads, depth]`.
            cross_attention_cache_update_index: 0 for prompts, to fill that tensor; otherwise None.

        Returns:
            Tuple of the logits, the last hidden states, and both caches.
        """
        backbone, position = self.backbone, self_attention_cache_update_index
        reads_prompts = cross_attention_cache_update_index is not None
        count = size(decoder_token_ids, 1) if COUNT.get() is None else COUNT.get()
        tokens = backbone.token_embedding(decoder_token_ids)
        # [batch, length, hidden_dim]
        x = tokens + backbone.decoder_position_embedding(tokens, start_index=position)
        x = backbone.decoder_embeddings_layer_norm(x)
        caches, cross_caches = [], []
        for number, block in enumerate(backbone.decoder_transformer_layers):
            if reads_prompts:
                step = DecodingStep(None, position, count)
            else:
                step = DecodingStep(self_attention_cache[number], position)
            x, step, cross_cache = block(
                decoder_sequence=x,
                encoder_sequence=encoder_hidden_states,
                encoder_padding_mask=encoder_padding_mask,
                self_attention_cache=step,
                self_attention_cache_update_index=position,
                cross_attention_cache=cross_attention_cache[:, number],
                cross_attention_cache_update_index=cross_attention_cache_update_index,
            )
            caches.append(step.cache)
            cross_caches.append(cross_cache)
        if reads_prompts:
            # [batch, layers, 2, encoder_length, heads, depth]
            cross_attention_cache = tf.stack(cross_caches, axis=1)
        return backbone.token_embedding(x, reverse=True), x, tuple(caches), cross_attention_cache
