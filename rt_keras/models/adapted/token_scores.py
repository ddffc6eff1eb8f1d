"""Losses of adapted language models, computed in chunks of positions."""

import functools

import tensorflow as tf

from rt_keras.models.adapted.architectures import architecture
from rt_keras.models.chunked_loss import ChunkedLoss, losses_of_layer
from rt_keras.models.scores import Scores
from rt_keras.ops.blocks import size

# Number of logits that are computed at once: 512 MiB.
LOGITS_AT_ONCE = 2**27


class TokenScores(Scores, ChunkedLoss):
    """Mixin of adapted language models: losses in chunks of positions.

    If the loss and the metrics are computed token by token, such as cross entropy and accuracy,
    `fit` and `evaluate` never hold the logits of more than `loss_chunk_size` positions. With
    others, such as a custom loss, they hold all logits.
    """

    def compile_arguments(self, *args, **kwargs):
        """See `ChunkedLoss.compile_arguments`."""
        self.loss_chunk_size = self._positions_at_once()
        try:
            return super().compile_arguments(*args, **kwargs)
        except ValueError:  # The loss or a metric needs all logits.
            self.loss_chunk_size = None
            return super().compile_arguments(*args, **kwargs)

    def hidden_states(self, inputs, training=None):
        """Returns the states that logits are computed from, `[batch, length, hidden_dim]`."""
        return self.backbone(inputs, training=training)

    def token_logits(self, hidden):
        """Computes the logits of hidden states, `[..., vocabulary_size]`."""
        return self.backbone.token_embedding(hidden, reverse=True)

    def token_losses(self, hidden, labels, chunk_size):
        """See `ChunkedLoss.token_losses`."""
        return losses_of_layer(self.backbone.token_embedding, hidden, labels, chunk_size)

    def _positions_at_once(self):
        return max(1, LOGITS_AT_ONCE // self.backbone.token_embedding.input_dim)

    def embedded(self, token_ids):
        """See `Scores`."""
        positions = tf.range(size(token_ids, 1))[None]
        return architecture(self.backbone).embed(self.backbone, token_ids, positions)

    def blocks(self, padding_mask):
        """See `Scores`."""
        mask = {architecture(self.backbone).padding: padding_mask}
        return [functools.partial(block, **mask) for block in self.backbone.transformer_layers]

    def normalized(self, x):
        """See `Scores`."""
        return getattr(self.backbone, architecture(self.backbone).layer_norm)(x)
