import json
import sys

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow_serving.apis import prediction_log_pb2

from rt_keras.serving import export_saved_model, foreign_ops, saved_model, score
from tests.serving.served import expected_scores, make_model, model


@pytest.mark.slow
def test_any_batch_and_length_scores_as_the_model_does_and_padding_not_at_all(served):
    rng = np.random.default_rng(0)
    for shape in ((1, 1), (3, 20), (1, 90)):
        ids = rng.integers(2, 258, shape).astype("int32")
        expected = expected_scores(model(), ids, start=1)
        scores = served.ask("score", ids=np.pad(ids, [(0, 0), (0, 7)]))["log_probabilities"]
        np.testing.assert_allclose(scores[:, : shape[1]], expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(scores[:, shape[1] :], 0.0)


@pytest.mark.slow
def test_its_operations_need_neither_python_nor_text_nor_gradients(served):
    path = served.folder / "saved_model.pb"
    graph = saved_model_pb2.SavedModel.FromString(path.read_bytes()).meta_graphs[0].graph_def
    nodes = [node for function in graph.library.function for node in function.node_def]
    assert not any(function.attr["_XlaMustCompile"].b for function in graph.library.function)
    # Loading would warn of gradients.
    assert nodes and not any("_gradient_op_type" in node.attr for node in nodes)
    operations = {node.op for node in [*graph.node, *nodes]}
    assert {"StatelessMultinomial", "Assert"} <= operations
    assert not operations & {"PyFunc", "PyFuncStateless", "EagerPyFunc", "NumpyFunction"}
    found = foreign_ops.foreign_ops(served.folder)
    assert json.loads((served.folder / "assets.extra" / "foreign_ops.json").read_text()) == found
    assert all(name.startswith("Xla") for name in found)


@pytest.mark.slow
def test_the_model_answers_its_warm_up_requests(served):
    path = served.folder / "assets.extra" / "tf_serving_warmup_requests"
    records = [
        prediction_log_pb2.PredictionLog.FromString(record.numpy())
        for record in tf.data.TFRecordDataset(str(path))
    ]
    # TensorFlow Serving reads a thousand at most.
    assert len(records) == 6
    for record in records:
        assert record.WhichOneof("log_type") == "predict_log"
        request = record.predict_log.request
        assert request.model_spec.name == "rt_keras"
        inputs = {name: tf.make_ndarray(value) for name, value in request.inputs.items()}
        outputs = served.loaded.signatures[request.model_spec.signature_name](
            **{name: tf.constant(value) for name, value in inputs.items()}
        )
        assert all(len(value) == 1 for value in outputs.values())


def test_versions_follow_each_other(tmp_path):
    for name in ("2", "9", "notes", ".10.part"):
        (tmp_path / name).mkdir()
    assert saved_model.version_folder(tmp_path) == tmp_path / "10"


def test_a_version_that_is_there_is_refused(tmp_path):
    (tmp_path / "1" / "assets").mkdir(parents=True)
    with pytest.raises(FileExistsError, match="already exists; name a new"):
        export_saved_model(model(), tmp_path / "1")


def test_an_error_leaves_nothing(monkeypatch, tmp_path):
    def fail(path, requests):
        raise OSError("the disk is full")

    monkeypatch.setattr(saved_model, "write_warm_up", fail)
    monkeypatch.setattr(saved_model, "warm_up_requests", lambda *_: [])
    monkeypatch.setattr(saved_model, "_saved_module", lambda *_: None)
    monkeypatch.setattr(saved_model.tf.saved_model, "save", lambda *_, **__: None)
    with pytest.raises(OSError, match="the disk is full"):
        export_saved_model(model(), tmp_path / "tiny")
    assert list((tmp_path / "tiny").iterdir()) == []


def test_a_limit_that_is_none_is_refused(tmp_path):
    for max_length in (4.0, 1, 2**31):
        with pytest.raises(ValueError, match=f"from 2 to 2,147,483,647.*max_length={max_length}"):
            export_saved_model(model(), tmp_path / "tiny", max_length=max_length)
    few = make_model(max_sequence_length=32)
    with pytest.raises(ValueError, match="from 2 to 32. Received: max_length=33"):
        export_saved_model(few, tmp_path / "tiny", max_length=33)


def test_a_model_without_a_tokenizer_is_refused(tmp_path):
    with pytest.raises(ValueError, match="must have a preprocessor"):
        export_saved_model(type(model())(model().backbone), tmp_path / "tiny")


def test_a_broken_model_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", "false")
    with pytest.raises(OSError, match=f"{tmp_path} could not be scored in a new process"):
        score.score_in_new_process(tmp_path, [[2]])
