"""The Routing Transformer without a head: token ids to hidden states."""

import keras

from rt_keras.layers import ReversibleBlocks
from rt_keras.models.decoder_backbone import DecoderBackbone


@keras.saving.register_keras_serializable(package="rt_keras")
class RoutingTransformerBackbone(DecoderBackbone):
    """A decoder whose attention mixes heads of several kinds.

    ```
    x = sqrt(hidden_dim) embedding(token_ids)  [+ positions]
    x = block_l(x)  for l in 1 ... num_layers
    output = LN(x)  if normalize_first
    ```

    Attention is causal. With routing heads of assignment "nearest", local, strided and full heads
    no output depends on a later token; which keys other heads see can depend on the whole sequence.
    Without `max_sequence_length` there is no position embedding and sequences may have any length:
    order then comes from relative positions, the causal mask and the blocks of local attention.

    `dropout` also applies before the first block, and `kernel_initializer` to the embedding.

    Args:
        vocabulary_size: int, number of token ids.
        num_layers: int, number of blocks.
        hidden_dim: int, width of the blocks.
        intermediate_dim: int, width of the feed-forward networks.
        head_groups: list of `rt_keras.layers` head groups, copied for each block; or a list of
            such lists, one per block.
        embedding_dim: int, width of an embedding that a dense layer brings to `hidden_dim`,
            instead of the factor sqrt(hidden_dim). Defaults to None, an embedding as wide as the
            blocks and no dense layer.
        tie_embeddings: bool, whether the output of a language model shares the weights of the
            embedding, or else is a dense layer with a bias. Defaults to True.
        embedding_dropout: float, dropout rate of the embedding. Defaults to 0.0.
        token_dropout: float, probability in training that a token is replaced by 0. Defaults to
            0.0.
        max_sequence_length: int, number of positions with an embedding. Defaults to None, no
            position embedding.
        sinusoidal_positions: bool, whether to add `rt_keras.layers.SinusoidalPositions`. Defaults
            to False.
        reversible: bool, whether the blocks are `rt_keras.layers.ReversibleBlocks`, whose gradient
            needs memory that does not grow with `num_layers`. They compute something else than
            plain blocks, and exclude `remat`. Defaults to False.
        dtype: dtype policy. Defaults to Keras's global one.
        **kwargs: the options of all blocks, such as `activation`, `dropout` and `normalize_first`:
            those of `rt_keras.layers.TransformerBlock`, with its defaults; and base backbone
            keyword arguments, such as `name`.

    Call arguments:
        inputs: dictionary of "token_ids", int `[batch, length]`; and "padding_mask", bool or int
            `[batch, length]`, 0 for padding.
        training: bool, whether dropout is on and statistics of the centroids are collected.
            Defaults to None, Keras's default.

    Returns:
        `[batch, length, hidden_dim]`.

    Raises:
        ValueError: if a size is not a positive integer, if a block has no head groups or there is
            not one list of them per block, or if a sequence is longer than `max_sequence_length`.

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
    # Whether a position sees no later one.
    causal = True

    def __init__(
        self,
        vocabulary_size,
        num_layers,
        hidden_dim,
        intermediate_dim,
        head_groups,
        embedding_dim=None,
        tie_embeddings=True,
        embedding_dropout=0.0,
        token_dropout=0.0,
        max_sequence_length=None,
        sinusoidal_positions=False,
        reversible=False,
        dtype=None,
        **kwargs,
    ):
        if reversible and kwargs.get("remat"):
            raise ValueError("reversible and remat cannot both be True. Received: both are True")

        # === Layers ===
        self._make_layers(locals())
        self.reversible_blocks = None
        if reversible:
            self.reversible_blocks = ReversibleBlocks(
                self.transformer_blocks, dtype=dtype, name="reversible_blocks"
            )

        # === Functional Model ===
        inputs = {
            "token_ids": keras.Input((None,), dtype="int32", name="token_ids"),
            "padding_mask": keras.Input((None,), dtype="int32", name="padding_mask"),
        }
        x = self.input_dropout(self.embedding(inputs["token_ids"]))
        for block in [self.reversible_blocks] if reversible else self.transformer_blocks:
            x = block(x, padding_mask=inputs["padding_mask"], use_causal_mask=self.causal)
        super().__init__(inputs=inputs, outputs=self._normalized(x), dtype=dtype, **kwargs)

    def call(self, inputs, training=None, mask=None):
        self.check_length(inputs["token_ids"].shape[1])
        return super().call(inputs, training=training, mask=mask)

    def check_length(self, length):
        """Raises a ValueError if not every position of a sequence has an embedding.

        Args:
            length: int, number of positions; None if unknown, which is no error.
        """
        if None not in (length, self.max_sequence_length) and length > self.max_sequence_length:
            raise ValueError(
                f"A sequence must have at most max_sequence_length={self.max_sequence_length} "
                f"positions, the number that have an embedding. Received: length {length}"
            )

    # Decoding.

    def prefill(self, token_ids, count, max_length):
        """Runs the model on the first positions of sequences and caches them.

        Args:
            token_ids: int `[batch, length]`.
            count: int scalar, how many of the positions the cache holds. The others may have any
                token.
            max_length: int, the number of positions that there will be.

        Returns:
            Outputs, `[batch, length, hidden_dim]`, and the cache: nested dictionaries and tuples
            of tensors with the batch on axis 0.

        Raises:
            ValueError: if `cached_decoding` is False.
        """
        x = self._split(self.embedding(token_ids, training=False))
        return self._prefill_blocks(x, count, max_length)

    def call_with_cache(self, token_ids, cache, position, count=None, training=False):
        """Runs the model on the next positions, given the cache of those before them.

        Args:
            token_ids: int `[batch, length]`, of one position or of a chunk of the sequences.
            cache: the cache that `prefill`, `new_cache` or the last call returned.
            position: int scalar, how many positions came before; or int `[batch]`, before those of
                each row, if the model carries states.
            count: int `[batch]`, how many of the positions count, the first ones; others are
                padding. None, the default, for all.
            training: bool, whether dropout is on and statistics of the centroids are collected.
                Defaults to False.

        Returns:
            Outputs, `[batch, length, hidden_dim]`, and the cache with these positions added.

        Raises:
            ValueError: if `cached_decoding` is False, or the cache belongs to another model.

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
        x = self.embedding(token_ids, training=training, start=position)
        x = self._split(self.input_dropout(x, training=training))
        return self._call_blocks_with_cache(x, cache, position, count=count, training=training)

    def _split(self, x):
        """The input of the first block: two streams if blocks are reversible."""
        return x if self.reversible_blocks is None else self.reversible_blocks.split(x)

    def _normalized(self, x):
        if isinstance(x, tuple):
            x = self.reversible_blocks.join(x)
        return super()._normalized(x)

    @property
    def token_embedding(self):
        """The `keras_hub.layers.ReversibleEmbedding` of the tokens."""
        return self.embedding.token_embedding
