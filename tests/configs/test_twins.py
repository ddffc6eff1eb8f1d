"""The strictly causal twins of the published configurations whose heads see the future."""

from dataclasses import asdict

import pytest
import yaml

from rt_keras import config_files
from rt_keras.config_files import flatten
from rt_keras.models.model_section import is_strictly_causal
from rt_keras.training.config import load_config


def read_base(name):
    """The published configuration that one builds on, or None."""
    return yaml.safe_load(config_files.find_config(name).read_text()).get("base")


NAMES = config_files.published_names()
BASES = {name: read_base(name) for name in NAMES if read_base(name)}
# Those of the authors' own models, whose heads see the future.
TWINS = {name: base for name, base in BASES.items() if load_config(base).model.dialect}
OF_IMAGES = [name for name in TWINS if load_config(name).model.kind == "image_lm"]


def changes(twin):
    """The sections `model` of a published configuration and its twin, and what differs in all."""
    base, config = (asdict(load_config(name)) for name in (TWINS[twin], twin))
    before = dict(flatten(base))
    changed = {key: value for key, value in flatten(config) if before[key] != value}
    assert changed.pop("model.dialect") is None
    assert changed.pop("centroids.load_bias_step") > 0
    return base["model"], config["model"], changed


def test_twins_of_text_have_a_window_and_a_cluster_where_the_others_route():
    same = ("num_heads", "num_clusters", "window_size", "max_relative_distance", "first_layer")
    for twin in set(TWINS) - set(OF_IMAGES):
        base, model, changed = changes(twin)
        assert changed.pop("model.routing.num_heads") == 0
        assert all(key.startswith("model.local_routing.") for key in changed), twin
        routing, heads = base["routing"], model["local_routing"]
        assert {name: heads[name] for name in same} == {name: routing[name] for name in same}
        for name in ("block_size", "look_back"):
            assert heads[name] == base["local"][name], twin


def test_twins_of_images_route_to_the_nearest_cluster():
    for twin in OF_IMAGES:
        base, model, changed = changes(twin)
        assert changed.pop("model.routing.assignment") == "nearest"
        assert changed.pop("model.routing.share_qk") is False
        if "strided" in twin:
            assert changed.pop("model.cluster_strided.num_heads") == 0
            assert changed.pop("model.strided.stride") == model["strided"]["stride"]
            count = changed.pop("model.strided.num_heads")
            assert count == base["cluster_strided"]["num_heads"]
        assert not changed, twin


@pytest.mark.slow
def test_every_configuration_that_sees_the_future_has_a_strictly_causal_twin():
    causal = {name: is_strictly_causal(load_config(name).model) for name in NAMES}
    assert all(causal[twin] for twin in TWINS)
    # With routing heads instead of hashed ones, these are the cluster configurations.
    hashed = {name for name in NAMES if "hash" in name}
    for name in hashed:
        pair = (load_config(x) for x in (name, name.replace("hash", "cluster")))
        found, other = (dict(flatten(asdict(config))) for config in pair)
        changed = {key for key in found if found[key] != other[key]}
        assert all(key.startswith(("model.routing.", "model.hashed.")) for key in changed)
    assert {name for name in NAMES if not causal[name]} == set(TWINS.values()) | hashed
