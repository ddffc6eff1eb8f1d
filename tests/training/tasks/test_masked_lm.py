"""Masked language models, from a configuration to a score."""

import math

import numpy as np
import pytest

from rt_keras.cli import main
from rt_keras.training.config import make_config
from rt_keras.training.evaluation import evaluate
from rt_keras.training.experiment import Experiment
from rt_keras.training.run import train
from tests.training.tasks.checks import assert_batches_are_as_specified


@pytest.fixture(scope="module")
def settings(tiny_settings):
    return {**tiny_settings, "model.kind": "masked_lm", "data.mask_rate": 0.25}


def test_batches_are_as_specified_and_start_at_any_step(settings):
    config = make_config(settings)
    assert_batches_are_as_specified(config)
    whole, later = (
        [labels for _, labels, _ in Experiment(config).training_batches(step).take(2)]
        for step in (0, 1)
    )
    np.testing.assert_array_equal(whole[1], later[0])


def test_a_new_model_scores_as_chance_does(settings):
    experiment = Experiment(make_config(settings))
    model = experiment.make_model()
    assert model.backbone.vocabulary_size == 259
    model.backbone.token_embedding.embeddings.assign(
        np.zeros(model.backbone.token_embedding.embeddings.shape)
    )
    model.preprocessor = experiment.preprocessor
    scores = evaluate(model, experiment.load_split("test"))
    assert scores["nats_per_token"] == pytest.approx(math.log(259), rel=1e-5)
    # A quarter of the tokens, counted once; all logits are equal, so the first token is likeliest.
    assert scores["tokens"] == pytest.approx(scores["bytes"] / 4, rel=0.05)
    assert scores["accuracy"] == 0.0


def test_keys_of_other_tasks_are_refused(settings):
    with pytest.raises(ValueError, match="loss_chunk_size is 4, but a model of kind masked_lm"):
        make_config({**settings, "model.loss_chunk_size": 4})
    with pytest.raises(ValueError, match="mask_rate is 0.2.* of kind causal_lm does not use"):
        make_config({"data.mask_rate": 0.2})


@pytest.mark.end_to_end
def test_a_run_learns_is_scored_and_starts_another(settings, tmp_path, capsys):
    config = make_config({**settings, "model.tie_embeddings": False, "trainer.steps": 40})
    train(config, tmp_path / "first", verbose=0)
    command = ["evaluate", "--model", str(tmp_path / "first")]
    assert main([*command, "--json", str(tmp_path / "scores.json")]) == 0
    assert "accuracy" in capsys.readouterr().out
    assert "val_accuracy" in (tmp_path / "first" / "log.csv").read_text().partition("\n")[0]
    again = {**settings, "model.tie_embeddings": False, "model.preset": str(tmp_path / "first")}
    figures = train(make_config(again), tmp_path / "second", verbose=0)
    # The loss of the first model began at log 259, about 5.6.
    assert figures["validation_nats_per_token"] < 4.5
    different = {**again, "model.intermediate_dim": 32}
    with pytest.raises(ValueError, match="model.preset is .* with other weights: .*kernel"):
        train(make_config(different), tmp_path / "third", verbose=0)
    assert not (tmp_path / "third" / "config.yaml").exists()
