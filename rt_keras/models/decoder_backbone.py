"""Base class of the backbones: the decoder's blocks, their caches and the configuration."""

import inspect

import keras
import keras_hub
import tensorflow as tf

from rt_keras.keras_internals import policy_inside
from rt_keras.layers import Dropout
from rt_keras.layers.head_group import positive_int
from rt_keras.layers.normalization import normalized
from rt_keras.layers.own_layers import with_own_layers
from rt_keras.layers.saved_arguments import saved_dtype
from rt_keras.layers.transformer_block import refuse_unused
from rt_keras.models.causal_lm.token_embedding import RoutingTransformerEmbedding
from rt_keras.models.kept_arguments import KeptArguments
from rt_keras.models.model_section import arguments_of, make_all_head_groups
from rt_keras.models.presets import Loadable
from rt_keras.models.shared_blocks import new_caches
from rt_keras.models.transformer_blocks import (
    config_of_groups,
    config_of_options,
    groups_of_blocks,
    groups_of_config,
    make_blocks,
    make_final_norm,
    take_block_options,
)


class DecoderBackbone(Loadable, KeptArguments, keras_hub.models.Backbone):
    """Base class of backbones with a decoder.

    Constructors of subclasses set `transformer_blocks`, `layer_norm`, which may be None, and
    `block_options`, and pass their other arguments to `keep_arguments`.
    """

    # Arguments that are head groups, and the attention that uses them; see `head_kind.Place`.
    attention_of_groups = {"head_groups": "decoder"}
    # Dtype policies of output layers that were quantized, by name; see `Loadable`.
    head_dtypes = {}
    _embedding_cls = RoutingTransformerEmbedding
    _cache_shapes = None

    def _make_layers(self, arguments):
        """Stores the arguments of a constructor and creates the decoder's layers from them."""
        self.keep_arguments(arguments, leave=self.attention_of_groups)
        self.block_options = options = take_block_options(arguments["kwargs"])
        for name in ("vocabulary_size", "num_layers"):
            positive_int(name, getattr(self, name))
        all_groups = groups_of_blocks(arguments["head_groups"], self.num_layers)
        dtype = arguments["dtype"]
        self.embedding = self._make_embedding(dtype)
        self.input_dropout = Dropout(options["dropout"], dtype=dtype, name="input_dropout")
        self.transformer_blocks = make_blocks(
            all_groups, self.intermediate_dim, options, dtype, "transformer_block"
        )
        self.layer_norm = make_final_norm(options, dtype, "layer_norm")
        refuse_unused({**options, "intermediate_dim": self.intermediate_dim})

    def _make_embedding(self, dtype):
        """Creates the embedding of the decoder's input from the stored arguments."""
        names = inspect.signature(self._embedding_cls.__init__).parameters
        return self._embedding_cls(
            **{name: getattr(self, name) for name in names if name in self._kept_arguments},
            kernel_initializer=self.block_options["kernel_initializer"],
            dtype=dtype,
            name="embedding",
        )

    @classmethod
    def from_section(cls, model, vocabulary_size, dtype=None, grid=None, **arguments):
        """Creates the backbone that a `ModelSection` describes.

        Args:
            model: a `ModelSection`.
            vocabulary_size: int, number of token ids.
            dtype: dtype policy. Defaults to Keras's global policy.
            grid: tuple of ints, for images with two-dimensional blocks; see `LocalHeads`. Defaults
                to None.
            **arguments: other arguments of the constructor.

        Returns:
            A backbone of this class.
        """
        for name, attention in cls.attention_of_groups.items():
            arguments[name] = make_all_head_groups(model, attention, grid)
        arguments |= {"vocabulary_size": vocabulary_size, "dtype": dtype}
        return cls(**{**arguments_of(cls, model), **arguments})

    def make_dense(self, units, name, dtype=None):
        """Creates an output layer with the backbone's initializer and, by default, its dtype."""
        initializer = keras.initializers.get(self.block_options["kernel_initializer"])
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
        return self._normalized(x)

    # Decoding.

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
        return self._normalized(x), tuple(caches)

    def _call_blocks_with_cache(self, x, caches, position, cross_caches=None, **options):
        """Runs the blocks on the next positions and returns outputs and the blocks' caches."""
        self._check_caches(caches)
        changed = []
        for (block, cross_cache), cache in zip(self._with_cross_caches(cross_caches), caches):
            x, cache = block.call_with_cache(x, cache, position, cross_cache, **options)
            changed.append(cache)
        return self._normalized(x), tuple(changed)

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

    def _call_blocks_in_place(self, x, caches, position, cross_caches=None):
        """Runs the blocks on the next positions, updates their caches and returns outputs."""
        for (block, cross_cache), cache in zip(self._with_cross_caches(cross_caches), caches):
            x = block.call_in_place(x, cache, position, cross_cache)
        return self._normalized(x)

    def _with_cross_caches(self, cross_caches):
        blocks = self.transformer_blocks
        return zip(blocks, cross_caches or [None] * len(blocks))

    def _normalized(self, x):
        return normalized(self.layer_norm, x)

    def get_config(self):
        with policy_inside(self, saved_dtype(self)):
            config = super().get_config()
        return {
            **config,
            "head_groups": config_of_groups(self.transformer_blocks),
            **config_of_options(self.block_options),
        }

    @classmethod
    def from_config(cls, config):
        config = groups_of_config(config, cls.attention_of_groups)
        return super().from_config(with_own_layers(config))
