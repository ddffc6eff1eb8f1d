"""Text classifiers, from a configuration to a score."""

import numpy as np
import pytest

from rt_keras.training import experiment
from rt_keras.training.config import make_config
from rt_keras.training.run import train
from tests.training.tasks.checks import TINY, assert_batches_are_as_specified


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    """Keys of a configuration whose texts are good or bad."""
    folder = tmp_path_factory.mktemp("reviews")
    for split, count in (("train", 24), ("validation", 6), ("test", 5)):
        lines = [f"{('bad', 'good')[n % 2]} {split} {n},{n % 2}" for n in range(count)]
        (folder / f"{split}.csv").write_text("\n".join(["text,label", *lines]) + "\n")
    return {
        **TINY,
        "model.kind": "text_classifier",
        "data.name": "csv_folder",
        "data.directory": str(folder),
        "data.data_dir": str(folder / "prepared"),
        "data.sequence_length": 16,
    }


def test_batches_are_as_specified(settings):
    assert_batches_are_as_specified(make_config(settings))


@pytest.mark.weekly
def test_a_classifier_starts_from_a_masked_language_model(settings, tiny_settings, tmp_path):
    of_texts = {name: value for name, value in tiny_settings.items() if name.startswith("data.")}
    steps = {"trainer.steps": 2, "trainer.validation_every": 2}
    masked = {**settings, **of_texts, **steps, "model.kind": "masked_lm"}
    train(make_config(masked), tmp_path / "masked", verbose=0)
    config_keys = {**settings, **steps, "model.preset": str(tmp_path / "masked")}
    config = make_config(config_keys)
    model = experiment.Experiment(config).make_model()
    experiment.start_from(model, config.model.preset)
    trained = experiment.load_model(tmp_path / "masked").backbone
    for own, theirs in zip(model.backbone.weights, trained.weights, strict=True):
        np.testing.assert_array_equal(own, theirs)
    assert train(config, tmp_path / "run", verbose=0)["steps"] == 2
    other = {**config_keys, "model.intermediate_dim": 32}
    with pytest.raises(ValueError, match="model.preset is .* with other weights: .*kernel"):
        train(make_config(other), tmp_path / "third", verbose=0)
    assert not (tmp_path / "third" / "config.yaml").exists()
