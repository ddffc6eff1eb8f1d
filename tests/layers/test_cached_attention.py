import keras_hub
import numpy as np
import pytest
import tensorflow as tf

from rt_keras.layers import (
    CausalClusteredHeads,
    CompressiveHeads,
    FullHeads,
    LocalHeads,
    LocalRoutingHeads,
    MultiHeadAttention,
    RoutingHeads,
    RoutingMemoryHeads,
    StridedHeads,
)
from rt_keras.layers.head_group import copy_groups
from tests.layers import checks

pytestmark = pytest.mark.filterwarnings("ignore:.*nothing updates its centroids")

CACHED = {name: checks.EVERY_KIND[name] for name in ("local", "nearest")}
CACHED["keys"] = lambda: LocalRoutingHeads(2, 3, 3, 4, routed_key="key")
CACHED["shifted"] = lambda: LocalRoutingHeads(2, 3, 3, 4, share_qk=True)
CACHED["grid"] = lambda: LocalHeads(2, 3, grid=(5, 1))


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("kind", CACHED)
def test_chunks_equal_one_pass(kind, grouped):
    options = {}
    if grouped and not CACHED[kind]().share_qk:
        rotary = keras_hub.layers.RotaryEmbedding()
        options = {"num_key_value_heads": 2, "rotary_embedding": rotary}
    heads = copy_groups([CACHED[kind](), FullHeads(2)], "float64")
    layer = MultiHeadAttention(heads, 4, dtype="float64", **options)
    x = checks.random(2, 15, 6, dtype="float64")
    layer.build(x.shape, x.shape)
    for weight in layer.weights:
        weight.assign_add(0.3 * checks.random(*weight.shape, seed=2, dtype="float64"))
    expected = layer(x, x, use_causal_mask=True)
    cache, outputs = layer.new_cache(2, 15), []
    for start, end in [(0, 4), (4, 5), (5, 12), (12, 15)]:
        output, cache = layer.call_with_cache(x[:, start:end], cache, start)
        outputs.append(output)
    np.testing.assert_allclose(np.concatenate(outputs, axis=1), expected, rtol=0, atol=1e-6)


def cached_groups(**options):
    """Returns heads of every kind with a cache, one with shared queries and keys."""
    return [
        LocalHeads(1, 3, **options),
        RoutingHeads(2, 3, 4, num_probes=2, **options),
        RoutingHeads(1, 2, 3, share_qk=True, **options),
        FullHeads(1, **options),
        LocalRoutingHeads(1, 2, 3, 4, **options),
    ]


@pytest.mark.parametrize("count", [0, 1, 6])
@pytest.mark.parametrize("options", [{}, {"use_head_dense": True, "value_dim": 3}], ids=str)
def test_decoding_equals_one_pass(options, count):
    groups = cached_groups(dtype="float64", max_relative_distance=2)
    layer = MultiHeadAttention(groups, 4, dtype="float64", **options)
    x = checks.random(2, 9, 12, dtype="float64")
    expected = layer(x, x, use_causal_mask=True)
    assert layer.cached_decoding
    found = checks.decode(layer, x, count)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_dropout_is_off_when_decoding():
    layer = MultiHeadAttention(cached_groups(), 4, dropout=0.5)
    x = checks.random(2, 9, 12)
    expected = layer(x, x, use_causal_mask=True, training=False)
    np.testing.assert_allclose(checks.decode(layer, x, 4), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("padded", [False, True])
def test_recall_of_another_sequence(beams, padded):
    groups = [
        FullHeads(1, max_relative_distance=2, dtype="float64"),
        LocalHeads(1, 4, key_block_size=2, max_relative_distance=2, dtype="float64"),
    ]
    layer = MultiHeadAttention(groups, 4, dtype="float64")
    x, encoded = checks.random(2, 12, 8), checks.random(2, 6, 8, seed=1)
    mask = checks.padding(2, 6) if padded else None
    expected = layer(x, encoded, value_mask=mask)
    assert layer.cached_cross_attention
    cross_cache = layer.make_cross_cache(encoded, mask)
    np.testing.assert_allclose(
        layer.call_with_cross_cache(x[:, :5], cross_cache), expected[:, :5], rtol=0, atol=1e-12
    )
    for position in range(12):
        queries = np.repeat(x[:, position, None], beams, axis=0)
        found = layer.call_with_cross_cache(queries, cross_cache, position)
        one = np.repeat(expected[:, position, None], beams, axis=0)
        np.testing.assert_allclose(found, one, rtol=0, atol=1e-12)


def test_groups_without_a_cache():
    groups = [RoutingHeads(1, 2, 5, assignment="balanced"), FullHeads(1)]
    layer = MultiHeadAttention(groups, 4)
    x = checks.random(1, 5, 12)
    layer(x, x)
    assert not layer.cached_decoding
    assert not layer.cached_cross_attention
    with pytest.raises(ValueError, match="RoutingHeads of assignment 'balanced' cannot be decoded"):
        layer.prefill(x, 5, 9)


def test_the_cache_of_another_layer():
    layer = MultiHeadAttention(cached_groups(), 4)
    x = checks.random(1, 5, 12)
    layer(x, x)
    with pytest.raises(ValueError, match="The cache has 1 entries but that of .* has 5. It must"):
        layer.call_with_cache(x[:, :1], layer.new_cache(1, 5)[:1], 0)


DENSE = {
    "local": lambda **options: LocalHeads(4, 3, **options),
    "local routing": lambda **options: LocalRoutingHeads(4, 3, 3, 4, **options),
    "routing memory": lambda **options: RoutingMemoryHeads(4, 3, 3, 4, 4, **options),
    "nearest": lambda **options: RoutingHeads(4, 3, 4, **options),
    "strided": lambda **options: StridedHeads(4, 3, **options),
    "causal clustered": lambda **options: CausalClusteredHeads(4, 3, 4, **options),
    "memory": lambda **options: FullHeads(4, memory_length=3, **options),
    "compressive": lambda **options: CompressiveHeads(4, 4, 4, **options),
}


@pytest.mark.parametrize("kind", DENSE)
def test_dense_below_depends_on_the_final_length(kind):
    x = checks.random(2, 12, 8, dtype="float64")
    for length in (9, 12):
        layer = MultiHeadAttention([DENSE[kind](dense_below=10, dtype="float64")], dtype="float64")
        expected = layer(x[:, :length], x[:, :length], use_causal_mask=True)
        found = checks.decode(layer, x[:, :length], count=5)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10)
    (group,) = layer.head_groups
    assert not group.can_be_stateful


def test_dense_below_needs_a_known_length():
    group = LocalHeads(2, 3, dense_below=10)
    group.build((None, 2, None, 4), (None, 2, None, 4))

    @tf.function(input_signature=[tf.TensorSpec([], "int32")])
    def new_cache(length):
        return group.new_cache(1, length, 4, 4)

    with pytest.raises(ValueError, match="LocalHeads with dense_below=10 need a max_length"):
        new_cache(12)


def test_dense_below_is_for_sparse_heads_in_self_attention():
    with pytest.raises(ValueError, match="dense_below must be None for FullHeads"):
        MultiHeadAttention([FullHeads(2, dense_below=10)]).build([1, 5, 8], [1, 5, 8])
    # A single query does not determine the final length.
    layer = MultiHeadAttention([LocalHeads(2, 3, dense_below=10)])
    assert layer.cached_decoding and not layer.cached_cross_attention
