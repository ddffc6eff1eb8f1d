"""Models from configurations."""

import pytest

from rt_keras import layers, models
from rt_keras.keys import keys_of, read_section
from rt_keras.models.head_kind import Place
from rt_keras.models.model_section import (
    ModelSection,
    arguments_of,
    check_convolutions,
    check_heads,
    make_head_groups,
)
from rt_keras.models.transformer_blocks import BlockOptions


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


def test_attention_to_an_encoder_has_full_heads_where_routing_would_be_nearest():
    groups = make_head_groups(model_section(**SECTION), Place(1, "cross"))
    assert kinds(groups) == [(layers.LocalHeads, 2), (layers.FullHeads, 2)]
    routing = {**SECTION["routing"], "assignment": "balanced"}
    groups = make_head_groups(model_section(**{**SECTION, "routing": routing}), Place(1, "cross"))
    assert kinds(groups)[0] == (layers.RoutingHeads, 1)


SINES = {"num_heads": 2, "relative_positions": "sinusoidal"}
BOUNDED = {"num_heads": 2, "memory_length": 8}


@pytest.mark.parametrize(
    "values, message",
    [
        ({"full": {"num_heads": 0}}, "no heads; one of .*model.union.num_heads must be above 0"),
        ({"routing": {"window_size": 8}}, "model.routing has values but no heads; set .*, 0 for"),
        ({"full": {"num_heads": 3}}, r"hidden_dim is .*not divisible by the 3 heads \(full 3\)"),
        ({"full": SINES}, "full: relative_positions='sinusoidal' needs a max_relative_distance"),
        ({"kind": "retriever", "full": BOUNDED}, "full.memory_length is 8; outside a causal_lm it"),
    ],
)
def test_incompatible_heads_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        check_heads(model_section(**values))


def test_convolutions_in_all_blocks_or_in_one():
    for layer, expected in ((None, 3), (1, [None, 3])):
        section = model_section(num_layers=2, conv_kernel_size=3, conv_layer=layer)
        check_convolutions(section)
        found = arguments_of(models.RoutingTransformerBackbone, section)
        assert found["conv_kernel_size"] == expected
    with pytest.raises(ValueError, match="conv_layer is 4; it must be below model.num_layers, 4"):
        check_convolutions(model_section(num_layers=4, conv_kernel_size=4, conv_layer=4))


def test_a_language_model_computes_its_loss_in_the_parts_of_its_section():
    local = {"num_heads": 2, "block_size": 4}
    section = model_section(num_layers=1, hidden_dim=8, local=local, loss_chunk_size=4)
    model = models.RoutingTransformerCausalLM.from_section(section, vocabulary_size=7)
    assert model.loss_chunk_size == 4


def test_defaults_are_those_of_the_blocks():
    declared = {name: key.default for name, key in keys_of(ModelSection).items()}
    # Their other options are no keys.
    defaults = vars(BlockOptions(declared["intermediate_dim"]))
    del defaults["feed_forward"], defaults["kernel_initializer"]
    assert {name: declared[name] for name in defaults} == defaults
