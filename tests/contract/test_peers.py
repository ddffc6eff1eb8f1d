"""Keras's test case of layers, run on those of the package, and properties that KerasHub tests."""

from unittest import mock

import keras
import numpy as np
import pytest
from keras.src.testing.test_case import TestCase as OfKeras

from rt_keras import layers, models
from rt_keras.data import ByteTokenizer
from tests.models.checks import make_lm

pytestmark = pytest.mark.filterwarnings("ignore:With use_causal_mask", "ignore:.*nothing updates")
X = np.random.default_rng(0).normal(size=(2, 12, 8)).astype("float32")
TOKENS = {name: np.ones([2, 8], "int32") for name in ("token_ids", "padding_mask")}


@pytest.fixture
def lm():
    preprocessor = models.RoutingTransformerCausalLMPreprocessor(ByteTokenizer(), 32)
    return make_lm(preprocessor, vocabulary_size=258)


@pytest.mark.slow
@pytest.mark.parametrize(
    "layer, arguments",
    [
        (layers.Dropout, {"rate": 0.1}),
        (layers.FeedForward, {"intermediate_dim": 16}),
        (layers.SinusoidalPositions, {}),
        (layers.SpecAugment, {}),
        (layers.TokenShift, {}),
        (
            layers.TransformerBlock,
            {"head_groups": [layers.LocalHeads(2, 4)], "intermediate_dim": 16},
        ),
    ],
)
def test_layer(layer, arguments):
    OfKeras().run_layer_test(
        layer,
        arguments,
        input_data=X,
        expected_output_shape=X.shape,
        supports_masking=True,
        assert_built_after_instantiation=False,
    )


def test_shapes_of_arrays(lm):
    assert lm.backbone.compute_output_spec(TOKENS).shape == (2, 8, 8)


def test_scores(lm):
    seen = []
    logits = lm.score(**TOKENS)
    np.testing.assert_allclose(lm(TOKENS), logits, atol=1e-6)

    def intercept(x, number):
        seen.append(number)
        return x

    found = lm.score(**TOKENS, layer_intercept_fn=intercept)
    np.testing.assert_allclose(found, logits, atol=1e-6)
    assert seen == [-1, 0, 1]
    losses = lm.score(**TOKENS, scoring_mode="loss", target_ids=TOKENS["token_ids"])
    expected = keras.losses.sparse_categorical_crossentropy(
        TOKENS["token_ids"], logits, from_logits=True
    )
    np.testing.assert_allclose(losses, expected, rtol=1e-5)


def test_generate_calls_a_changed_call_with_cache(lm):
    prompts = ["airplane at airport", "airplane"]
    call, end = lm.call_with_cache, lm.preprocessor.tokenizer.end_token_id

    def ending(*args, **kwargs):
        logits, hidden, cache = call(*args, **kwargs)
        return keras.ops.one_hot([[end]], 258) * 1e9 + 0 * logits, hidden, cache

    with mock.patch.object(lm, "call_with_cache", wraps=ending):
        assert lm.generate(prompts) == prompts


def test_layers_share_the_weights_of_a_head_group():
    group = layers.LocalRoutingHeads(2, block_size=4, num_clusters=3, window_size=4)
    first, second = (layers.MultiHeadAttention([group], key_dim=4) for _ in range(2))
    for layer in (first, second):
        layer(X, X, use_causal_mask=True)
    assert first.head_groups[0].centroids is second.head_groups[0].centroids
    other = layers.MultiHeadAttention([group], key_dim=8)
    with pytest.raises(ValueError, match="part of another layer, .*own head groups"):
        other(X, X)
