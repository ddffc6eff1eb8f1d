import keras
import numpy as np
import pytest

from rt_keras.layers import ClusteredHeads, MultiHeadAttention
from tests.layers import checks


def test_projections_are_drawn_from_the_seed_and_stay():
    group = ClusteredHeads(2, 3, bits=5, seed=3, dtype="mixed_bfloat16")
    x = checks.random(1, 2, 9, 6)
    assert group(x, x, x).dtype == "bfloat16"
    assert group.projections.shape == (2, 5, 6) and group.projections.dtype == "float32"
    assert not group.trainable_variables
    same = ClusteredHeads(2, 3, bits=5, seed=3)
    same.build(x.shape, x.shape)
    np.testing.assert_array_equal(same.projections, group.projections)


@pytest.mark.slow
def test_fit_of_sequences_of_a_known_length_with_a_last_batch_of_another_size():
    inputs = keras.Input((70, 6))
    layer = MultiHeadAttention([ClusteredHeads(2, 3, top_k=4)], 4)
    model = keras.Model(inputs, layer(inputs, inputs))
    model.compile("sgd", "mse", jit_compile=False)
    x = checks.random(5, 70, 6)
    assert np.isfinite(model.fit(x, x, batch_size=2, verbose=0).history["loss"])


@pytest.mark.parametrize(
    "options, message",
    [
        ({"top_k": 1.5}, "top_k must be a positive integer. Received: top_k=1.5"),
        ({"causal_by_mask": True}, "causal_by_mask=True needs top_k"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        ClusteredHeads(2, **options)
