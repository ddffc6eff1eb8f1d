import numpy as np
import pytest
import tensorflow as tf

from rt_keras.layers import FullHeads, LocalHeads, RoutingHeads
from rt_keras.models import RoutingTransformerBackbone, RoutingTransformerCausalLM


def make_backbone(heads):
    sizes = {"num_layers": 1, "hidden_dim": 16, "intermediate_dim": 16}
    return RoutingTransformerBackbone(vocabulary_size=258, head_groups=heads, **sizes)


@pytest.mark.end_to_end
@pytest.mark.parametrize("relative", [None, 7])
def test_local_and_full_heads_run_in_litert_without_operations_of_tensorflow(relative, tmp_path):
    backbone = make_backbone([LocalHeads(2, 8, max_relative_distance=relative), FullHeads(2)])
    path = str(tmp_path / "model.tflite")
    backbone.export(path, format="litert", verbose=False)
    interpreter = tf.lite.Interpreter(path)
    operations = {operation["op_name"] for operation in interpreter._get_ops_details()}
    assert not [name for name in operations if name.startswith("Flex")]
    ids = np.random.default_rng(0).integers(0, 258, [2, 32]).astype("int32")
    inputs = {"token_ids": ids, "padding_mask": np.ones_like(ids)}
    (found,) = interpreter.get_signature_runner()(**inputs).values()
    np.testing.assert_allclose(found, backbone(inputs), rtol=1e-4, atol=1e-5)


@pytest.mark.end_to_end
def test_other_heads_are_refused_by_name_where_litert_would_abort(tmp_path, capsys):
    model = RoutingTransformerCausalLM(
        make_backbone([LocalHeads(1, 8), RoutingHeads(1, num_clusters=2, window_size=8)])
    )
    with pytest.raises(ValueError, match="'litert'.*Received: a model with RoutingHeads$"):
        model.export(tmp_path / "model.tflite", format="litert")
    assert not list(tmp_path.iterdir())
    model.export(tmp_path / "model")
    assert (tmp_path / "model" / "saved_model.pb").is_file()
    # Keras would print a line for each weight.
    assert capsys.readouterr().out == ""
    model.export(tmp_path / "again", verbose=True)
    assert "TensorSpec" in capsys.readouterr().out
