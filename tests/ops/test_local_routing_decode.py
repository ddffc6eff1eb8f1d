import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from rt_keras.ops import local_routing_attention
from rt_keras.ops.local_routing_decode import local_routing_cache, local_routing_step
from tests.ops import checks
from tests.ops.test_local_routing import arrays

PER_POSITION = ("query", "key", "value")


def decode(inputs, count, max_length=None, num_probes=1, shift_keys=False, **sizes):
    """The outputs from position `count` on, one at a time, and the last cache."""
    tensors = checks.tensors(inputs)
    made_of = min(count + 2, inputs["query"].shape[2])
    # What the cache is made of beyond `count` must not matter.
    first = {
        name: tf.where(tf.range(made_of)[:, None] < count, tensors[name][:, :, :made_of], 10.0)
        for name in PER_POSITION
    }
    routing = {name: tensors.get(name) for name in ("centroids", "load_bias", "routed_kernel")}
    cache = local_routing_cache(
        **first,
        **routing,
        count=count,
        max_length=max_length,
        shift_keys=shift_keys,
        **sizes,
    )
    learnt = ("routed_scale", "routed_bias", "relative_embeddings")
    learnt = {name: tensors.get(name) for name in learnt}
    outputs = []
    for position in range(count, inputs["query"].shape[2]):
        at = slice(position, position + 1)
        output, cache = local_routing_step(
            **{name: tensors[name][:, :, at] for name in PER_POSITION},
            **routing,
            **learnt,
            cache=cache,
            position=position,
            num_probes=num_probes,
            **sizes,
        )
        outputs.append(output)
    return np.concatenate(outputs, axis=2), cache


@pytest.mark.end_to_end
@settings(max_examples=15)
@given(
    length=st.integers(1, 24),
    clusters=st.integers(1, 4),
    block_size=st.integers(1, 5),
    look_back=st.integers(0, 2),
    window_size=st.integers(1, 9),
    far=st.none() | st.integers(1, 9),
    bounded=st.booleans(),
    shift_keys=st.booleans(),
    kernel_size=st.none() | st.integers(1, 4),
    pull=st.sampled_from([0.0, 3.0, 100.0]),
    data=st.data(),
)
def test_steps(
    length,
    clusters,
    block_size,
    look_back,
    window_size,
    far,
    bounded,
    shift_keys,
    kernel_size,
    pull,
    data,
):
    kernel_size = kernel_size if shift_keys else None
    inputs = arrays(length, clusters, far=far, kernel_size=kernel_size)
    # From even clusters to one that has all.
    inputs["load_bias"][:, 0] += pull
    count = data.draw(st.integers(0, length - 1))
    options = {"block_size": block_size, "look_back": look_back, "window_size": window_size}
    options |= {"num_probes": data.draw(st.integers(1, clusters)), "shift_keys": shift_keys}
    found, _ = decode(inputs, count, max_length=length if bounded else None, **options)
    expected = local_routing_attention(**checks.tensors(inputs), causal=True, **options)
    np.testing.assert_allclose(found, expected[:, :, count:], rtol=0, atol=1e-12)


@pytest.mark.parametrize("length", [30, 60])
@pytest.mark.parametrize("shift_keys, kept", [(True, 4), (False, 10)])
def test_the_cache_does_not_grow(length, shift_keys, kept):
    _, cache = decode(arrays(length), 1, block_size=3, window_size=4, shift_keys=shift_keys)
    assert cache["local"]["key"].shape == [2, 2, 6, 6]
    assert cache["routed"]["key"].shape == [2, 2, 3, kept, 6]
