"""Logits and scores of tokens, as KerasHub's language models compute them."""

import tensorflow as tf

from rt_keras.models.chunked_loss import positions_at_once
from rt_keras.models.documents import have_documents
from rt_keras.models.generation import as_tensor
from rt_keras.ops.blocks import size
from rt_keras.ops.left_padding import leading_padding, roll_rows


class Scores:
    """Mixin of causal language models: calls with several documents in a row, and `score`.

    A subclass defines `hidden_states`, `token_logits` and `token_losses`; and the layers that an
    intercept function is called between: `embedded(token_ids)`, `blocks(padding_mask)`, a list of
    functions, and `normalized(x)`.
    """

    def call(self, inputs, training=None, mask=None):
        if not have_documents(inputs):
            return super().call(inputs, training=training, mask=mask)
        return self.token_logits(self.hidden_states(inputs, training))

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
            ValueError: if `scoring_mode` is unknown, "loss" without `target_ids`, or shapes differ.
        """
        if scoring_mode not in ("logits", "loss"):
            raise ValueError(
                f'scoring_mode must be "logits" or "loss". Received: scoring_mode={scoring_mode!r}'
            )
        if scoring_mode == "loss" and target_ids is None:
            raise ValueError('scoring_mode="loss" needs target_ids, the tokens to predict')
        token_ids = as_tensor("token_ids", token_ids, [None, None])
        if padding_mask is None:
            padding_mask = tf.ones_like(token_ids)
        padding_mask = as_tensor("padding_mask", padding_mask, token_ids.shape)
        hidden = self._intercepted(token_ids, padding_mask, layer_intercept_fn)
        if scoring_mode == "loss":
            labels = as_tensor("target_ids", target_ids, token_ids.shape)
            chunk_size = positions_at_once(self.backbone.vocabulary_size, size(hidden, 1))
            return self.token_losses(hidden, labels, chunk_size)[0]
        return self.token_logits(hidden)

    def _intercepted(self, token_ids, padding_mask, intercept):
        inputs = {"token_ids": token_ids, "padding_mask": padding_mask}
        if intercept is None:
            return self.hidden_states(inputs)
        before = leading_padding(padding_mask)  # [batch]
        token_ids, padding_mask = (roll_rows(x, -before) for x in (token_ids, padding_mask))

        def changed(x, number):
            return roll_rows(intercept(roll_rows(x, before), number), -before)

        x = changed(self.embedded(token_ids), -1)
        for number, block in enumerate(self.blocks(padding_mask)):
            x = changed(block(x), number)
        return roll_rows(self.normalized(x), before)
