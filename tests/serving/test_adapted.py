"""Adapted language models as SavedModels: KerasHub's tokenizers, prompts in chunks, states."""

import io
import json
import subprocess
import sys
from pathlib import Path

import keras_hub
import numpy as np
import pytest
import tensorflow as tf

import rt_keras
from rt_keras.layers import FullHeads, LocalHeads, StridedHeads
from rt_keras.models import chunked_loss
from rt_keras.models.adapted import graph_generation
from rt_keras.serving import (
    export_saved_model,
    generating_function,
    scoring_function,
    text_scoring_function,
)
from tests.models.adapted.checks import FAMILIES
from tests.models.adapted.llama_folder import write_llama
from tests.serving import served, server

pytestmark = pytest.mark.end_to_end

PROMPTS = ["the cat", "", "the dog, the other one, and the café", "x"]
SPECIAL = ["<start_of_image>", "<img>", "<end_of_image>", "<end_of_turn>"]


def llama(folder, *heads, **config):
    adapted = rt_keras.adapt(write_llama(folder / "llama", **config), list(heads))
    adapted.compile(sampler="greedy", jit_compile=False)
    return adapted


def gemma(*heads):
    """Returns a tiny Gemma 3, with a SentencePiece tokenizer and soft-capped logits."""
    import sentencepiece

    proto = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*PROMPTS, "the quick brown fox jumps over a lazy dog"] * 20),
        model_writer=proto,
        vocab_size=40,
        hard_vocab_limit=False,
        pad_id=0,
        eos_id=1,
        bos_id=2,
        unk_id=3,
        pad_piece="<pad>",
        eos_piece="<eos>",
        bos_piece="<bos>",
        user_defined_symbols=SPECIAL,
        minloglevel=2,
    )
    tokenizer = keras_hub.tokenizers.Gemma3Tokenizer(proto.getvalue())
    sizes = {**FAMILIES["Gemma3"], "vocabulary_size": tokenizer.vocabulary_size()}
    backbone = keras_hub.models.Gemma3Backbone(**sizes)
    rng = np.random.default_rng(0)
    for weight in backbone.weights:
        weight.assign(rng.normal(size=weight.shape) * 0.3)
    preprocessor = keras_hub.models.Gemma3CausalLMPreprocessor(tokenizer, sequence_length=32)
    task = keras_hub.models.Gemma3CausalLM(backbone=backbone, preprocessor=preprocessor)
    adapted = rt_keras.adapt(task, list(heads), layers="global")
    adapted.compile(sampler="greedy", jit_compile=False)
    return adapted


@pytest.fixture(scope="module")
def adapted(tmp_path_factory):
    return llama(tmp_path_factory.mktemp("adapted"), LocalHeads(4, 8))


@pytest.fixture(scope="module")
def exported(adapted, tmp_path_factory):
    return export_saved_model(adapted, tmp_path_factory.mktemp("exported") / server.NAME)


@pytest.fixture(scope="module")
def loaded(exported):
    return tf.saved_model.load(str(exported))


def ask(loaded, signature, **inputs):
    found = loaded.signatures[signature](**served.tensors(signature, inputs))
    return {name: value.numpy() for name, value in found.items()}


def expected_text(model, prompt, new_tokens, sampler="greedy", jit_compile=False):
    model.compile(sampler=sampler, jit_compile=jit_compile)
    known = 1 + len(model.preprocessor.tokenizer(prompt))
    return model.generate(prompt, max_length=known + new_tokens)


def generated(model, **inputs):
    found = generating_function(model, 64)(**served.tensors("generate", inputs))
    return [text.decode() for text in found["texts"].numpy()]


def test_signatures(loaded):
    assert set(loaded.signatures) == {
        *("serving_default", "score", "score_text", "generate"),
        *("new_state", "score_next", "generate_next"),
    }


@pytest.mark.parametrize("heads", [FullHeads(4), StridedHeads(4, 4)])
def test_models_whose_caches_grow_have_no_state(tmp_path, heads):
    adapted = llama(tmp_path, heads)
    path = export_saved_model(adapted, tmp_path / "model")
    loaded = tf.saved_model.load(str(path))
    assert set(loaded.signatures) == {"serving_default", "score", "score_text", "generate"}
    found = [text.decode() for text in ask(loaded, "generate", prompts=PROMPTS, top_k=1)["texts"]]
    assert found == [expected_text(adapted, prompt, 12) for prompt in PROMPTS]


@pytest.mark.parametrize("chunk", [1, 4, 1024])
def test_texts_are_those_of_the_model(adapted, monkeypatch, chunk):
    monkeypatch.setattr(graph_generation, "PROMPT_CHUNK", chunk)
    found = generated(adapted, prompts=PROMPTS, top_k=1, max_new_tokens=[9, 12, 5, 1])
    expected = [
        expected_text(adapted, prompt, count) for prompt, count in zip(PROMPTS, [9, 12, 5, 1])
    ]
    assert found == expected


@pytest.mark.parametrize("jit_compile", [False, True])
def test_draws_are_those_of_the_model(adapted, jit_compile):
    sampler = keras_hub.samplers.TopKSampler(k=5, temperature=0.8, seed=3)
    expected = expected_text(adapted, PROMPTS[2], 12, sampler, jit_compile)
    found = generated(adapted, prompts=PROMPTS, top_k=5, temperature=0.8, seed=3)
    assert found[2] == expected


def test_windows_and_global_layers_of_gemma(tmp_path):
    model = gemma(FullHeads(4))
    found = generated(model, prompts=PROMPTS, top_k=1)
    assert found == [expected_text(model, prompt, 12) for prompt in PROMPTS]
    path = export_saved_model(model, tmp_path / "gemma")
    check_in_another_process(path, found, text_scoring_function(model)(tf.constant(PROMPTS)))


@pytest.mark.parametrize("logits_at_once", [1, 2**25])
def test_scores_are_those_of_the_logits(adapted, monkeypatch, logits_at_once):
    monkeypatch.setattr(chunked_loss, "LOGITS_AT_ONCE", logits_at_once)
    tokenizer = adapted.preprocessor.tokenizer
    ids = np.random.default_rng(0).integers(1, 250, [2, 20]).astype("int32")
    before = np.pad(ids[:, :-1], [[0, 0], [1, 0]], constant_values=tokenizer.start_token_id)
    logits = adapted({"token_ids": before, "padding_mask": np.ones_like(before)})
    expected = tf.gather(tf.nn.log_softmax(logits), ids, batch_dims=2)
    found = scoring_function(adapted)(np.pad(ids, [[0, 0], [0, 3]]))["log_probabilities"]
    np.testing.assert_allclose(found[:, :20], expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(found[:, 20:], 0)


def test_an_end_of_text_with_the_id_of_padding_counts(tmp_path):
    adapted = llama(tmp_path, LocalHeads(4, 8))
    tokenizer = adapted.preprocessor.tokenizer
    scores = text_scoring_function(adapted)(tf.constant(["the cat"]))
    tokenizer.pad_token_id = tokenizer.end_token_id
    same = text_scoring_function(adapted)(tf.constant(["the cat"]))
    np.testing.assert_allclose(same["log_probability"], scores["log_probability"], rtol=1e-5)
    ids = np.asarray([[5, tokenizer.end_token_id, 6, tokenizer.end_token_id]], "int32")
    found = scoring_function(adapted)(ids)["log_probabilities"].numpy()[0]
    assert (found != 0).tolist() == [True, True, True, False]


def test_chunks_score_what_the_whole_does(loaded):
    ids = np.random.default_rng(0).integers(1, 250, [2, 40])
    expected = ask(loaded, "score", ids=ids)["log_probabilities"]
    state, found = ask(loaded, "new_state", rows=2), []
    for start, end in ((0, 7), (7, 8), (8, 30), (30, 40)):
        state = ask(loaded, "score_next", ids=ids[:, start:end], **state)
        found.append(state.pop("log_probabilities"))
    np.testing.assert_allclose(np.concatenate(found, axis=1), expected, rtol=0, atol=1e-4)


def test_a_text_goes_on_where_it_was(loaded):
    whole = ask(loaded, "generate", prompts=PROMPTS[:2], top_k=1)["continuations"]
    state, found = ask(loaded, "new_state", rows=2), []
    for prompts, count in ((PROMPTS[:2], 5), (["", ""], 7)):
        state = ask(
            loaded, "generate_next", prompts=prompts, top_k=1, max_new_tokens=count, **state
        )
        found.append(state.pop("continuations"))
    parts = [b"".join(texts).decode(errors="replace") for texts in zip(*found)]
    # A multi-byte character may be cut between the two.
    assert [text[:3] for text in parts] == [text.decode()[:3] for text in whole]


@pytest.mark.parametrize("signature", ["score_text", "generate"])
def test_nothing_gives_nothing(loaded, signature):
    name = {"score_text": "texts", "generate": "prompts"}[signature]
    answer = ask(loaded, signature, **{name: np.array([], "S")})
    assert all(value.shape == (0,) for value in answer.values())


def test_what_is_no_text_is_refused(loaded):
    with pytest.raises(tf.errors.InvalidArgumentError, match="prompts: it must be valid UTF-8"):
        ask(loaded, "generate", prompts=[b"\xff"])


def test_heads_without_a_cache_are_refused(tmp_path):
    from rt_keras.layers import HashedHeads

    with pytest.raises(ValueError, match="needs heads that decode with a cache"):
        export_saved_model(llama(tmp_path, HashedHeads(4, 2, 4)), tmp_path / "model")
    assert not list((tmp_path / "model").iterdir())


ALONE = """
import json, sys
for name in ("rt_keras", "keras_hub"):
    sys.modules[name] = None
import tensorflow as tf, tensorflow_text
loaded = tf.saved_model.load(sys.argv[1])
prompts = tf.constant(json.loads(sys.argv[2]))
texts = loaded.generate(prompts, max_new_tokens=12, top_k=1)["texts"].numpy()
scores = loaded.score_text(prompts)["log_probability"].numpy()
print(json.dumps([[text.decode() for text in texts], scores.tolist()]))
"""


def check_in_another_process(path, texts, scores):
    """Asserts that a SavedModel gives these outputs without rt_keras."""
    arguments = [sys.executable, "-c", ALONE, str(path), json.dumps(PROMPTS)]
    result = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout.splitlines()[-1])
    assert found[0] == texts
    np.testing.assert_allclose(found[1], scores["log_probability"], rtol=1e-4)


def test_it_runs_where_rt_keras_is_not_installed(adapted, exported):
    texts = [expected_text(adapted, prompt, 12) for prompt in PROMPTS]
    check_in_another_process(exported, texts, text_scoring_function(adapted)(tf.constant(PROMPTS)))
    foreign = json.loads((Path(exported) / "assets.extra" / "foreign_ops.json").read_text())
    assert all("TensorFlow Text" in reason for reason in foreign.values())


def test_clients_are_answered(loaded, exported, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parent.parent.parent / "export")
    import client_grpc
    import client_rest

    inputs = {"prompts": PROMPTS[:2], "max_new_tokens": 9, "top_k": 1}
    expected = ask(loaded, "generate", **inputs)["texts"].tolist()
    with server.serving(exported) as addresses:
        for client, address in zip((client_grpc, client_rest), addresses):
            found = client.predict(address, "generate", inputs)["texts"]
            assert [x if isinstance(x, bytes) else x.encode() for x in found] == expected
