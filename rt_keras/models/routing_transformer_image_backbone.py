"""The image model without a head: values of pixels to hidden states."""

import keras
import keras_hub

from rt_keras.layers import TransformerBlock
from rt_keras.layers.head_group import copy_groups, positive_int
from rt_keras.models.routing_transformer_backbone import final_norm, groups_of_blocks
from rt_keras.models.routing_transformer_image_embedding import (
    RoutingTransformerImageEmbedding,
    sides,
)
from rt_keras.models.routing_transformer_seq_2_seq_backbone import BLOCK_OPTIONS


@keras.saving.register_keras_serializable(package="rt_keras")
class RoutingTransformerImageBackbone(keras_hub.models.Backbone):
    """A decoder over the values of an image, one channel of one pixel after the other.

    ```
    x = embedding of the value before, its channel, its place [and the class]
    x = block_l(x)  for l in 1 ... num_layers
    output = LN(x)  if pre-norm
    ```

    A pixel's channels lie side by side, so that the image is `[height, width * channels]` values.
    Their order is that of `rt_keras.ops.to_blocks` with `block_shape`: with one dimension, plain
    raster order; with two, block by block. Every block of layers is causal in that order.

    Args:
        vocabulary_size: number of values of a channel.
        image_shape: `(height, width, channels)`.
        num_layers: number of blocks.
        hidden_dim: width of the blocks.
        intermediate_dim: width of the feed-forward networks.
        head_groups: list of head groups, copied for each block, or a list of such lists. Local
            heads over two dimensions need `grid=(height / b1, width * channels / b2)`.
        block_shape: `(b,)` or `(b1, b2)`: the order of the values. It must divide the image's.
        num_classes: number of classes of which each image has one; None for images without.
        position_embedding: whether row and column have embeddings.
        dtype: dtype policy.
        **kwargs: `key_dim`, `value_dim`, `activation`, `normalize_first`, `dropout`,
            `attention_dropout`, `activation_dropout`, `attention_bias`, `feed_forward_bias`,
            `use_head_dense`, `layer_norm_epsilon`, `kernel_initializer`, as those of
            `TransformerBlock`; and those of `keras_hub.models.Backbone`.

    Call arguments:
        inputs: dictionary of "images", int `[batch, height, width, channels]`, and where there are
            classes "labels", int `[batch]`.

    Returns:
        `[batch, height * width * channels, hidden_dim]`, in the order of the blocks: the state
        that tells the value at each place, from those before it.

    Raises:
        ValueError: if a size is not a positive integer or the blocks do not divide the image.

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
        **kwargs,
    ):
        positive_int("num_layers", num_layers)
        positive_int("vocabulary_size", vocabulary_size)
        image_shape, block_shape = tuple(image_shape), tuple(block_shape)
        _check_shapes(image_shape, block_shape)
        block_options = {name: kwargs.pop(name) for name in BLOCK_OPTIONS if name in kwargs}
        kernel_initializer = block_options.setdefault("kernel_initializer", "glorot_uniform")
        normalize_first = block_options.setdefault("normalize_first", True)
        dropout = block_options.setdefault("dropout", 0.0)
        epsilon = block_options.setdefault("layer_norm_epsilon", 1e-6)

        # === Layers ===
        self.embedding = RoutingTransformerImageEmbedding(
            vocabulary_size,
            hidden_dim,
            image_shape,
            block_shape,
            num_classes=num_classes,
            position_embedding=position_embedding,
            kernel_initializer=kernel_initializer,
            dtype=dtype,
            name="embedding",
        )
        self.input_dropout = keras.layers.Dropout(dropout, dtype=dtype, name="input_dropout")
        self.transformer_blocks = [
            TransformerBlock(
                copy_groups(groups, dtype),
                intermediate_dim,
                dtype=dtype,
                name=f"transformer_block_{i}",
                **block_options,
            )
            for i, groups in enumerate(groups_of_blocks(head_groups, num_layers))
        ]
        self.layer_norm = final_norm(normalize_first, epsilon, dtype, "layer_norm")

        # === Functional Model ===
        inputs = {"images": keras.Input(image_shape, dtype="int32", name="images")}
        if num_classes is not None:
            inputs["labels"] = keras.Input((), dtype="int32", name="labels")
        x = self.embedding(inputs["images"], labels=inputs.get("labels"))
        x = self.input_dropout(x)
        for block in self.transformer_blocks:
            x = block(x, use_causal_mask=True)
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        super().__init__(inputs=inputs, outputs=x, dtype=dtype, **kwargs)

        # === Config ===
        self.vocabulary_size = vocabulary_size
        self.image_shape = image_shape
        self.num_layers = num_layers
        self.hidden_dim = hidden_dim
        self.intermediate_dim = intermediate_dim
        self.block_shape = block_shape
        self.num_classes = num_classes
        self.position_embedding = position_embedding
        self.block_options = block_options

    def get_config(self):
        serialize = keras.saving.serialize_keras_object
        options = dict(self.block_options)
        initializer = keras.initializers.get(options["kernel_initializer"])
        options["kernel_initializer"] = keras.initializers.serialize(initializer)
        return {
            **super().get_config(),
            "vocabulary_size": self.vocabulary_size,
            "image_shape": self.image_shape,
            "num_layers": self.num_layers,
            "hidden_dim": self.hidden_dim,
            "intermediate_dim": self.intermediate_dim,
            "head_groups": [
                [serialize(group) for group in block.attention.head_groups]
                for block in self.transformer_blocks
            ],
            "block_shape": self.block_shape,
            "num_classes": self.num_classes,
            "position_embedding": self.position_embedding,
            **options,
        }

    @classmethod
    def from_config(cls, config):
        deserialize = keras.saving.deserialize_keras_object
        groups = [[deserialize(x) for x in groups] for groups in config["head_groups"]]
        return super().from_config({**config, "head_groups": groups})


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
