import dataclasses

import pytest

from rt_keras.keys import read_section
from rt_keras.layers import Heads
from rt_keras.layers.key_sets import Cluster, Persistent, Remembered, Strided, Window
from rt_keras.models.head_keys import read_head_groups
from rt_keras.models.head_kind import Place
from rt_keras.models.model_section import ModelSection, check_heads, make_head_groups

WINDOW = {"window.block_size": 8}
NEAR_AND_FAR = {**WINDOW, "strided.stride": 4, "persistent.num_persistent_keys": 2}


def model_section(values, **others):
    """A `ModelSection` with four heads of a union."""
    return read_section(ModelSection, {"union": {"num_heads": 4, **values}, **others}, "model.")


def test_a_union_has_the_sets_of_which_a_key_is_given():
    (heads,) = make_head_groups(model_section(NEAR_AND_FAR), Place(0))
    assert type(heads) is Heads and heads.num_heads == 4
    assert heads.key_sets == (Window(8), Strided(4), Persistent(2))


def test_every_set_can_be_configured():
    window = Window(8, look_back=2, max_relative_distance=5, relative_positions="sinusoidal")
    sets = window, Cluster(3, 4, num_probes=2), Remembered(16, eviction="merged")
    values = {
        f"union.{type(keys).__name__.lower()}.{field.name}": getattr(keys, field.name)
        for keys in sets
        for field in dataclasses.fields(keys)
        if getattr(keys, field.name) != field.default
    }
    (heads,) = read_head_groups({"union.num_heads": 2, **values})
    assert heads.key_sets == sets


def test_the_first_blocks_may_lack_them_and_attention_to_an_encoder_does():
    model = model_section({**NEAR_AND_FAR, "first_layer": 1, "share_qk": True})
    kinds = [type(make_head_groups(model, Place(block))[0]).__name__ for block in (0, 1)]
    assert kinds == ["LocalHeads", "Heads"]
    places = {x: make_head_groups(model, Place(1, x))[0] for x in ("decoder", "encoder", "cross")}
    assert type(places["cross"]).__name__ == "FullHeads"
    assert (places["decoder"].share_qk, places["encoder"].share_qk) == (True, False)


CLUSTER = {"cluster.num_clusters": 4, "cluster.window_size": 4}


@pytest.mark.parametrize(
    "values, message",
    [
        ({}, "model.union: key_sets must be a list of at least one set of keys"),
        ({"window.blok_size": 8}, "unknown key .*nearest known key is model.union.window.block_si"),
        ({"strided": 4}, "model.union.strided is a section; set its keys: .*strided.stride"),
        ({"window.look_back": 2}, "model.union.window: block_size must be an integer .*=None"),
        ({**WINDOW, "remembered.memory_length": 8}, "model.union: Remembered needs a Cluster"),
        ({**NEAR_AND_FAR, "first_layer": 3}, "union.first_layer is 3; .*num_layers, 2"),
    ],
)
def test_incompatible_values_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        check_heads(model_section(values))


def test_values_that_the_model_does_not_support_are_refused():
    remembered = {**WINDOW, **CLUSTER, "remembered.memory_length": 8}
    check_heads(model_section(remembered))
    with pytest.raises(ValueError, match="the set remembered needs a causal_lm"):
        check_heads(model_section(remembered, kind="retriever"), ("encoder",))
    with pytest.raises(ValueError, match="model.union has values but no heads"):
        check_heads(model_section({**NEAR_AND_FAR, "num_heads": None}, local={"num_heads": 2}))
