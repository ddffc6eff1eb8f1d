import keras
import numpy as np
import pytest
import tensorflow as tf

from rt_keras.layers import FullHeads, LocalHeads, RoutingHeads, TokenShift, TransformerBlock
from rt_keras.layers.block_layers import NORMALIZATIONS
from tests.layers import checks

pytestmark = pytest.mark.filterwarnings("ignore:.*nothing updates its centroids")

WIDTH = 12


def groups(assignment="nearest", dtype=None, **options):
    return [
        LocalHeads(1, 4, max_relative_distance=3, dtype=dtype),
        RoutingHeads(
            2, 3, 4, assignment=assignment, max_relative_distance=3, dtype=dtype, **options
        ),
    ]


def block(assignment="nearest", dtype=None, heads=None, **options):
    return TransformerBlock(heads or groups(assignment, dtype), 16, dtype=dtype, **options)


@pytest.mark.parametrize(
    "normalize_first, shift_tokens", [(True, False), (True, True), (False, True)]
)
@pytest.mark.parametrize("cross", [False, True])
def test_equation(normalize_first, shift_tokens, cross):
    x, encoded = checks.random(2, 9, WIDTH), checks.random(2, 5, WIDTH, seed=1)
    mask, encoder_mask = checks.padding(2, 9), checks.padding(2, 5)
    layer = block(
        cross_head_groups=[FullHeads(3)] if cross else None,
        normalize_first=normalize_first,
        shift_tokens=shift_tokens,
    )
    options = {"padding_mask": mask, "use_causal_mask": True}
    if cross:
        options |= {"encoder_outputs": encoded, "encoder_padding_mask": encoder_mask}
    found = layer(x, **options)

    def attention(y):
        return layer.attention(y, y, query_mask=mask, value_mask=mask, use_causal_mask=True)

    def cross_attention(y):
        return layer.cross_attention(y, encoded, query_mask=mask, value_mask=encoder_mask)

    parts = [(attention, layer.attention_norm), (layer.feed_forward, layer.feed_forward_norm)]
    if cross:
        parts.insert(1, (cross_attention, layer.cross_attention_norm))
    y = x
    for function, norm in parts:
        z = norm(y) if normalize_first else y
        z = TokenShift()(z, mask=mask) if shift_tokens else z
        y = y + function(z) if normalize_first else norm(y + function(z))
    np.testing.assert_allclose(found, y, rtol=0, atol=1e-6)
    assert found.shape == layer.compute_output_shape(x.shape) == x.shape
    checks.trains_every_weight(layer, x, **options, training=True)


@pytest.mark.parametrize("normalize_first", [True, False])
def test_dropout_before_each_residual_in_training(normalize_first):
    x = checks.random(2, 9, WIDTH)
    layer = block(normalize_first=normalize_first, dropout=0.5)
    assert layer.attention.dropout == layer.feed_forward.dropout == 0.5
    rates = {"attention_dropout": 0.0, "activation_dropout": 0.0}
    layer = block(normalize_first=normalize_first, dropout=0.5, **rates)
    assert layer.attention.dropout == layer.feed_forward.dropout == 0.0
    np.testing.assert_array_equal(layer(x), layer(x, training=False))
    assert checks.largest_difference(layer(x, training=True), layer(x)) > 1e-2


def test_masks():
    ids = np.array([[1, 2, 3, 4, 0, 0], [4, 3, 2, 1, 1, 0]])
    masked = keras.layers.Embedding(5, WIDTH, mask_zero=True)(ids)
    x = tf.identity(masked)
    layer = block()
    found = layer(masked)
    assert checks.mask_of(found) == (ids != 0).tolist()
    for mask in (ids != 0, (ids != 0).astype("int32"), ids):
        np.testing.assert_array_equal(layer(x, padding_mask=mask), found)
    # An explicit mask overrides the mask of the tensor.
    everything = np.ones_like(ids)
    np.testing.assert_array_equal(layer(masked, padding_mask=everything), layer(x))
    assert checks.largest_difference(found, layer(x)) > 1e-3


@pytest.mark.parametrize(
    "options, message",
    [
        ({"intermediate_dim": 0}, "intermediate_dim must be a positive integer"),
        ({"activation": "nothing"}, "nothing"),
        (
            {"normalize_first": ("n", "da")},
            r"normalize_first must be True .*Received: .*\('n', 'da'\)",
        ),
        ({"dropout": 1.0}, r"dropout must be in \[0, 1\)"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        TransformerBlock(**{"head_groups": groups(), "intermediate_dim": 8, **options})


def test_config():
    layer = block(
        cross_head_groups=[FullHeads(2), FullHeads(1)],
        shift_tokens=True,
        key_dim=5,
        value_dim=3,
        activation="geglu_approximate",
        normalize_first=False,
        layer_norm_epsilon=1e-3,
        kernel_initializer="he_normal",
        dropout=0.1,
        attention_dropout=0.2,
        activation_dropout=0.3,
        attention_bias=False,
        feed_forward_bias=False,
        use_head_dense=True,
        remat=True,
    )
    x, encoded = checks.random(2, 9, WIDTH), checks.random(2, 5, WIDTH, seed=1)
    options = {"use_causal_mask": True, "encoder_outputs": encoded}
    checks.config_makes_an_equal_layer(layer, x, **options)
    assert layer.get_config()["layer_norm_epsilon"] == 1e-3


def test_attention_scores_equal_those_of_the_attention_layer():
    block = TransformerBlock([LocalHeads(1, 4), RoutingHeads(1, 2, 4)], 16, normalize_first=False)
    x = keras.random.normal([2, 10, 8], seed=1)
    output, scores = block(x, use_causal_mask=True, return_attention_scores=True)
    np.testing.assert_array_equal(output, block(x, use_causal_mask=True))
    _, expected = block.attention(x, x, use_causal_mask=True, return_attention_scores=True)
    np.testing.assert_array_equal(scores, expected)
    symbolic = block(keras.Input([10, 8]), return_attention_scores=True)
    assert [part.shape for part in symbolic] == [(None, 10, 8), (None, 2, 10, 10)]


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_kinds_of_normalization(normalization):
    block = TransformerBlock([LocalHeads(2, 4)], 16, normalization=normalization)
    x = checks.random(2, 9, 8)
    checks.config_makes_an_equal_layer(block, x, use_causal_mask=True)
    checks.trains_every_weight(block, x, use_causal_mask=True)
    expected = block(x, use_causal_mask=True)
    np.testing.assert_allclose(checks.decode(block, x, 5), expected, rtol=0, atol=1e-5)
