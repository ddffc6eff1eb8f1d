"""Text classifiers, from a configuration to a score."""

import numpy as np
import pytest

from rt_keras.cli import main
from rt_keras.training import experiment
from rt_keras.training.config import make_config
from rt_keras.training.run import train
from rt_keras.training.tasks import TASKS
from tests.training.tasks.checks import TINY, assert_batches_are_as_specified

TASK = TASKS["text_classifier"]


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
    config = make_config(settings)
    assert_batches_are_as_specified(config)


def test_labels_must_be_of_the_models_classes(settings):
    config = make_config({**settings, "model.num_classes": 1})
    with pytest.raises(ValueError, match="from 0 to 0, as model.num_classes is 1"):
        experiment.Experiment(config).training_batches()


def test_data_named_by_a_user(settings):
    folder = settings["data.directory"]
    assert TASK.data_named("glue/rte") == {"name": "glue/rte"}
    assert TASK.data_named(folder) == {"name": "csv_folder", "directory": folder}
    with pytest.raises(ValueError, match="--data is .*train.csv.* or a folder$"):
        TASK.data_named(f"{folder}/train.csv")
    with pytest.raises(ValueError, match="data.name is 'pg19'; for kind text_classifier it must"):
        make_config({**settings, "data.name": "pg19"})


@pytest.mark.end_to_end
def test_a_classifier_starts_from_a_masked_language_model(settings, tiny_settings, tmp_path):
    of_texts = {name: value for name, value in tiny_settings.items() if name.startswith("data.")}
    masked = {**settings, **of_texts, "model.kind": "masked_lm"}
    train(make_config(masked), tmp_path / "masked", verbose=0)
    config = make_config(
        {**settings, "model.preset": str(tmp_path / "masked"), "trainer.steps": 60}
    )
    model = experiment.Experiment(config).make_model()
    experiment.start_from(model, config.model.preset)
    trained = experiment.load_model(tmp_path / "masked").backbone
    for own, theirs in zip(model.backbone.weights, trained.weights, strict=True):
        np.testing.assert_array_equal(own, theirs)
    train(config, tmp_path / "run", verbose=0)
    scores = tmp_path / "scores.json"
    assert main(["evaluate", "--model", str(tmp_path / "run"), "--json", str(scores)]) == 0
    assert '"accuracy": 1.0' in scores.read_text() and '"texts": 5' in scores.read_text()
