"""The encoder-decoder without a head: two sequences of token ids to hidden states."""

import keras
import keras_hub

from rt_keras.layers import SinusoidalPositions, TokenDropout
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
    take_block_options,
)

GROUPS = ("encoder_head_groups", "head_groups", "cross_head_groups")


@keras.saving.register_keras_serializable(package="rt_keras")
class RoutingTransformerSeq2SeqBackbone(PublishedPresets, keras_hub.models.Backbone):
    """An encoder and a decoder whose attention mixes local, routing and full heads.

    ```
    e = sqrt(hidden_dim) encoder_embedding(encoder_token_ids), 0 for padding  [+ positions]
    e = encoder_block_l(e)           for l in 1 ... num_encoder_layers
    x = as in `RoutingTransformerBackbone`
    x = block_l(x, attending to e)   for l in 1 ... num_layers
    ```

    The encoder sees its whole sequence; the decoder is causal. Routing between the two sequences,
    which differ in length, is "balanced"; local attention there pairs blocks of the one with blocks
    of the other, so that both must have as many: give the heads a `key_block_size`.

    Args:
        vocabulary_size: number of token ids, the same for both sequences.
        num_encoder_layers: number of the encoder's blocks.
        num_layers: number of the decoder's.
        hidden_dim: width of the blocks.
        intermediate_dim: width of the feed-forward networks.
        encoder_head_groups: list of head groups, copied for each block of the encoder, or a list
            of such lists, one for each.
        head_groups: the same for the decoder's attention to itself.
        cross_head_groups: the same for the decoder's attention to the encoder.
        encoder_input_dropout: probability in training that an entry of the encoder's embedding is
            replaced by 0.
        embedding_dim, tie_embeddings, embedding_dropout, token_dropout: of the decoder's
            embedding; see `RoutingTransformerBackbone`.
        max_sequence_length: how many positions of the decoder have an embedding, or None.
        sinusoidal_positions: whether both get `rt_keras.layers.SinusoidalPositions`.
        dtype: dtype policy.
        **kwargs: `key_dim`, `value_dim`, `activation`, `normalize_first`, `dropout`,
            `attention_dropout`, `activation_dropout`, `shift_tokens`, `attention_bias`,
            `feed_forward_bias`, `use_head_dense`, `layer_norm_epsilon`, `kernel_initializer`,
            `feed_forward_chunk_size`, `remat`, as those of `TransformerBlock`; and those of
            `keras_hub.models.Backbone`.

    Call arguments:
        inputs: dictionary of "encoder_token_ids" and "decoder_token_ids", int `[batch, length]`,
            "encoder_padding_mask" and "decoder_padding_mask", 0 for padding, and where a head group
            takes them "encoder_token_bias" and "decoder_token_bias", float `[batch, length]`.

    Returns:
        A dictionary of "encoder_sequence_output" and "decoder_sequence_output",
        `[batch, length, hidden_dim]`.

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
        **kwargs,
    ):
        positive_int("num_encoder_layers", num_encoder_layers)
        positive_int("num_layers", num_layers)
        block_options = take_block_options(kwargs)
        encoder_groups = groups_of_blocks(encoder_head_groups, num_encoder_layers)
        decoder_groups = groups_of_blocks(head_groups, num_layers)
        cross_groups = groups_of_blocks(cross_head_groups, num_layers)

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
            kernel_initializer=block_options["kernel_initializer"],
            dtype=dtype,
            name="embedding",
        )
        self.input_dropout = keras.layers.Dropout(
            block_options["dropout"], dtype=dtype, name="input_dropout"
        )
        blocks = (intermediate_dim, block_options, dtype)
        self.encoder_blocks = make_blocks(encoder_groups, *blocks, "encoder_block")
        self.transformer_blocks = make_blocks(
            decoder_groups, *blocks, "transformer_block", cross_groups
        )
        self.encoder_layer_norm = make_final_norm(block_options, dtype, "encoder_layer_norm")
        self.layer_norm = make_final_norm(block_options, dtype, "layer_norm")

        # === Functional Model ===
        sides = ("encoder", "decoder")
        names = [f"{side}_{what}" for side in sides for what in ("token_ids", "padding_mask")]
        inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in names}
        of_encoder = [group for groups in encoder_groups + cross_groups for group in groups]
        of_decoder = [group for groups in decoder_groups for group in groups]
        for side, groups in (("encoder", of_encoder), ("decoder", of_decoder)):
            if any(group.token_bias for group in groups):
                name = f"{side}_token_bias"
                inputs[name] = keras.Input((None,), dtype="float32", name=name)
        encoder_outputs = self.encode(
            self.embed_encoder_tokens(
                inputs["encoder_token_ids"], inputs["encoder_padding_mask"], hidden_dim
            ),
            inputs["encoder_padding_mask"],
            inputs.get("encoder_token_bias"),
        )
        decoder_outputs = self.decode(
            inputs["decoder_token_ids"],
            inputs["decoder_padding_mask"],
            encoder_outputs,
            inputs["encoder_padding_mask"],
            inputs.get("decoder_token_bias"),
            inputs.get("encoder_token_bias"),
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

        # === Config ===
        self.vocabulary_size = vocabulary_size
        self.num_encoder_layers = num_encoder_layers
        self.num_layers = num_layers
        self.hidden_dim = hidden_dim
        self.intermediate_dim = intermediate_dim
        self.embedding_dim = embedding_dim
        self.tie_embeddings = tie_embeddings
        self.embedding_dropout = embedding_dropout
        self.token_dropout = token_dropout
        self.max_sequence_length = max_sequence_length
        self.sinusoidal_positions = sinusoidal_positions
        self.block_options = block_options

    @classmethod
    def from_section(cls, model, vocabulary_size, dtype=None):
        arguments = arguments_of(cls, model)
        arguments |= {"vocabulary_size": vocabulary_size, "dtype": dtype}
        return cls(
            encoder_head_groups=make_all_head_groups(model, "encoder"),
            head_groups=make_all_head_groups(model),
            cross_head_groups=make_all_head_groups(model, "cross"),
            **arguments,
        )

    @property
    def token_embedding(self):
        """The `keras_hub.layers.ReversibleEmbedding` of the decoder's tokens."""
        return self.embedding.token_embedding

    def embed_encoder_tokens(self, token_ids, padding_mask, hidden_dim=None):
        """The encoder's inputs, `[batch, length, hidden_dim]`, 0 where there is padding."""
        x = self.encoder_token_embedding(token_ids) * (hidden_dim or self.hidden_dim) ** 0.5
        return x * keras.ops.cast(keras.ops.expand_dims(padding_mask, -1), x.dtype)

    def encode(self, embedded, padding_mask, token_bias=None, training=None):
        """The encoder's outputs for its embedded inputs, `[batch, length, hidden_dim]`."""
        x = self.encoder_input_dropout(embedded, training=training)
        if self.encoder_positions is not None:
            x = self.encoder_positions(x)
        x = self.input_dropout(x, training=training)
        for block in self.encoder_blocks:
            x = block(x, padding_mask=padding_mask, token_bias=token_bias, training=training)
        return x if self.encoder_layer_norm is None else self.encoder_layer_norm(x)

    def decode(
        self,
        token_ids,
        padding_mask,
        encoder_outputs,
        encoder_padding_mask,
        token_bias=None,
        encoder_token_bias=None,
        training=None,
    ):
        """The decoder's outputs, `[batch, length, hidden_dim]`."""
        x = self.embedding(token_ids, training=training)
        x = self.input_dropout(x, training=training)
        for block in self.transformer_blocks:
            x = block(
                x,
                padding_mask=padding_mask,
                use_causal_mask=True,
                token_bias=token_bias,
                encoder_outputs=encoder_outputs,
                encoder_padding_mask=encoder_padding_mask,
                encoder_token_bias=encoder_token_bias,
                training=training,
            )
        return self._normalized(x)

    def check_length(self, length):
        """Raises a ValueError if it is known that not every decoder's position has an embedding."""
        if None not in (length, self.max_sequence_length) and length > self.max_sequence_length:
            raise ValueError(
                f"A decoder's sequence of length {length} is longer than max_sequence_length="
                f"{self.max_sequence_length}, the number of positions that have an embedding."
            )

    # Decoding.

    @property
    def cached_decoding(self):
        """Whether all of the decoder's heads go on with a cache; see `rt_keras.layers.HeadGroup`.

        For attention to the encoder that is so with `FullHeads` and `LocalHeads`.
        """
        return all(block.cached_decoding for block in self.transformer_blocks)

    def make_cross_cache(self, encoder_outputs, encoder_padding_mask, encoder_token_bias=None):
        """What the decoder's blocks need of the encoder: keys and values, computed once.

        Args:
            encoder_outputs: `[batch, encoder_length, hidden_dim]`.
            encoder_padding_mask: bool or int `[batch, encoder_length]`, 0 for padding.
            encoder_token_bias: `[batch, encoder_length]`, where a head group takes it.

        Returns:
            For each block, what the `make_cross_cache` of its layer `cross_attention` gives.
        """
        return tuple(
            block.cross_attention.make_cross_cache(
                encoder_outputs, encoder_padding_mask, encoder_token_bias
            )
            for block in self.transformer_blocks
        )

    def new_cache(self, batch, max_length):
        """The decoder's cache of no positions yet, for `call_with_cache`."""
        return new_caches(self.transformer_blocks, batch, max_length)

    def prefill(self, token_ids, cross_caches, count, max_length, token_bias=None):
        """The decoder's outputs of a first stretch of positions, and the cache to go on from them.

        Args:
            token_ids: int `[batch, length]`.
            cross_caches: what `make_cross_cache` gave.
            count: int scalar, how many of the positions the cache is to hold. The others may hold
                anything.
            max_length: how many positions there will be.
            token_bias: `[batch, length]`, where a head group takes it.

        Returns:
            `[batch, length, hidden_dim]`, and the cache, of tensors with the batch on axis 0.

        Raises:
            ValueError: if `cached_decoding` is False.
        """
        x, cache = prefill_blocks(
            self.transformer_blocks,
            self.embedding(token_ids, training=False),
            count,
            max_length,
            token_bias=token_bias,
            cross_caches=cross_caches,
        )
        return self._normalized(x), cache

    def call_with_cache(self, token_ids, cross_caches, cache, position, token_bias=None):
        """The decoder's output of one position, given those before it.

        Args:
            token_ids: int `[batch, 1]`, where the batch may be a multiple of the encoder's: the
                beams of each of its sequences, one after the other.
            cross_caches: what `make_cross_cache` gave.
            cache: what `prefill`, `new_cache` or the last call gave.
            position: int scalar, how many positions came before.
            token_bias: `[batch, 1]`, where a head group takes it.

        Returns:
            `[batch, 1, hidden_dim]`, and the cache with this position in it.
        """
        x, cache = call_blocks_with_cache(
            self.transformer_blocks,
            self.embedding(token_ids, training=False, start=position),
            cache,
            position,
            token_bias=token_bias,
            cross_caches=cross_caches,
        )
        return self._normalized(x), cache

    def _normalized(self, x):
        return x if self.layer_norm is None else self.layer_norm(x)

    def get_config(self):
        return {
            **super().get_config(),
            "vocabulary_size": self.vocabulary_size,
            "num_encoder_layers": self.num_encoder_layers,
            "num_layers": self.num_layers,
            "hidden_dim": self.hidden_dim,
            "intermediate_dim": self.intermediate_dim,
            "encoder_head_groups": config_of_groups(self.encoder_blocks),
            "head_groups": config_of_groups(self.transformer_blocks),
            "cross_head_groups": config_of_groups(self.transformer_blocks, "cross_attention"),
            "encoder_input_dropout": self.encoder_input_dropout.rate,
            "embedding_dim": self.embedding_dim,
            "tie_embeddings": self.tie_embeddings,
            "embedding_dropout": self.embedding_dropout,
            "token_dropout": self.token_dropout,
            "max_sequence_length": self.max_sequence_length,
            "sinusoidal_positions": self.sinusoidal_positions,
            **config_of_options(self.block_options),
        }

    @classmethod
    def from_config(cls, config):
        return super().from_config(groups_of_config(config, GROUPS))
