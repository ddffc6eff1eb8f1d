"""Image backbone, which maps the values of pixels to hidden states."""

import math

import keras

from rt_keras.layers.block_layers import normalized
from rt_keras.layers.dropout import Dropout
from rt_keras.layers.head_options import positive_int
from rt_keras.models.decoder_backbone import DecoderBackbone
from rt_keras.models.image.image_embedding import RoutingTransformerImageEmbedding, sides
from rt_keras.models.transformer_blocks import (
    BlockOptions,
    groups_of_blocks,
    make_blocks,
    make_final_norm,
)


@keras.saving.register_keras_serializable(package="rt_keras")
class RoutingTransformerImageBackbone(DecoderBackbone):
    """A decoder over the values of an image, one channel of one pixel after the other.

    ```
    x = embedding of the previous value, the channel, the position [and the class]
    x = block_l(x)  for l in 1 ... num_layers
    output = LN(x)  if normalize_first
    ```

    The channels of a pixel are adjacent, so that an image has `[height, width * channels]` values.
    They are in the order of `rt_keras.ops.to_blocks` with `block_shape`: raster order if it has one
    dimension, block by block if it has two. Attention is causal in this order.

    `dropout` is also applied before the first block, and `kernel_initializer` also initializes
    embeddings.

    Args:
        vocabulary_size: int, number of values of a channel.
        image_shape: tuple of ints, `(height, width, channels)`.
        num_layers: int, number of blocks.
        hidden_dim: int, width of the blocks.
        intermediate_dim: int, width of the feed-forward networks. None if `feed_forward` replaces
            all of them.
        head_groups: list of `rt_keras.layers` head groups, copied for each block; or a list of
            such lists, one per block. Local heads over two dimensions need
            `grid=(height / b1, width * channels / b2)`.
        block_shape: tuple of ints, `(b,)` or `(b1, b2)`, which sets the order of the values. It
            must divide the image.
        num_classes: int, number of classes of images. Defaults to None, for images without classes.
        position_embedding: bool, whether rows and columns have embeddings. Defaults to True.
        dtype: dtype policy. Defaults to Keras's global policy.
        key_dim, value_dim, activation, normalize_first, feed_forward, normalization: options of all
            blocks; see `rt_keras.layers.TransformerBlock`.
        dropout, attention_dropout, activation_dropout, shift_tokens, attention_bias: the same.
        feed_forward_bias, use_head_dense, layer_norm_epsilon, kernel_initializer: the same.
        conv_kernel_size, remat: the same.
        **kwargs: base backbone keyword arguments, such as `name`.

    Call arguments:
        inputs: dictionary of "images", int `[batch, height, width, channels]`, and with
            `num_classes` "labels", int `[batch]`.
        training: bool, whether to apply dropout and collect statistics of the centroids.
            Defaults to None, for Keras's default.

    Returns:
        `[batch, height * width * channels, hidden_dim]`, in the order of the blocks. Each hidden
        state predicts the value at its position from the preceding values.

    Raises:
        ValueError: if a size is not a positive integer, or if the blocks do not divide the image.

    Source: Roy et al. 2021, sections 5.1 and 5.4; Parmar et al. 2018, Image Transformer.

    >>> from rt_keras.layers import LocalHeads, RoutingHeads
    >>> backbone = RoutingTransformerImageBackbone(
    ...     vocabulary_size=256,
    ...     image_shape=(4, 4, 3),
    ...     num_layers=1,
    ...     hidden_dim=32,
    ...     intermediate_dim=64,
    ...     head_groups=[LocalHeads(2, 12, grid=(2, 2)), RoutingHeads(2, 4, window_size=12)],
    ...     block_shape=(2, 6),
    ... )
    >>> backbone({"images": keras.ops.zeros([1, 4, 4, 3], "int32")}).shape
    TensorShape([1, 48, 32])
    """

    kind = "image_lm"

    def __init__(
        self,
        vocabulary_size,
        image_shape,
        num_layers,
        hidden_dim,
        intermediate_dim,
        head_groups,
        block_shape,
        num_classes=None,
        position_embedding=True,
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
        self.image_shape = tuple(image_shape)
        self.block_shape = tuple(block_shape)
        self.num_classes = num_classes
        _check_shapes(self.image_shape, self.block_shape)
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
        self.embedding = RoutingTransformerImageEmbedding(
            vocabulary_size,
            hidden_dim,
            self.image_shape,
            self.block_shape,
            num_classes=num_classes,
            position_embedding=position_embedding,
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
        inputs = {"images": keras.Input(self.image_shape, dtype="int32", name="images")}
        if num_classes is not None:
            inputs["labels"] = keras.Input((), dtype="int32", name="labels")
        embedded = self.embedding(inputs["images"], labels=inputs.get("labels"))
        outputs = self._run_blocks(embedded, use_causal_mask=True)
        super().__init__(inputs=inputs, outputs=outputs, dtype=dtype, **kwargs)

    # Decoding.

    def prefill(self, before, count, labels=None):
        """Runs the model on the first positions of images and fills a cache.

        Args:
            before: int `[batch, length]`, the previous value of each position, 0 for the first, in
                the order of the blocks.
            count: int scalar, number of positions to cache. Later positions may hold any value.
            labels: int `[batch]`, for models with classes. Defaults to None.

        Returns:
            Outputs, `[batch, length, hidden_dim]`, and the cache: nested dictionaries and tuples
            of tensors with the batch on axis 0.

        Raises:
            ValueError: if `cached_decoding` is False.
        """
        x = self.embedding.embed(before, labels)
        return self._prefill_blocks(x, count, math.prod(self.image_shape))

    def call_with_cache(self, before, cache, place, labels=None):
        """Runs the model on one position, given the cache of the preceding ones.

        Args:
            before: int `[batch, 1]`, the previous value.
            cache: cache from `prefill` or the previous call.
            place: int scalar, the position in the order of the blocks.
            labels: int `[batch]`, for models with classes. Defaults to None.

        Returns:
            Outputs, `[batch, 1, hidden_dim]`, and the cache with this position added.

        Raises:
            ValueError: if `cached_decoding` is False or the cache belongs to another model.
        """
        self._check_caches(cache)
        x = self.embedding.embed(before, labels, start=place)
        caches = []
        for block, block_cache in zip(self.transformer_blocks, cache):
            x, block_cache = block.call_with_cache(x, block_cache, place)
            caches.append(block_cache)
        return normalized(self.layer_norm, x), tuple(caches)

    def call_in_place(self, before, cache, place, labels=None):
        """Runs the model on one position as `call_with_cache` does, and updates the cache.

        Args:
            before, place, labels: see `call_with_cache`.
            cache: the cache, with a `tf.Variable` in place of each tensor.

        Returns:
            Outputs, `[batch, 1, hidden_dim]`.
        """
        x = self.embedding.embed(before, labels, start=place)
        return self._call_blocks_in_place(x, cache, place)


def _check_shapes(image_shape, block_shape):
    for name, shape, counts in (
        ("image_shape", image_shape, (3,)),
        ("block_shape", block_shape, (1, 2)),
    ):
        if len(shape) not in counts:
            raise ValueError(
                f"{name} must have {' or '.join(map(str, counts))} dimensions. Received: "
                f"{name}={shape}"
            )
        for side in shape:
            positive_int(name, side)
    if any(side % block for side, block in zip(sides(image_shape, block_shape), block_shape)):
        raise ValueError(
            f"block_shape must divide the image of {sides(image_shape, block_shape)} values. "
            f"Received: block_shape={block_shape}, image_shape={image_shape}"
        )
