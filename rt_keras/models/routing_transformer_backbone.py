"""The Routing Transformer without a head: token ids to hidden states."""

import keras
import keras_hub

from rt_keras.layers import ReversibleBlocks
from rt_keras.layers.head_group import positive_int
from rt_keras.models.model_section import arguments_of, make_all_head_groups
from rt_keras.models.presets import PublishedPresets
from rt_keras.models.routing_transformer_embedding import RoutingTransformerEmbedding
from rt_keras.models.transformer_blocks import (
    call_blocks_with_cache,
    config_of_groups,
    config_of_options,
    groups_of_blocks,
    groups_of_config,
    make_blocks,
    make_final_norm,
    new_caches,
    prefill_blocks,
)


@keras.saving.register_keras_serializable(package="rt_keras")
class RoutingTransformerBackbone(PublishedPresets, keras_hub.models.Backbone):
    """A decoder whose attention mixes local, routing and full heads.

    ```
    x = sqrt(hidden_dim) embedding(token_ids)  [+ positions]
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
        hidden_dim: width of the blocks.
        intermediate_dim: width of the feed-forward networks.
        head_groups: list of `rt_keras.layers` head groups, copied for each block; or a list of
            such lists, one for each block.
        embedding_dim: width of the embedding where it goes to `hidden_dim` through a dense layer,
            in the place of the factor sqrt(hidden_dim). None for an embedding as wide as the
            blocks, without.
        tie_embeddings: whether a language model's output has the weights of the embedding; else a
            dense layer with a bias of its own.
        key_dim, value_dim: depth of a head's keys and values. None for `hidden_dim` over the
            number of heads.
        activation: of the feed-forward networks; see `rt_keras.layers.FeedForward`.
        normalize_first: bool, pre-norm if True, else post-norm, which has no final LN.
        dropout: share set to 0 in training, before the first block and in the blocks.
        attention_dropout, activation_dropout: the same of attention weights and of the activations
            of feed-forward networks. None for `dropout`.
        embedding_dropout: the same of the embedding.
        token_dropout: probability in training that a token is replaced by 0.
        shift_tokens: whether what goes into attention and feed-forward network is mixed with the
            position before; see `rt_keras.layers.TokenShift`.
        max_sequence_length: how many positions have an embedding, or None for none.
        sinusoidal_positions: whether to add `rt_keras.layers.SinusoidalPositions`.
        attention_bias, feed_forward_bias, use_head_dense: see `rt_keras.layers.TransformerBlock`.
        layer_norm_epsilon: ε of the layer normalisations.
        kernel_initializer: of dense layers and, where it is not the default, of the embedding.
        feed_forward_chunk_size: how many positions go through a feed-forward network at once, or
            None for all; see `rt_keras.layers.FeedForward`.
        reversible: whether the blocks are on two streams from which the gradient goes back without
            their inputs, so that memory does not grow with `num_layers`; see
            `rt_keras.layers.ReversibleBlocks`. This is another model than one without. It does not
            go with `remat`.
        remat: whether the gradient computes each block anew from its inputs, which alone stay in
            memory; see `rt_keras.layers.TransformerBlock`.
        dtype: dtype policy.
        **kwargs: those of `keras_hub.models.Backbone`.

    Call arguments:
        inputs: dictionary of "token_ids", int `[batch, length]`, "padding_mask", bool or int
            `[batch, length]`, 0 for padding, and where a head group takes it "token_bias", float
            `[batch, length]`.

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

    kind = "causal_lm"

    def __init__(
        self,
        vocabulary_size,
        num_layers,
        hidden_dim,
        intermediate_dim,
        head_groups,
        embedding_dim=None,
        tie_embeddings=True,
        key_dim=None,
        value_dim=None,
        activation="geglu",
        normalize_first=True,
        dropout=0.0,
        attention_dropout=None,
        activation_dropout=None,
        embedding_dropout=0.0,
        token_dropout=0.0,
        shift_tokens=False,
        max_sequence_length=None,
        sinusoidal_positions=False,
        attention_bias=True,
        feed_forward_bias=True,
        use_head_dense=False,
        layer_norm_epsilon=1e-6,
        kernel_initializer="glorot_uniform",
        feed_forward_chunk_size=None,
        reversible=False,
        remat=False,
        dtype=None,
        **kwargs,
    ):
        sizes = {"vocabulary_size": vocabulary_size, "num_layers": num_layers}
        sizes.update({"hidden_dim": hidden_dim, "embedding_dim": embedding_dim})
        sizes["max_sequence_length"] = max_sequence_length
        for name, value in sizes.items():
            if value is not None or name not in ("embedding_dim", "max_sequence_length"):
                positive_int(name, value)
        if reversible and remat:
            raise ValueError("reversible and remat are both True: give one of them.")
        all_groups = groups_of_blocks(head_groups, num_layers)
        block_options = {
            "key_dim": key_dim,
            "value_dim": value_dim,
            "activation": activation,
            "normalize_first": normalize_first,
            "dropout": dropout,
            "attention_dropout": attention_dropout,
            "activation_dropout": activation_dropout,
            "shift_tokens": shift_tokens,
            "attention_bias": attention_bias,
            "feed_forward_bias": feed_forward_bias,
            "use_head_dense": use_head_dense,
            "layer_norm_epsilon": layer_norm_epsilon,
            "kernel_initializer": kernel_initializer,
            "feed_forward_chunk_size": feed_forward_chunk_size,
            "remat": remat,
        }

        # === Layers ===
        self.embedding = RoutingTransformerEmbedding(
            vocabulary_size,
            hidden_dim,
            embedding_dim=embedding_dim,
            max_sequence_length=max_sequence_length,
            sinusoidal_positions=sinusoidal_positions,
            embedding_dropout=embedding_dropout,
            token_dropout=token_dropout,
            kernel_initializer=kernel_initializer,
            dtype=dtype,
            name="embedding",
        )
        self.input_dropout = keras.layers.Dropout(dropout, dtype=dtype, name="input_dropout")
        self.transformer_blocks = make_blocks(
            all_groups, intermediate_dim, block_options, dtype, "transformer_block"
        )
        self.reversible_blocks = None
        if reversible:
            self.reversible_blocks = ReversibleBlocks(
                self.transformer_blocks, dtype=dtype, name="reversible_blocks"
            )
        self.layer_norm = make_final_norm(block_options, dtype, "layer_norm")

        # === Functional Model ===
        inputs = {
            "token_ids": keras.Input((None,), dtype="int32", name="token_ids"),
            "padding_mask": keras.Input((None,), dtype="int32", name="padding_mask"),
        }
        if any(group.token_bias for groups in all_groups for group in groups):
            inputs["token_bias"] = keras.Input((None,), dtype="float32", name="token_bias")
        x = self.input_dropout(self.embedding(inputs["token_ids"]))
        for block in [self.reversible_blocks] if reversible else self.transformer_blocks:
            x = block(
                x,
                padding_mask=inputs["padding_mask"],
                use_causal_mask=True,
                token_bias=inputs.get("token_bias"),
            )
        super().__init__(inputs=inputs, outputs=self._normalized(x), dtype=dtype, **kwargs)

        # === Config ===
        self.vocabulary_size = vocabulary_size
        self.num_layers = num_layers
        self.hidden_dim = hidden_dim
        self.intermediate_dim = intermediate_dim
        self.embedding_dim = embedding_dim
        self.tie_embeddings = tie_embeddings
        self.embedding_dropout = embedding_dropout
        self.token_dropout = token_dropout
        self.max_sequence_length = max_sequence_length
        self.sinusoidal_positions = sinusoidal_positions
        self.reversible = reversible
        self.block_options = block_options

    @classmethod
    def from_section(cls, model, vocabulary_size, dtype=None):
        arguments = arguments_of(cls, model)
        arguments |= {"vocabulary_size": vocabulary_size, "dtype": dtype}
        return cls(head_groups=make_all_head_groups(model), **arguments)

    def call(self, inputs, training=None, mask=None):
        self.check_length(inputs["token_ids"].shape[1])
        return super().call(inputs, training=training, mask=mask)

    def check_length(self, length):
        """Raises a ValueError if it is known that not every position has an embedding."""
        if None not in (length, self.max_sequence_length) and length > self.max_sequence_length:
            raise ValueError(
                f"A sequence of length {length} is longer than "
                f"max_sequence_length={self.max_sequence_length}, the number of positions that "
                "have an embedding."
            )

    # Decoding.

    @property
    def cached_decoding(self):
        """Whether all heads can be decoded with a cache; see `rt_keras.layers.HeadGroup`."""
        return all(block.cached_decoding for block in self.transformer_blocks)

    def new_cache(self, batch, max_length):
        """The cache of no positions yet, for `call_with_cache`.

        Args:
            batch: rows of the cache, an int or a scalar tensor.
            max_length: how many positions there will be; full heads keep as many.
        """
        return new_caches(self.transformer_blocks, batch, max_length)

    def prefill(self, token_ids, count, max_length, token_bias=None):
        """The outputs of a first stretch of positions, and the cache that goes on from them.

        Args:
            token_ids: int `[batch, length]`.
            count: int scalar, how many of the positions the cache is to hold. The others may hold
                anything.
            max_length: how many positions there will be.
            token_bias: `[batch, length]`, where a head group takes it.

        Returns:
            `[batch, length, hidden_dim]`, and the cache: nested dictionaries and tuples of tensors
            with the batch on axis 0.

        Raises:
            ValueError: if `cached_decoding` is False.
        """
        x = self.embedding(token_ids, training=False)
        x, cache = prefill_blocks(
            self.transformer_blocks, self._split(x), count, max_length, token_bias=token_bias
        )
        return self._normalized(x), cache

    def call_with_cache(self, token_ids, cache, position, token_bias=None):
        """The output of one position, given those before it.

        Args:
            token_ids: int `[batch, 1]`.
            cache: what `prefill`, `new_cache` or the last call gave.
            position: int scalar, how many positions came before.
            token_bias: `[batch, 1]`, where a head group takes it.

        Returns:
            `[batch, 1, hidden_dim]`, and the cache with this position in it.

        Raises:
            ValueError: if `cached_decoding` is False, or the cache is another model's.

        >>> from rt_keras.layers import LocalHeads, RoutingHeads
        >>> heads = [LocalHeads(2, block_size=4), RoutingHeads(2, 4, window_size=4)]
        >>> backbone = RoutingTransformerBackbone(20, 2, 32, 64, heads)
        >>> ids = keras.ops.reshape(keras.ops.arange(9), [1, 9])
        >>> expected = backbone({"token_ids": ids, "padding_mask": ids >= 0})
        >>> _, cache = backbone.prefill(ids[:, :8], count=8, max_length=9)
        >>> output, cache = backbone.call_with_cache(ids[:, 8:], cache, position=8)
        >>> bool(keras.ops.max(keras.ops.abs(output - expected[:, 8:])) < 1e-4)
        True
        """
        x = self.embedding(token_ids, training=False, start=position)
        x, cache = call_blocks_with_cache(
            self.transformer_blocks, self._split(x), cache, position, token_bias=token_bias
        )
        return self._normalized(x), cache

    def _split(self, x):
        """What the first block takes: two streams, where blocks are reversible."""
        return x if self.reversible_blocks is None else self.reversible_blocks.split(x)

    def _normalized(self, x):
        if isinstance(x, tuple):
            x = self.reversible_blocks.join(x)
        return x if self.layer_norm is None else self.layer_norm(x)

    @property
    def token_embedding(self):
        """The `keras_hub.layers.ReversibleEmbedding` of the tokens."""
        return self.embedding.token_embedding

    def get_config(self):
        return {
            **super().get_config(),
            "vocabulary_size": self.vocabulary_size,
            "num_layers": self.num_layers,
            "hidden_dim": self.hidden_dim,
            "intermediate_dim": self.intermediate_dim,
            "head_groups": config_of_groups(self.transformer_blocks),
            "embedding_dim": self.embedding_dim,
            "tie_embeddings": self.tie_embeddings,
            "embedding_dropout": self.embedding_dropout,
            "token_dropout": self.token_dropout,
            "max_sequence_length": self.max_sequence_length,
            "sinusoidal_positions": self.sinusoidal_positions,
            "reversible": self.reversible,
            **config_of_options(self.block_options),
        }

    @classmethod
    def from_config(cls, config):
        return super().from_config(groups_of_config(config))
