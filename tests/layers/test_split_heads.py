import keras
import keras_hub
import numpy as np
import pytest

from rt_keras.layers import (
    FullHeads,
    LocalHeads,
    LocalRoutingHeads,
    MultiHeadAttention,
    RoutingHeads,
)
from rt_keras.layers.attention_calls import observe_attention
from rt_keras.layers.head_group import copy_groups
from rt_keras.layers.split_heads import HeadConstraint
from rt_keras.ops.full import naive_full_attention
from tests.layers import checks
from tests.layers.test_multi_head_attention import mixed

pytestmark = pytest.mark.filterwarnings("ignore:.*nothing updates its centroids")


def test_head_dense():
    x = checks.random(2, 8, 6, dtype="float64")
    groups = copy_groups([FullHeads(1), LocalHeads(2, 3)], "float64")
    options = {"key_dim": 4, "value_dim": 3, "dtype": "float64"}
    layer = MultiHeadAttention(groups, use_head_dense=True, **options)
    found = layer(x, x)
    assert layer.head_dense.kernel.shape == (3, 3) and layer.head_dense.bias is None
    # The same layer without head_dense, whose effect is included in the rows of W_o.
    plain = MultiHeadAttention(copy_groups(groups, "float64"), **options)
    plain.build(x.shape, x.shape)
    for name in ("query", "key", "value", "output"):
        source = getattr(layer, f"{name}_dense").get_weights()
        getattr(plain, f"{name}_dense").set_weights(source)
    kernel = layer.output_dense.kernel.numpy().reshape(3, 3, 6)
    joined = np.einsum("de,hef->hdf", layer.head_dense.kernel.numpy(), kernel)
    plain.output_dense.kernel.assign(joined.reshape(9, 6))
    np.testing.assert_allclose(found, plain(x, x), rtol=0, atol=1e-12)
    checks.config_makes_an_equal_layer(layer, x, x)


def test_groups_with_share_qk_have_no_key_projection():
    layer = MultiHeadAttention([RoutingHeads(2, 2, 4, share_qk=True)])
    layer(checks.random(1, 5, 6), checks.random(1, 5, 6))
    assert layer.key_dense is None
    assert len(layer.trainable_variables) == 6
    layer = mixed()
    layer(checks.random(1, 5, 6), checks.random(1, 5, 6))
    assert layer.num_heads == 6
    assert layer.key_dense.kernel.shape == (6, 5 * 4)


def test_key_dim_defaults_to_the_features_per_head():
    x = checks.random(2, 5, 12)
    layer = mixed(key_dim=None)
    layer(x, x)
    assert layer.query_dense.kernel.shape == (12, 12)
    with pytest.raises(ValueError, match="The 6 heads must divide the 10 features"):
        mixed(key_dim=None)(x[..., :10], x[..., :10])


# Rotary embeddings and grouped-query attention.


def rotated(x, positions=None):
    """Rotates `[batch, heads, length, depth]` in the planes of entries i, i + depth / 2.

    The angle is position * 10000^(-2 i / depth), as in Llama.
    """
    half = x.shape[-1] // 2
    positions = np.arange(x.shape[2]) if positions is None else positions
    angles = positions[:, None] * 10000.0 ** (-np.arange(half) / half)
    turned = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angles)
    return np.concatenate([turned.real, turned.imag], axis=-1)


def grouped(groups, num_key_value_heads, **options):
    """Returns a layer with rotary embeddings. KerasHub computes them in float32."""
    dtype = options.get("dtype", "float32")
    rotary = keras_hub.layers.RotaryEmbedding(dtype=dtype)
    options = {"num_key_value_heads": num_key_value_heads, "rotary_embedding": rotary, **options}
    return MultiHeadAttention(groups, 4, **options)


@pytest.mark.parametrize("causal", [False, True])
def test_equation_of_rotary_positions_and_grouped_queries(causal):
    x, mask = checks.random(2, 8, 6, dtype="float64"), checks.padding(2, 8)
    groups = [LocalHeads(2, 3), RoutingHeads(4, 3, 4), FullHeads(2), LocalRoutingHeads(2, 2, 3, 4)]
    layer = grouped(copy_groups(groups, "float64"), 5, dtype="float64", value_dim=3)
    layer.build(x.shape, x.shape)
    for weight in layer.trainable_variables:
        weight.assign(checks.random(*weight.shape, seed=3))
    masks = {"query_mask": mask, "value_mask": mask}
    with observe_attention(layer) as calls:
        found = layer(x, x, **masks, use_causal_mask=causal)

    def heads(role, count):
        dense = getattr(layer, f"{role}_dense")
        flat = x @ dense.kernel.numpy() + dense.bias.numpy()
        return np.moveaxis(flat.reshape(2, 8, count, -1), 2, 1)

    query, key, value = rotated(heads("query", 10)), rotated(heads("key", 5)), heads("value", 5)
    first, outputs = 0, []
    for group, (of_query, of_value, of_key), options in calls[0].groups:
        end = first + group.num_heads
        shared = slice(first // 2, end // 2)
        # KerasHub computes the angles in float32.
        checks.close(of_query, query[:, first:end], 1e-6)
        checks.close(of_key, key[:, shared], 1e-6)
        np.testing.assert_allclose(of_value, value[:, shared], rtol=0, atol=1e-12)
        outputs.append(group(of_query, of_value, of_key, **options))
        first = end
    repeated_keys, repeated_values = (np.repeat(y[:, 3:4], 2, axis=1) for y in (key, value))
    options = {"causal": causal, "query_mask": mask, "key_mask": mask}
    expected = naive_full_attention(query[:, 6:8], repeated_keys, repeated_values, **options)
    checks.close(outputs[2], expected, 1e-6)
    outputs = np.concatenate(outputs, axis=1)
    _, scores = layer(x, x, **masks, use_causal_mask=causal, return_attention_scores=True)
    np.testing.assert_allclose(scores @ np.repeat(value, 2, axis=1), outputs, rtol=0, atol=1e-10)
    joined = np.moveaxis(outputs, 1, 2).reshape(2, 8, -1)
    expected = joined @ layer.output_dense.kernel.numpy() + layer.output_dense.bias.numpy()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10)


def test_statistics_of_grouped_queries_count_each_key_once():
    heads, x = RoutingHeads(4, 3, 4), checks.random(2, 9, 6)
    MultiHeadAttention([heads], 4, num_key_value_heads=2)(x, x, training=True)
    expected = [[2 * 2 * 9] * 2, [2 * 9] * 2]
    np.testing.assert_array_equal(np.sum(heads.centroids.member_counts, axis=2), expected)


@pytest.mark.parametrize(
    "groups, options, message",
    [
        ([4], {"num_key_value_heads": 0}, "num_key_value_heads must be a positive integer"),
        ([4], {"num_key_value_heads": 3}, "must divide the 4 heads .*: num_key_value_heads=3"),
        ([4, 1, 1], {"num_key_value_heads": 3}, "=3, 2 consecutive .* num_heads=1 of Everything"),
        ([4], {"rotary_embedding": "rope"}, "rotary_embedding must be a layer, .*='rope'"),
    ],
)
def test_bad_rotary_positions_and_grouped_queries(groups, options, message):
    with pytest.raises(ValueError, match=message):
        MultiHeadAttention([FullHeads(heads) for heads in groups], **options)


def test_queries_that_are_also_keys_are_not_grouped():
    shared, x = RoutingHeads(4, 3, 4, share_qk=True), checks.random(1, 4, 5, 6)
    with pytest.raises(ValueError, match="=2, 2 consecutive .* with share_qk=True"):
        MultiHeadAttention([shared], num_key_value_heads=2)
    MultiHeadAttention([shared], num_key_value_heads=4)
    with pytest.raises(ValueError, match="equal it with share_qk=True. Received: 2 key"):
        shared(x, x[:, :2])
    with pytest.raises(ValueError, match="must divide .*: 3 key/value heads for 4 heads of Every"):
        FullHeads(4)(x, x[:, :3], x[:, :3])


@pytest.mark.parametrize(
    "shape, axis", [((4, 2, 3), 0), ((4, 2, 3), 1), ((2, 3, 4), 1), ((2, 3, 4), (0, 1))]
)
def test_axes_of_a_constraint_are_those_of_weights_with_heads(shape, axis):
    constraint = keras.constraints.UnitNorm(axis=axis)
    weights = checks.random(4, 6) if shape[0] == 4 else checks.random(6, 4)
    expected = constraint(np.reshape(weights, shape))
    found = HeadConstraint(constraint, shape)(weights)
    assert found.shape == weights.shape
    np.testing.assert_array_equal(np.reshape(found, shape), expected)
