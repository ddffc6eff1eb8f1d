"""The Routing Transformer without a head: token ids to hidden states."""

import keras
import keras_hub

from rt_keras.layers import TransformerBlock
from rt_keras.layers.head_group import HeadGroup, copy_groups, positive_int


@keras.saving.register_keras_serializable(package="rt_keras")
class RoutingTransformerBackbone(keras_hub.models.Backbone):
    """A decoder whose attention mixes local, routing and full heads.

    ```
    x = sqrt(hidden_dim) embedding(token_ids)  [+ position embedding]
    x = block_l(x)  for l in 1 ... num_layers
    output = LN(x)
    ```

    Every block is causal. With "nearest" routing heads so is the whole model: an output depends on
    no later token. Without `max_sequence_length` there is no position embedding, and sequences may
    be of any length; order is then known from relative positions, from the causal mask and from
    what lies in the same block.

    Args:
        vocabulary_size: number of token ids.
        num_layers: number of blocks.
        hidden_dim: width of the embedding and the blocks.
        intermediate_dim: width of the feed-forward networks.
        head_groups: list of `rt_keras.layers` head groups, copied for each block; or a list of
            such lists, one for each block.
        activation: of the feed-forward networks; see `rt_keras.layers.FeedForward`.
        normalize_first: pre-norm if True, else post-norm, which has no final LN.
        dropout: share set to 0 in training, after the embedding and in the blocks.
        shift_tokens: whether what goes into attention and feed-forward network is mixed with the
            position before; see `rt_keras.layers.TokenShift`.
        max_sequence_length: how many positions have an embedding, or None for none.
        layer_norm_epsilon: ε of the layer normalisations.
        dtype: dtype policy.
        **kwargs: those of `keras_hub.models.Backbone`.

    Call arguments:
        inputs: dictionary of "token_ids", int `[batch, length]`, and "padding_mask", bool or int
            `[batch, length]`, 0 for padding.

    Returns:
        `[batch, length, hidden_dim]`.

    Raises:
        ValueError: if a size is not a positive integer, if there is a block without head groups or
            lists of them that are not one for each block, or if a sequence is longer than
            `max_sequence_length`.

    Source: Roy et al. 2021, Efficient Content-Based Sparse Attention with Routing Transformers.

    >>> from rt_keras.layers import LocalHeads, RoutingHeads
    >>> backbone = RoutingTransformerBackbone(
    ...     vocabulary_size=258,
    ...     num_layers=2,
    ...     hidden_dim=32,
    ...     intermediate_dim=64,
    ...     head_groups=[LocalHeads(2, block_size=16), RoutingHeads(2, 4, window_size=16)],
    ... )
    >>> ids = keras.ops.ones([1, 40], dtype="int32")
    >>> backbone({"token_ids": ids, "padding_mask": ids}).shape
    TensorShape([1, 40, 32])
    """

    def __init__(
        self,
        vocabulary_size,
        num_layers,
        hidden_dim,
        intermediate_dim,
        head_groups,
        activation="geglu",
        normalize_first=True,
        dropout=0.0,
        shift_tokens=False,
        max_sequence_length=None,
        layer_norm_epsilon=1e-6,
        dtype=None,
        **kwargs,
    ):
        positive_int("vocabulary_size", vocabulary_size)
        positive_int("num_layers", num_layers)
        positive_int("hidden_dim", hidden_dim)
        if max_sequence_length is not None:
            positive_int("max_sequence_length", max_sequence_length)
        groups_of_blocks = _groups_of_blocks(head_groups, num_layers)

        # === Layers ===
        self.token_embedding = keras_hub.layers.ReversibleEmbedding(
            vocabulary_size,
            hidden_dim,
            embeddings_initializer=keras.initializers.RandomNormal(stddev=hidden_dim**-0.5),
            dtype=dtype,
            name="token_embedding",
        )
        self.position_embedding = None
        if max_sequence_length is not None:
            self.position_embedding = keras_hub.layers.PositionEmbedding(
                max_sequence_length, dtype=dtype, name="position_embedding"
            )
        self.embedding_dropout = keras.layers.Dropout(
            dropout, dtype=dtype, name="embedding_dropout"
        )
        self.transformer_blocks = [
            TransformerBlock(
                copy_groups(groups, dtype),
                intermediate_dim,
                activation=activation,
                normalize_first=normalize_first,
                dropout=dropout,
                shift_tokens=shift_tokens,
                layer_norm_epsilon=layer_norm_epsilon,
                dtype=dtype,
                name=f"transformer_block_{i}",
            )
            for i, groups in enumerate(groups_of_blocks)
        ]
        self.layer_norm = None
        if normalize_first:
            self.layer_norm = keras.layers.LayerNormalization(
                epsilon=layer_norm_epsilon, dtype=dtype, name="layer_norm"
            )

        # === Functional Model ===
        token_ids = keras.Input((None,), dtype="int32", name="token_ids")
        padding_mask = keras.Input((None,), dtype="int32", name="padding_mask")
        # The embedding is small so that logits start small; inputs are of unit variance.
        x = self.token_embedding(token_ids) * hidden_dim**0.5
        if self.position_embedding is not None:
            x = x + self.position_embedding(x)
        x = self.embedding_dropout(x)
        for block in self.transformer_blocks:
            x = block(x, padding_mask=padding_mask, use_causal_mask=True)
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        super().__init__(
            inputs={"token_ids": token_ids, "padding_mask": padding_mask},
            outputs=x,
            dtype=dtype,
            **kwargs,
        )

        # === Config ===
        self.vocabulary_size = vocabulary_size
        self.num_layers = num_layers
        self.hidden_dim = hidden_dim
        self.intermediate_dim = intermediate_dim
        self.activation = activation
        self.normalize_first = normalize_first
        self.dropout = dropout
        self.shift_tokens = shift_tokens
        self.max_sequence_length = max_sequence_length
        self.layer_norm_epsilon = layer_norm_epsilon

    def call(self, inputs, training=None, mask=None):
        length = inputs["token_ids"].shape[1]
        if None not in (length, self.max_sequence_length) and length > self.max_sequence_length:
            raise ValueError(
                f"A sequence of length {length} is longer than "
                f"max_sequence_length={self.max_sequence_length}, the number of positions that "
                "have an embedding."
            )
        return super().call(inputs, training=training, mask=mask)

    def get_config(self):
        serialize = keras.saving.serialize_keras_object
        return {
            **super().get_config(),
            "vocabulary_size": self.vocabulary_size,
            "num_layers": self.num_layers,
            "hidden_dim": self.hidden_dim,
            "intermediate_dim": self.intermediate_dim,
            "head_groups": [
                [serialize(group) for group in block.attention.head_groups]
                for block in self.transformer_blocks
            ],
            "activation": self.activation,
            "normalize_first": self.normalize_first,
            "dropout": self.dropout,
            "shift_tokens": self.shift_tokens,
            "max_sequence_length": self.max_sequence_length,
            "layer_norm_epsilon": self.layer_norm_epsilon,
        }

    @classmethod
    def from_config(cls, config):
        deserialize = keras.saving.deserialize_keras_object
        groups = [[deserialize(x) for x in groups] for groups in config["head_groups"]]
        return super().from_config({**config, "head_groups": groups})


def _groups_of_blocks(head_groups, num_layers):
    """The head groups of each block."""
    lists = (list, tuple)
    nested = isinstance(head_groups, lists) and any(isinstance(x, lists) for x in head_groups)
    groups_of_blocks = head_groups if nested else [head_groups] * num_layers
    if len(groups_of_blocks) != num_layers:
        raise ValueError(
            "head_groups must be one list of groups, or one for each of the "
            f"num_layers={num_layers} blocks. Received: {len(groups_of_blocks)} lists."
        )
    if not all(_are_head_groups(groups) for groups in groups_of_blocks):
        raise ValueError(
            "head_groups must be a list of at least one LocalHeads, RoutingHeads or FullHeads, or "
            f"such a list for each block. Received: head_groups={head_groups!r}"
        )
    return groups_of_blocks


def _are_head_groups(x):
    return isinstance(x, (list, tuple)) and x and all(isinstance(y, HeadGroup) for y in x)
