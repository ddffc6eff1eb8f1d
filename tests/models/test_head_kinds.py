import pytest

from rt_keras.keys import keys_of, read_section
from rt_keras.models.head_keys import read_head_groups
from rt_keras.models.head_kind import Place
from rt_keras.models.head_kinds import HEAD_KINDS
from rt_keras.models.model_section import ModelSection
from tests.contract.kinds import options

WITHOUT_POSITIONS = {"clustered", "causal_clustered", "lsh", "gated_delta", "union"}
WITH_POSITIONS = sorted(HEAD_KINDS.keys() - WITHOUT_POSITIONS)


def kind(name, **values):
    return read_section(HEAD_KINDS[name], values, f"model.{name}.")


# `test_union_kind.py` tests the options of sets of keys.
@pytest.mark.parametrize("name", sorted(HEAD_KINDS.keys() - {"union"}))
def test_every_key_reaches_the_layer(name):
    sizes = {"num_heads": 2, **({"max_relative_distance": 3} if name in WITH_POSITIONS else {})}
    sizes |= {"top_k": 4} if name == "clustered" else {}
    of_layer = {**options(HEAD_KINDS[name].layer), "memory_length": [999]}
    for key in keys_of(HEAD_KINDS[name]).keys() & of_layer.keys() - {"max_relative_distance"}:
        values = {**sizes, key: of_layer[key][0]}
        heads = kind(name, **values)
        group = heads.layer(**heads.arguments(Place(0)))
        assert {key: getattr(group, key) for key in values} == values


def test_routed_queries_may_be_convolved():
    for given, expected in [({}, 4), ({"kernel_size": 3}, 3), ({"routed_key": "key"}, 1)]:
        heads = kind("local_routing", num_heads=2, **given)
        assert heads.layer(**heads.arguments(Place(0))).kernel_size == expected


def test_two_sequences_have_neither_relative_positions_nor_queries_as_keys():
    for name in WITH_POSITIONS:
        heads = kind(name, max_relative_distance=3)
        assert heads.arguments(Place(0, "cross"))["max_relative_distance"] is None
    for name in ("routing", "local_routing"):
        heads = kind(name, share_qk=True)
        places = [Place(0, x) for x in ("decoder", "encoder", "cross")]
        assert [heads.arguments(x)["share_qk"] for x in places] == [True, False, False]


def test_the_first_blocks_may_have_local_heads_instead():
    for lower in ("local", "gated_delta"):
        heads = kind("routing", first_layer=1, lower_heads=lower)
        assert [heads.replacement(Place(block)) for block in (0, 1)] == [lower, None]


@pytest.mark.parametrize(
    "name, values, expected",
    [
        ("clustered", {}, ["causal_clustered", None, "full"]),
        ("clustered", {"causal_by_mask": True}, [None, None, None]),
        ("causal_clustered", {}, [None, "clustered", "full"]),
        ("lsh", {}, [None, None, "full"]),
    ],
)
def test_groups_leak_into_a_decoder_only_on_request(name, values, expected):
    heads = kind(name, **values)
    assert [heads.replacement(Place(0, x)) for x in ("decoder", "encoder", "cross")] == expected


def test_values_that_a_decoder_or_an_encoder_would_ignore_are_refused():
    kind("clustered", num_clusters=5).check_attentions(("encoder", "decoder", "cross"))
    kind("clustered", num_clusters=5, top_k=2, causal_by_mask=True).check_attentions(("decoder",))
    kind("clustered", num_heads=4).check_attentions(("decoder",))
    with pytest.raises(ValueError, match="a decoder uses model.causal_clustered"):
        kind("clustered", num_clusters=5).check_attentions(("decoder",))
    kind("causal_clustered", num_clusters=5).check_attentions(("encoder", "decoder", "cross"))
    kind("causal_clustered", num_heads=4).check_attentions(("encoder",))
    with pytest.raises(ValueError, match="an encoder uses model.clustered"):
        kind("causal_clustered", num_clusters=5).check_attentions(("encoder",))


def test_random_members_differ_from_block_to_block():
    heads = kind("random")
    assert heads.arguments(Place(0))["seed"] != heads.arguments(Place(1))["seed"]


def test_blocks_of_an_encoder_can_have_another_size():
    sizes = {None: 8, 12: 12}
    for given, expected in sizes.items():
        heads = kind("local", block_size=8, cross_block_size=given)
        assert heads.arguments(Place(0, "cross"))["key_block_size"] == expected
        assert "key_block_size" not in heads.arguments(Place(0))


def test_local_heads_of_images_know_the_grid():
    assert kind("local").arguments(Place(0, grid=(2, 3)))["grid"] == (2, 3)


@pytest.mark.parametrize(
    "name, values, message",
    [
        ("routing", {"num_probes": 17}, "routing: num_probes must .*=17, num_clusters=16"),
        ("routing", {"first_layer": 3}, "routing.first_layer is 3; .*num_layers, 2"),
        ("routing", {"lower_heads": "gated_delta"}, "lower_heads is gated_delta; with first_la"),
        ("local", {"cross_block_size": 8}, "cross_block_size is 8; without an encoder"),
        ("local", {"sliding_window": 130}, "sliding_window must be from 1 to .*, 129. .*: 130"),
    ],
)
def test_incompatible_values_are_refused(name, values, message):
    with pytest.raises(ValueError, match=message):
        kind(name, **values).check(ModelSection())


def test_sliding_windows_are_for_sequences():
    kind("local", sliding_window=9).check(ModelSection())
    with pytest.raises(ValueError, match="sliding_window is 9; outside a causal_lm it must be"):
        kind("local", sliding_window=9).check(ModelSection(kind="image_lm"))


@pytest.mark.parametrize("name, window", [("local", "block_size"), ("random", "window_size")])
def test_a_sequence_is_at_least_as_long_as_a_window(name, window):
    heads = kind(name, **{window: 8})
    heads.check_length("the length", 8)
    with pytest.raises(ValueError, match=f"model.{name}.{window} is 8 but the length is only 7"):
        heads.check_length("the length", 7)


def test_an_encoder_has_as_many_local_blocks_as_the_decoder():
    heads = kind("local", block_size=8, cross_block_size=16)
    heads.check_cross_lengths(32, 64)
    with pytest.raises(ValueError, match="is 16; .*48 positions must form 4 blocks.* use 12"):
        heads.check_cross_lengths(32, 48)


def test_every_kind_can_be_configured():
    for name in HEAD_KINDS.keys() - {"clustered"}:
        needed = {"union.window.block_size": 8} if name == "union" else {}
        (group,) = read_head_groups({f"{name}.num_heads": 4, **needed})
        assert type(group) is HEAD_KINDS[name].layer and group.num_heads == 4


def test_groups_of_several_kinds_and_their_values():
    values = {"full.num_heads": 2, "local.num_heads": 4, "local": {"block_size": 32}}
    local, full = read_head_groups(values)
    assert (local.num_heads, local.block_size, full.num_heads) == (4, 32, 2)


@pytest.mark.parametrize(
    ("values", "attention", "message"),
    [
        ({}, "decoder", "there are no heads; one of model.routing.num_heads"),
        ({"local.block_size": 4}, "decoder", "num_heads is None; model.local has other values"),
        ({"clustered.num_heads": 2}, "decoder", "in the decoder, use model.causal_clustered"),
        ({"gated_delta.num_heads": 2}, "encoder", "outside a causal_lm it must be null"),
    ],
)
def test_values_that_no_groups_can_have_are_refused(values, attention, message):
    with pytest.raises(ValueError, match=message):
        read_head_groups(values, (attention,))
