import json
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from rt_keras import data
from rt_keras.serving import export_saved_model, score, scoring_function
from rt_keras.training import experiment
from rt_keras.training.evaluation import evaluate

WITHOUT_RT_KERAS = """
import runpy, sys
for name in ("rt_keras", "keras_hub", "tensorflow_text", "official"):
    sys.modules[name] = None
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture(scope="module")
def model(tiny_run):
    return experiment.load_model(tiny_run)


@pytest.fixture(scope="module")
def exported(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported") / "tiny" / "1"
    export_saved_model(model, folder)
    return folder


def test_the_signature_names_what_it_takes_and_gives(exported):
    signature = tf.saved_model.load(exported).signatures["serving_default"]
    (_, inputs) = signature.structured_input_signature
    assert inputs == {"ids": tf.TensorSpec([None, None], tf.int32, name="ids")}
    outputs = signature.structured_outputs["log_probabilities"]
    assert outputs.dtype == tf.float32 and outputs.shape.as_list() == [None, None]


@pytest.mark.parametrize("shape", [(1, 1), (3, 20), (1, 90)])
def test_any_batch_and_length_gives_what_the_model_gives(model, exported, shape):
    ids = np.random.default_rng(0).integers(2, 258, shape).astype("int32")
    expected = []
    for row in ids:
        before = np.array([[1, *row[:-1]]])
        logits = model({"token_ids": before, "padding_mask": np.ones_like(before)})
        expected.append(tf.gather(tf.nn.log_softmax(logits[0]), row, batch_dims=1))
    np.testing.assert_allclose(score.score(str(exported), ids), expected, rtol=1e-4, atol=1e-5)


def test_padding_scores_nothing_and_changes_nothing(model):
    ids = np.random.default_rng(0).integers(2, 258, (1, 20))
    padded = np.pad(ids, [(0, 0), (0, 7)])
    function = scoring_function(model)
    scores = function(tf.constant(padded, tf.int32))["log_probabilities"].numpy()
    alone = function(tf.constant(ids, tf.int32))["log_probabilities"].numpy()
    np.testing.assert_allclose(scores[:, :20], alone, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(scores[:, 20:], 0.0)


def test_it_runs_where_rt_keras_is_not_installed(model, exported):
    ids = [[5, 6, 7, 8], [9, 10, 11, 12]]
    result = subprocess.run(
        [sys.executable, "-c", WITHOUT_RT_KERAS, score.__file__, str(exported)],
        input=json.dumps(ids),
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    expected = scoring_function(model)(ids)["log_probabilities"]
    np.testing.assert_allclose(json.loads(result.stdout), expected, rtol=1e-5, atol=1e-6)


def test_it_adds_up_to_what_evaluation_says(model, exported):
    text = b"the caf\xc3\xa9 opens"
    documents = tf.data.Dataset.from_tensors(text)
    scores = evaluate(model, documents)
    ids = [*data.ByteTokenizer()(text).numpy().tolist(), 1]
    total = score.score(str(exported), [ids]).sum()
    assert -total / scores["tokens"] == pytest.approx(scores["nats_per_token"], rel=1e-5)


def test_a_folder_that_holds_something_is_refused(model, exported):
    with pytest.raises(FileExistsError, match="already holds something"):
        export_saved_model(model, exported)


def test_a_broken_model_is_named(tmp_path):
    with pytest.raises(OSError, match="could not be scored in a new process"):
        score.score_in_new_process(tmp_path, [[2]])
