"""Routing Transformer backbone, which maps token ids to hidden states."""

import functools

import keras

from rt_keras.layers.block_layers import normalized
from rt_keras.layers.document_caches import read_documents
from rt_keras.layers.dropout import Dropout
from rt_keras.layers.head_options import positive_int
from rt_keras.models.causal_lm.token_embedding import RoutingTransformerEmbedding
from rt_keras.models.decoder_backbone import DecoderBackbone
from rt_keras.models.documents import have_documents, segments_of
from rt_keras.models.generation import check_positions
from rt_keras.models.left_padding import call_from_first_tokens
from rt_keras.models.transformer_blocks import (
    BlockOptions,
    groups_of_blocks,
    make_blocks,
    make_final_norm,
)
from rt_keras.ops.documents import number_documents, positions_in_documents


@keras.saving.register_keras_serializable(package="rt_keras")
class RoutingTransformerBackbone(DecoderBackbone):
    """A decoder whose attention mixes heads of several kinds.

    ```
    x = sqrt(hidden_dim) embedding(token_ids)  [+ positions]
    x = block_l(x)  for l in 1 ... num_layers
    output = LN(x)  if normalize_first
    ```

    Attention is causal. With local, strided and full heads, and with routing heads of assignment
    "nearest", no output depends on a later token. With other heads, the keys that a query sees can
    depend on the whole sequence. Without `max_sequence_length`, there is no position embedding and
    sequences may have any length. Order then comes from relative positions, the causal mask and the
    blocks of local attention.

    `dropout` is also applied before the first block, and `kernel_initializer` also initializes the
    embedding.

    Args:
        vocabulary_size: int, number of token ids.
        num_layers: int, number of blocks.
        hidden_dim: int, width of the blocks.
        intermediate_dim: int, width of the feed-forward networks. None if `feed_forward` replaces
            all of them.
        head_groups: list of `rt_keras.layers` head groups, copied for each block; or a list of
            such lists, one per block.
        embedding_dim: int, width of the embedding, which a dense layer then projects to
            `hidden_dim` instead of scaling it by sqrt(hidden_dim). Defaults to None, for an
            embedding as wide as the blocks and no dense layer.
        tie_embeddings: bool, whether the output layer of a language model shares the weights of the
            embedding. If False, it is a dense layer with a bias. Defaults to True.
        embedding_dropout: float, dropout rate of the embedding. Defaults to 0.0.
        token_dropout: float, probability of replacing a token by 0 in training. Defaults to 0.0.
        max_sequence_length: int, number of position embeddings. Defaults to None, for no position
            embedding.
        sinusoidal_positions: bool, whether to add `rt_keras.layers.SinusoidalPositions`. Defaults
            to False.
        dtype: dtype policy. Defaults to Keras's global policy.
        key_dim, value_dim, activation, normalize_first, feed_forward, normalization: options of all
            blocks; see `rt_keras.layers.TransformerBlock`.
        dropout, attention_dropout, activation_dropout, shift_tokens, attention_bias: the same.
        feed_forward_bias, use_head_dense, layer_norm_epsilon, kernel_initializer: the same.
        conv_kernel_size, remat: the same.
        **kwargs: base backbone keyword arguments, such as `name`.

    Call arguments:
        inputs: dictionary of "token_ids", int `[batch, length]`; and "padding_mask", bool or int
            `[batch, length]`, 0 for padding. Positions count from the first token of a row. With
            "segment_ids", int `[batch, length]`, documents that share a row are runs of equal ids:
            they do not see one another, and positions count from the first token of each. Optional
            "positions", int `[batch, length]`, replace those of position embeddings.
        training: bool, whether to apply dropout and collect statistics of the centroids.
            Defaults to None, for Keras's default.

    Returns:
        `[batch, length, hidden_dim]`.

    Raises:
        ValueError: if a size is not a positive integer, a block has no head groups, the number of
            lists of head groups is not `num_layers`, or a sequence is longer than
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
    # True if no position attends to a later one.
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
        dtype=None,
        *,
        key_dim=None,
        value_dim=None,
        activation="geglu",
        normalize_first=True,
        feed_forward=None,
        normalization="layer_norm",
        dropout=0.0,
        attention_dropout=None,
        activation_dropout=None,
        shift_tokens=False,
        attention_bias=True,
        feed_forward_bias=True,
        use_head_dense=False,
        layer_norm_epsilon=1e-6,
        kernel_initializer="glorot_uniform",
        conv_kernel_size=None,
        remat=False,
        **kwargs,
    ):
        # === Config ===
        self.vocabulary_size = positive_int("vocabulary_size", vocabulary_size)
        self.num_layers = positive_int("num_layers", num_layers)
        self.hidden_dim = hidden_dim
        self.embedding_dim = embedding_dim
        self.tie_embeddings = tie_embeddings
        self.max_sequence_length = max_sequence_length
        self.block_options = options = BlockOptions(
            intermediate_dim=intermediate_dim,
            key_dim=key_dim,
            value_dim=value_dim,
            activation=activation,
            normalize_first=normalize_first,
            feed_forward=feed_forward,
            normalization=normalization,
            dropout=dropout,
            attention_dropout=attention_dropout,
            activation_dropout=activation_dropout,
            shift_tokens=shift_tokens,
            attention_bias=attention_bias,
            feed_forward_bias=feed_forward_bias,
            use_head_dense=use_head_dense,
            layer_norm_epsilon=layer_norm_epsilon,
            kernel_initializer=kernel_initializer,
            conv_kernel_size=conv_kernel_size,
            remat=remat,
        )

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
        self.input_dropout = Dropout(dropout, dtype=dtype, name="input_dropout")
        self.transformer_blocks = make_blocks(
            options, groups_of_blocks(head_groups, num_layers), dtype, "transformer_block"
        )
        self.layer_norm = make_final_norm(options, dtype, "layer_norm")
        options.refuse_unused()

        # === Functional Model ===
        inputs = {
            "token_ids": keras.Input((None,), dtype="int32", name="token_ids"),
            "padding_mask": keras.Input((None,), dtype="int32", name="padding_mask"),
        }
        masks = {"padding_mask": inputs["padding_mask"], "use_causal_mask": self.causal}
        outputs = self._run_blocks(self.embedding(inputs["token_ids"]), **masks)
        super().__init__(inputs=inputs, outputs=outputs, dtype=dtype, **kwargs)

    def call(self, inputs, training=None, mask=None):
        self.check_length(inputs["token_ids"].shape[1])
        if have_documents(inputs):
            inputs = {**inputs, "segment_ids": segments_of(inputs)}
            return self._call_documents(**inputs, training=training)
        call = functools.partial(super().call, training=training, mask=mask)
        return call_from_first_tokens(call, inputs)

    def _call_documents(self, token_ids, padding_mask, segment_ids, positions=None, training=None):
        """Computes the outputs of documents that share rows, or have positions of their own."""
        if positions is None:
            positions = positions_in_documents(number_documents(segment_ids))
        x = self.embedding(token_ids, training=training, positions=positions)
        masks = {"padding_mask": padding_mask, "use_causal_mask": self.causal}
        return self._run_blocks(x, training=training, segment_ids=segment_ids, **masks)

    def check_length(self, length):
        """Raises a ValueError if a sequence has more positions than position embeddings.

        Args:
            length: int, number of positions, or None if unknown, which raises no error.
        """
        check_positions(length, self.max_sequence_length)

    # Decoding.

    def prefill(self, token_ids, count, max_length):
        """Runs the model on the first positions of sequences and fills a cache.

        Args:
            token_ids: int `[batch, length]`.
            count: int scalar, number of positions to cache. Later positions may hold any token.
            max_length: int, maximum sequence length.

        Returns:
            Outputs, `[batch, length, hidden_dim]`, and the cache: nested dictionaries and tuples
            of tensors with the batch on axis 0.

        Raises:
            ValueError: if `cached_decoding` is False.
        """
        x = self.embedding(token_ids, training=False)
        return self._prefill_blocks(x, count, max_length)

    def call_with_cache(
        self, token_ids, cache, position, count=None, training=False, segment_ids=None
    ):
        """Runs the model on the next positions, given the cache of the preceding ones.

        Args:
            token_ids: int `[batch, length]`, one position or a chunk of each sequence.
            cache: cache from `prefill`, `new_cache` or the previous call.
            position: int scalar, number of preceding positions; or int `[batch]`, their number in
                each row, if the model supports a recurrent state.
            count: int `[batch]`, number of valid positions in each row; the positions after them
                are padding. Defaults to None, for all positions.
            training: bool, whether to apply dropout and collect statistics of the centroids.
                Defaults to False.
            segment_ids: int `[batch, length]` or None, the document of each position; see
                `rt_keras.layers.MultiHeadAttention.call_with_cache`. Defaults to None.

        Returns:
            Outputs, `[batch, length, hidden_dim]`, and the cache with these positions added.

        Raises:
            ValueError: if `cached_decoding` is False or the cache belongs to another model.

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
        if segment_ids is not None:
            given = token_ids, cache, position, count, training, segment_ids
            reads_chunks = all(block.attention.reads_chunks for block in self.transformer_blocks)
            return read_documents(self, *given, reads_chunks)
        self._check_caches(cache)
        x = self.embedding(token_ids, training=training, start=position)
        x = self.input_dropout(x, training=training)
        caches = []
        for block, block_cache in zip(self.transformer_blocks, cache):
            x, block_cache = block.call_with_cache(
                x, block_cache, position, count=count, training=training
            )
            caches.append(block_cache)
        return normalized(self.layer_norm, x), tuple(caches)

    def call_in_place(self, token_ids, cache, position):
        """Runs the model on one position as `call_with_cache` does, and updates the cache.

        Args:
            token_ids, position: see `call_with_cache`.
            cache: the cache, with a `tf.Variable` in place of each tensor.

        Returns:
            Outputs, `[batch, length, hidden_dim]`.
        """
        x = self.embedding(token_ids, training=False, start=position)
        return self._call_blocks_in_place(x, cache, position)

    def get_config(self):
        return {**super().get_config(), "tie_embeddings": self.tie_embeddings}

    @property
    def token_embedding(self):
        """The `keras_hub.layers.ReversibleEmbedding` of the tokens."""
        return self.embedding.token_embedding
