import shutil
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from rt_keras.training import experiment
from rt_keras.training.config import TokenizerConfig, make_config
from rt_keras.training.experiment import Experiment
from rt_keras.training.tokenizer import make_tokenizer


@pytest.mark.parametrize("kind", ["Adam", "AdamW", "Adafactor"])
def test_optimizers_take_their_settings_and_follow_the_schedule(kind):
    name = kind.lower()
    keys = {"name": name, "learning_rate": 0.5, "weight_decay": 0.01, "global_clipnorm": 2.0}
    settings = {f"optimizer.{key}": value for key, value in keys.items()}
    optimizer = experiment.make_optimizer(make_config({**settings, "schedule.warmup_steps": 10}))
    assert type(optimizer) is getattr(keras.optimizers, kind)
    assert (optimizer.weight_decay, optimizer.global_clipnorm) == (0.01, 2.0)
    weight = keras.Variable([1.0])
    optimizer.build([weight])
    for _ in range(5):
        optimizer.apply([tf.constant([1e-3])])
    assert float(optimizer.learning_rate) == pytest.approx(0.25)
    assert float(weight[0]) < 1.0
    config = make_config({"optimizer.name": name, "optimizer.global_clipnorm": None})
    optimizer = experiment.make_optimizer(config)
    assert not optimizer.weight_decay and optimizer.global_clipnorm is None


def test_a_tokenizer_is_made_of_its_file(tmp_path, sentence_piece_model):
    (tmp_path / "model").write_bytes(sentence_piece_model)
    section = TokenizerConfig(name="sentence_piece", vocabulary=str(tmp_path / "model"))
    assert make_tokenizer(section).vocabulary_size() == 34


def test_a_vocabulary_is_at_least_the_tokenizers():
    assert Experiment(make_config({})).vocabulary_size == 258
    given = Experiment(make_config({"model.vocabulary_size": 300}))
    assert given.vocabulary_size == 300 and given.preprocessor.tokenizer.vocabulary_size() == 258
    small = Experiment(make_config({"model.vocabulary_size": 100}))
    with pytest.raises(ValueError, match="vocabulary_size is 100; .* must be at least 258"):
        assert small.preprocessor
    # A vocabulary of a given size need not be there.
    words = {"tokenizer.name": "words", "tokenizer.vocabulary": "no/such.txt"}
    absent = Experiment(make_config({**words, "model.vocabulary_size": 100}))
    assert absent.make_model().backbone.vocabulary_size == 100


def test_a_folder_without_a_model_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="neither a run nor a preset"):
        experiment.load_model(tmp_path)
    (tmp_path / "config.yaml").write_text("")
    with pytest.raises(FileNotFoundError, match="has not reached its first validation"):
        experiment.load_model(tmp_path)


@pytest.mark.parametrize(
    "name, size", [("task.json", 0), ("config.json", 0.5), ("model.weights.h5", 0.5)]
)
def test_a_damaged_model_is_named(tiny_run, tmp_path, name, size):
    shutil.copytree(tiny_run / "model", tmp_path / "model")
    path = tmp_path / "model" / name
    path.write_bytes(path.read_bytes()[: int(size * path.stat().st_size)])
    with pytest.raises(ValueError, match=f"model/{name} is damaged"):
        experiment.load_model(tmp_path)


def test_weights_of_another_model_are_refused(tiny_run, tmp_path):
    shutil.copytree(tiny_run / "model", tmp_path / "model")
    (tmp_path / "model" / "SHA256SUMS").unlink()
    for name in ("task.json", "config.json"):
        path = tmp_path / "model" / name
        path.write_text(path.read_text().replace('"hidden_dim": 16', '"hidden_dim": 18'))
    with pytest.raises(ValueError, match=f"{tmp_path}/model holds a model that cannot be loaded"):
        experiment.load_model(tmp_path)


def test_adafactor_is_that_of_tensor2tensor():
    golden = np.load(Path(__file__).parent.parent / "golden" / "t2t_adafactor.npz")
    keys = {"name": "adafactor", "learning_rate": 0.01, "global_clipnorm": None}
    schedule = {"schedule.name": "held_inverse_sqrt", "schedule.warmup_steps": 1500}
    config = make_config({f"optimizer.{key}": value for key, value in keys.items()} | schedule)
    names = ("matrix", "vector", "stack")
    variables = [keras.Variable(golden[f"start/{name}"]) for name in names]
    optimizer = experiment.make_optimizer(config)
    for step in range(6):
        gradients = [tf.constant(golden[f"step{step}/gradient/{name}"]) for name in names]
        optimizer.apply(gradients, variables)
        for name, variable in zip(names, variables):
            expected = golden[f"step{step}/value/{name}"]
            np.testing.assert_allclose(variable, expected, rtol=0, atol=1e-7)


def test_l2_is_of_all_weights_but_biases(tiny_settings):
    settings = {**tiny_settings, "model.heads[0].commitment_weight": 0.0}
    model = Experiment(make_config(settings)).make_model()
    for variable in model.trainable_variables:
        variable.assign(keras.ops.ones(variable.shape))
    experiment.add_l2(model, 0.5)
    model({name: keras.ops.ones([1, 16], "int32") for name in model.backbone.input})
    counted = [v for v in model.trainable_variables if not v.path.endswith("bias")]
    assert len(counted) < len(model.trainable_variables)
    expected = 0.25 * sum(np.prod(v.shape) for v in counted)
    assert float(sum(model.losses)) == pytest.approx(expected, rel=1e-5)
