import gc

import keras
import numpy as np
import pytest

import rt_keras
from rt_keras.layers import LocalHeads
from tests.models.adapted.llama_folder import write_llama

TOKENS = {name: np.ones([1, 9], "int32") for name in ("token_ids", "padding_mask")}


@pytest.mark.slow
def test_a_new_model_is_quantized_and_saved(tmp_path):
    task = rt_keras.adapt(write_llama(tmp_path), [LocalHeads(4, block_size=8)])
    frozen = gc.get_freeze_count()
    task.quantize("int8")
    # Objects from before can be collected again.
    assert gc.get_freeze_count() <= frozen
    attention = task.backbone.transformer_layers[0]._self_attention_layer
    assert attention.query_dense.quantization_mode == "int8"
    labels = np.full([1, 9], 2)
    expected = keras.losses.sparse_categorical_crossentropy(labels, task(TOKENS), True)
    losses = task.score(TOKENS["token_ids"], scoring_mode="loss", target_ids=labels)
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    task.compile(sampler="greedy", jit_compile=False)
    assert task.generate("the", max_new_tokens=3).startswith("the")
    task.save(tmp_path / "int8.keras")
    loaded = keras.saving.load_model(tmp_path / "int8.keras")
    np.testing.assert_array_equal(loaded(TOKENS), task(TOKENS))
    with pytest.raises(ValueError, match="is quantized. Adapt or restore a model before"):
        rt_keras.restore(loaded)
