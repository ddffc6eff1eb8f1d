import keras
import keras_hub
import numpy as np
import pytest
import tensorflow as tf

from rt_keras.layers import (
    ClusteredHeads,
    FullHeads,
    Heads,
    LocalHeads,
    LocalRoutingHeads,
    MultiHeadAttention,
    RoutingHeads,
)
from rt_keras.layers.head_group import copy_groups
from rt_keras.layers.key_sets import Persistent, Window
from tests.layers import checks
from tests.layers.test_multi_head_attention import mixed
from tests.ops import reference

pytestmark = pytest.mark.filterwarnings("ignore:.*nothing updates its centroids")


def test_head_dense():
    x = checks.random(2, 8, 6, dtype="float64")
    layer = MultiHeadAttention(
        [FullHeads(1, dtype="float64"), LocalHeads(2, 3, dtype="float64")],
        4,
        value_dim=3,
        use_head_dense=True,
        dtype="float64",
    )
    found = layer(x, x)
    assert layer.head_dense.kernel.shape == (3, 3) and layer.head_dense.bias is None
    # The same layer without head_dense, whose effect is included in the rows of W_o.
    plain = MultiHeadAttention(
        [FullHeads(1, dtype="float64"), LocalHeads(2, 3, dtype="float64")],
        4,
        value_dim=3,
        dtype="float64",
    )
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


def rotated(x):
    """Rotates `[batch, heads, length, depth]` in the planes of entries i, i + depth / 2.

    The angle is position * 10000^(-2 i / depth), as in Llama.
    """
    half = x.shape[-1] // 2
    angles = np.arange(x.shape[2])[:, None] * 10000.0 ** (-np.arange(half) / half)
    turned = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angles)
    return np.concatenate([turned.real, turned.imag], axis=-1)


def grouped(groups, num_key_value_heads, **options):
    """Returns a layer with rotary embeddings. KerasHub computes them in float32."""
    dtype = options.get("dtype", "float32")
    rotary = keras_hub.layers.RotaryEmbedding(dtype=dtype)
    options = {"num_key_value_heads": num_key_value_heads, "rotary_embedding": rotary, **options}
    return MultiHeadAttention(groups, 4, **options)


def seen_by_groups(layer, *inputs, **options):
    """Returns the groups of a layer with their vectors and options in a call, and its output."""
    seen = []
    layer.observer = seen.extend
    output = layer(*inputs, **options)
    layer.observer = None
    return seen, output


@pytest.mark.parametrize("causal", [False, True])
def test_equation_of_rotary_positions_and_grouped_queries(causal):
    x, mask = checks.random(2, 8, 6, dtype="float64"), checks.padding(2, 8)
    groups = [LocalHeads(2, 3), RoutingHeads(4, 3, 4), FullHeads(2), LocalRoutingHeads(2, 2, 3, 4)]
    layer = grouped(copy_groups(groups, "float64"), 5, dtype="float64", value_dim=3)
    layer.build(x.shape, x.shape)
    for weight in layer.trainable_variables:
        weight.assign(checks.random(*weight.shape, seed=3))
    masks = {"query_mask": mask, "value_mask": mask}
    seen, found = seen_by_groups(layer, x, x, **masks, use_causal_mask=causal)

    def heads(role, count):
        dense = getattr(layer, f"{role}_dense")
        flat = x @ dense.kernel.numpy() + dense.bias.numpy()
        return np.moveaxis(flat.reshape(2, 8, count, -1), 2, 1)

    query, key, value = rotated(heads("query", 10)), rotated(heads("key", 5)), heads("value", 5)
    first, outputs = 0, []
    for group, (of_query, of_value, of_key), options in seen:
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
    expected = reference.full(query[:, 6:8], repeated_keys, repeated_values, **options)
    checks.close(outputs[2], expected, 1e-6)
    joined = np.moveaxis(np.concatenate(outputs, axis=1), 1, 2).reshape(2, 8, -1)
    expected = joined @ layer.output_dense.kernel.numpy() + layer.output_dense.bias.numpy()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10)


def repeated(weight, like):
    """Repeats the heads of a weight to the shape of another one."""
    value = np.asarray(weight)
    for axis, (few, many) in enumerate(zip(weight.shape, like.shape)):
        value = np.repeat(value, many // few, axis)
    return value


@pytest.mark.slow
def test_grouped_queries_equal_repeated_keys():
    unfit = ("shared", "lsh", "causal-clustered", "routing-memory", "gated-delta", "clustered")
    kinds = [make() for name, make in checks.EVERY_KIND.items() if name not in unfit]
    kinds += [LocalRoutingHeads(2, 3, 3, 4, routed_key="key"), ClusteredHeads(2, 3, top_k=2)]
    kinds += [LocalRoutingHeads(2, 3, 3, 4, kernel_size=3)]
    kinds += [Heads(2, [Window(3), Persistent(2)])]
    layer, plain = (
        MultiHeadAttention(copy_groups(kinds, "float64"), 4, dtype="float64", **options)
        for options in ({"num_key_value_heads": len(kinds)}, {})
    )
    x = checks.random(2, 9, 6, dtype="float64")
    options = {"query_mask": checks.padding(2, 9), "value_mask": checks.padding(2, 9, "left")}
    for attention in (layer, plain):
        attention.build(x.shape, x.shape)
    for group, twin in zip(layer.head_groups, plain.head_groups):
        for weight, same in zip(group.weights, twin.weights, strict=True):
            same.assign(repeated(weight, like=same))
    plain.query_dense.kernel.assign(layer.query_dense.kernel)
    plain.output_dense.kernel.assign(layer.output_dense.kernel)
    for name in ("key_dense", "value_dense"):
        heads, like = (
            tf.reshape(getattr(attention, name).kernel, [6, -1, 4]) for attention in (layer, plain)
        )
        getattr(plain, name).kernel.assign(repeated(heads, like).reshape(6, -1))

    found, scores = layer(x, x, **options, return_attention_scores=True)
    expected, expected_scores = plain(x, x, **options, return_attention_scores=True)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    np.testing.assert_allclose(scores, expected_scores, rtol=0, atol=1e-12)

    for attention in (layer, plain):
        attention(x, x, **options, training=True)
    np.testing.assert_allclose(layer.losses, plain.losses, rtol=1e-6)

    # The queries of all heads count, but keys only once.
    nearest, twin = layer.head_groups[1], plain.head_groups[1]
    of_queries, of_keys = twin.member_counts.numpy()
    expected = of_queries.sum(axis=0), of_keys[0]
    np.testing.assert_array_equal(nearest.member_counts.numpy()[:, 0], expected)


def test_rotary_positions_and_grouped_queries_are_saved(tmp_path):
    x = checks.random(2, 9, 8)
    inputs = keras.Input(x.shape[1:])
    groups = [RoutingHeads(2, 3, 4), LocalHeads(2, 3)]
    rotary = keras_hub.layers.RotaryEmbedding(max_wavelength=500, scaling_factor=2.0)
    layer = MultiHeadAttention(groups, num_key_value_heads=2, rotary_embedding=rotary)
    model = keras.Model(inputs, layer(inputs, inputs, use_causal_mask=True))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(x), model(x))
    assert layer.key_dense.kernel.shape == layer.value_dense.kernel.shape == (8, 4)
    rotary.scaling_factor = 1.0
    assert checks.largest_difference(loaded(x), model(x)) > 1e-3


@pytest.mark.parametrize(
    "groups, options, message",
    [
        ([4], {"num_key_value_heads": 0}, "num_key_value_heads must be a positive integer"),
        ([4], {"num_key_value_heads": 3}, "must divide the 4 heads .*: num_key_value_heads=3"),
        ([4, 1, 1], {"num_key_value_heads": 3}, "=3, 2 consecutive .* num_heads=1 of FullHeads"),
        ([4], {"rotary_embedding": "rope"}, "rotary_embedding must be a layer, .*='rope'"),
    ],
)
def test_bad_rotary_positions_and_grouped_queries(groups, options, message):
    with pytest.raises(ValueError, match=message):
        MultiHeadAttention([FullHeads(heads) for heads in groups], **options)


def test_queries_that_are_also_keys_are_not_grouped():
    shared, x = RoutingHeads(4, 3, 4, share_qk=True), checks.random(1, 4, 5, 6)
    with pytest.raises(ValueError, match="=2, 2 consecutive .* RoutingHeads with share_qk=True"):
        MultiHeadAttention([shared], num_key_value_heads=2)
    MultiHeadAttention([shared], num_key_value_heads=4)
    with pytest.raises(ValueError, match="equal it with share_qk=True. Received: 2 key"):
        shared(x, x[:, :2])
    with pytest.raises(ValueError, match="must divide .*: 3 key/value heads for 4 heads of Full"):
        FullHeads(4)(x, x[:, :3], x[:, :3])
