import keras
import numpy as np
import pytest

from tests.models import checks


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method")
@pytest.mark.filterwarnings("ignore:.compile.*was not called as part of model loading")
@pytest.mark.parametrize(
    "tied, policy", [(True, "float32"), (False, "float32"), (True, "mixed_bfloat16")]
)
def test_a_quantized_model_loads_back(tied, policy, tmp_path):
    keras.config.set_dtype_policy(policy)
    try:
        model = checks.make_lm(num_layers=1, tie_embeddings=tied)
        inputs = checks.inputs(checks.random_tokens(1, 8))
        model.quantize("int8")
        expected = np.asarray(model(inputs))
        model.save_to_preset(str(tmp_path / "preset"))
        model.save(tmp_path / "model.keras")
        model.save_weights(tmp_path / "model.weights.h5")
        keras.config.set_dtype_policy("float32")
        loaded = keras.saving.load_model(tmp_path / "model.keras")
        np.testing.assert_array_equal(loaded(inputs), expected)
        loaded.load_weights(tmp_path / "model.weights.h5")
        for copy in (loaded, type(model).from_preset(str(tmp_path / "preset"))):
            np.testing.assert_array_equal(copy(inputs), expected)
    finally:
        keras.config.set_dtype_policy("float32")
