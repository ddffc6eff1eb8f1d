"""Tests of `model.adaptation`, the summary of an adapted model's attention."""

import dataclasses

import pytest
import tensorflow as tf

import rt_keras
from rt_keras.layers import FullHeads, Heads, LocalHeads, RandomHeads
from rt_keras.layers.key_sets import (
    Cluster,
    FirstTokens,
    Persistent,
    SelectedBlocks,
    Strided,
    Window,
)
from rt_keras.models.adapted.architectures import attention_layers
from tests.models.adapted.checks import make_backbone


def read_of(head_groups, family="Bert"):
    """Returns the keys that the heads of the first layer read."""
    adapted = rt_keras.adapt(make_backbone(family), head_groups)
    return [dataclasses.astuple(x)[1:] for x in adapted.adaptation.layers[0].head_groups]


def test_without_heads():
    model = rt_keras.adapt(make_backbone("Gemma3"), keys=64)
    layers = model.adaptation.layers
    assert [layer.left_alone for layer in layers] == ["has its own window"] * 5 + [
        "",
        "has its own window",
    ]
    (local,), (blocks,) = (layers[number].head_groups for number in (0, 5))
    assert (local.window, local.first_tokens, local.others) == (5, 0, 0)
    assert (blocks.window, blocks.first_tokens, blocks.others) == (2048, 4, 64)
    assert layers[5].name == model.transformer_layers[5].attention.path


RECENT = SelectedBlocks(2, num_blocks=3, segment_size=8, memory_length=16)
BOUNDED = [Heads(4, [Window(8), RECENT])]


@pytest.mark.parametrize(("family", "heads"), [("Gemma3", None), ("GPT2", BOUNDED)])
def test_the_cache_has_as_many_bytes_as_it_says(family, heads):
    model, length = rt_keras.adapt(make_backbone(family), heads), 4096
    for layer, said in zip(attention_layers(model), model.adaptation.layers, strict=True):
        cache = layer.new_cache(1, length)
        found = sum(x.numpy().nbytes for x in tf.nest.flatten(cache))
        assert found == said.cache_bytes + length * said.cache_bytes_per_token
        assert heads is None or said.cache_bytes_per_token == 0


@pytest.mark.slow
def test_what_sets_and_kinds_read():
    sets = [Window(4, look_back=2), Cluster(3, window_size=5, num_probes=2), Persistent(3)]
    assert read_of([Heads(4, sets)]) == [(20, 0, 13)]
    assert read_of([Heads(4, [Window(4), FirstTokens(2), Strided(3)])]) == [(12, 2, None)]
    assert read_of([FullHeads(2), RandomHeads(2, 3, 5)]) == [(0, 0, None)] * 2
    assert read_of([LocalHeads(4, block_size=3, sliding_window=4)]) == [(7, 0, 0)]
    assert read_of([LocalHeads(4, block_size=3)], "GPT2") == [(6, 0, 0)]
    assert read_of([FullHeads(4, memory_length=6)], "GPT2") == [(6, 0, 0)]
    assert read_of(BOUNDED, "GPT2") == [(16, 0, 6)]


def test_without_a_cache():
    for family, heads in (("Bert", LocalHeads(4, block_size=3)), ("GPT2", RandomHeads(4, 3, 5))):
        (layer, _) = rt_keras.adapt(make_backbone(family), [heads]).adaptation.layers
        assert layer.cache_bytes is None and layer.cache_bytes_per_token is None


def test_it_is_printed_as_a_table():
    heads = [LocalHeads(2, block_size=8), FullHeads(2)]
    model = rt_keras.adapt(make_backbone("Llama"), heads, layers=[1])
    lines = [" ".join(line.split()) for line in repr(model.adaptation).splitlines()]
    assert lines[2] == "0 4 heads of Everything() 0 0 - 0 64 not among the chosen layers"
    assert lines[3].startswith("1 2 heads of Window(block_size=8) 16 0 0")
    assert lines[4] == "2 heads of Everything() 0 0 - - -"
    alike = rt_keras.adapt(make_backbone("Llama"), heads)
    assert "\n0 to 1  2 heads of Window" in repr(alike.adaptation)
