import json

import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from rt_keras import data
from rt_keras.layers import FullHeads
from rt_keras.serving import export_saved_model, foreign_ops
from tests.serving.served import Served, make_model


@pytest.mark.slow
def test_a_tokenizer_of_words_is_exported_and_its_operations_are_explained(
    tmp_path, word_piece_vocabulary
):
    tokenizer = data.WordPieceTokenizer(word_piece_vocabulary)
    # Without a state, and so with fewer signatures.
    path = export_saved_model(make_model(tokenizer, head_groups=[FullHeads(1)]), tmp_path / "words")
    reasons = json.loads((path / "assets.extra" / "foreign_ops.json").read_text())
    names = {name for name, reason in reasons.items() if "TensorFlow Text" in reason}
    assert {"FastWordpieceTokenizeWithOffsets", "TFText>FastWordpieceDetokenize"} <= names
    assert foreign_ops.UNKNOWN not in reasons.values()
    words = Served(path)
    assert words.ask("score_text", texts=["the fox"])["tokens"].tolist() == [3]
    with pytest.raises(tf.errors.InvalidArgumentError, match="texts: it must be valid UTF-8"):
        words.ask("score_text", texts=[b"the fox", b"\xff"])


def test_operations_of_nobody_are_called_unknown(tmp_path):
    saved = saved_model_pb2.SavedModel()
    function = saved.meta_graphs.add().graph_def.library.function.add()
    function.node_def.add().op = "OperationOfNobody"
    function.node_def.add().op = "MatMul"
    (tmp_path / "saved_model.pb").write_bytes(saved.SerializeToString())
    assert foreign_ops.foreign_ops(tmp_path) == {"OperationOfNobody": foreign_ops.UNKNOWN}
