"""Decoding with adapted models: each kind of heads has its own cache."""

from rt_keras.models.adapted.architectures import architecture
from rt_keras.models.adapted.backbones import attention_blocks


class Decoding:
    """Mixin of adapted generative tasks: a cache for each kind of heads.

    KerasHub's models pass each block a slice of one tensor of all keys and values. Adapted models
    pass it a placeholder, and keep for each block what its heads need. For most kinds of heads,
    this does not grow with the sequence.
    """

    @property
    def cached_decoding(self):
        """True if all heads can decode one position at a time."""
        return all(layer.cached_decoding for layer in self._causal_attention())

    def _check_cached(self):
        if not self.cached_decoding:
            raise ValueError(
                "generate() needs heads that decode with a cache, such as FullHeads, LocalHeads "
                "or RoutingHeads with assignment='nearest'"
            )

    def _causal_attention(self):
        blocks, name = attention_blocks(self.backbone), architecture(self.backbone).attention
        return [getattr(block, name) for block, causal in blocks if causal]
