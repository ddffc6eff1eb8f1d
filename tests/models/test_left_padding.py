"""Rows that start with padding are read and continued as rows without it."""

import functools

import keras_hub
import numpy as np
import pytest
import tensorflow as tf

import rt_keras
from rt_keras import layers, models
from rt_keras.layers.key_sets import FirstTokens, Window
from tests.models.checks import as_if_trained

LENGTHS, BEFORE, WIDTH = (9, 14), (5, 0), 20


def of_all_kinds():
    groups = [
        [layers.Heads(2, [Window(8), FirstTokens(2)]), layers.StridedHeads(2, 4)],
        [
            layers.GatedDeltaHeads(2),
            layers.LocalRoutingHeads(2, block_size=8, num_clusters=3, window_size=8),
        ],
    ]
    options = {"max_sequence_length": WIDTH, "shift_tokens": True, "conv_kernel_size": 3}
    backbone = models.RoutingTransformerBackbone(30, 2, 16, 32, groups, **options)
    return as_if_trained(models.RoutingTransformerCausalLM(backbone))


def adapted():
    options = {"max_sequence_length": WIDTH, "hidden_dim": 16, "intermediate_dim": 16}
    backbone = keras_hub.models.GPT2Backbone(30, 2, 4, **options)
    model = as_if_trained(keras_hub.models.GPT2CausalLM(backbone))
    return rt_keras.adapt(model, [layers.LocalHeads(2, block_size=4), layers.StridedHeads(2, 4)])


def prompts(before):
    tokens = np.random.default_rng(1).integers(1, 30, [len(LENGTHS), WIDTH])
    places = np.arange(WIDTH) - np.array(before)[:, None]
    mask = (places >= 0) & (places < np.array(LENGTHS)[:, None])
    tokens = np.take_along_axis(tokens, places % WIDTH, 1) * mask
    return {"token_ids": tokens, "padding_mask": mask}


@pytest.mark.parametrize("make", [of_all_kinds, adapted])
def test_hidden_states_and_gradients(make):
    backbone, rows = make().backbone, []
    for before in ((0, 0), BEFORE):
        given = prompts(before)
        with tf.GradientTape() as tape:
            states = backbone({name: tf.constant(x) for name, x in given.items()})
            states = tf.boolean_mask(states, given["padding_mask"])
            loss = tf.reduce_sum(tf.sin(states))
        rows.append(
            (states, *map(tf.convert_to_tensor, tape.gradient(loss, backbone.trainable_weights)))
        )
    for expected, found in zip(*rows, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("make", [of_all_kinds, adapted])
def test_prompts_are_continued_after_their_padding(make):
    model = make()
    model.compile(sampler="greedy")
    expected, found = (model.generate(prompts(x), stop_token_ids=[7]) for x in ((0, 0), BEFORE))
    for name, row in ((name, row) for name in expected for row in range(len(BEFORE))):
        start, of_row = BEFORE[row], np.asarray(found[name])[row]
        np.testing.assert_array_equal(of_row[start:], expected[name][row][: WIDTH - start])
        assert not of_row[:start].any()


def test_beam_searches_end_where_rows_without_padding_end():
    backbone = models.RoutingTransformerBackbone(30, 1, 8, 8, [layers.FullHeads(2)])
    model = as_if_trained(models.RoutingTransformerCausalLM(backbone))
    model.compile(sampler="beam", jit_compile=False)
    given = {name: x[1:, :17] for name, x in prompts((0, 0)).items()}
    padded = {name: np.pad(x, [[0, 0], [3, 0]]) for name, x in given.items()}
    expected, found = (model.generate(x, stop_token_ids=None)["token_ids"] for x in (given, padded))
    np.testing.assert_array_equal(found, np.pad(expected, [[0, 0], [3, 0]]))
    with pytest.raises(ValueError, match=r"equal padding .*BeamSampler.*Received: \[5, 0\]"):
        model.generate(prompts(BEFORE), stop_token_ids=None)


def test_losses_of_intercepted_layers_count_positions_alike():
    model, given = adapted(), prompts(BEFORE)
    expected = np.asarray(model.score(**given))
    found = np.asarray(model.score(**given, layer_intercept_fn=lambda x, number: x))
    mask = given["padding_mask"]
    np.testing.assert_allclose(found[mask], expected[mask], rtol=1e-5, atol=1e-5)


def test_global_tokens_are_the_first_tokens():
    backbone = as_if_trained(keras_hub.models.LlamaBackbone(30, 1, 4, 16, 16, 2))
    model = rt_keras.adapt(backbone, [layers.FullHeads(4)], num_global_tokens=2)
    mask = prompts((0, 0))["padding_mask"], prompts(BEFORE)["padding_mask"]
    expected, found = (np.asarray(model(prompts(x))) for x in ((0, 0), BEFORE))
    np.testing.assert_allclose(found[mask[1]], expected[mask[0]], rtol=1e-5, atol=1e-5)


def test_more_tokens_than_learned_positions_are_refused():
    model, message = adapted(), "at most max_sequence_length=20 positions.*length 21"
    model.compile(sampler="greedy")
    long = np.ones([1, 21], "int32")
    given = {"token_ids": long, "padding_mask": long}
    generate = functools.partial(model.generate, stop_token_ids=None)
    for call in (
        lambda: model.backbone(given),
        lambda: model.read(long),
        lambda: generate({**given, "padding_mask": np.arange(21)[None] < 9}),
        lambda: generate(prompts((0, 0)), state=model.read(long[:, :1], max_length=40)),
    ):
        with pytest.raises(ValueError, match=message):
            call()
