"""Adapted language models as SavedModels: KerasHub's tokenizers, prompts in chunks, states."""

import json
import subprocess
import sys

import keras_hub
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

import rt_keras
from rt_keras import serving
from rt_keras.layers import FullHeads, LocalHeads, StridedHeads
from rt_keras.models import chunked_loss
from rt_keras.models.adapted import graph_generation
from tests.conftest import made_once
from tests.models.adapted.llama_folder import MISTRAL, QWEN3, write_llama
from tests.serving.served import Served, expected_scores, tensors

pytestmark = pytest.mark.slow

PROMPTS = ["the cat", "", "the dog, the other one, and the café", "x"]


def llama(folder, *heads, **config):
    adapted = rt_keras.adapt(write_llama(folder / "llama", **config), list(heads))
    adapted.compile(sampler="greedy", jit_compile=False)
    return adapted


@pytest.fixture(scope="module")
def adapted(tmp_path_factory):
    return llama(tmp_path_factory.mktemp("adapted"), LocalHeads(4, 8))


@pytest.fixture(scope="module")
def exported(adapted, tmp_path_factory):
    def export(folder):
        serving.export_saved_model(adapted, folder / "1")

    return Served(made_once(tmp_path_factory, "exported_adapted", export) / "1")


def written_by(model, prompt, new_tokens=12, sampler="greedy"):
    """Returns the text that the model writes for a prompt alone."""
    model.compile(sampler=sampler, jit_compile=False)
    known = 1 + len(model.preprocessor.tokenizer(prompt))
    return model.generate(prompt, max_length=known + new_tokens)


def generated(model, **inputs):
    found = serving.generating_function(model, 64)(**tensors("generate", inputs))
    return [text.decode() for text in found["texts"].numpy()]


def test_prompts_of_several_chunks_or_read_by_tokens_get_the_texts_of_the_model(
    adapted, exported, tmp_path, monkeypatch
):
    sampler = keras_hub.samplers.TopKSampler(k=5, temperature=0.8, seed=3)
    found = exported.texts(prompts=PROMPTS, top_k=5, temperature=0.8, seed=3)
    assert found[2] == written_by(adapted, PROMPTS[2], sampler=sampler)
    inputs = {"prompts": PROMPTS[1:3], "top_k": 1, "max_new_tokens": [12, 5]}
    expected = [written_by(adapted, *x) for x in zip(PROMPTS[1:], inputs["max_new_tokens"])]
    assert exported.texts(**inputs) == expected
    monkeypatch.setattr(graph_generation, "PROMPT_CHUNK", 4)
    assert generated(adapted, **inputs) == expected
    strided = llama(tmp_path, StridedHeads(4, 4))
    assert generated(strided, prompts=PROMPTS[:1], top_k=1) == [written_by(strided, PROMPTS[0])]


def test_scores_are_those_of_the_logits(adapted, exported, monkeypatch):
    ids = np.random.default_rng(0).integers(1, 250, [2, 20]).astype("int32")
    expected = expected_scores(adapted, ids, adapted.preprocessor.tokenizer.start_token_id)
    monkeypatch.setattr(chunked_loss, "LOGITS_AT_ONCE", 1)
    for score in (serving.scoring_function(adapted), exported.loaded.score):
        found = score(np.pad(ids, [[0, 0], [0, 3]]))["log_probabilities"]
        np.testing.assert_allclose(found[:, :20], expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(found[:, 20:], 0)


def test_models_without_a_start_token_are_served(tmp_path):
    qwen = llama(tmp_path, LocalHeads(4, 8), **QWEN3)
    served = Served(serving.export_saved_model(qwen, tmp_path / "1"))
    expected = [qwen.generate(prompt, max_new_tokens=12) for prompt in PROMPTS[2:]]
    assert served.texts(prompts=PROMPTS[2:], max_new_tokens=12, top_k=1) == expected
    ids = np.random.default_rng(0).integers(1, 250, [2, 20]).astype("int32")
    expected = expected_scores(qwen, ids, qwen.preprocessor.tokenizer.end_token_id)
    found = served.ask("score", ids=ids)["log_probabilities"]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    found = served.ask("score_next", ids=ids, **served.ask("new_state", rows=2))
    np.testing.assert_allclose(found["log_probabilities"], expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(tf.errors.InvalidArgumentError, match="must have at least one token"):
        served.texts(prompts=[""])


def test_an_end_of_text_with_the_id_of_padding_counts(exported, tmp_path):
    adapted = llama(tmp_path, LocalHeads(4, 8))
    tokenizer = adapted.preprocessor.tokenizer
    scores = exported.ask("score_text", texts=["the cat"])
    tokenizer.pad_token_id = tokenizer.end_token_id
    same = serving.text_scoring_function(adapted)(tf.constant(["the cat"]))
    np.testing.assert_allclose(same["log_probability"], scores["log_probability"], rtol=1e-5)
    ids = np.asarray([[5, tokenizer.end_token_id, 6, tokenizer.end_token_id]], "int32")
    found = serving.scoring_function(adapted)(ids)["log_probabilities"].numpy()[0]
    assert (found != 0).tolist() == [True, True, True, False]


ALONE = """
import json, sys
for name in ("rt_keras", "keras_hub", "official", "tensorflow_text"):
    sys.modules[name] = None
import tensorflow as tf
of_bytes, of_pairs, of_pieces = sys.argv[2:]
loaded = tf.saved_model.load(of_bytes)
scores = loaded.score(tf.constant([[5, 6, 7, 8], [9, 10, 11, 12]]))["log_probabilities"]
print(json.dumps(scores.numpy().tolist()))
prompts = tf.constant(json.loads(sys.argv[1]))
for path in of_pairs, of_pieces:
    if path == of_pieces:
        del sys.modules["tensorflow_text"]
        import tensorflow_text
    loaded = tf.saved_model.load(path)
    texts = loaded.generate(prompts, max_new_tokens=12, top_k=1)["texts"].numpy()
    scores = loaded.score_text(prompts)["log_probability"].numpy()
    print(json.dumps([[text.decode() for text in texts], scores.tolist()]))
"""


def test_models_of_each_tokenizer_run_where_rt_keras_is_not_installed(
    served, adapted, exported, tmp_path
):
    """With bytes, pairs and pieces; the last model has caches that grow, and so no state."""
    mistral = llama(tmp_path, FullHeads(4), **MISTRAL)
    pieces = Served(serving.export_saved_model(mistral, tmp_path / "1"))
    folders = [str(model.folder) for model in (served, exported, pieces)]
    arguments = [sys.executable, "-c", ALONE, json.dumps(PROMPTS), *folders]
    result = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    of_bytes, of_pairs, of_pieces = map(json.loads, result.stdout.splitlines()[-3:])
    expected = served.ask("score", ids=[[5, 6, 7, 8], [9, 10, 11, 12]])["log_probabilities"]
    np.testing.assert_allclose(of_bytes, expected, rtol=1e-5, atol=1e-6)
    assert of_pairs[0] == exported.texts(prompts=PROMPTS, top_k=1)
    expected = exported.ask("score_text", texts=PROMPTS)["log_probability"]
    np.testing.assert_allclose(of_pairs[1], expected, rtol=1e-4)
    assert of_pieces[0][0] == written_by(mistral, PROMPTS[0])
    expected = serving.text_scoring_function(mistral)(tf.constant(PROMPTS))["log_probability"]
    np.testing.assert_allclose(of_pieces[1], expected, rtol=1e-4)
    foreign = json.loads((pieces.folder / "assets.extra" / "foreign_ops.json").read_text())
    assert foreign and all("TensorFlow Text" in reason for reason in foreign.values())
    graph = saved_model_pb2.SavedModel.FromString((pieces.folder / "saved_model.pb").read_bytes())
    signatures = set(graph.meta_graphs[0].signature_def) - {"__saved_model_init_op"}
    assert signatures == {"serving_default", "score", "score_text", "generate"}
    of_states = {"new_state", "score_next", "generate_next"}
    assert set(exported.loaded.signatures) == signatures | of_states
