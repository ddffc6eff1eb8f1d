import pytest
import tensorflow as tf

from rt_keras.ops import local_attention
from tests.ops import checks, reference

INPUTS = checks.arrays(9, far=2)
OPTIONS = {"block_size": 3, "causal": True}


def with_another_gradient(name, factor):
    """Local attention whose gradient by one input is multiplied by a factor."""

    @tf.custom_gradient
    def scaled(x):
        return x, lambda upstream: factor * upstream

    def op(**inputs):
        return local_attention(**{**inputs, name: scaled(inputs[name])})

    return op


@pytest.mark.parametrize("name", INPUTS)
def test_a_wrong_gradient_of_one_input_is_found_and_named(name):
    checks.holds(with_another_gradient(name, 1.0), reference.local, INPUTS, **OPTIONS)
    for factor in (-1.0, 0.0, 1.001):
        with pytest.raises(AssertionError, match=rf"by \['{name}'\]"):
            checks.holds(with_another_gradient(name, factor), reference.local, INPUTS, **OPTIONS)


def test_another_gradient_in_compiled_functions_is_found():
    def op(**inputs):
        compiled = not tf.executing_eagerly()
        return with_another_gradient("value", 1.001 if compiled else 1.0)(**inputs)

    checks.holds_compiled(local_attention, INPUTS, **OPTIONS)
    with pytest.raises(AssertionError, match="gradient of value"):
        checks.holds_compiled(op, INPUTS, **OPTIONS)
