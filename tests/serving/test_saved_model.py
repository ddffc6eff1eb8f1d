import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from rt_keras import serving
from rt_keras.serving import export_saved_model, saved_model, score, scoring_function
from tests.serving import served

pytestmark = pytest.mark.end_to_end

WITHOUT_RT_KERAS = """
import runpy, sys
for name in ("rt_keras", "keras_hub", "tensorflow_text", "official"):
    sys.modules[name] = None
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def graph_def():
    path = served.exported() / "saved_model.pb"
    return saved_model_pb2.SavedModel.FromString(path.read_bytes()).meta_graphs[0].graph_def


def test_signatures_name_what_they_take_and_give():
    signatures = served.loaded().signatures
    names = {name: set(function.structured_outputs) for name, function in signatures.items()}
    state = {f"state_{number:02d}" for number in range(7)}
    assert names == {
        "new_state": state,
        "score_next": {"log_probabilities", *state},
        "generate_next": {"continuations", *state},
        "serving_default": {"log_probabilities"},
        "score": {"log_probabilities"},
        "score_text": {"log_probability", "bits_per_byte", "tokens"},
        "generate": {"texts", "continuations"},
    }
    inputs = signatures["serving_default"].structured_input_signature[1]
    assert inputs == {"ids": tf.TensorSpec([None, None], tf.int32, name="ids")}
    inputs = signatures["generate"].structured_input_signature[1]
    assert inputs["prompts"] == tf.TensorSpec([None], tf.string, name="prompts")
    assert {name: spec.dtype for name, spec in inputs.items()} == {
        name: served.TYPES[name] for name in ["prompts", *served.DEFAULTS]
    }


@pytest.mark.parametrize("shape", [(1, 1), (3, 20), (1, 90)])
def test_any_batch_and_length_gives_what_the_model_gives(shape):
    ids = np.random.default_rng(0).integers(2, 258, shape).astype("int32")
    expected = []
    for row in ids:
        before = np.array([[1, *row[:-1]]])
        logits = served.model()({"token_ids": before, "padding_mask": np.ones_like(before)})
        expected.append(tf.gather(tf.nn.log_softmax(logits[0]), row, batch_dims=1))
    found = served.ask("score", ids=ids)["log_probabilities"]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_padding_scores_nothing_and_changes_nothing():
    ids = np.random.default_rng(0).integers(2, 258, (1, 20))
    scores = served.ask("score", ids=np.pad(ids, [(0, 0), (0, 7)]))["log_probabilities"]
    alone = served.ask("score", ids=ids)["log_probabilities"]
    np.testing.assert_allclose(scores[:, :20], alone, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(scores[:, 20:], 0.0)


def test_it_runs_where_rt_keras_is_not_installed():
    ids = [[5, 6, 7, 8], [9, 10, 11, 12]]
    result = subprocess.run(
        [sys.executable, "-c", WITHOUT_RT_KERAS, score.__file__, str(served.exported())],
        input=json.dumps(ids),
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    expected = scoring_function(served.model())(ids)["log_probabilities"]
    np.testing.assert_allclose(json.loads(result.stdout), expected, rtol=1e-5, atol=1e-6)


def test_saved_model_cli_runs_every_signature(tmp_path):
    prompts = ["once", "", "the café"]
    for name, value in served.tensors("generate", {"prompts": prompts, "seed": 3}).items():
        value = value.numpy()
        np.save(tmp_path / name, value if value.dtype != object else value.astype("S"))
    np.save(tmp_path / "ids", np.array([[5, 6, 7]], "int32"))
    inputs = {
        "score": ["ids"],
        "score_text": ["prompts"],
        "generate": ["prompts", *served.DEFAULTS],
    }
    command = str(Path(sys.executable).parent / "saved_model_cli")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    running = []
    for signature, names in inputs.items():
        takes = {"prompts": "texts"} if signature == "score_text" else {}
        options = [f"{takes.get(name, name)}={tmp_path / name}.npy" for name in names]
        running.append(
            subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    WITHOUT_RT_KERAS,
                    command,
                    "run",
                    "--dir",
                    str(served.exported()),
                    "--tag_set",
                    "serve",
                ]
                + ["--signature_def", signature, "--inputs", ";".join(options)]
                + ["--outdir", str(tmp_path / signature)],
                cwd=tmp_path,
                env=environment,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    for process in running:
        assert process.wait() == 0, process.stderr.read()
        process.stderr.close()

    def given(signature, name):
        return np.load(tmp_path / signature / f"{name}.npy", allow_pickle=True)

    ids = served.ask("score", ids=[[5, 6, 7]])["log_probabilities"]
    np.testing.assert_allclose(given("score", "log_probabilities"), ids, rtol=1e-5)
    nats = served.ask("score_text", texts=prompts)["log_probability"]
    np.testing.assert_allclose(given("score_text", "log_probability"), nats, rtol=1e-5)
    texts = [text.decode() for text in given("generate", "texts")]
    assert texts == served.texts(prompts=prompts, seed=3)


def test_nothing_in_it_is_of_python_or_made_for_xla_alone():
    nodes = list(graph_def().node)
    for function in graph_def().library.function:
        nodes += function.node_def
        assert not function.attr["_XlaMustCompile"].b
    operations = {node.op for node in nodes}
    assert {"StatelessMultinomial", "Assert"} <= operations
    assert not operations & {"PyFunc", "PyFuncStateless", "EagerPyFunc", "NumpyFunction"}


def test_loading_does_not_warn_of_gradients():
    nodes = [node for function in graph_def().library.function for node in function.node_def]
    assert nodes and not any("_gradient_op_type" in node.attr for node in nodes)


def test_versions_follow_each_other(tmp_path):
    assert saved_model.version_folder(tmp_path / "new") == tmp_path / "new" / "1"
    for name in ("2", "9", "notes", ".10.part"):
        (tmp_path / name).mkdir()
    assert saved_model.version_folder(tmp_path) == tmp_path / "10"
    assert saved_model.version_folder(tmp_path / "4") == tmp_path / "4"


def test_a_version_that_is_there_is_refused():
    with pytest.raises(FileExistsError, match="already exists; name a new"):
        export_saved_model(served.model(), served.exported())


def test_an_error_leaves_nothing(monkeypatch, tmp_path):
    def fail(path, requests):
        raise OSError("the disk is full")

    monkeypatch.setattr(saved_model, "write_warm_up", fail)
    monkeypatch.setattr(saved_model.tf.saved_model, "save", lambda *_, **__: None)
    for name in ("scoring_function", "text_scoring_function", "generating_function"):
        monkeypatch.setattr(saved_model, name, getattr(serving, name))
    with pytest.raises(OSError, match="the disk is full"):
        export_saved_model(served.model(), tmp_path / "tiny")
    assert list((tmp_path / "tiny").iterdir()) == []


@pytest.mark.parametrize("max_length", [0.5, 4.0, 0, 1, -3, 2**31, 99999999999999])
def test_a_limit_that_is_none_is_refused(tmp_path, max_length):
    with pytest.raises(ValueError, match=f"from 2 to 2,147,483,647.*max_length={max_length}"):
        export_saved_model(served.model(), tmp_path / "tiny", max_length=max_length)


def test_a_limit_beyond_the_model_s_positions_is_refused(tmp_path):
    model = served.make_model(max_sequence_length=32)
    with pytest.raises(ValueError, match="from 2 to 32. Received: max_length=33"):
        export_saved_model(model, tmp_path / "tiny", max_length=33)


def test_a_model_without_a_tokenizer_is_refused(tmp_path):
    model = type(served.model())(served.model().backbone)
    with pytest.raises(ValueError, match="must have a preprocessor"):
        export_saved_model(model, tmp_path / "tiny")


def test_a_broken_model_is_named(tmp_path):
    with pytest.raises(OSError, match="could not be scored in a new process"):
        score.score_in_new_process(tmp_path, [[2]])
