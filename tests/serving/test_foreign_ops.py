import json

import pytest
import tensorflow as tf

from rt_keras import data
from rt_keras.serving import export_saved_model, foreign_ops
from tests.serving import served


@pytest.mark.end_to_end
def test_a_model_of_bytes_needs_no_text_operations():
    path = served.exported()
    found = foreign_ops.foreign_ops(path)
    assert json.loads((path / "assets.extra" / "foreign_ops.json").read_text()) == found
    assert all(name.startswith("Xla") for name in found)


@pytest.mark.end_to_end
def test_operations_of_tensorflow_text_are_listed_with_the_reason(tmp_path, word_piece_vocabulary):
    model = served.make_model(data.WordPieceTokenizer(word_piece_vocabulary))
    path = export_saved_model(model, tmp_path / "words")
    reasons = json.loads((path / "assets.extra" / "foreign_ops.json").read_text())
    names = {name for name, reason in reasons.items() if "TensorFlow Text" in reason}
    assert {"FastWordpieceTokenizeWithOffsets", "TFText>FastWordpieceDetokenize"} <= names
    assert foreign_ops.UNKNOWN not in reasons.values()
    answer = tf.saved_model.load(path).signatures["score_text"](texts=tf.constant(["the fox"]))
    assert answer["tokens"].numpy().tolist() == [3]


def test_operations_of_nobody_are_called_unknown(tmp_path):
    from tensorflow.core.protobuf import saved_model_pb2

    saved = saved_model_pb2.SavedModel()
    function = saved.meta_graphs.add().graph_def.library.function.add()
    function.node_def.add().op = "OperationOfNobody"
    function.node_def.add().op = "MatMul"
    (tmp_path / "saved_model.pb").write_bytes(saved.SerializeToString())
    assert foreign_ops.foreign_ops(tmp_path) == {"OperationOfNobody": foreign_ops.UNKNOWN}
