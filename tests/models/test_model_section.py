"""Models from configurations; published ones are compared with their hyperparameters."""

import json
import math
from pathlib import Path

import keras
import numpy as np
import pytest

from rt_keras import config_files, layers, models
from rt_keras.convert import t2t_hparams
from rt_keras.keys import keys_of, read_section
from rt_keras.models import presets
from rt_keras.models.head_kind import Place
from rt_keras.models.head_kinds import HEAD_KINDS
from rt_keras.models.model_section import (
    ModelSection,
    arguments_of,
    check_convolutions,
    check_heads,
    check_networks,
    make_head_groups,
)
from rt_keras.models.transformer_blocks import BLOCK_OPTIONS

GOLDEN = Path(__file__).parent.parent / "golden" / "t2t_hparams.json"


def published_hparams():
    """The hyperparameters of every published configuration, by name."""
    found = {name: known["hparams"] for name, known in json.loads(GOLDEN.read_text()).items()}
    # The code of the paper's authors defines these two but cannot build them.
    for name, base, length in (
        ("mnist_full", "mnist_local1d", 28 * 28),
        ("imagenet_full", "imagenet_local1d", 64 * 64 * 3),
    ):
        window = {"query_shape": [length], "memory_query_shape": [length], "memory_flange": [0]}
        found[name] = {**found[base], **window}
    return found


HPARAMS = published_hparams()


def image_shape(name, hparams):
    if "frame_height" not in hparams:
        return None
    return hparams["frame_height"], hparams["frame_width"], 1 if "mnist" in name else 3


BACKBONES = {
    cls.kind: cls
    for cls in (
        models.RoutingTransformerBackbone,
        models.RoutingTransformerSeq2SeqBackbone,
        models.RoutingTransformerImageBackbone,
    )
}


def parameters_of_attention(h, layer, kind):
    """The number of weights of an attention layer that the hyperparameters imply."""
    width, reach = h["hidden_size"], 2 * h["max_relative_position"] + 1
    clusters, local = h["sparsity_cluster_num_heads"], h["local_num_heads"]
    if layer < h["sparsity_skip_first"]:
        clusters, local = 0, local + clusters
    strided = h["sparsity_cluster_strided_num_heads"]
    depth = width // (clusters + local + strided)
    shared = clusters if h["share_qk"] and kind == "decoder" else 0
    keys = (clusters + local + strided - shared) * depth * width
    relative = [
        h[f"{name}_relative"] and heads and kind != "cross"
        for name, heads in (
            ("local", local),
            ("sparsity_cluster", clusters),
            ("sparsity_cluster_strided", strided),
        )
    ]
    tables = 2 * reach * depth * sum(map(bool, relative))
    return 3 * width**2 + keys + depth**2 + tables


def parameters(h, vocabulary_size, image):
    """The number of trainable weights of a backbone that the hyperparameters imply."""
    width, inner = h["hidden_size"], h["filter_size"]
    geglu = h["ffn_layer"] == "geglu"
    feed_forward = 3 * width * inner if geglu else 2 * width * inner + inner + width
    norm = 2 * width

    def stack(kinds, count):
        return sum(
            sum(parameters_of_attention(h, layer, kind) + norm for kind in kinds)
            + feed_forward
            + norm
            for layer in range(count)
        )

    if image:
        channels = image[2]
        embedding = vocabulary_size * channels * width + 2 * max(image) * channels * width
        return embedding + stack(["decoder"], h["num_decoder_layers"])
    embedding = vocabulary_size * h["embedding_dims"] + (h["embedding_dims"] + 1) * width
    if not h["num_encoder_layers"]:
        return embedding + stack(["decoder"], h["num_decoder_layers"])
    encoder = vocabulary_size * width + stack(["encoder"], h["num_encoder_layers"])
    return embedding + encoder + stack(["decoder", "cross"], h["num_decoder_layers"])


def comparable(groups):
    """Configs of head groups without names and the block size of cross-attention."""
    dropped = ("name", "dtype", "key_block_size", "seed")
    configs = [{**group.get_config(), "kind": type(group)} for group in groups]
    for config in configs:
        if config.get("grid"):
            # One number means both dimensions.
            config["look_back"] = np.broadcast_to(config["look_back"], 2).tolist()
    return [{k: v for k, v in config.items() if k not in dropped} for config in configs]


@pytest.mark.end_to_end
@pytest.mark.parametrize("name", sorted(HPARAMS))
def test_published_configuration(name):
    hparams, (model, _) = HPARAMS[name], presets.published()[name]
    image, size = image_shape(name, hparams), model.vocabulary_size
    h = t2t_hparams.read_hparams(hparams, image=image is not None)
    # Variables without values: some of these models take gigabytes.
    with keras.StatelessScope(initialize_variables=False):
        backbone = BACKBONES[model.kind].from_section(model, size)
    # Otherwise, Keras would initialize them when it next leaves such a scope.
    keras.utils.clear_session()
    count = sum(math.prod(variable.shape) for variable in backbone.trainable_variables)
    assert count == parameters(h, size, image)
    options = t2t_hparams.block_options(h)
    for key in ("dropout", "attention_dropout", "activation_dropout", "activation"):
        assert backbone.block_options[key] == options[key]
    initializer = backbone.block_options["kernel_initializer"].get_config()
    assert initializer["scale"] == h["initializer_gain"] and initializer["mode"] == "fan_avg"
    assert backbone.num_layers == h["num_decoder_layers"]
    attentions = {"decoder": [block.attention for block in backbone.transformer_blocks]}
    if h.get("num_encoder_layers"):
        assert backbone.num_encoder_layers == h["num_encoder_layers"]
        attentions["encoder"] = [block.attention for block in backbone.encoder_blocks]
        attentions["cross"] = [block.cross_attention for block in backbone.transformer_blocks]
    for kind, found in attentions.items():
        for layer, attention in enumerate(found):
            theirs = t2t_hparams.head_groups(h, layer, kind, image)
            assert comparable(attention.head_groups) == comparable(theirs)


def test_all_other_configurations_build_on_a_published_one():
    others = presets.published().keys() - HPARAMS.keys()
    assert HPARAMS.keys() <= presets.published().keys()
    assert all("\nbase: " in config_files.find_config(name).read_text() for name in others)


def model_section(**values):
    """A section with only the given heads."""
    none = {name: {"num_heads": 0} for name in ("local", "routing")}
    return read_section(ModelSection, {**none, **values})


def kinds(groups):
    return [(type(group), group.num_heads) for group in groups]


SECTION = {
    "local": {"num_heads": 2, "block_size": 8},
    "routing": {"num_heads": 1, "num_clusters": 4, "window_size": 8, "first_layer": 1},
    "full": {"num_heads": 1},
}


def test_blocks_before_the_first_routing_layer_have_local_heads_instead():
    model, full = model_section(**SECTION), (layers.FullHeads, 1)
    assert kinds(make_head_groups(model, Place(0))) == [(layers.LocalHeads, 3), full]
    assert kinds(make_head_groups(model, Place(1))) == [
        (layers.RoutingHeads, 1),
        (layers.LocalHeads, 2),
        full,
    ]


def test_groups_without_heads_are_absent():
    model = model_section(routing={"num_heads": 1})
    assert kinds(make_head_groups(model, Place(1))) == [(layers.RoutingHeads, 1)]


def test_attention_to_an_encoder_has_full_heads_where_routing_would_be_nearest():
    groups = make_head_groups(model_section(**SECTION), Place(1, "cross"))
    assert kinds(groups) == [(layers.LocalHeads, 2), (layers.FullHeads, 2)]
    routing = {**SECTION["routing"], "assignment": "balanced"}
    groups = make_head_groups(model_section(**{**SECTION, "routing": routing}), Place(1, "cross"))
    assert kinds(groups)[0] == (layers.RoutingHeads, 1)


@pytest.mark.parametrize("name", HEAD_KINDS)
def test_a_section_makes_the_layer_of_its_kind(name):
    sets = {"window.block_size": 8} if name == "union" else {}
    model = model_section(**{name: {"num_heads": 3, **sets}})
    # Clustered heads are for encoders.
    (group,) = make_head_groups(model, Place(0, "encoder" if name == "clustered" else "decoder"))
    assert (type(group), group.num_heads) == (HEAD_KINDS[name].layer, 3)


def test_a_dialect_supports_only_some_heads():
    model = model_section(dialect="t2t", full={"num_heads": 2})
    with pytest.raises(ValueError, match="full.num_heads is 2; model.dialect t2t has no such"):
        check_heads(model)


@pytest.mark.parametrize(
    "values, message",
    [
        (
            {"full": {"num_heads": 0}},
            "no heads; one of model.routing.num_heads, .*model.union.num_heads must be above 0",
        ),
        (
            {"routing": {"window_size": 8}},
            "model.routing has values but no heads; set model.routing.num_heads, 0 for none",
        ),
        (
            {"full": {"num_heads": 3}, "hidden_dim": 256},
            r"hidden_dim is 256, .*not divisible by the 3 heads \(full 3\).*such as 255",
        ),
        (
            {"causal_clustered": {"num_heads": 2}, "clustered": {"bits": 5}},
            "model.clustered has values but no heads",
        ),
        (
            {"hashed": {"num_heads": 2, "num_buckets": 1}},
            "model.hashed: num_buckets must be at least 2",
        ),
        (
            {"full": {"num_heads": 2, "relative_positions": "bucketed"}},
            "model.full: relative_positions='bucketed' needs a max_relative_distance",
        ),
        (
            {"local_routing": {"num_heads": 2, "relative_positions": "sinusoidal"}},
            "local_routing: relative_positions='sinusoidal' needs a max_relative_distance",
        ),
        (
            {"compressive": {"num_heads": 2, "compression_rate": 3}},
            "model.compressive: block_size must be a multiple of compression_rate, 3",
        ),
        (
            {"compressive": {"num_heads": 2, "compressed_length": 33}},
            "model.compressive: compressed_length must be a multiple .*, 32. .*=33",
        ),
        (
            {"routing_memory": {"num_heads": 2, "memory_length": 33}},
            "model.routing_memory: memory_length must be at least .*=33, memory_block_size=64",
        ),
        (
            {"routing": {"num_heads": 2, "num_persistent_keys": 4, "assignment": "balanced"}},
            "model.routing: .*balanced.* cannot be joined .* Persistent.num_persistent_keys=4",
        ),
        (
            {"routing_memory": {"num_heads": 2, "routed_key": "key"}},
            "model.routing_memory: routed_key must be 'previous_query'.*'key'",
        ),
        (
            {"kind": "masked_lm", "full": {"num_heads": 2, "memory_length": 8}},
            "full.memory_length is 8; outside a causal_lm it must be null",
        ),
    ],
)
def test_incompatible_heads_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        check_heads(model_section(**values))


@pytest.mark.parametrize(
    "values, message",
    [
        ({"product_key_layer": 0}, "product_key_layer needs model.product_keys"),
        ({"product_keys": 4, "num_experts": 2}, "product_keys and model.num_experts cannot"),
        ({"product_keys": 4, "product_key_layer": 4}, "is 4; it must be below model.num_layers, 4"),
        ({"product_keys": 4, "num_encoder_layers": 2}, "model.num_encoder_layers cannot be"),
    ],
)
def test_incompatible_networks_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        check_networks(model_section(num_layers=4, **values))


@pytest.mark.parametrize(
    "values, message",
    [
        ({"conv_layer": 0, "conv_kernel_size": None}, "conv_layer needs model.conv_kernel_size"),
        ({"dialect": "t2t"}, "model.conv_kernel_size and model.dialect cannot be combined"),
        ({"conv_layer": 4}, "conv_layer is 4; it must be below model.num_layers, 4"),
        ({"conv_layer": 0, "num_encoder_layers": 2}, "model.num_encoder_layers cannot be"),
    ],
)
def test_incompatible_convolutions_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        check_convolutions(model_section(**{"num_layers": 4, "conv_kernel_size": 4, **values}))


def test_convolutions_in_all_blocks_or_in_one():
    for layer, expected in ((None, 3), (1, [None, 3])):
        section = model_section(num_layers=2, conv_kernel_size=3, conv_layer=layer)
        check_convolutions(section)
        found = arguments_of(models.RoutingTransformerBackbone, section)
        assert found["conv_kernel_size"] == expected and found["product_keys"] is None
    with pytest.raises(ValueError, match="model.conv_kernel_size is 1.* at least 2"):
        read_section(ModelSection, {"conv_kernel_size": 1}, "model.")


def test_clustered_heads_of_a_decoder_have_the_values_of_the_causal_kind():
    values = {"clustered": {"num_heads": 2}, "causal_clustered": {"num_clusters": 5}}
    model = model_section(**values)
    check_heads(model)
    (group,) = make_head_groups(model, Place(0))
    assert (type(group), group.num_clusters) == (layers.CausalClusteredHeads, 5)


def test_heads_with_a_given_depth_need_not_divide_the_width():
    check_heads(model_section(full={"num_heads": 3}, hidden_dim=256, key_dim=7))


def test_defaults_are_those_of_the_blocks():
    declared = {name: key.default for name, key in keys_of(ModelSection).items()}
    shared = BLOCK_OPTIONS.keys() & declared.keys()
    assert {name: declared[name] for name in shared} == {
        name: BLOCK_OPTIONS[name] for name in shared
    }
    assert BLOCK_OPTIONS.keys() - shared == {"kernel_initializer"}


TINY = {"num_layers": 1, "hidden_dim": 8, "intermediate_dim": 16}


@pytest.mark.parametrize(
    "task, values",
    [
        (models.RoutingTransformerCausalLM, {"loss_chunk_size": 4}),
        (
            models.RoutingTransformerSeq2SeqLM,
            {
                "num_encoder_layers": 1,
                "local": {"num_heads": 2, "block_size": 4, "cross_block_size": 8},
            },
        ),
        (
            models.RoutingTransformerImageLM,
            {"image": {"height": 4, "width": 4, "channels": 1, "block_height": 2}},
        ),
    ],
    ids=["causal_lm", "seq_2_seq_lm", "image_lm"],
)
def test_models_of_every_kind_run(task, values):
    local = {"num_heads": 2, "block_size": 4}
    section = model_section(**{**TINY, "local": local, **values})
    model = task.from_section(section, vocabulary_size=7)
    inputs = {
        name: keras.ops.ones([2, *(side or 16 for side in x.shape[1:])], x.dtype)
        for name, x in model.backbone.input.items()
    }
    if task is models.RoutingTransformerSeq2SeqLM:
        inputs = {name: x[:, :8] if name.startswith("decoder") else x for name, x in inputs.items()}
    assert model(inputs).shape[-1] == 7
    assert getattr(model, "loss_chunk_size", None) == section.loss_chunk_size
