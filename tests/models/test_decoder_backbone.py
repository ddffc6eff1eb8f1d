import keras
import numpy as np
import pytest

from tests.models import checks


def test_a_cache_has_one_entry_for_each_block():
    backbone = checks.make_backbone()
    assert len(backbone.new_cache(1, 9)) == backbone.num_layers
    cache = backbone.new_cache(1, 9)[:1]
    with pytest.raises(ValueError, match="each of the model's 2 blocks. Received: 1 entries"):
        backbone.call_with_cache(np.array([[1]]), cache, 0)


def test_output_layers_have_separate_initializers():
    initializer = keras.initializers.RandomNormal(seed=1)
    backbone = checks.make_backbone(kernel_initializer=initializer, dtype="mixed_bfloat16")
    dense = backbone.make_dense(5, "output")
    assert (dense.units, dense.name, dense.compute_dtype) == (5, "output", "bfloat16")
    assert dense.kernel_initializer is not initializer
    assert dense.kernel_initializer.get_config() == initializer.get_config()
    assert backbone.make_dense(5, "output", "float32").compute_dtype == "float32"
