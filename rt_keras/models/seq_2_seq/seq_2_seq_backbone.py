"""Encoder-decoder backbone, which maps two sequences of token ids to hidden states."""

import keras

from rt_keras.layers.block_layers import normalized
from rt_keras.layers.dropout import Dropout
from rt_keras.layers.head_options import positive_int
from rt_keras.layers.sinusoidal_positions import SinusoidalPositions
from rt_keras.layers.token_dropout import TokenDropout
from rt_keras.models.causal_lm.causal_lm_backbone import RoutingTransformerBackbone
from rt_keras.models.causal_lm.token_embedding import RoutingTransformerEmbedding
from rt_keras.models.decoder_backbone import DecoderBackbone
from rt_keras.models.transformer_blocks import (
    BlockOptions,
    groups_of_blocks,
    make_blocks,
    make_final_norm,
)


@keras.saving.register_keras_serializable(package="rt_keras")
class RoutingTransformerSeq2SeqBackbone(DecoderBackbone):
    """An encoder and a decoder whose attention mixes heads of several kinds.

    ```
    e = sqrt(hidden_dim) encoder_embedding(encoder_token_ids), 0 for padding  [+ positions]
    e = encoder_block_l(e)           for l in 1 ... num_encoder_layers
    x = as in `RoutingTransformerBackbone`
    x = block_l(x, attending to e)   for l in 1 ... num_layers
    ```

    The encoder is bidirectional; the decoder is causal. The two sequences may differ in length. In
    cross-attention, routing heads must be "balanced", and local heads need a `key_block_size` with
    which both sequences have the same number of blocks.

    `dropout` is also applied before the first blocks, and `kernel_initializer` also initializes the
    decoder's embedding.

    Args:
        vocabulary_size: int, number of token ids, the same for both sequences.
        num_encoder_layers: int, number of blocks of the encoder.
        num_layers: int, number of blocks of the decoder.
        hidden_dim: int, width of the blocks.
        intermediate_dim: int, width of the feed-forward networks. None if `feed_forward` replaces
            all of them.
        encoder_head_groups: list of `rt_keras.layers` head groups, copied for each block of the
            encoder; or a list of such lists, one per block.
        head_groups: the same for the decoder's self-attention.
        cross_head_groups: the same for cross-attention.
        encoder_input_dropout: float, probability of zeroing an entry of the encoder's embedding in
            training. Defaults to 0.0.
        embedding_dim: int, width of the decoder's embedding, which a dense layer then projects to
            `hidden_dim` instead of scaling it by sqrt(hidden_dim). Defaults to None, for an
            embedding as wide as the blocks and no dense layer.
        tie_embeddings: bool, whether the output layer of a language model shares the weights of the
            decoder's embedding. If False, it is a dense layer with a bias. Defaults to True.
        embedding_dropout: float, dropout rate of the decoder's embedding. Defaults to 0.0.
        token_dropout: float, probability of replacing a token of the decoder by 0 in training.
            Defaults to 0.0.
        max_sequence_length: int, number of position embeddings of the decoder. Defaults to None,
            for no position embedding.
        sinusoidal_positions: bool, whether to add `rt_keras.layers.SinusoidalPositions` to both
            sequences. Defaults to False.
        dtype: dtype policy. Defaults to Keras's global policy.
        key_dim, value_dim, activation, normalize_first, feed_forward, normalization: options of all
            blocks; see `rt_keras.layers.TransformerBlock`.
        dropout, attention_dropout, activation_dropout, shift_tokens, attention_bias: the same.
        feed_forward_bias, use_head_dense, layer_norm_epsilon, kernel_initializer: the same.
        conv_kernel_size, remat: the same.
        **kwargs: base backbone keyword arguments, such as `name`.

    Call arguments:
        inputs: dictionary of "encoder_token_ids" and "decoder_token_ids", int `[batch, length]`;
            "encoder_padding_mask" and "decoder_padding_mask", bool or int `[batch, length]`, 0 for
            padding.
        training: bool, whether to apply dropout and collect statistics of the centroids.
            Defaults to None, for Keras's default.

    Returns:
        A dictionary of "encoder_sequence_output" and "decoder_sequence_output",
        `[batch, length, hidden_dim]`.

    Raises:
        ValueError: if a size is not a positive integer, a block has no head groups, or the number
            of lists of head groups is not the number of blocks.

    Source: Roy et al. 2021; Vaswani et al. 2017, Attention Is All You Need, section 3.1.

    >>> from rt_keras.layers import LocalHeads, RoutingHeads
    >>> heads = [LocalHeads(2, block_size=16), RoutingHeads(2, 4, window_size=16)]
    >>> backbone = RoutingTransformerSeq2SeqBackbone(
    ...     vocabulary_size=258,
    ...     num_encoder_layers=1,
    ...     num_layers=1,
    ...     hidden_dim=32,
    ...     intermediate_dim=64,
    ...     encoder_head_groups=heads,
    ...     head_groups=heads,
    ...     cross_head_groups=[RoutingHeads(4, 4, window_size=16, assignment="balanced")],
    ... )
    >>> ids, long = keras.ops.ones([1, 20], "int32"), keras.ops.ones([1, 40], "int32")
    >>> outputs = backbone(
    ...     {
    ...         "encoder_token_ids": long,
    ...         "encoder_padding_mask": long,
    ...         "decoder_token_ids": ids,
    ...         "decoder_padding_mask": ids,
    ...     }
    ... )
    >>> outputs["decoder_sequence_output"].shape
    TensorShape([1, 20, 32])
    """

    kind = "seq_2_seq_lm"
    attention_of_groups = {
        "encoder_head_groups": "encoder",
        "head_groups": "decoder",
        "cross_head_groups": "cross",
    }

    def __init__(
        self,
        vocabulary_size,
        num_encoder_layers,
        num_layers,
        hidden_dim,
        intermediate_dim,
        encoder_head_groups,
        head_groups,
        cross_head_groups,
        encoder_input_dropout=0.0,
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
        self.num_encoder_layers = positive_int("num_encoder_layers", num_encoder_layers)
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
        self.encoder_token_embedding = keras.layers.Embedding(
            vocabulary_size,
            hidden_dim,
            embeddings_initializer=keras.initializers.RandomNormal(stddev=hidden_dim**-0.5),
            dtype=dtype,
            name="encoder_token_embedding",
        )
        self.encoder_input_dropout = TokenDropout(
            encoder_input_dropout, dtype=dtype, name="encoder_input_dropout"
        )
        self.encoder_positions = None
        if sinusoidal_positions:
            self.encoder_positions = SinusoidalPositions(dtype=dtype, name="encoder_positions")
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
        encoder_groups = groups_of_blocks(
            encoder_head_groups, num_encoder_layers, "encoder_head_groups"
        )
        self.encoder_blocks = make_blocks(options, encoder_groups, dtype, "encoder_block")
        self.transformer_blocks = make_blocks(
            options,
            groups_of_blocks(head_groups, num_layers),
            dtype,
            "transformer_block",
            groups_of_blocks(cross_head_groups, num_layers, "cross_head_groups"),
        )
        self.encoder_layer_norm = make_final_norm(options, dtype, "encoder_layer_norm")
        self.layer_norm = make_final_norm(options, dtype, "layer_norm")
        options.refuse_unused()

        # === Functional Model ===
        sides = ("encoder", "decoder")
        names = [f"{side}_{what}" for side in sides for what in ("token_ids", "padding_mask")]
        inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in names}
        encoder_outputs = self.encode(
            self.embed_encoder_tokens(inputs["encoder_token_ids"], inputs["encoder_padding_mask"]),
            inputs["encoder_padding_mask"],
        )
        decoder_outputs = self.decode(
            inputs["decoder_token_ids"],
            inputs["decoder_padding_mask"],
            encoder_outputs,
            inputs["encoder_padding_mask"],
        )
        super().__init__(
            inputs=inputs,
            outputs={
                "encoder_sequence_output": encoder_outputs,
                "decoder_sequence_output": decoder_outputs,
            },
            dtype=dtype,
            **kwargs,
        )

    # The decoder is a `RoutingTransformerBackbone` with cross-attention.
    token_embedding = RoutingTransformerBackbone.token_embedding
    check_length = RoutingTransformerBackbone.check_length

    def embed_encoder_tokens(self, token_ids, padding_mask):
        """Embeds the tokens of the encoder.

        Args:
            token_ids: int `[batch, length]`.
            padding_mask: bool or int `[batch, length]`, 0 for padding.

        Returns:
            `[batch, length, hidden_dim]`, 0 for padding.
        """
        x = self.encoder_token_embedding(token_ids)
        x = x * x.shape[-1] ** 0.5
        return x * keras.ops.cast(keras.ops.expand_dims(padding_mask, -1), x.dtype)

    def encode(self, embedded, padding_mask, training=None):
        """Runs the encoder.

        Args:
            embedded: `[batch, length, hidden_dim]`, from `embed_encoder_tokens`.
            padding_mask: bool or int `[batch, length]`, 0 for padding.
            training: bool, whether to apply dropout. Defaults to None.

        Returns:
            `[batch, length, hidden_dim]`.
        """
        x = self.encoder_input_dropout(embedded, training=training)
        if self.encoder_positions is not None:
            x = self.encoder_positions(x)
        x = self.input_dropout(x, training=training)
        for block in self.encoder_blocks:
            x = block(x, padding_mask=padding_mask, training=training)
        return normalized(self.encoder_layer_norm, x)

    def decode(self, token_ids, padding_mask, encoder_outputs, encoder_padding_mask, training=None):
        """Runs the decoder.

        Args:
            token_ids: int `[batch, length]`.
            padding_mask: bool or int `[batch, length]`, 0 for padding.
            encoder_outputs: `[batch, encoder_length, hidden_dim]`, from `encode`.
            encoder_padding_mask: bool or int `[batch, encoder_length]`, 0 for padding.
            training: bool, whether to apply dropout. Defaults to None.

        Returns:
            `[batch, length, hidden_dim]`.
        """
        return self._run_blocks(
            self.embedding(token_ids, training=training),
            training,
            padding_mask=padding_mask,
            use_causal_mask=True,
            encoder_outputs=encoder_outputs,
            encoder_padding_mask=encoder_padding_mask,
        )

    # Decoding.

    def make_cross_cache(self, encoder_outputs, encoder_padding_mask):
        """Creates the cross-attention cache, the encoder's keys and values.

        Args:
            encoder_outputs: `[batch, encoder_length, hidden_dim]`.
            encoder_padding_mask: bool or int `[batch, encoder_length]`, 0 for padding.

        Returns:
            Tuple of the cache of each block, from `MultiHeadAttention.make_cross_cache`.
        """
        return tuple(
            block.cross_attention.make_cross_cache(encoder_outputs, encoder_padding_mask)
            for block in self.transformer_blocks
        )

    def prefill(self, token_ids, cross_caches, count, max_length):
        """Runs the decoder on the first positions of sequences and fills a cache.

        Args:
            token_ids: int `[batch, length]`.
            cross_caches: the cross-attention cache, from `make_cross_cache`.
            count: int scalar, number of positions to cache. Later positions may hold any token.
            max_length: int, maximum sequence length.

        Returns:
            Outputs, `[batch, length, hidden_dim]`, and the cache: nested dictionaries and tuples
            of tensors with the batch on axis 0.

        Raises:
            ValueError: if `cached_decoding` is False.
        """
        x = self.embedding(token_ids, training=False)
        return self._prefill_blocks(x, count, max_length, cross_caches)

    def call_with_cache(self, token_ids, cross_caches, cache, position):
        """Runs the decoder on one position, given the cache of the preceding ones.

        Args:
            token_ids: int `[batch, 1]`. The batch size may be a multiple of the encoder's, with the
                beams of each sequence in consecutive rows.
            cross_caches: the cross-attention cache, from `make_cross_cache`.
            cache: cache from `prefill`, `new_cache` or the previous call.
            position: int scalar, number of preceding positions.

        Returns:
            Outputs, `[batch, 1, hidden_dim]`, and the cache with this position added.

        Raises:
            ValueError: if `cached_decoding` is False or the cache belongs to another model.
        """
        self._check_caches(cache)
        x = self.embedding(token_ids, training=False, start=position)
        caches = []
        for block, block_cache, cross_cache in zip(self.transformer_blocks, cache, cross_caches):
            x, block_cache = block.call_with_cache(x, block_cache, position, cross_cache)
            caches.append(block_cache)
        return normalized(self.layer_norm, x), tuple(caches)

    def call_in_place(self, token_ids, cross_caches, cache, position):
        """Runs the decoder on one position as `call_with_cache` does, and updates the cache.

        Args:
            token_ids, cross_caches, position: see `call_with_cache`.
            cache: the cache, with a `tf.Variable` in place of each tensor.

        Returns:
            Outputs, `[batch, 1, hidden_dim]`.
        """
        x = self.embedding(token_ids, training=False, start=position)
        return self._call_blocks_in_place(x, cache, position, cross_caches)

    def get_config(self):
        encoder_groups = [block.attention.head_groups for block in self.encoder_blocks]
        cross_groups = [block.cross_attention.head_groups for block in self.transformer_blocks]
        return {
            **super().get_config(),
            "num_encoder_layers": self.num_encoder_layers,
            "encoder_head_groups": keras.saving.serialize_keras_object(encoder_groups),
            "cross_head_groups": keras.saving.serialize_keras_object(cross_groups),
            "encoder_input_dropout": self.encoder_input_dropout.rate,
            "tie_embeddings": self.tie_embeddings,
        }
