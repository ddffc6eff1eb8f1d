import keras
import numpy as np
import pytest

from rt_keras.layers import FullHeads, LocalHeads, RoutingHeads, TransformerBlock
from rt_keras.models.transformer_blocks import (
    BLOCK_OPTIONS,
    config_of_groups,
    config_of_options,
    groups_of_blocks,
    groups_of_config,
    make_blocks,
    make_final_norm,
    take_block_options,
)
from tests.models import checks


def test_options_are_those_of_a_block():
    config = TransformerBlock([LocalHeads(1, 4)], 8).get_config()
    differing = {"name", "trainable", "dtype", "head_groups", "cross_head_groups"}
    assert set(BLOCK_OPTIONS) == set(config) - differing - {"intermediate_dim"}


def test_options_are_removed():
    kwargs = {"dropout": 0.1, "activation": "relu", "name": "model"}
    options = take_block_options(kwargs)
    assert kwargs == {"name": "model"}
    assert options["dropout"] == 0.1 and options["activation"] == "relu"
    assert options["normalize_first"] is True and options["layer_norm_epsilon"] == 1e-6


def test_blocks_have_the_given_options():
    given = [checks.groups(), [FullHeads(2)]]
    options = take_block_options({"dropout": 0.2, "shift_tokens": True, "key_dim": 3})
    blocks = make_blocks(given, 12, options, "mixed_bfloat16", "layer")
    assert [block.name for block in blocks] == ["layer_0", "layer_1"]
    kinds = [[type(group) for group in block.attention.head_groups] for block in blocks]
    assert kinds == [[LocalHeads, RoutingHeads], [FullHeads]]
    for block in blocks:
        config = block.get_config()
        assert config["intermediate_dim"] == 12
        assert {name: config[name] for name in ("dropout", "shift_tokens", "key_dim")} == {
            "dropout": 0.2,
            "shift_tokens": True,
            "key_dim": 3,
        }
        assert block.compute_dtype == "bfloat16"
        assert all(group.compute_dtype == "bfloat16" for group in block.attention.head_groups)


def test_an_option_with_one_number_per_block():
    options = take_block_options({"conv_kernel_size": [None, 3], "product_keys": 4})
    blocks = make_blocks([checks.groups()] * 2, 12, options, "float32", "block")
    assert [block.conv_kernel_size for block in blocks] == [None, 3]
    assert [block.product_keys for block in blocks] == [4, 4]
    options = take_block_options({"conv_kernel_size": [3]})
    message = "conv_kernel_size must be one number.*each of the 2 blocks. Received: 1 numbers"
    with pytest.raises(ValueError, match=message):
        make_blocks([checks.groups()] * 2, 12, options, "float32", "block")


def test_groups_given_once_are_copied_for_each_block():
    groups = checks.groups()
    blocks = make_blocks([groups, groups], 8, take_block_options({}), "float32", "block")
    found = [group for block in blocks for group in block.attention.head_groups]
    assert len(set(map(id, found + groups))) == 6


def test_blocks_that_attend_to_an_encoder():
    cross = [[FullHeads(2)], [LocalHeads(1, 4), FullHeads(1)]]
    options = take_block_options({})
    blocks = make_blocks([checks.groups()] * 2, 8, options, "float32", "block", cross)
    assert [len(block.cross_attention.head_groups) for block in blocks] == [1, 2]
    inputs, encoded = np.ones([2, 5, 8], "float32"), np.ones([2, 7, 8], "float32")
    output = blocks[0](inputs, use_causal_mask=True, encoder_outputs=encoded)
    assert output.shape == (2, 5, 8)


@pytest.mark.parametrize("normalize_first, there", [(True, True), (False, False)])
def test_the_last_norm_belongs_to_pre_norm(normalize_first, there):
    options = take_block_options({"normalize_first": normalize_first, "layer_norm_epsilon": 1e-3})
    norm = make_final_norm(options, "mixed_bfloat16", "norm")
    assert (norm is not None) == there
    if there:
        assert (norm.name, norm.epsilon, norm.compute_dtype) == ("norm", 1e-3, "bfloat16")


def test_one_list_of_groups_or_one_for_each_block():
    local, full = [LocalHeads(1, 4)], (FullHeads(1),)
    assert groups_of_blocks(local, 3) == [local] * 3
    assert groups_of_blocks([local, full], 2) == [local, full]


@pytest.mark.parametrize(
    "head_groups, message",
    [
        ([[LocalHeads(1, 4)]] * 3, "of the 2 blocks. Received: 3 lists"),
        ([], "at least one head group"),
        ([[LocalHeads(1, 4)], []], "at least one head group"),
        ([LocalHeads(1, 4), "full"], "at least one head group"),
        (None, r"Received: head_groups=None"),
    ],
)
def test_bad_groups(head_groups, message):
    with pytest.raises(ValueError, match=message):
        groups_of_blocks(head_groups, 2)


def test_configs_there_and_back():
    initializer = keras.initializers.VarianceScaling(0.3)
    options = take_block_options({"kernel_initializer": initializer, "value_dim": 5})
    given = [checks.groups(share_qk=True), [FullHeads(2)]]
    blocks = make_blocks(given, 8, options, "float32", "block", [[FullHeads(1)]] * 2)
    config = {
        "head_groups": config_of_groups(blocks),
        "cross": config_of_groups(blocks, "cross_attention"),
        **config_of_options(options),
    }
    assert config["value_dim"] == 5
    assert keras.initializers.get(config["kernel_initializer"]).scale == 0.3
    back = groups_of_config(config, ("head_groups", "cross"))
    for blocks_of in ("head_groups", "cross"):
        serialized = [
            [keras.saving.serialize_keras_object(group) for group in groups]
            for groups in back[blocks_of]
        ]
        assert serialized == config[blocks_of]
    assert back["head_groups"][0][1].share_qk
    # The config itself is unchanged.
    assert isinstance(config["head_groups"][0][0], dict)
