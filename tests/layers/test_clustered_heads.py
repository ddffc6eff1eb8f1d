import keras
import numpy as np
import pytest

from rt_keras.layers import ClusteredHeads, MultiHeadAttention
from tests.layers import checks


@pytest.mark.slow
def test_fit_of_sequences_of_a_known_length_with_a_last_batch_of_another_size():
    inputs = keras.Input((70, 6))
    layer = MultiHeadAttention([ClusteredHeads(2, 3, top_k=4)], 4)
    model = keras.Model(inputs, layer(inputs, inputs))
    model.compile("sgd", "mse", jit_compile=False)
    x = checks.random(5, 70, 6)
    assert np.isfinite(model.fit(x, x, batch_size=2, verbose=0).history["loss"])
