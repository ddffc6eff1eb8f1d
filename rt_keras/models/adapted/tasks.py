"""KerasHub's tasks on adapted backbones, and their decoding."""

import contextlib

import keras
import keras_hub
import tensorflow as tf

from rt_keras.models.adapted.attention_layers import NAME
from rt_keras.models.adapted.backbones import BACKBONES, attention_blocks
from rt_keras.models.generation import shortest_prompt
from rt_keras.ops.blocks import size


class _Decoding:
    """What adapted generative tasks add to KerasHub's: a cache for each kind of heads.

    KerasHub's models hand every block a slice of one tensor of all keys and values. Adapted ones
    hand it a placeholder, and keep for each block what its heads need, which for most kinds does
    not grow with the sequence.
    """

    # The mask of prompts among the inputs of generation.
    prompt_mask = "padding_mask"
    # How many positions of a prompt the cache holds, while a prompt is read.
    _count = None

    @property
    def cached_decoding(self):
        """Whether all heads can decode one position at a time."""
        return all(layer.cached_decoding for layer in self._causal_attention())

    def generate_step(self, inputs, stop_token_ids=None):
        """Continues a batch of prompts, as the original model does."""
        if not self.cached_decoding:
            raise ValueError(
                "generate() needs heads that decode with a cache, such as FullHeads, LocalHeads "
                "or RoutingHeads with assignment='nearest'"
            )
        # The first step reads the last token of the shortest prompt.
        self._count = shortest_prompt(tf.cast(inputs[self.prompt_mask], tf.bool)) - 1
        try:
            return super().generate_step(inputs, stop_token_ids)
        finally:
            self._count = None

    def _prefill(self, length):
        """A function for `_decode` that reads prompts of a length."""
        count = length if self._count is None else self._count
        return lambda layer, inputs, number: layer.prefill(inputs, count, length)

    @contextlib.contextmanager
    def _decode(self, attend):
        """Lets the attention layers attend by a function of layer, inputs and number of the layer.

        Args:
            attend: function that returns an output and a cache.

        Yields:
            A list, to which the caches are added.
        """
        layers, caches = self._causal_attention(), []

        def decode(layer, inputs):
            output, cache = attend(layer, inputs, len(caches))
            caches.append(cache)
            return output

        try:
            for layer in layers:
                layer.decode = decode
            yield caches
        finally:
            for layer in layers:
                layer.decode = None

    def _placeholder(self, token_ids):
        """In the place of KerasHub's cache, which it slices by batch and layer."""
        layers = len(self._causal_attention())
        return tf.zeros([size(token_ids, 0), layers, 2, 1, 1, 1], self.compute_dtype)

    def _causal_attention(self):
        blocks = attention_blocks(self.backbone)
        return [getattr(block, NAME) for block, causal in blocks if causal]


class AdaptedCausalLM(_Decoding):
    """What adapted language models add to those of KerasHub: see `_Decoding`."""

    def _build_cache(self, token_ids):
        """The hidden states of prompts, and the caches after the positions that count."""
        with self._decode(self._prefill(size(token_ids, 1))) as caches:
            _, hidden_states, _ = super().call_with_cache(
                token_ids, self._placeholder(token_ids), 0
            )
        return hidden_states, tuple(caches)

    def call_with_cache(self, token_ids, cache, cache_update_index):
        """Runs the model on one token, given the cache of those before it.

        Args:
            token_ids: int `[batch, 1]`.
            cache: the cache from the last call, or of `_build_cache`.
            cache_update_index: int scalar, the position of the token.

        Returns:
            Logits `[batch, 1, vocabulary_size]`, the last hidden states `[batch, 1, hidden_dim]`
            and the cache with this position in it.
        """

        def step(layer, inputs, number):
            return layer.call_with_cache(inputs, cache[number], cache_update_index)

        with self._decode(step) as caches:
            logits, hidden_states, _ = super().call_with_cache(
                token_ids, self._placeholder(token_ids), cache_update_index
            )
        return logits, hidden_states, tuple(caches)


class AdaptedSeq2SeqLM(_Decoding):
    """What adapted sequence-to-sequence models add to those of KerasHub: see `_Decoding`."""

    prompt_mask = "decoder_padding_mask"

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
        """Runs the decoder on prompts, or on one token given the caches of those before it.

        Args:
            encoder_hidden_states: `[batch, encoder_length, hidden_dim]`.
            encoder_padding_mask: `[batch, encoder_length]`.
            decoder_token_ids: int `[batch, length]` for prompts, else `[batch, 1]`.
            self_attention_cache: the caches from the last call; for prompts, anything.
            self_attention_cache_update_index: int scalar, the position of the first token.
            cross_attention_cache: tensor of the keys and values of the encoder's outputs.
            cross_attention_cache_update_index: 0 for prompts, to fill that tensor; else None.

        Returns:
            Logits, the last hidden states, and both caches.
        """

        def step(layer, inputs, number):
            cache = self_attention_cache[number]
            return layer.call_with_cache(inputs, cache, self_attention_cache_update_index)

        reads_prompts = cross_attention_cache_update_index is not None
        attend = self._prefill(size(decoder_token_ids, 1)) if reads_prompts else step
        with self._decode(attend) as caches:
            logits, hidden_states, _, cross_attention_cache = super().call_decoder_with_cache(
                encoder_hidden_states,
                encoder_padding_mask,
                decoder_token_ids,
                self._placeholder(decoder_token_ids),
                self_attention_cache_update_index,
                cross_attention_cache,
                cross_attention_cache_update_index,
            )
        return logits, hidden_states, tuple(caches), cross_attention_cache


# What adapted tasks on each class of KerasHub's have besides.
DECODING = {
    keras_hub.models.CausalLM: AdaptedCausalLM,
    keras_hub.models.Seq2SeqLM: AdaptedSeq2SeqLM,
}


def _tasks_of(backbone_cls):
    """KerasHub's tasks on a class of backbones."""
    classes = (getattr(keras_hub.models, name) for name in dir(keras_hub.models))
    return [
        cls
        for cls in classes
        if isinstance(cls, type)
        and issubclass(cls, keras_hub.models.Task)
        and cls.backbone_cls is backbone_cls
    ]


def _adapted(cls, backbone_cls):
    """The adapted class of a task."""
    decoding = [mixin for base, mixin in DECODING.items() if issubclass(cls, base)][-1:]
    made = type(
        f"Adapted{cls.__name__}",
        (*decoding, cls),
        {"__module__": __name__, "backbone_cls": backbone_cls},
    )
    made.__doc__ = f"`keras_hub.models.{cls.__name__}` with heads of this package."
    return keras.saving.register_keras_serializable(package="rt_keras")(made)


# By the class that it adapts.
TASKS = {
    cls: _adapted(cls, adapted) for base, adapted in BACKBONES.items() for cls in _tasks_of(base)
}
