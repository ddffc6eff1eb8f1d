"""The `model` section of a configuration, and the arguments of models that it describes."""

import dataclasses
import inspect

import keras

from rt_keras.keys import (
    AT_LEAST_0,
    AT_LEAST_1,
    AT_LEAST_2,
    POSITIVE,
    SHARE_BELOW_1,
    key,
    one_of,
    section,
)
from rt_keras.layers.block_layers import NORMALIZATIONS
from rt_keras.models.head_kind import DEFAULT_HEADS, Place
from rt_keras.models.head_kinds import HEAD_KINDS


@dataclasses.dataclass
class ImageSection:
    """Images of an image model.

    A local block has `block_height` rows and `local.block_size` values in total. Without
    `block_height`, it has `local.block_size` consecutive values.
    """

    height: int = key(32, "rows of pixels", AT_LEAST_1)
    width: int = key(32, "columns of pixels", AT_LEAST_1)
    channels: int = key(3, "values per pixel", AT_LEAST_1)
    block_height: int | None = key(None, "rows of a local block, null for raster order", AT_LEAST_1)
    num_classes: int | None = key(None, "classes, null for images without classes", AT_LEAST_1)
    position_embedding: bool = key(True, "whether to add embeddings of rows and columns")

    @property
    def shape(self):
        """The shape of an image, `(height, width, channels)`."""
        return self.height, self.width, self.channels

    def block_shape(self, size):
        """Returns the shape of a local block of `size` values."""
        if self.block_height is None:
            return (size,)
        return self.block_height, size // self.block_height


@dataclasses.dataclass
class SpeechSection:
    """Features of a speech model and their masks in training; see `rt_keras.layers.SpecAugment`."""

    num_mel_bins: int = key(80, "features of a frame of sound", AT_LEAST_1)
    frequency_masks: int = key(2, "bands of features that are masked in training", AT_LEAST_0)
    frequency_mask_width: int = key(27, "maximum number of features in a band", AT_LEAST_0)
    time_masks: int = key(2, "stretches of frames that are masked in training", AT_LEAST_0)
    time_mask_width: int = key(100, "maximum number of frames in a stretch", AT_LEAST_0)


@dataclasses.dataclass
class _ModelKeys:
    """Hyperparameters of a model; see the backbone of its kind in `rt_keras.models`."""

    kind: str = key("causal_lm", "kind of model")
    vocabulary_size: int | None = key(
        None, "number of token ids; null for the tokenizer's, or 256 for images", AT_LEAST_1
    )
    num_encoder_layers: int = key(0, "blocks of the encoder", AT_LEAST_0)
    num_layers: int = key(2, "blocks, or blocks of the decoder with an encoder", AT_LEAST_1)
    hidden_dim: int = key(256, "width of the blocks", AT_LEAST_1)
    intermediate_dim: int = key(1024, "width of the feed-forward networks", AT_LEAST_1)
    embedding_dim: int | None = key(None, "width of the embedding, null for hidden_dim", AT_LEAST_1)
    tie_embeddings: bool = key(True, "whether the output layer shares the weights of the embedding")
    key_dim: int | None = key(
        None, "key depth of a head, null for hidden_dim / number of heads", AT_LEAST_1
    )
    value_dim: int | None = key(None, "value depth of a head, null for key_dim", AT_LEAST_1)
    activation: str = key(
        "geglu",
        "activation of the feed-forward networks",
        one_of("relu", "gelu", "geglu", "geglu_approximate"),
    )
    normalize_first: bool = key(True, "pre-norm if true, post-norm if false")
    normalization: str = key("layer_norm", "normalization layer", one_of(*NORMALIZATIONS))
    dropout: float = key(0.0, "dropout before the first block and before residuals", SHARE_BELOW_1)
    attention_dropout: float | None = key(
        None, "dropout of attention weights, null for dropout", SHARE_BELOW_1
    )
    activation_dropout: float | None = key(
        None, "dropout of feed-forward activations, null for dropout", SHARE_BELOW_1
    )
    embedding_dropout: float = key(0.0, "dropout of the embedding", SHARE_BELOW_1)
    token_dropout: float = key(0.0, "probability of replacing a token by padding", SHARE_BELOW_1)
    encoder_input_dropout: float = key(
        0.0, "probability of zeroing an entry of the encoder's embedding", SHARE_BELOW_1
    )
    shift_tokens: bool = key(False, "whether blocks mix each position with the previous one")
    max_sequence_length: int | None = key(
        None, "number of position embeddings, null for no position embedding", AT_LEAST_1
    )
    sinusoidal_positions: bool = key(False, "whether to add sinusoidal positions")
    attention_bias: bool = key(True, "whether the dense layers of attention use biases")
    feed_forward_bias: bool = key(True, "whether feed-forward networks use biases")
    use_head_dense: bool = key(False, "whether heads pass through a shared dense layer")
    layer_norm_epsilon: float = key(1e-6, "epsilon of the normalization layers", POSITIVE)
    conv_kernel_size: int | None = key(
        None,
        "positions in the convolutions of queries, keys and values, null for no convolutions",
        AT_LEAST_2,
    )
    conv_layer: int | None = key(
        None, "index of the only block with these convolutions, null for all blocks", AT_LEAST_0
    )
    remat: bool = key(False, "whether the backward pass recomputes blocks, which saves memory")
    loss_chunk_size: int | None = key(
        None, "positions whose logits are computed at once, null for all", AT_LEAST_1
    )
    pooling: str = key("mean", "pooling of a retriever", one_of("mean", "first"))
    projection_dim: int | None = key(
        None, "features of an embedding of a retriever, null for those of the blocks", AT_LEAST_1
    )
    temperature: float = key(
        0.05, "divisor of the similarities in the loss of a retriever", POSITIVE
    )
    initializer_scale: float = key(
        1.0, "initial variance of dense layers, relative to Glorot's", POSITIVE
    )
    image: ImageSection = section(ImageSection)
    speech: SpeechSection = section(SpeechSection)


ModelSection = dataclasses.make_dataclass(
    "ModelSection",
    [(name, kind, section(kind)) for name, kind in HEAD_KINDS.items()],
    bases=(_ModelKeys,),
    namespace={"__doc__": _ModelKeys.__doc__, "__module__": __name__},
)


def check_heads(model, attentions=("decoder",)):
    """Raises a ValueError if the heads of a `ModelSection` are incompatible.

    Args:
        model: the `ModelSection`.
        attentions: tuple of strings, the attentions of the model; see `Place`. Defaults to
            `("decoder",)`.
    """
    counts = head_counts(model)
    places = [Place(block=0, attention=attention) for attention in attentions]
    # Kinds that replace others somewhere. The blocks of local heads are those of images.
    useful = {"local"} | {kind.replacement(place) for kind in _present(model) for place in places}
    for name in HEAD_KINDS:
        kind, in_vain = getattr(model, name), counts[name] == 0 and name not in useful
        if in_vain and kind.num_heads is None and kind.has_values():
            raise ValueError(
                f"model.{name} has values but no heads; set model.{name}.num_heads, 0 for none"
            )
    total = sum(counts.values())
    if total == 0:
        refuse_no_heads()
    if model.key_dim is None and model.hidden_dim % total:
        listed = ", ".join(f"{name} {count}" for name, count in counts.items() if count)
        below = model.hidden_dim - model.hidden_dim % total
        raise ValueError(
            f"model.hidden_dim is {model.hidden_dim}, which is not divisible by the {total} heads "
            f"({listed}); use a multiple of {total}, such as {below or total}, or set model.key_dim"
        )
    for kind in _present(model):
        kind.check(model)
        kind.check_attentions(attentions)


def refuse_no_heads():
    """Raises a ValueError for a model without heads."""
    names = ", ".join(f"model.{name}.num_heads" for name in HEAD_KINDS)
    raise ValueError(f"there are no heads; one of {names} must be above 0")


def check_convolutions(model):
    """Raises a ValueError if the options of the short convolutions are incompatible."""
    if model.conv_layer is None:
        return
    if model.conv_kernel_size is None:
        raise ValueError("model.conv_layer needs model.conv_kernel_size")
    if model.conv_layer >= model.num_layers:
        raise ValueError(
            f"model.conv_layer is {model.conv_layer}; it must be below model.num_layers, "
            f"{model.num_layers}"
        )
    if model.num_encoder_layers:
        raise ValueError("model.conv_layer and model.num_encoder_layers cannot be combined")


def check_length(model, name, length):
    """Raises a ValueError if sequences are too short for the heads of a `ModelSection`.

    Args:
        model: the `ModelSection`.
        name: string, name of the length in the error message, such as "data.sequence_length".
        length: int, length of the sequences.
    """
    for kind in _present(model):
        kind.check_length(name, length)


def check_cross_lengths(model, length, encoder_length):
    """Raises a ValueError if a `ModelSection` does not support these cross-attention lengths.

    Args:
        model: the `ModelSection`.
        length: int, number of positions of the decoder.
        encoder_length: int, number of positions of the encoder.
    """
    for kind in _present(model):
        kind.check_cross_lengths(length, encoder_length)


def head_counts(model):
    """Returns the number of heads of each kind, by name.

    Args:
        model: a `ModelSection`.

    >>> sum(head_counts(ModelSection()).values())
    4
    >>> head_counts(ModelSection(local=HEAD_KINDS["local"](num_heads=3)))["local"]
    3
    """
    counts = {name: getattr(model, name).num_heads for name in HEAD_KINDS}
    if all(count is None for count in counts.values()):
        name, count = DEFAULT_HEADS
        counts[name] = count
    return {name: count or 0 for name, count in counts.items()}


def _present(model):
    """Returns the sections of the kinds with heads."""
    return [getattr(model, name) for name, count in head_counts(model).items() if count]


def make_head_groups(model, place):
    """Creates the head groups of one attention layer of a model.

    Args:
        model: a `ModelSection`.
        place: the `Place` of the attention layer.

    Returns:
        A list of head groups, one for each kind with heads there.

    >>> model = ModelSection(routing=HEAD_KINDS["routing"](num_heads=2, first_layer=1))
    >>> [type(group).__name__ for group in make_head_groups(model, Place(block=0))]
    ['LocalHeads']
    >>> [type(group).__name__ for group in make_head_groups(model, Place(block=1))]
    ['RoutingHeads']
    """
    counts = dict.fromkeys(HEAD_KINDS, 0)
    for name, count in head_counts(model).items():
        counts[getattr(model, name).replacement(place) or name] += count
    kinds = ((getattr(model, name), count) for name, count in counts.items() if count)
    return [kind.layer(**{**kind.arguments(place), "num_heads": count}) for kind, count in kinds]


def make_all_head_groups(model, attention="decoder", grid=None):
    """Creates the head groups of one attention in each block; see `make_head_groups`."""
    count = model.num_layers
    # An encoder without a decoder has `num_layers` blocks.
    if attention == "encoder" and model.num_encoder_layers:
        count = model.num_encoder_layers
    return [make_head_groups(model, Place(block, attention, grid)) for block in range(count)]


def is_strictly_causal(model):
    """Returns True if no output of a model depends on later positions.

    Args:
        model: a `ModelSection`.

    Returns:
        Bool, False if the whole sequence decides which keys a head group of the decoder sees.

    >>> is_strictly_causal(ModelSection(routing=HEAD_KINDS["routing"](2, assignment="nearest")))
    True
    >>> is_strictly_causal(ModelSection(routing=HEAD_KINDS["routing"](2, assignment="balanced")))
    False
    """
    # Blocks differ only in the kinds that the first ones lack.
    for block in {0, model.num_layers - 1}:
        if not all(group.cached_decoding for group in make_head_groups(model, Place(block))):
            return False
        cross = make_head_groups(model, Place(block, "cross")) if model.num_encoder_layers else ()
        if not all(group.cached_cross_attention for group in cross):
            return False
    return True


def arguments_of(cls, model):
    """Returns the arguments of a backbone or a task that are keys of a `ModelSection`.

    Args:
        cls: class of the model.
        model: the `ModelSection`.

    Returns:
        Dictionary of arguments.
    """
    names = set(inspect.signature(cls.__init__).parameters)
    arguments = {
        field.name: getattr(model, field.name)
        for field in dataclasses.fields(model)
        if field.name in names
    }
    if "conv_kernel_size" in names and model.conv_layer is not None:
        sizes = [None] * model.num_layers
        sizes[model.conv_layer] = model.conv_kernel_size
        arguments["conv_kernel_size"] = sizes
    if "kernel_initializer" in names and model.initializer_scale != 1.0:
        arguments["kernel_initializer"] = keras.initializers.VarianceScaling(
            model.initializer_scale, "fan_avg", "uniform"
        )
    return arguments
