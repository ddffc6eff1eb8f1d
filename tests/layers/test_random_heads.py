import numpy as np
import pytest
import tensorflow as tf

from rt_keras.layers import RandomHeads
from tests.layers import checks
from tests.ops import reference


@pytest.mark.parametrize("causal", [False, True])
def test_equation(causal):
    query, key, value = (
        checks.random(2, 2, 11, 6, seed=seed, dtype="float64") for seed in range(3)
    )
    mask = checks.padding(2, 11)
    group = RandomHeads(2, 3, 4, max_relative_distance=2, seed=5, dtype="float64")
    options = {"query_mask": mask, "key_mask": mask}
    found = group(query, value, key, use_causal_mask=causal, **options)
    expected = reference.random(
        query,
        key,
        value,
        num_clusters=3,
        window_size=4,
        routing_seed=[(5, 0), (5, 1)],
        causal=causal,
        relative_embeddings=group.relative_embeddings.numpy(),
        **options,
    )
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_members_depend_only_on_the_seed():
    x = checks.random(1, 2, 20, 6)
    found, same, other = (RandomHeads(2, 3, 4, seed=seed)(x, x, x) for seed in (1, 1, 2))
    np.testing.assert_array_equal(found, same)
    assert checks.largest_difference(found, other) > 1e-2


def test_members_are_the_same_in_training_compiled_and_not():
    x = checks.random(1, 2, 20, 6)
    group = RandomHeads(2, 3, 4, seed=1)
    compiled = tf.function(lambda x: group(x, x, x, training=True), jit_compile=True)(x)
    assert checks.largest_difference(compiled, group(x, x, x)) < 1e-5


@pytest.mark.parametrize(
    "options, message",
    [
        ({"num_clusters": 0}, "num_clusters must be a positive integer. Received: num_clusters=0"),
        ({"window_size": 1.5}, "window_size must be a positive integer. Received: window_size=1.5"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        RandomHeads(2, **{"num_clusters": 3, "window_size": 4, **options})
