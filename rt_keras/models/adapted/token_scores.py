"""Losses and scores of adapted language models, computed in chunks of positions."""

import tensorflow as tf

from rt_keras.models.adapted.architectures import architecture
from rt_keras.models.chunked_loss import ChunkedLoss
from rt_keras.ops.blocks import size
from rt_keras.ops.cross_entropy import chunked_cross_entropy
from rt_keras.ops.left_padding import leading_padding, roll_rows

# Number of logits that are computed at once: 512 MiB.
LOGITS_AT_ONCE = 2**27


class TokenScores(ChunkedLoss):
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
        embedding = self.backbone.token_embedding
        tied = embedding.tie_weights
        weight = embedding.embeddings if tied else embedding.reverse_embeddings
        table = tf.cast(tf.convert_to_tensor(weight), hidden.dtype)
        table = table if tied else tf.transpose(table)
        soft_cap = getattr(embedding, "logit_soft_cap", None)
        trainable = weight.trainable
        return chunked_cross_entropy(hidden, table, labels, None, chunk_size, soft_cap, trainable)

    def score(
        self,
        token_ids,
        padding_mask=None,
        scoring_mode="logits",
        layer_intercept_fn=None,
        target_ids=None,
    ):
        """Scores token ids.

        Args:
            token_ids: int `[batch, length]`.
            padding_mask: bool or int `[batch, length]`, 0 for padding. Defaults to None, for no
                padding.
            scoring_mode: "logits" or "loss". For "loss", logits are computed in chunks. Defaults to
                "logits".
            layer_intercept_fn: function from the hidden states after each layer and its number, -1
                for the embedding, to new hidden states. Defaults to None, for unchanged hidden
                states.
            target_ids: int `[batch, length]`, tokens to predict, for "loss". Defaults to None.

        Returns:
            Logits, `[batch, length, vocabulary_size]`, or losses, `[batch, length]`.

        Raises:
            ValueError: if `scoring_mode` is unknown, or is "loss" without `target_ids`.
        """
        if scoring_mode not in ("logits", "loss"):
            raise ValueError(
                f'scoring_mode must be "logits" or "loss". Received: scoring_mode={scoring_mode!r}'
            )
        if scoring_mode == "loss" and target_ids is None:
            raise ValueError('scoring_mode="loss" needs target_ids, the tokens to predict')
        token_ids = tf.convert_to_tensor(token_ids)
        if padding_mask is None:
            padding_mask = tf.ones_like(token_ids)
        padding_mask = tf.convert_to_tensor(padding_mask)
        hidden = self._intercepted(token_ids, padding_mask, layer_intercept_fn)
        if scoring_mode == "loss":
            labels = tf.convert_to_tensor(target_ids)
            return self.token_losses(hidden, labels, self._positions_at_once())[0]
        return self.token_logits(hidden)

    def _positions_at_once(self):
        return max(1, LOGITS_AT_ONCE // self.backbone.token_embedding.input_dim)

    def _intercepted(self, token_ids, padding_mask, intercept):
        inputs = {"token_ids": token_ids, "padding_mask": padding_mask}
        if intercept is None:
            return self.hidden_states(inputs)
        made_of, before = architecture(self.backbone), leading_padding(padding_mask)
        token_ids, padding_mask = (roll_rows(x, -before) for x in (token_ids, padding_mask))

        def changed(x, number):
            return roll_rows(intercept(roll_rows(x, before), number), -before)

        positions = tf.range(size(token_ids, 1))[None]
        x = changed(made_of.embed(self.backbone, token_ids, positions), -1)
        for number, block in enumerate(self.backbone.transformer_layers):
            x = changed(block(x, **{made_of.padding: padding_mask}), number)
        return roll_rows(getattr(self.backbone, made_of.layer_norm)(x), before)
