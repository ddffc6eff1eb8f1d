import warnings

import pytest

from rt_keras.layers import FullHeads, LocalHeads, TransformerBlock
from rt_keras.models import emulated_dtypes
from rt_keras.models.transformer_blocks import BlockOptions, make_blocks
from tests.models import checks


def test_blocks_have_the_given_options():
    given = [checks.groups(), [FullHeads(2)]]
    chosen = {"dropout": 0.2, "shift_tokens": True, "key_dim": 3, "conv_kernel_size": [None, 3]}
    options = BlockOptions(intermediate_dim=12, **chosen)
    blocks = make_blocks(options, given, "mixed_bfloat16", "layer")
    assert [block.name for block in blocks] == ["layer_0", "layer_1"]
    kinds = [[group.kind for group in block.attention.head_groups] for block in blocks]
    assert kinds == [["Window", "Cluster of assignment 'nearest'"], ["Everything"]]
    # All options of blocks, with their defaults.
    config = TransformerBlock([LocalHeads(1, 4)], 12).get_config()
    defaults = BlockOptions(intermediate_dim=12).get_config()
    assert {name: config[name] for name in defaults} == defaults
    for block, size in zip(blocks, chosen.pop("conv_kernel_size")):
        config = block.get_config()
        assert {
            **chosen,
            "intermediate_dim": 12,
            "conv_kernel_size": size,
        }.items() <= config.items()
        assert block.attention.conv_kernel_size == size
        assert block.compute_dtype == "bfloat16"
        assert all(group.compute_dtype == "bfloat16" for group in block.attention.head_groups)


def test_one_number_for_each_block():
    message = "conv_kernel_size must be one number.*each of the 2 blocks. Received: 1 numbers"
    with pytest.raises(ValueError, match=message):
        make_blocks(BlockOptions(12, conv_kernel_size=[3]), [checks.groups()] * 2, None, "block")


def test_a_type_that_the_processor_emulates_is_warned_of_once(monkeypatch):
    monkeypatch.setattr(emulated_dtypes, "has_accelerator", lambda: False)
    given = BlockOptions(12), [checks.groups()]
    for names, better in (({"avx2"}, "'float32'"), ({"bf16"}, "'float32' or 'bfloat16'")):
        monkeypatch.setattr(emulated_dtypes, "instructions", lambda names=names: names)
        emulated_dtypes.warn_if_emulated.cache_clear()
        with pytest.warns(UserWarning, match=f"no instructions for float16, .*dtype={better} "):
            make_blocks(*given, "mixed_float16", "block")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            make_blocks(*given, "float16", "block")
            make_blocks(*given, "float32", "block")
    emulated_dtypes.warn_if_emulated.cache_clear()
