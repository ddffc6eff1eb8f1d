import gc

import rt_keras
from rt_keras.layers import LocalHeads
from tests.models.adapted.llama_folder import write_llama


def test_a_new_model_is_quantized(tmp_path):
    task = rt_keras.adapt(write_llama(tmp_path), [LocalHeads(4, block_size=8)])
    frozen = gc.get_freeze_count()
    task.quantize("int8")
    # Objects from before can be collected again.
    assert gc.get_freeze_count() <= frozen
    attention = task.backbone.transformer_layers[0]._self_attention_layer
    assert attention.query_dense.quantization_mode == "int8"
    task.compile(sampler="greedy")
    assert task.generate("the", max_new_tokens=3).startswith("the")
