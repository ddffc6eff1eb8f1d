"""Attention of adapted models while they decode: with a cache for each kind of heads."""

import contextlib

from rt_keras.models.adapted.architectures import architecture
from rt_keras.models.adapted.backbones import attention_blocks


class Decoding:
    """What adapted generative tasks add to KerasHub's: a cache for each kind of heads.

    KerasHub's models hand every block a slice of one tensor of all keys and values. Adapted ones
    hand it a placeholder, and keep for each block what its heads need, which for most kinds does
    not grow with the sequence.
    """

    @property
    def cached_decoding(self):
        """Whether all heads can decode one position at a time."""
        return all(layer.cached_decoding for layer in self._causal_attention())

    def _check_cached(self):
        if not self.cached_decoding:
            raise ValueError(
                "generate() needs heads that decode with a cache, such as FullHeads, LocalHeads "
                "or RoutingHeads with assignment='nearest'"
            )

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

    def _causal_attention(self):
        blocks, name = attention_blocks(self.backbone), architecture(self.backbone).attention
        return [getattr(block, name) for block, causal in blocks if causal]
