import keras
import numpy as np
import pytest

from rt_keras.layers import LocalHeads, TransformerBlock


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method")
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_a_quantized_block_loads_back(policy, tmp_path):
    keras.config.set_dtype_policy(policy)
    try:
        inputs = keras.Input([8, 16])
        block = TransformerBlock([LocalHeads(2, block_size=4)], intermediate_dim=32)
        model = keras.Model(inputs, block(inputs))
        x = np.random.default_rng(0).normal(size=[2, 8, 16])
        exact = np.asarray(model(x), "float32")
        model.quantize("int8")
        expected = np.asarray(model(x), "float32")
        assert 0 < np.abs(expected - exact).max() < 0.1
        model.save(tmp_path / "model.keras")
        loaded = keras.saving.load_model(tmp_path / "model.keras")
        np.testing.assert_array_equal(np.asarray(loaded(x), "float32"), expected)
        model.save_weights(tmp_path / "model.weights.h5")
        loaded.load_weights(tmp_path / "model.weights.h5")
        np.testing.assert_array_equal(np.asarray(loaded(x), "float32"), expected)
    finally:
        keras.config.set_dtype_policy("float32")
