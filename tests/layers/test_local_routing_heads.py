import keras
import numpy as np
import pytest
import tensorflow as tf

from rt_keras.layers import LocalRoutingHeads, MultiHeadAttention, RoutingMemoryHeads
from tests.layers import checks
from tests.layers.key_sets.test_positioned import sines
from tests.layers.test_routing_heads import statistics
from tests.ops import reference

pytestmark = pytest.mark.filterwarnings("ignore:.*nothing updates its centroids")


def vectors(length=13):
    return [checks.random(2, 2, length, 6, seed=seed, dtype="float64") for seed in range(3)]


def heads(**options):
    group = LocalRoutingHeads(2, 2, 3, 4, **{"dtype": "float64", **options})
    group.build((None, 2, None, 6), (None, 2, None, 6))
    group.load_bias.assign(checks.random(2, 3, seed=9))
    group.routed_scale.assign([0.5, 2.0])
    group.routed_bias.assign([1.0, -1.0])
    return group


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("routed_key", ["previous_query", "key"])
@pytest.mark.parametrize("share_qk", [False, True])
def test_equation(causal, routed_key, share_qk):
    query, key, value = vectors()
    mask = checks.padding(2, 13, "left")
    group = heads(
        routed_key=routed_key, share_qk=share_qk, max_relative_distance=3, num_probes=2, look_back=0
    )
    given = (query, value, None if share_qk else key)
    found = group(*given, query_mask=mask, key_mask=mask, use_causal_mask=causal)
    key = query if share_qk else key
    expected = reference.local_routing(
        query,
        key,
        value,
        group.centroids.numpy(),
        routed_key=routed_key,
        block_size=2,
        look_back=0,
        window_size=4,
        causal=causal,
        num_probes=2,
        load_bias=group.load_bias.numpy(),
        routed_scale=group.routed_scale.numpy(),
        routed_bias=group.routed_bias.numpy(),
        routed_kernel=group.routed_kernel.numpy() if routed_key == "previous_query" else None,
        query_mask=mask,
        key_mask=mask,
        relative_embeddings=group.relative_embeddings.numpy(),
    )
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_sinusoidal_positions_are_those_of_the_window():
    query, key, value = vectors()
    group = heads(max_relative_distance=3, relative_positions="sinusoidal")
    kernel = np.float64(group.relative_kernel)
    embeddings = np.einsum("ns,hsd->hnd", [sines(d, 12) for d in range(-3, 4)], kernel)
    expected = reference.local_routing(
        query,
        key,
        value,
        group.centroids.numpy(),
        routed_key="previous_query",
        block_size=2,
        look_back=1,
        window_size=4,
        causal=True,
        num_probes=1,
        load_bias=group.load_bias.numpy(),
        routed_scale=group.routed_scale.numpy(),
        routed_bias=group.routed_bias.numpy(),
        routed_kernel=group.routed_kernel.numpy(),
        relative_embeddings=embeddings,
    )
    found = group(query, value, key, use_causal_mask=True)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "kind, sizes",
    [(LocalRoutingHeads, {}), (RoutingMemoryHeads, {"memory_length": 5, "memory_keys": 2})],
    ids=["window and cluster", "memory"],
)
def test_sinusoidal_positions_in_decoding_training_and_configuration(kind, sizes):
    options = {"max_relative_distance": 6, "relative_positions": "sinusoidal"}
    group = kind(2, 4, 3, 4, **sizes, **options)
    layer, x = MultiHeadAttention([group]), checks.random(2, 19, 8)
    layer(x, x, use_causal_mask=True)
    group.relative_kernel.assign(checks.random(*group.relative_kernel.shape, seed=5))
    expected = layer(x, x, use_causal_mask=True)
    np.testing.assert_allclose(checks.decode(layer, x, 7), expected, rtol=0, atol=1e-5)
    given = [checks.random(1, 2, 19, 4, seed=seed) for seed in range(3)]
    checks.config_makes_an_equal_layer(group, *given, use_causal_mask=True)
    checks.trains_every_weight(group, *given, use_causal_mask=True)


def test_untrained_heads_find_repetitions():
    # The second half repeats the first, so each query has an equal earlier one. The position after
    # the earlier one has the largest weight.
    half = checks.random(1, 2, 16, 6, seed=1)
    query = np.concatenate([half, half], axis=2)
    identity = np.broadcast_to(np.eye(32, dtype="float32"), (1, 2, 32, 32))
    group = LocalRoutingHeads(2, 2, num_clusters=2, window_size=16)
    group.build(query.shape, identity.shape)
    group.routed_scale.assign([9.0, 9.0])
    weights = np.array(group(query, identity, 0 * query, use_causal_mask=True))
    for i in range(20, 32):
        assert np.all(weights[0, :, i].argmax(axis=-1) == i - 16 + 1)


@pytest.mark.parametrize("options", [{}, {"routed_key": "key"}, {"kernel_size": 1}], ids=str)
def test_statistics(options):
    query, key, value = (x.astype("float32") for x in vectors())
    mask = checks.padding(2, 13)
    group = heads(**options, dtype="float32", commitment_weight=0.3)
    group(query, value, key, query_mask=mask, key_mask=mask, training=True)
    if group.routed_kernel is not None:
        query = reference.convolved(query, group.routed_kernel.numpy(), mask)
    sources = [query, key] if group.routed_key == "key" else [query]
    expected = [statistics(x, group, mask) for x in sources]
    checks.close(group.member_sums, [sums for sums, _, _ in expected], 2e-6)
    np.testing.assert_array_equal(group.member_counts, [counts for _, counts, _ in expected])
    loss = 0.3 * sum(distance for _, _, distance in expected)
    np.testing.assert_allclose(group.losses, [loss], rtol=1e-5)


def test_scale_bias_and_kernel_are_trained():
    query, key, value = (x.astype("float32") for x in vectors())
    group = LocalRoutingHeads(2, 2, 3, 4, kernel_size=3)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(group(query, value, key, use_causal_mask=True) ** 2)
    names = {weight.name for weight in group.trainable_weights}
    assert names == {"routed_scale", "routed_bias", "routed_kernel"}
    for gradient in tape.gradient(loss, [weight.value for weight in group.trainable_weights]):
        assert np.all(gradient != 0)


def test_an_untrained_kernel_is_close_to_the_identity():
    first, same = (LocalRoutingHeads(4, 2, 3, 4, kernel_size=4, seed=5) for _ in range(2))
    for group in (first, same):
        group.build((None, 4, None, 50))
    kernel = first.routed_kernel.numpy()
    np.testing.assert_array_equal(kernel[:, 0], np.ones([4, 50]))
    assert abs(kernel[:, 1:].mean()) < 0.02 and kernel[:, 1:].std() == pytest.approx(0.1, abs=0.02)
    np.testing.assert_array_equal(kernel, same.routed_kernel)


@pytest.mark.parametrize("share_qk", [False, True])
def test_left_padding_does_not_change_the_convolution(share_qk):
    # Blocks and padding have 2 positions, so the windows do not change.
    query, key, value = vectors(12)
    group = heads(kernel_size=4, share_qk=share_qk)
    group.routed_kernel.assign(checks.random(2, 4, 6, seed=8))
    key = None if share_qk else key
    mask = np.broadcast_to(np.arange(12) >= 2, (2, 12))
    masks = {"query_mask": mask, "key_mask": mask}
    padded = group(query, value, key, **masks, use_causal_mask=True)
    parts = [x if x is None else x[:, :, 2:] for x in (query, value, key)]
    alone = group(*parts, use_causal_mask=True)
    np.testing.assert_allclose(padded[:, :, 2:], alone, rtol=0, atol=1e-12)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "float64"])
def test_dtype_policies(policy):
    query, key, value = vectors()
    group = LocalRoutingHeads(2, 2, 3, 4, dtype=policy)
    dtype = keras.DTypePolicy(policy).compute_dtype
    given = [keras.ops.cast(x, dtype) for x in (query, value, key)]
    assert group(*given, use_causal_mask=True).dtype == dtype
    assert group.centroids.dtype == ("float64" if policy == "float64" else "float32")


@pytest.mark.parametrize(
    "options, message",
    [
        ({"block_size": 0}, "block_size must be an integer of at least 1. Received: block_size=0"),
        ({"look_back": -1}, "look_back must be an integer of at least 0. Received: look_back=-1"),
        ({"routed_key": "value"}, "routed_key must be one of .* Received: routed_key='value'"),
        ({"num_probes": 4}, "num_probes must be at most num_clusters .* num_probes=4"),
        (
            {"kernel_size": 0},
            "kernel_size must be an integer of at least 1, or None. .*kernel_size=0",
        ),
        ({"kernel_size": 4, "routed_key": "key"}, "kernel_size must be 1 unless .*=4, .*'key'"),
        ({"relative_positions": "rotary"}, "must be one of learned, sinusoidal, bucketed"),
        ({"relative_positions": "sinusoidal"}, "needs a max_relative_distance"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        LocalRoutingHeads(
            **{"num_heads": 2, "block_size": 4, "num_clusters": 3, "window_size": 4} | options
        )
