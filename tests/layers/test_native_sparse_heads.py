from rt_keras.layers import NativeSparseHeads
from tests.layers.test_gated_delta_heads import is_as_the_loop


def test_equation_of_the_layer():
    is_as_the_loop(NativeSparseHeads(4, 2, 4, 5, dtype="float64"), gates=3, key_heads=2)
