import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from rt_keras.ops import local_attention, local_routing_attention
from tests.ops import checks, reference


def arrays(length, clusters=3, seed=0, kernel_size=None, **options):
    """Random inputs by name."""
    inputs = checks.arrays(length, clusters=clusters, load_bias=True, seed=seed, **options)
    rng = np.random.default_rng(seed + 1)
    inputs["routed_scale"] = rng.uniform(0.5, 2.0, inputs["query"].shape[1])
    inputs["routed_bias"] = rng.normal(size=inputs["query"].shape[1])
    if kernel_size is not None:
        inputs["routed_kernel"] = rng.normal(size=(inputs["query"].shape[1], kernel_size, 6))
    return inputs


@settings(max_examples=30)
@given(
    length=st.integers(1, 24),
    clusters=st.integers(1, 4),
    block_size=st.integers(1, 6),
    look_back=st.integers(0, 2),
    window_size=st.integers(1, 9),
    shift_keys=st.booleans(),
    causal=st.booleans(),
    far=st.none() | st.integers(1, 9),
    pull=st.sampled_from([0.0, 3.0, 100.0]),
    data=st.data(),
)
def test_equation(
    length,
    clusters,
    block_size,
    look_back,
    window_size,
    shift_keys,
    causal,
    far,
    pull,
    data,
):
    inputs = arrays(length, clusters, far=far)
    # From even clusters to one that has all.
    inputs["load_bias"][:, 0] += pull
    output = local_routing_attention(
        **checks.tensors(inputs),
        **(
            options := {
                "block_size": block_size,
                "look_back": look_back,
                "window_size": window_size,
                "shift_keys": shift_keys,
                "causal": causal,
                "num_probes": data.draw(st.integers(1, clusters)),
            }
        ),
    )
    expected = reference.local_routing(**inputs, **options)
    np.testing.assert_allclose(output, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("num_probes", [1, 2])
@pytest.mark.parametrize("shift_keys", [True, False])
def test_gradients(causal, num_probes, shift_keys):
    checks.holds(
        local_routing_attention,
        reference.local_routing,
        arrays(17, far=3),
        block_size=3,
        window_size=5,
        causal=causal,
        num_probes=num_probes,
        shift_keys=shift_keys,
    )


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kind", ["right", "left", "scattered", "a whole row"])
@pytest.mark.parametrize(
    "routing", [{}, {"shift_keys": True}, {"shift_keys": True, "num_probes": 2}]
)
def test_padding(causal, kind, routing):
    mask = checks.mask(kind, 15)
    options = {"block_size": 2, "window_size": 3, "causal": causal, **routing}
    options |= {"query_mask": mask, "key_mask": mask}
    checks.holds(local_routing_attention, reference.local_routing, arrays(15), **options)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kind", ["right", "left", "scattered"])
def test_convolution(causal, kind):
    mask = checks.mask(kind, 15)
    options = {"block_size": 2, "window_size": 3, "causal": causal, "shift_keys": True}
    options |= {"num_probes": 2 - causal, "query_mask": mask, "key_mask": mask}
    inputs = arrays(15, kernel_size=4)
    checks.holds(local_routing_attention, reference.local_routing, inputs, **options)


@pytest.mark.end_to_end
@pytest.mark.parametrize("shift_keys, kernel_size", [(True, 3), (False, None)])
def test_compiled_by_xla(shift_keys, kernel_size):
    options = {"block_size": 3, "window_size": 4, "causal": True, "shift_keys": shift_keys}
    inputs = arrays(21, far=4, kernel_size=kernel_size)
    checks.holds_compiled(local_routing_attention, inputs, **options)


@pytest.mark.end_to_end
@pytest.mark.parametrize("causal, shift_keys", [(True, True), (False, False)])
def test_in_chunks(causal, shift_keys, monkeypatch):
    options = {"block_size": 3, "window_size": 4, "causal": causal, "shift_keys": shift_keys}
    checks.holds_in_chunks(local_routing_attention, arrays(21), monkeypatch, **options)


def test_no_key_is_seen_twice_and_none_is_lost():
    inputs = arrays(40)
    options = {"block_size": 4, "window_size": 40, "causal": True, "num_probes": 3}
    equal = {**inputs, "query": 0 * inputs["query"]}
    weights = checks.attention_of(
        local_routing_attention, {**equal, "routed_bias": np.zeros(2)}, options
    )
    everything = np.tril(np.ones([40, 40]))
    everything /= everything.sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(weights, np.broadcast_to(everything, weights.shape), atol=1e-12)


@pytest.mark.parametrize("start", [1, 8, 9, 20])
@pytest.mark.parametrize("shift_keys, kernel_size", [(True, None), (True, 5), (False, None)])
def test_the_future_does_not_change_the_past(start, shift_keys, kernel_size):
    inputs, moved = arrays(24, kernel_size=kernel_size), arrays(24, seed=9)
    for name in ("query", "key", "value"):
        moved[name][:, :, :start] = inputs[name][:, :, :start]
    options = {"block_size": 3, "window_size": 4, "causal": True, "shift_keys": shift_keys}
    moved = {**inputs, **{name: moved[name] for name in moved if np.ndim(moved[name]) == 4}}
    before, after = (
        local_routing_attention(**checks.tensors(x), **options)[:, :, :start]
        for x in (inputs, moved)
    )
    np.testing.assert_allclose(before, after, rtol=0, atol=1e-12)


def test_nothing_outside_the_window_leaves_local_attention():
    inputs = checks.tensors(arrays(12))
    output = local_routing_attention(**inputs, block_size=6, window_size=4, causal=True)
    local = [inputs[name] for name in ("query", "key", "value")]
    expected = local_attention(*local, block_size=6, causal=True)
    np.testing.assert_allclose(output, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype, atol", [(tf.float32, 1e-5), (tf.bfloat16, 0.1)])
def test_lower_precision(dtype, atol):
    inputs = checks.tensors(arrays(20), dtype)
    output = local_routing_attention(**inputs, block_size=3, window_size=4, causal=True)
    assert output.dtype == dtype
    rounded = {name: np.array(tf.cast(x, tf.float64)) for name, x in inputs.items()}
    expected = reference.local_routing(**rounded, block_size=3, window_size=4, causal=True)
    np.testing.assert_allclose(tf.cast(output, tf.float64), expected, rtol=0, atol=atol)


def test_dropout_drops_both_parts():
    inputs = arrays(24, batch=1)
    options = {"block_size": 3, "window_size": 40, "causal": True, "num_probes": 3}
    dropped = checks.attention_of(
        local_routing_attention, inputs, {**options, "dropout": 0.5, "seed": [1, 2]}
    )
    seen = np.broadcast_to(np.tril(np.ones([24, 24], bool)), dropped.shape)
    near = np.arange(24) >= np.maximum(np.arange(24)[:, None] // 3 - 1, 0) * 3
    for part in (seen & near, seen & ~near):
        assert 0.4 < (dropped[part] == 0).mean() < 0.6


def test_queries_and_keys_of_different_lengths():
    inputs = checks.tensors(arrays(9))
    inputs["key"], inputs["value"] = inputs["key"][:, :, :5], inputs["value"][:, :, :5]
    with pytest.raises(ValueError, match="as many keys as queries"):
        local_routing_attention(**inputs, block_size=3, window_size=4)


def test_a_kernel_without_shifted_keys():
    with pytest.raises(ValueError, match="routed_kernel needs shift_keys=True"):
        local_routing_attention(
            **checks.tensors(arrays(9, kernel_size=2)), block_size=3, window_size=4
        )


def test_logsumexp():
    inputs = arrays(14)
    options = {"block_size": 2, "window_size": 3, "causal": True}
    _, found = local_routing_attention(**checks.tensors(inputs), **options, return_logsumexp=True)
    weights = checks.attention_of(local_routing_attention, inputs, options)
    # A query sees its own position, with a logit that is known.
    own = np.einsum("bhid,bhid->bhi", inputs["query"], inputs["key"]) * 6**-0.5
    np.testing.assert_allclose(found, own - np.log(np.einsum("bhii->bhi", weights)), rtol=1e-9)
