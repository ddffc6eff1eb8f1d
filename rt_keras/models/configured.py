"""Models and head groups as the `model` section of a configuration describes them.

A section is a dictionary with the keys of `rt_keras.training.config.ModelConfig`; a key that it
lacks has the default of the class that takes it, and a kind of heads that it lacks has no heads.
"""

import keras

from rt_keras import layers, t2t
from rt_keras.models.presets import kind_of
from rt_keras.models.routing_transformer_backbone import RoutingTransformerBackbone
from rt_keras.models.routing_transformer_causal_lm import RoutingTransformerCausalLM
from rt_keras.models.routing_transformer_image_backbone import RoutingTransformerImageBackbone
from rt_keras.models.routing_transformer_image_embedding import sides
from rt_keras.models.routing_transformer_image_lm import RoutingTransformerImageLM
from rt_keras.models.routing_transformer_seq_2_seq_backbone import RoutingTransformerSeq2SeqBackbone
from rt_keras.models.routing_transformer_seq_2_seq_lm import RoutingTransformerSeq2SeqLM
from rt_keras.models.transformer_blocks import BLOCK_OPTIONS

TASKS = {
    "causal_lm": RoutingTransformerCausalLM,
    "seq_2_seq_lm": RoutingTransformerSeq2SeqLM,
    "image_lm": RoutingTransformerImageLM,
}
# The keys that pass on to a backbone as they are.
SIZES = ("num_layers", "hidden_dim", "intermediate_dim")
OF_BLOCKS = tuple(name for name in BLOCK_OPTIONS if name != "kernel_initializer")
OF_TEXT = (
    "embedding_dim",
    "tie_embeddings",
    "embedding_dropout",
    "token_dropout",
    "max_sequence_length",
    "sinusoidal_positions",
)
OF_SEQ_2_SEQ = ("num_encoder_layers", "encoder_input_dropout")
# What clusters comes first, as in checkpoints of the paper's authors.
HEADS = ("routing", "cluster_strided", "strided", "local", "full")


def make_task(section, vocabulary_size, dtype=None):
    """The model that a section describes, with new weights and no preprocessor.

    Args:
        section: a dictionary; its `kind` says which model it is.
        vocabulary_size: number of token ids, or of values of a channel of an image.
        dtype: dtype policy.

    Returns:
        A `RoutingTransformerCausalLM`, `RoutingTransformerSeq2SeqLM` or
        `RoutingTransformerImageLM`.

    >>> section = {"num_layers": 1, "hidden_dim": 8, "intermediate_dim": 16}
    >>> section["local"] = {"num_heads": 2, "block_size": 4}
    >>> type(make_task(section, vocabulary_size=10)).__name__
    'RoutingTransformerCausalLM'
    """
    backbone = make_backbone(section, vocabulary_size, dtype)
    if kind_of(section) == "image_lm":
        return task_of(backbone)
    return task_of(backbone, loss_chunk_size=section.get("loss_chunk_size"))


def task_of(backbone, **options):
    """The language model on a backbone, without preprocessor."""
    task = next(task for task in TASKS.values() if type(backbone) is task.backbone_cls)
    return task(backbone, **options)


def make_backbone(section, vocabulary_size, dtype=None):
    """The backbone of `make_task`."""
    kind = kind_of(section)
    options = {"vocabulary_size": vocabulary_size, "dtype": dtype}
    options |= _given(section, SIZES + OF_BLOCKS)
    options["head_groups"] = _all_groups(section, "num_layers", "decoder")
    if section.get("initializer_scale", 1.0) != 1.0:
        options["kernel_initializer"] = keras.initializers.VarianceScaling(
            section["initializer_scale"], "fan_avg", "uniform"
        )
    if kind == "image_lm":
        image = section["image"]
        return RoutingTransformerImageBackbone(
            image_shape=_image_shape(section),
            block_shape=_block_shape(section),
            **_given(image, ("num_classes", "position_embedding")),
            **options,
        )
    options |= _given(section, OF_TEXT)
    if kind == "causal_lm":
        return RoutingTransformerBackbone(**_given(section, ("reversible",)), **options)
    return RoutingTransformerSeq2SeqBackbone(
        encoder_head_groups=_all_groups(section, "num_encoder_layers", "encoder"),
        cross_head_groups=_all_groups(section, "num_layers", "cross"),
        **_given(section, OF_SEQ_2_SEQ),
        **options,
    )


def make_head_groups(section, layer, attention="decoder"):
    """The groups of heads of one block.

    Blocks before number `routing.first_layer` have local heads in the place of routing heads.
    Queries are their own keys, where `routing.share_qk` says so, in a decoder's attention to itself
    alone. Between two sequences there are no relative positions, and full heads in the place of
    routing heads whose assignment is "nearest", which they do not have.

    Args:
        section: a dictionary.
        layer: number of the block, from 0.
        attention: "decoder" or "encoder" for attention to itself, "cross" for a decoder's attention
            to an encoder.

    Returns:
        A list of head groups, those without heads left out.
    """
    options = {kind: {"num_heads": 0, **section.get(kind, {})} for kind in HEADS}
    routing = options["routing"]
    if layer < routing.pop("first_layer", 0):
        options["local"]["num_heads"] += routing["num_heads"]
        routing["num_heads"] = 0
    if attention == "cross":
        if routing.get("assignment", "nearest") == "nearest":
            options["full"]["num_heads"] += routing["num_heads"]
            routing["num_heads"] = 0
        for heads in options.values():
            heads["max_relative_distance"] = None
    if attention != "decoder":
        routing["share_qk"] = False
    # A cross block size is of local heads alone, and says nothing of attention to itself.
    cross_block_size = options["local"].pop("cross_block_size", None)
    if attention == "cross":
        options["local"]["key_block_size"] = cross_block_size or options["local"].get("block_size")
    makers = (_routing_heads, _cluster_strided_heads, _strided_heads, _local_heads, _full_heads)
    return [
        make(options[kind], section, layer)
        for kind, make in zip(HEADS, makers)
        if options[kind]["num_heads"]
    ]


def _routing_heads(options, section, layer):
    assignment = options.get("assignment", "nearest")
    if assignment == "random":
        # Members are to differ from block to block.
        names = ("num_heads", "num_clusters", "window_size", "max_relative_distance")
        return layers.RandomHeads(**_given(options, names), seed=layer)
    if assignment == "hashed":
        dropped = ("assignment", "num_probes", "commitment_weight")
        options = {k: v for k, v in options.items() if k not in dropped}
        if section.get("reference", False):
            return t2t.T2THashedHeads(**options, block_size=section["local"]["block_size"])
        return layers.HashedHeads(**options)
    if section.get("reference", False):
        options = {k: v for k, v in options.items() if k not in ("assignment", "num_probes")}
        return t2t.T2TRoutingHeads(**options, block_size=section["local"]["block_size"])
    return layers.RoutingHeads(**options)


def _cluster_strided_heads(options, section, layer):
    if section.get("reference", False):
        return t2t.T2TClusterStridedHeads(**options, block_size=section["local"]["block_size"])
    return layers.ClusterStridedHeads(**options)


def _strided_heads(options, section, layer):
    kind = t2t.T2TStridedHeads if section.get("reference", False) else layers.StridedHeads
    return kind(**options)


def _local_heads(options, section, layer):
    if kind_of(section) == "image_lm" and len(_block_shape(section)) == 2:
        shape = sides(_image_shape(section), _block_shape(section))
        options["grid"] = [side // block for side, block in zip(shape, _block_shape(section))]
    kind = t2t.T2TLocalHeads if section.get("reference", False) else layers.LocalHeads
    return kind(**options)


def _full_heads(options, section, layer):
    return layers.FullHeads(**_given(options, ("num_heads", "max_relative_distance")))


def _all_groups(section, count, attention):
    return [make_head_groups(section, layer, attention) for layer in range(section[count])]


def _given(options, names):
    return {name: options[name] for name in names if name in options}


def _image_shape(section):
    return tuple(section["image"][name] for name in ("height", "width", "channels"))


def _block_shape(section):
    """The blocks that give an image's values their order; see `RoutingTransformerImageBackbone`."""
    size, height = section["local"]["block_size"], section["image"].get("block_height")
    return (size,) if height is None else (height, size // height)
