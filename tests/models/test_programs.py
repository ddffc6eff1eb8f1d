import numpy as np
import pytest

from rt_keras.layers import LocalHeads
from rt_keras.models.programs import make_once
from tests.models import checks

PROMPTS = {"token_ids": np.array([[3, 5, 0, 0]]), "padding_mask": np.array([[1, 1, 0, 0]])}


def make_model():
    model = checks.make_lm(num_layers=1, head_groups=[LocalHeads(1, 4)])
    model.compile(sampler="greedy", jit_compile=False)
    return model


def test_a_function_is_created_once_for_each_name_and_again_by_compile():
    model = make_model()
    made = [make_once(model, name, object) for name in ("first", "second", "first")]
    assert made[0] is made[2] and made[0] is not made[1]
    model.compile(sampler="top_k")
    assert make_once(model, "first", object) is not made[0]
    assert model.jit_generate


@pytest.mark.slow
def test_generation_sees_variables_that_are_replaced():
    model = make_model()
    model.generate(PROMPTS, stop_token_ids=None)
    model.quantize("int8")
    fresh = make_model()
    fresh.quantize("int8")
    found, expected = (x.generate(PROMPTS, stop_token_ids=None) for x in (model, fresh))
    np.testing.assert_array_equal(found["token_ids"], expected["token_ids"])
