"""The published configurations: the models they make, held against their hyperparameters."""

import json
import math
from pathlib import Path

import keras
import numpy as np
import pytest
import yaml

from rt_keras import files, layers
from rt_keras.convert import t2t_hparams
from rt_keras.models.configured import make_backbone, make_head_groups, make_task

GOLDEN = Path(__file__).parent.parent / "golden" / "t2t_hparams.json"


def published_hparams():
    """The hyperparameters of every published configuration, by name."""
    found = {name: known["hparams"] for name, known in json.loads(GOLDEN.read_text()).items()}
    # These two the code of the paper's authors defines, but cannot build.
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


def section_of(name):
    return yaml.safe_load((files.config_folder() / f"{name}.yaml").read_text())["model"]


def parameters_of_attention(h, layer, kind):
    """Weights of one attention, as the hyperparameters imply."""
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
    """Trainable weights of a model without its last layers, as the hyperparameters imply."""
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
    """Configs of head groups but for names, and for the block size between two sequences."""
    dropped = ("name", "dtype", "key_block_size", "seed")
    configs = [{**group.get_config(), "kind": type(group)} for group in groups]
    for config in configs:
        if config.get("grid"):
            # One number stands for both dimensions.
            config["look_back"] = np.broadcast_to(config["look_back"], 2).tolist()
    return [{k: v for k, v in config.items() if k not in dropped} for config in configs]


@pytest.mark.parametrize("name", sorted(HPARAMS))
def test_published_configuration(name):
    hparams, section = HPARAMS[name], section_of(name)
    image, size = image_shape(name, hparams), section["vocabulary_size"]
    h = t2t_hparams.read_hparams(hparams, image=image is not None)
    # Variables without values: some of these models take gigabytes.
    with keras.StatelessScope(initialize_variables=False):
        backbone = make_backbone(section, size)
    # Or Keras would give them values when it next leaves such a scope.
    keras.utils.clear_session()
    count = sum(math.prod(variable.shape) for variable in backbone.trainable_variables)
    assert count == parameters(h, size, image)
    options = t2t_hparams.block_options(h)
    for key in ("dropout", "attention_dropout", "activation_dropout", "activation"):
        assert backbone.block_options[key] == options[key]
    initializer = backbone.block_options["kernel_initializer"].get_config()
    assert initializer["scale"] == h["initializer_gain"] and initializer["mode"] == "fan_avg"
    encoder = h.get("num_encoder_layers", 0)
    decoder = h["num_decoder_layers"]
    for kind, count in (("decoder", decoder), ("encoder", encoder), ("cross", encoder and decoder)):
        for layer in range(count):
            theirs = t2t_hparams.head_groups(h, layer, kind, image)
            assert comparable(make_head_groups(section, layer, kind)) == comparable(theirs)


def test_there_is_no_other_published_configuration():
    names = {path.stem for path in files.config_folder().glob("*.yaml")}
    assert names == {*HPARAMS, "books", "quickstart"}


def kinds(groups):
    return [(type(group), group.num_heads) for group in groups]


SECTION = {
    "local": {"num_heads": 2, "block_size": 8},
    "routing": {"num_heads": 1, "num_clusters": 4, "window_size": 8, "first_layer": 1},
    "full": {"num_heads": 1},
}


def test_blocks_before_the_first_routing_layer_have_local_heads_in_its_place():
    full = (layers.FullHeads, 1)
    assert kinds(make_head_groups(SECTION, 0)) == [(layers.LocalHeads, 3), full]
    assert kinds(make_head_groups(SECTION, 1)) == [
        (layers.RoutingHeads, 1),
        (layers.LocalHeads, 2),
        full,
    ]


def test_groups_without_heads_are_absent():
    section = {**SECTION, "local": {"num_heads": 0}, "full": {"num_heads": 0}}
    assert kinds(make_head_groups(section, 1)) == [(layers.RoutingHeads, 1)]


def test_attention_to_an_encoder_has_full_heads_where_routing_would_be_nearest():
    assert kinds(make_head_groups(SECTION, 1, "cross")) == [
        (layers.LocalHeads, 2),
        (layers.FullHeads, 2),
    ]
    balanced = {**SECTION, "routing": {**SECTION["routing"], "assignment": "balanced"}}
    assert kinds(make_head_groups(balanced, 1, "cross"))[0] == (layers.RoutingHeads, 1)


@pytest.mark.parametrize(
    "assignment, kind",
    [
        ("nearest", layers.RoutingHeads),
        ("balanced", layers.RoutingHeads),
        ("hashed", layers.HashedHeads),
        ("random", layers.RandomHeads),
    ],
)
def test_assignments(assignment, kind):
    section = {**SECTION, "routing": {**SECTION["routing"], "assignment": assignment}}
    group = make_head_groups(section, 1)[0]
    assert type(group) is kind and (group.num_clusters, group.window_size) == (4, 8)


def test_random_members_differ_from_block_to_block():
    section = {"routing": {**SECTION["routing"], "assignment": "random", "first_layer": 0}}
    assert make_head_groups(section, 0)[0].seed != make_head_groups(section, 1)[0].seed


def test_every_key_of_a_group_reaches_it():
    section = {
        "routing": {
            "num_heads": 2,
            "num_clusters": 5,
            "window_size": 6,
            "assignment": "nearest",
            "share_qk": True,
            "num_probes": 2,
            "max_relative_distance": 3,
            "commitment_weight": 0.5,
        },
        "cluster_strided": {
            "num_heads": 1,
            "num_clusters": 3,
            "window_size": 5,
            "max_relative_distance": 2,
            "commitment_weight": 0.25,
        },
        "strided": {"num_heads": 1, "stride": 7, "max_relative_distance": 9},
        "local": {"num_heads": 1, "block_size": 8, "look_back": 2, "max_relative_distance": 4},
        "full": {"num_heads": 1, "max_relative_distance": 7},
    }
    groups = make_head_groups(section, 0)
    for group, values in zip(groups, section.values(), strict=True):
        given = group.get_config()
        if type(group) is layers.ClusterStridedHeads:
            given["commitment_weight"] = group.commitment_weight
        assert {key: given[key] for key in values} == values


TINY = {"num_layers": 1, "hidden_dim": 8, "intermediate_dim": 16}


@pytest.mark.parametrize(
    "section",
    [
        {"local": {"num_heads": 2, "block_size": 4}},
        {
            "kind": "seq_2_seq_lm",
            "num_encoder_layers": 1,
            "local": {"num_heads": 2, "block_size": 4, "cross_block_size": 8},
        },
        {
            "kind": "image_lm",
            "local": {"num_heads": 2, "block_size": 4},
            "image": {"height": 4, "width": 4, "channels": 1, "block_height": 2},
        },
    ],
    ids=["causal_lm", "seq_2_seq_lm", "image_lm"],
)
def test_models_of_every_kind_run(section):
    model = make_task({**TINY, **section}, vocabulary_size=7)
    inputs = {
        name: keras.ops.ones([2, *(side or 16 for side in x.shape[1:])], x.dtype)
        for name, x in model.backbone.input.items()
    }
    if section.get("kind") == "seq_2_seq_lm":
        inputs = {name: x[:, :8] if name.startswith("decoder") else x for name, x in inputs.items()}
    assert model(inputs).shape[-1] == 7
