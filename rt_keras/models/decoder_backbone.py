"""Base class of the backbones: output layers, caches of the blocks, and configurations."""

import keras
import keras_hub
import tensorflow as tf

from rt_keras.keras_internals import policy_inside
from rt_keras.layers.block_layers import normalized, with_layer_makers
from rt_keras.layers.saved_arguments import saved_dtype, with_layers
from rt_keras.models.presets import Loadable
from rt_keras.models.shared_blocks import new_caches


class DecoderBackbone(Loadable, keras_hub.models.Backbone):
    """Base class of backbones with a decoder.

    Constructors of subclasses set `num_layers`, `block_options`, `embedding`, `input_dropout`,
    `transformer_blocks` and `layer_norm`, which may be None.
    """

    # Arguments that are head groups, and the attention that uses them.
    attention_of_groups = {"head_groups": "decoder"}
    # Dtype policies of output layers that were quantized, by name; see `Loadable`.
    head_dtypes = {}
    _cache_shapes = None

    def make_dense(self, units, name, dtype=None):
        """Creates an output layer with the backbone's initializer and, by default, its dtype."""
        initializer = keras.initializers.get(self.block_options.kernel_initializer)
        return keras.layers.Dense(
            units,
            kernel_initializer=initializer.clone(),
            dtype=self.head_dtypes.get(name) or dtype or self.dtype_policy,
            name=name,
        )

    def _run_blocks(self, x, training=None, **options):
        """Computes the outputs of the decoder from embeddings, with options of the blocks."""
        x = self.input_dropout(x, training=training)
        for block in self.transformer_blocks:
            x = block(x, training=training, **options)
        return normalized(self.layer_norm, x)

    @property
    def intermediate_dim(self):
        """The width of the feed-forward networks, or None if all are replaced."""
        return self.block_options.intermediate_dim

    # Decoding with a cache.

    @property
    def cached_decoding(self):
        """True if all heads can decode with a cache; see `rt_keras.layers.HeadGroup`."""
        return all(block.cached_decoding for block in self.transformer_blocks)

    def new_cache(self, batch, max_length):
        """Creates an empty cache of the decoder for `call_with_cache`.

        Args:
            batch: int or scalar tensor, batch size.
            max_length: int, maximum sequence length; full heads cache this many positions.

        Returns:
            Nested dictionaries and tuples of tensors with the batch on axis 0.
        """
        return new_caches(self.transformer_blocks, batch, max_length)

    def _prefill_blocks(self, x, count, max_length, cross_caches=None):
        """Runs the blocks on the first positions and returns outputs and the blocks' caches."""
        caches = []
        for block, cross_cache in self._with_cross_caches(cross_caches):
            x, cache = block.prefill(x, count, max_length, cross_cache)
            caches.append(cache)
        return normalized(self.layer_norm, x), tuple(caches)

    def _call_blocks_in_place(self, x, caches, position, cross_caches=None):
        """Runs the blocks on the next positions, updates their caches and returns outputs."""
        for (block, cross_cache), cache in zip(self._with_cross_caches(cross_caches), caches):
            x = block.call_in_place(x, cache, position, cross_cache)
        return normalized(self.layer_norm, x)

    def _with_cross_caches(self, cross_caches):
        blocks = self.transformer_blocks
        return zip(blocks, cross_caches or [None] * len(blocks))

    def _check_caches(self, caches):
        """Raises a ValueError if the caches are not those of this model, with any rows and room."""
        if self._cache_shapes is None:
            with tf.init_scope():
                made = [self.new_cache(1, room) for room in (1, 1000)]
            # Sizes that depend on the room may be any.
            self._cache_shapes = tf.nest.map_structure(
                lambda a, b: a.shape[1:].most_specific_compatible_shape(b.shape[1:]), *made
            )
        try:
            fits = tf.nest.map_structure(
                lambda x, shape: x.shape[1:].is_compatible_with(shape), caches, self._cache_shapes
            )
        except (AttributeError, TypeError, ValueError):
            fits = False
        if not all(tf.nest.flatten(fits)):
            raise ValueError(
                f"cache must come from prefill or new_cache of {self.name}, or of one like it. "
                "Received: a cache with other entries or sizes"
            )

    def get_config(self):
        with policy_inside(self, saved_dtype(self)):
            config = super().get_config()
        groups = [block.attention.head_groups for block in self.transformer_blocks]
        return {
            **config,
            **self.embedding.arguments,
            "vocabulary_size": self.vocabulary_size,
            "num_layers": self.num_layers,
            "head_groups": keras.saving.serialize_keras_object(groups),
            **self.block_options.get_config(),
        }

    @classmethod
    def from_config(cls, config):
        config = with_layers(config, *cls.attention_of_groups)
        return super().from_config(with_layer_makers(config))
