"""Autoregressive image model, which predicts each value of an image from the preceding ones."""

import keras
import keras_hub
import numpy as np
import tensorflow as tf

from rt_keras.arguments import wrong_value
from rt_keras.models.generation import LOWEST_TEMPERATURE, bucket, int32_seed
from rt_keras.models.image.image_backbone import RoutingTransformerImageBackbone
from rt_keras.models.image.image_embedding import sequence_to_images
from rt_keras.models.presets import Loadable
from rt_keras.models.programs import compile_function, compile_once
from rt_keras.models.shared_blocks import compiled_blocks
from rt_keras.models.token_loop import as_variables
from rt_keras.models.training import Training
from rt_keras.ops.devices import has_tpu


@keras.saving.register_keras_serializable(package="rt_keras")
class RoutingTransformerImageLM(Loadable, Training, keras_hub.models.Task):
    """An autoregressive model of images, value by value.

    ```
    logits = backbone(inputs) W + b
    ```

    Train it with images as inputs and as labels, a cross entropy from logits, and
    `rt_keras.callbacks.CentroidEMA`. The logits of a value depend only on the preceding values.

    Args:
        backbone: a `RoutingTransformerImageBackbone`.
        preprocessor: None. KerasHub passes it to every task.
        head_dtype: dtype policy of the output layer. Defaults to that of the backbone.
        **kwargs: keyword arguments of `keras_hub.models.Task`, such as `name`.

    Call arguments:
        inputs: dictionary of "images", int `[batch, height, width, channels]`, and for models with
            classes "labels", int `[batch]`.
        training: bool, whether to apply dropout and collect statistics of the centroids.
            Defaults to None, for Keras's default.

    Returns:
        Logits, `[batch, height, width, channels, vocabulary_size]`.

    Source: Roy et al. 2021, sections 5.1 and 5.4.

    >>> from rt_keras.layers import LocalHeads, RoutingHeads
    >>> backbone = RoutingTransformerImageBackbone(
    ...     vocabulary_size=8,
    ...     image_shape=(4, 4, 1),
    ...     num_layers=1,
    ...     hidden_dim=32,
    ...     intermediate_dim=64,
    ...     head_groups=[LocalHeads(2, block_size=4), RoutingHeads(2, 4, window_size=4)],
    ...     block_shape=(4,),
    ... )
    >>> model = RoutingTransformerImageLM(backbone)
    >>> images = keras.ops.zeros([1, 4, 4, 1], "int32")
    >>> model({"images": images}).shape
    TensorShape([1, 4, 4, 1, 8])
    >>> model.generate({"images": images}, known_rows=2, seed=0).shape
    (1, 4, 4, 1)
    """

    kind = RoutingTransformerImageBackbone.kind
    backbone_cls = RoutingTransformerImageBackbone
    preprocessor_cls = None

    def __init__(self, backbone, preprocessor=None, head_dtype=None, **kwargs):
        # === Layers ===
        self.backbone = backbone
        self.preprocessor = preprocessor
        self.output_dense = backbone.make_dense(
            backbone.vocabulary_size, "output_dense", head_dtype
        )
        self.to_images = ImageOrder(
            backbone.image_shape, backbone.block_shape, dtype=backbone.dtype_policy
        )

        # === Functional Model ===
        inputs = backbone.input
        outputs = self.to_images(self.output_dense(backbone(inputs)))
        super().__init__(inputs=inputs, outputs=outputs, **kwargs)
        self.head_dtype = head_dtype

    def get_config(self):
        dtype = self.head_dtype
        serialized = dtype and keras.dtype_policies.serialize(keras.dtype_policies.get(dtype))
        return {**super().get_config(), "head_dtype": serialized}

    def generate(self, inputs, known_rows=0, temperature=1.0, seed=None):
        """Completes images from their first rows, value by value.

        If the backbone's `cached_decoding` is True, prefill reads the values before the first
        unknown one, and each decode step computes one position. Otherwise, each step recomputes the
        image. XLA compiles the steps of the blocks unless the model was compiled with
        `jit_compile=False`.

        Args:
            inputs: dictionary as in a call; only the first `known_rows` rows of "images" are used.
            known_rows: int, number of rows of pixels to keep, from the top. Defaults to 0.
            temperature: float, divisor of the logits before sampling; 0 selects the most likely
                value. Defaults to 1.0.
            seed: int, for reproducible samples. Defaults to None, for different samples in each
                call.

        Returns:
            int32 array `[batch, height, width, channels]`.

        Raises:
            ValueError: if `known_rows` or `temperature` is out of range.
        """
        image_shape = self.backbone.image_shape
        height = image_shape[0]
        if not 0 <= known_rows <= height:
            raise ValueError(
                f"known_rows must be from 0 to the height, {height}. Received: {known_rows}"
            )
        if temperature != 0 and not LOWEST_TEMPERATURE <= temperature < float("inf"):
            needed = f"0, or finite and at least {LOWEST_TEMPERATURE}"
            raise wrong_value("temperature", needed, temperature)
        features = {name: tf.cast(x, tf.int32) for name, x in inputs.items()}
        # [height, width, channels] -> [places], in the order of the sequence
        known = np.broadcast_to(np.arange(height)[:, None, None] < known_rows, image_shape)
        known = self.backbone.embedding.to_sequence(known[None])[0].numpy()
        first = int(np.argmin(np.append(known, False)))
        length, caches = None, None
        if self.backbone.cached_decoding:
            length = bucket(max(first, 1), len(known))
            if not has_tpu():
                batch = len(features["images"])
                caches = as_variables(self.backbone.new_cache(batch, len(known)))
        if seed is None:
            seed = keras.random.randint((), 0, 2**31 - 1)
        temperature = tf.constant(temperature, tf.float32)
        sampling = temperature, int32_seed(seed)
        complete = compile_once(self, "generate", self._complete, of_blocks=True)
        images = complete(
            features, tf.constant(known), tf.constant(first), *sampling, length, caches
        )
        return images.numpy()

    def _complete(self, features, known, first, temperature, seed, prefill_length, caches):
        # By default in XLA, whose random numbers are others than those of TensorFlow's kernels.
        sample = compile_function(self, _sample)

        def choose(logits, place):
            return sample(logits, temperature, tf.stack([seed, place]))

        return self.generate_step(features, known, first, choose, prefill_length, caches)

    def generate_step(self, features, known, first, choose, prefill_length=None, caches=None):
        """Completes images, in TensorFlow operations only.

        Args:
            features: dictionary of int32 tensors as in a call; only the known values of "images"
                are used.
            known: bool `[n]` or `[batch, n]`, which of the `n = height * width * channels` values,
                in the order of the sequence, are known.
            first: int tensor, the first place with an unknown value.
            choose: function that maps logits, float32 `[batch, vocabulary_size]`, and a place, an
                int tensor, to values, int32 `[batch]`.
            prefill_length: int, number of places that the prefill reads, at least `first`; None
                recomputes the image at each step. Defaults to None.
            caches: nested variables like the cache of `prefill`, which the steps then update.
                Defaults to None, for caches that are passed from step to step.

        Returns:
            int32 tensor `[batch, height, width, channels]`.
        """
        embedding = self.backbone.embedding
        values = embedding.to_sequence(features["images"])  # [batch, places]
        values = tf.where(known, values, tf.zeros_like(values))
        labels, cache = features.get("labels"), ()
        if prefill_length is not None:
            # [batch, prefill_length], the previous value of each place
            before = tf.pad(values[:, :-1], [[0, 0], [1, 0]])[:, :prefill_length]
            _, cache = self.backbone.prefill(before, first, labels)
        if caches is not None:
            tf.nest.map_structure(lambda variable, x: variable.assign(x), caches, cache)
            cache = ()

        def hidden_at(place, values, cache):
            if prefill_length is None:
                images = embedding.to_images(values)
                hidden = self.backbone({**features, "images": images}, training=False)
                return hidden[:, place], cache
            before = tf.where(place > 0, values[:, tf.maximum(place - 1, 0), None], 0)  # [batch, 1]
            if caches is None:
                hidden, cache = self.backbone.call_with_cache(before, cache, place, labels)
            else:
                with compiled_blocks(self.jit_generate):
                    hidden = self.backbone.call_in_place(before, caches, place, labels)
            return hidden[:, 0], cache

        def fill(place, values, cache):
            hidden, cache = hidden_at(place, values, cache)  # [batch, hidden_dim]
            logits = tf.cast(self.output_dense(hidden), tf.float32)  # [batch, vocabulary_size]
            value = choose(logits, place)
            column = tf.range(values.shape[1]) == place
            return place + 1, tf.where(column & ~known, value[:, None], values), cache

        _, values, _ = tf.while_loop(
            lambda place, *_: place < values.shape[1],
            fill,
            (first, values, cache),
            parallel_iterations=1,
        )
        return embedding.to_images(values)


@keras.saving.register_keras_serializable(package="rt_keras")
class ImageOrder(keras.layers.Layer):
    """Converts sequences in the order of the blocks back to images.

    Args:
        image_shape: tuple of ints, `(height, width, channels)`.
        block_shape: tuple of ints, `(b,)` or `(b1, b2)`; see `RoutingTransformerImageBackbone`.
        **kwargs: base layer keyword arguments, such as `name` and `dtype`.

    Call arguments:
        inputs: `[batch, height * width * channels, ...]`.

    Returns:
        `[batch, height, width, channels, ...]`.

    >>> ImageOrder((2, 2, 1), (4,))(keras.ops.zeros([1, 4, 8])).shape
    TensorShape([1, 2, 2, 1, 8])
    """

    def __init__(self, image_shape, block_shape, **kwargs):
        super().__init__(**kwargs)
        self.image_shape, self.block_shape = tuple(image_shape), tuple(block_shape)
        self.built = True

    def call(self, inputs):
        return sequence_to_images(inputs, self.image_shape, self.block_shape)

    def compute_output_shape(self, input_shape):
        return (input_shape[0], *self.image_shape, *input_shape[2:])

    def get_config(self):
        shapes = {"image_shape": self.image_shape, "block_shape": self.block_shape}
        return {**super().get_config(), **shapes}


def _sample(logits, temperature, seed):
    """Samples a value from each row of logits, or the most likely one if temperature is 0."""
    likeliest = tf.argmax(logits, axis=-1, output_type=tf.int32)
    scaled = tf.math.divide_no_nan(logits, temperature)
    # [batch, vocabulary_size] -> [batch]
    drawn = tf.random.stateless_categorical(scaled, 1, seed, dtype=tf.int32)[:, 0]
    return tf.where(temperature > 0, drawn, likeliest)
