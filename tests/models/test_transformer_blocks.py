import warnings

import pytest

from rt_keras.layers import FullHeads, LocalHeads, RoutingHeads, TransformerBlock
from rt_keras.models import emulated_dtypes
from rt_keras.models.transformer_blocks import BLOCK_OPTIONS, make_blocks, take_block_options
from tests.models import checks


def test_options_are_those_of_a_block():
    config = TransformerBlock([LocalHeads(1, 4)], 8).get_config()
    differing = {"name", "trainable", "dtype", "head_groups", "cross_head_groups"}
    assert set(BLOCK_OPTIONS) == set(config) - differing - {"intermediate_dim"}


def test_blocks_have_the_given_options():
    given = [checks.groups(), [FullHeads(2)]]
    chosen = {"dropout": 0.2, "shift_tokens": True, "key_dim": 3}
    blocks = make_blocks(given, 12, take_block_options(dict(chosen)), "mixed_bfloat16", "layer")
    assert [block.name for block in blocks] == ["layer_0", "layer_1"]
    kinds = [[type(group) for group in block.attention.head_groups] for block in blocks]
    assert kinds == [[LocalHeads, RoutingHeads], [FullHeads]]
    for block in blocks:
        assert {"intermediate_dim": 12, **chosen}.items() <= block.get_config().items()
        assert block.compute_dtype == "bfloat16"
        assert all(group.compute_dtype == "bfloat16" for group in block.attention.head_groups)


def test_an_option_with_one_number_per_block():
    options = take_block_options({"conv_kernel_size": [None, 3]})
    blocks = make_blocks([checks.groups()] * 2, 12, options, "float32", "block")
    assert [block.conv_kernel_size for block in blocks] == [None, 3]
    options = take_block_options({"conv_kernel_size": [3]})
    message = "conv_kernel_size must be one number.*each of the 2 blocks. Received: 1 numbers"
    with pytest.raises(ValueError, match=message):
        make_blocks([checks.groups()] * 2, 12, options, "float32", "block")


def test_a_type_that_the_processor_emulates_is_warned_of_once(monkeypatch):
    monkeypatch.setattr(emulated_dtypes, "has_accelerator", lambda: False)
    given = [checks.groups()], 12, take_block_options({})
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
