import numpy as np
import pytest

from rt_keras.layers import LocalHeads
from tests.models import checks

PROMPTS = {"token_ids": np.array([[3, 5, 0, 0]]), "padding_mask": np.array([[1, 1, 0, 0]])}


def make_model():
    model = checks.make_lm(num_layers=1, head_groups=[LocalHeads(1, 4)])
    model.compile(sampler="greedy", jit_compile=False)
    return model


@pytest.mark.slow
def test_generation_sees_variables_that_are_replaced():
    model = make_model()
    model.generate(PROMPTS, stop_token_ids=None)
    model.quantize("int8")
    fresh = make_model()
    fresh.quantize("int8")
    found, expected = (x.generate(PROMPTS, stop_token_ids=None) for x in (model, fresh))
    np.testing.assert_array_equal(found["token_ids"], expected["token_ids"])
