import numpy as np
import pytest
import tensorflow as tf

import rt_keras
from rt_keras.layers import LocalHeads
from rt_keras.training.config import make_config
from rt_keras.training.evaluation import evaluate
from rt_keras.training.experiment import Experiment, load_model
from rt_keras.training.run import train
from rt_keras.training.tasks import task_of, task_of_kind
from tests.models.adapted.llama_folder import write_llama
from tests.training.tasks.checks import TINY_RUN, nats_of

TEXTS = ["the cat and the dog", "a café"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    adapted = rt_keras.adapt(write_llama(tmp_path_factory.mktemp("llama")), [LocalHeads(4, 8)])
    adapted.preprocessor.sequence_length = 12
    return adapted


@pytest.fixture(scope="module")
def preset(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapted")
    model.save_to_preset(folder)
    return folder


@pytest.fixture(scope="module")
def settings(preset, tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    text = "the cat and the dog sat on the mat, and then the end of it. " * 60
    (folder / "tale.txt").write_text(text)
    return {
        **TINY_RUN,
        "model.kind": "adapted_causal_lm",
        "model.preset": str(preset),
        "model.lora_rank": 2,
        "data.name": "text_file",
        "data.directory": str(folder / "tale.txt"),
        "data.data_dir": str(folder / "prepared"),
        "data.sequence_length": 12,
        "optimizer.learning_rate": 5e-2,
        "trainer.steps": 4,
        "trainer.validation_every": 2,
        "trainer.checkpoint_every": 2,
    }


@pytest.mark.slow
def test_sequences_of_training_begin_with_the_start_token(settings, model):
    experiment = Experiment(make_config(settings))
    inputs, labels, weights = next(iter(experiment.training_batches()))
    ids = inputs["token_ids"].numpy()
    assert ids.shape == (2, 12) and not weights.numpy()[:, 0].any()
    assert (ids[:, 0] == model.preprocessor.tokenizer.start_token_id).all()
    real = weights.numpy()[:, :-1] > 0
    np.testing.assert_array_equal(labels.numpy()[:, :-1][real], ids[:, 1:][real])


@pytest.mark.slow
def test_low_rank_updates_are_trained_and_saved(settings, model, tmp_path):
    config = make_config(settings)
    train(config, tmp_path, verbose=0)
    trained, moved = load_model(tmp_path), set()
    for original, found in zip(model.weights, trained.weights, strict=True):
        if np.abs(np.asarray(found) - np.asarray(original)).max() > 0:
            moved.add(original.path.split("/")[-2])
    assert moved == {"query", "value"}
    examples = Experiment(config).load_split("test")
    scores = [evaluate(x, examples, 1)["nats_per_token"] for x in (model, trained)]
    assert scores[1] < scores[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model.preset": None}, "model.preset must be set for kind adapted_causal_lm"),
        ({"model.num_layers": 3}, "model.num_layers is 3, but .* is that of model.preset"),
        ({"model.heads[0].num_heads": 3}, "model.heads is .* sets its heads"),
        ({"model.kind": "causal_lm"}, "model.lora_rank is 2, but a model of kind causal_lm"),
    ],
)
def test_wrong_settings_are_refused(settings, change, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        train(make_config({**settings, **change}), tmp_path / "run", verbose=0)


def test_only_adapted_models_are_accepted(settings, tiny_run, tmp_path):
    with pytest.raises(ValueError, match="holds a RoutingTransformerCausalLM, which is not"):
        train(make_config({**settings, "model.preset": str(tiny_run)}), tmp_path, verbose=0)


@pytest.mark.slow
@pytest.mark.parametrize("context", ["window", "sliding"])
def test_scores_are_those_of_sequences_after_a_start_token(model, context):
    tokenizer = model.preprocessor.tokenizer
    start, end = tokenizer.start_token_id, tokenizer.end_token_id
    assert start != end
    # One text, so that the boundaries of sequences are simple.
    text = " and ".join(TEXTS)
    stream = [start, *np.asarray(tokenizer(text)).tolist(), end]
    nats = nats_of(model, stream[:12]).sum()
    if context == "window":
        for first in range(11, len(stream) - 1, 11):
            nats += nats_of(model, [start, *stream[first : first + 12]])[1:].sum()
    else:
        # 6 of the 11 tokens after the start token are new.
        for first in range(6, len(stream) - 6, 6):
            nats += nats_of(model, [start, *stream[first : first + 12]])[6:].sum()
    scores = evaluate(model, tf.data.Dataset.from_tensors(text), 1, context=context)
    tokens, count = len(stream) - 1, len(text.encode())
    assert (scores["tokens"], scores["bytes"]) == (tokens, count)
    assert scores["nats_per_token"] == pytest.approx(nats / tokens, rel=1e-4)
    assert scores["bits_per_byte"] == pytest.approx(nats / np.log(2) / count, rel=1e-4)


def test_prompts_are_texts_that_fit(model):
    task = task_of(model)
    assert task is task_of_kind("adapted_causal_lm") and task.generates == "text"
    assert task.prompts(["café".encode()], model, 12) == ["café"]
    with pytest.raises(ValueError, match="prompt 1 must have at most 12 tokens"):
        task.prompts([b"a", b"a" * 12], model, 12)
    with pytest.raises(ValueError, match="prompt must be valid UTF-8"):
        task.prompts([b"\xff"], model, 12)
