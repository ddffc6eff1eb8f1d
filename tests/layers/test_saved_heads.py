"""Tests that files of heads from an earlier version load with the same outputs."""

import zipfile
from pathlib import Path

import keras
import numpy as np
import pytest

from tests.layers import saved_heads
from tests.layers.checks import close

pytestmark = pytest.mark.end_to_end

SAVED = Path(__file__).parents[1] / "golden" / "saved"
EXPECTED = dict(np.load(SAVED / "heads.npz"))


@pytest.fixture(scope="module")
def model():
    """The model loaded from the file."""
    return keras.saving.load_model(SAVED / "heads.keras")


@pytest.fixture(scope="module")
def weights(model):
    """The weights of the model before any call."""
    return [weight.numpy() for weight in model.weights]


@pytest.fixture(scope="module")
def found(model, weights):
    """The outputs of the model."""
    return saved_heads.found_by(model, saved_heads.make_inputs())


def test_every_kind_is_in_the_file(found):
    assert found.keys() == EXPECTED.keys()


@pytest.mark.parametrize("name", EXPECTED)
def test_outputs_do_not_change(found, name):
    close(found[name], EXPECTED[name], 1e-5)


def test_weights_load_into_a_model_created_by_code(model, weights, tmp_path):
    with zipfile.ZipFile(SAVED / "heads.keras") as file:
        path = file.extract("model.weights.h5", tmp_path)
    made = saved_heads.make_model()
    made.load_weights(path)
    for name in model.output:
        configs = (_unnamed(x.get_layer(name).get_config()) for x in (made, model))
        assert next(configs) == next(configs)
    for weight, expected in zip(made.weights, weights, strict=True):
        np.testing.assert_array_equal(weight, expected, err_msg=weight.path)


def _unnamed(config):
    """Returns a configuration without the automatic names of layers."""
    if isinstance(config, dict):
        return {key: _unnamed(x) for key, x in config.items() if key != "name"}
    return [_unnamed(x) for x in config] if isinstance(config, (list, tuple)) else config
