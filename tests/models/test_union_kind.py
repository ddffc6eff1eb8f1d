import pytest

from rt_keras.keys import read_section
from rt_keras.layers import Heads
from rt_keras.layers.key_sets import (
    Cluster,
    Persistent,
    Remembered,
    SelectedBlocks,
    Strided,
    Window,
)
from rt_keras.models.head_keys import read_head_groups
from rt_keras.models.head_kind import Place
from rt_keras.models.model_section import ModelSection, check_heads, check_length, make_head_groups

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
    values = {
        "window.block_size": 8,
        "window.look_back": 2,
        "window.max_relative_distance": 5,
        "window.relative_positions": "bucketed",
        "cluster.num_clusters": 3,
        "cluster.window_size": 4,
        "cluster.num_probes": 2,
        "remembered.memory_length": 16,
        "remembered.eviction": "merged",
    }
    (heads,) = read_head_groups(
        {"union.num_heads": 2, **{f"union.{k}": x for k, x in values.items()}}
    )
    assert heads.key_sets == (
        Window(8, look_back=2, max_relative_distance=5, relative_positions="bucketed"),
        Cluster(3, 4, num_probes=2),
        Remembered(16, eviction="merged"),
    )


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
        ({"windw.block_size": 8}, "unknown key .*windw.*nearest known key is .*union.window.block"),
        ({"window.blok_size": 8}, "unknown key .*nearest known key is model.union.window.block_si"),
        ({"window.key_block_size": 8}, "unknown key model.union.window.key_block_size"),
        ({"strided": 4}, "model.union.strided is a section; set its keys: .*strided.stride"),
        (
            {"strided.stride": 0},
            "model.union.strided.stride is 0 .*; .*an integer of at least 1",
        ),
        ({"window.look_back": 2}, "model.union.window: block_size must be an integer .*=None"),
        (
            {**CLUSTER, "cluster.num_probes": 5},
            "model.union.cluster: num_probes must be at most num_clusters .*=5, num_clusters=4",
        ),
        (
            {**WINDOW, **CLUSTER, "cluster.assignment": "balanced", "cluster.routed_key": "key"},
            "model.union: Cluster.*balanced.* cannot be joined with other sets of keys",
        ),
        (
            {**WINDOW, "window.attention_activation": "entmax15", "strided.stride": 4},
            "model.union: Window.*entmax15.* cannot be joined with other sets of keys",
        ),
        ({**WINDOW, "remembered.memory_length": 8}, "model.union: Remembered needs a Cluster"),
        ({"persistent.num_persistent_keys": 2}, "model.union: Persistent keys need another set"),
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
        check_heads(model_section(remembered, kind="masked_lm"), ("encoder",))
    blocks = {
        "window.block_size": 16,
        "selected_blocks.block_size": 2,
        "selected_blocks.num_blocks": 4,
        "selected_blocks.segment_size": 16,
        "selected_blocks.memory_length": 32,
    }
    check_heads(model_section(blocks))
    (heads,) = make_head_groups(model_section(blocks), Place(0))
    assert heads.key_sets[1] == SelectedBlocks(2, 4, segment_size=16, memory_length=32)
    with pytest.raises(ValueError, match="selected_blocks.memory_length is 32; outside a causal"):
        check_heads(model_section(blocks, kind="masked_lm"), ("encoder",))
    with pytest.raises(ValueError, match="union.num_heads is 4; model.dialect t2t has no such"):
        check_heads(model_section(NEAR_AND_FAR, dialect="t2t"))
    with pytest.raises(ValueError, match="model.union has values but no heads"):
        check_heads(model_section({**NEAR_AND_FAR, "num_heads": None}, local={"num_heads": 2}))


@pytest.mark.parametrize("values, size", [(WINDOW, "window.block_size"), (CLUSTER, "cluster.win")])
def test_a_sequence_is_at_least_as_long_as_a_window(values, size):
    model = model_section(values)
    check_length(model, "the length", 8)
    with pytest.raises(ValueError, match=f"model.union.{size}.* but the length is only 3"):
        check_length(model, "the length", 3)
