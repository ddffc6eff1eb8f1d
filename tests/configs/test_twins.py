"""The strictly causal twins of the published configurations whose heads see the future."""

from dataclasses import asdict

import keras
import numpy as np
import pytest
import yaml

from rt_keras import config_files
from rt_keras.config_files import flatten
from rt_keras.models.model_section import is_strictly_causal
from rt_keras.training.config import load_config
from rt_keras.training.experiment import Experiment


def read_base(name):
    """The published configuration that one builds on, or None."""
    return yaml.safe_load(config_files.find_config(name).read_text()).get("base")


NAMES = config_files.published_names()
BASES = {name: read_base(name) for name in NAMES if read_base(name)}
# Those of the authors' own models, whose heads see the future.
TWINS = {name: base for name, base in BASES.items() if load_config(base).model.dialect}
OF_IMAGES = [name for name in TWINS if load_config(name).model.kind == "image_lm"]
OF_TEXT = [name for name in TWINS if name not in OF_IMAGES]


def changes(twin):
    """The sections `model` of a published configuration and its twin, and what differs in all."""
    base, config = (asdict(load_config(name)) for name in (TWINS[twin], twin))
    before = dict(flatten(base))
    changed = {key: value for key, value in flatten(config) if before[key] != value}
    assert changed.pop("model.dialect") is None
    assert changed.pop("centroids.load_bias_step") > 0
    return base["model"], config["model"], changed


@pytest.mark.parametrize("twin", OF_TEXT)
def test_twins_of_text_have_a_window_and_a_cluster_where_the_others_route(twin):
    base, model, changed = changes(twin)
    assert changed.pop("model.routing.num_heads") == 0
    assert all(key.startswith("model.local_routing.") for key in changed)
    routing, heads = base["routing"], model["local_routing"]
    same = ("num_heads", "num_clusters", "window_size", "max_relative_distance", "first_layer")
    assert {name: heads[name] for name in same} == {name: routing[name] for name in same}
    assert heads["block_size"] == base["local"]["block_size"]
    assert heads["look_back"] == base["local"]["look_back"]


@pytest.mark.parametrize("twin", OF_IMAGES)
def test_twins_of_images_route_to_the_nearest_cluster(twin):
    base, model, changed = changes(twin)
    assert changed.pop("model.routing.assignment") == "nearest"
    assert changed.pop("model.routing.share_qk") is False
    if "strided" in twin:
        strided = model["strided"]
        assert changed.pop("model.cluster_strided.num_heads") == 0
        assert changed.pop("model.strided.stride") == strided["stride"]
        count = changed.pop("model.strided.num_heads")
        assert count == base["cluster_strided"]["num_heads"]
    assert not changed


@pytest.mark.end_to_end
def test_every_configuration_that_sees_the_future_has_a_strictly_causal_twin():
    causal = {name: is_strictly_causal(load_config(name).model) for name in NAMES}
    assert all(causal[twin] for twin in TWINS)
    # With routing heads instead of hashed ones, these two are the cluster configurations.
    hashed = {name for name in NAMES if "hash" in name}
    for name in hashed:
        other = asdict(load_config(name.replace("hash", "cluster")))
        found = asdict(load_config(name))
        changed = {key for key, value in flatten(found) if dict(flatten(other))[key] != value}
        assert all(key.startswith(("model.routing.", "model.hashed.")) for key in changed)
    assert {name for name in NAMES if not causal[name]} == set(TWINS.values()) | hashed


SMALL = [
    "model.num_layers=2",
    "model.hidden_dim=16",
    "model.intermediate_dim=16",
    "model.vocabulary_size=20",
    "model.local.num_heads=2",
    "model.local.block_size=8",
    "model.routing.num_clusters=3",
    "model.routing.window_size=8",
]
SMALL_TEXT = ["model.embedding_dim=8", "data.sequence_length=32", "model.routing.first_layer=1"]
SMALL_IMAGES = [
    "model.hidden_dim=24",
    "model.image.height=4",
    "model.image.width=8",
    "model.image.channels=1",
    "model.cluster_strided.num_clusters=3",
    "model.cluster_strided.window_size=8",
]
ROUTING = "model.routing.num_heads=2"
LOCAL_ROUTING = [
    f"model.local_routing.{value}"
    for value in ("num_heads=2", "block_size=8", "num_clusters=3", "window_size=8", "first_layer=1")
]


@pytest.mark.end_to_end
@pytest.mark.parametrize(
    "twin, sizes, of_twin",
    [
        ("pg19_nearest8k", SMALL_TEXT, LOCAL_ROUTING),
        ("translate_nearest1k", [*SMALL_TEXT, "model.num_encoder_layers=1"], LOCAL_ROUTING),
        ("cifar10_nearest_strided", SMALL_IMAGES, [ROUTING]),
    ],
)
def test_outputs_of_a_twin_do_not_depend_on_the_future(twin, sizes, of_twin):
    assert leak(twin, [*SMALL, *sizes, *of_twin]) < 1e-5
    assert leak(TWINS[twin], [*SMALL, *sizes, ROUTING]) > 1e-3


def leak(name, changes):
    """How much outputs up to a position change, at most, when later positions do."""
    keras.utils.set_random_seed(0)
    model = Experiment(load_config(name, changes)).make_model()
    for variable in model.trainable_variables:
        variable.assign(variable + 0.3 * np.random.normal(size=variable.shape))
    values = np.random.default_rng(0).integers(1, 20, [2, 32])
    expected, leaks = outputs(model, values), []
    for place in (0, 7, 20):
        changed = values.copy()
        changed[:, place + 1 :] = np.random.default_rng(place).integers(1, 20, [2, 31 - place])
        found = outputs(model, changed)
        assert np.abs(found - expected)[:, place + 1 :].max() > 1e-2
        leaks.append(np.abs(found - expected)[:, : place + 1].max())
    return max(leaks)


def outputs(model, values):
    """The logits of tokens, or of values of images, as `[batch, length, vocabulary]`."""
    inputs = {}
    for tensor in model.input.values() if isinstance(model.input, dict) else model.input:
        if tensor.name == "images":
            inputs[tensor.name] = values.reshape(2, 4, 8, 1)
        elif tensor.name.endswith("padding_mask"):
            inputs[tensor.name] = np.ones([2, 32], bool)
        else:
            encoder = tensor.name.startswith("encoder")
            inputs[tensor.name] = np.full([2, 32], 3) if encoder else values
    return keras.ops.convert_to_numpy(model(inputs)).reshape(2, 32, 20)
