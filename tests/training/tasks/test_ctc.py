"""Speech recognizers, from a configuration to scores."""

import itertools
import json

import jiwer
import keras
import numpy as np
import pytest
import tensorflow as tf

from rt_keras.cli import main
from rt_keras.data.wav import encode_wav, wav_samples
from rt_keras.training import experiment
from rt_keras.training.batches import validation_batches
from rt_keras.training.config import make_config
from rt_keras.training.run import train
from rt_keras.training.tasks import task_of_kind
from tests.training.tasks.checks import TINY, assert_batches_are_as_specified, new_model

TASK = task_of_kind("ctc")
# Positions of 40 ms in a recording.
POSITIONS = 8


def write_tones(folder, tones, **counts):
    """Writes recordings of texts, each of which is a tone, in a folder for each split."""
    times = np.arange(POSITIONS * 640) / 16_000
    for split, count in counts.items():
        (folder / split).mkdir(parents=True)
        for number, (text, hertz) in zip(range(count), itertools.cycle(tones.items())):
            sound = 0.1 * (number + 1) * np.sin(2 * np.pi * hertz * times)
            (folder / split / f"{number}.wav").write_bytes(encode_wav(sound, 16_000))
            (folder / split / f"{number}.txt").write_text(text)
    return folder


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    """Keys of a configuration whose recordings are low or high tones."""
    folder = tmp_path_factory.mktemp("tones")
    write_tones(folder, {"ab": 300, "c d": 2000}, train=8, validation=2, test=3)
    return {
        **TINY,
        "model.kind": "ctc",
        "model.speech.num_mel_bins": 8,
        "model.speech.time_mask_width": 4,
        "model.speech.frequency_mask_width": 2,
        "data.name": "speech_folder",
        "data.directory": str(folder),
        "data.data_dir": str(folder / "prepared"),
        "data.sequence_length": 10,
    }


def perturbed_model(settings):
    """Returns an experiment, and its model with weights like trained ones."""
    made, model = new_model(settings)
    for weight in model.trainable_variables:
        weight.assign(weight + 0.3 * np.random.default_rng(0).normal(size=weight.shape))
    return made, model


@pytest.mark.slow
@pytest.mark.parametrize("keys", [{}, {"data.label_length": 3, "data.join_clips": True}])
def test_batches_are_as_specified(settings, keys):
    assert_batches_are_as_specified(make_config({**settings, **keys}))


def test_the_preprocessor_fits_the_model(settings):
    made, model = perturbed_model({**settings, "data.label_length": 7})
    assert type(model) is TASK.model_class and model.backbone.num_mel_bins == 8
    assert (made.preprocessor.sequence_length, made.preprocessor.label_length) == (10, 7)
    assert made.task.length(made) == 10


def test_recordings_are_joined_to_fill_sequences(settings):
    three = {"data.sequence_length": 3 * POSITIONS + 1, "data.join_clips": True}
    made = experiment.Experiment(make_config({**settings, **three}))
    recordings = made.load_split("train").as_numpy_iterator()
    counts = [len(wav_samples(recording["sound"])) for recording in recordings]
    assert counts == [x * POSITIONS * 640 for x in (3, 3, 2)]


def test_only_training_hears_other_speeds(settings):
    keys = {"data.speed_perturbation": 0.2, "data.sequence_length": 2 * POSITIONS}
    made = experiment.Experiment(make_config({**settings, **keys}))
    counts = {
        split: [len(wav_samples(x["sound"])) / 640 for x in examples.as_numpy_iterator()]
        for split in ("train", "test")
        for examples in [made.load_split(split)]
    }
    assert counts["test"] == [POSITIONS] * 3
    whole, slow, fast = POSITIONS, POSITIONS / 0.8, POSITIONS / 1.2
    np.testing.assert_allclose(counts["train"], [slow] * 8 + [whole] * 8 + [fast] * 8, rtol=1e-3)


@pytest.mark.slow
def test_figures_are_the_losses_of_keras(settings):
    made, model = perturbed_model(settings)
    examples = made.load_split("test")
    # The last batch has one recording.
    _, (inputs, labels, weights) = made.task.evaluation_batches(
        model, examples, batch_size=2, preprocessor=made.preprocessor
    )
    found = made.task.figures(model, inputs, labels)
    assert weights.numpy().tolist() == [1, 0] and list(found) == ["nats"]
    loss = keras.losses.CTC(reduction=None)
    np.testing.assert_allclose(found["nats"], loss(labels, model(inputs)), rtol=1e-4)
    metric = made.task.loss_metric()
    metric.update_state(labels, model(inputs), sample_weight=weights)
    assert float(metric.result()) == pytest.approx(float(found["nats"][0]), rel=1e-5)
    assert made.task.scores({"nats": 6.0, "labels": 4.0}, {}) == {"nats_per_text": 1.5}


# The second recordings are longer than the sequences in training, and heard in windows.
@pytest.mark.slow
@pytest.mark.parametrize("seconds", [None, 3])
def test_errors_of_texts_are_counted_over_all_recordings(settings, seconds):
    made, model = perturbed_model(settings)
    # Without a bias to bytes that are no letters, most of the output would not be UTF-8.
    letters = np.isin(np.arange(258), [0, 34, *range(ord("a") + 2, ord("g") + 2)])
    model.output_dense.bias.assign(np.where(letters, 0.0, -100.0))
    examples = made.load_split("test")
    if seconds:
        noise = np.random.default_rng(0).uniform(-1, 1, [3, 16_000 * seconds])
        sounds = [encode_wav(sound, 16_000) for sound in noise]
        examples = tf.data.Dataset.from_tensor_slices({"sound": sounds, "text": ["a b c d"] * 3})
    found = made.task.text_scores(model, examples, 2, made.preprocessor)
    recordings = list(examples.as_numpy_iterator())
    texts = [model.transcribe([x["sound"]])[0] for x in recordings]
    references = [x["text"].decode() for x in recordings]
    for name, rate in (("character_error_rate", jiwer.cer), ("word_error_rate", jiwer.wer)):
        assert found[name] == pytest.approx(rate(references, texts)) and found[name] > 0


@pytest.mark.slow
def test_a_split_without_recordings_that_fit_is_named(settings):
    made, model = perturbed_model({**settings, "data.label_length": 1})
    with pytest.raises(ValueError, match="validation split of speech_folder has no recordings"):
        validation_batches(made, model, model.distribute_strategy)


@pytest.mark.slow
def test_a_run_with_buckets_and_speeds_learns_and_is_scored(settings, tmp_path, capsys):
    keys = {"data.num_buckets": 3, "data.speed_perturbation": 0.1}
    longer = {"trainer.steps": 40, "trainer.validation_every": 20}
    train(make_config({**settings, **longer, **keys}), tmp_path / "run", verbose=0)
    assert "val_character_error_rate" in (tmp_path / "run" / "log.csv").read_text()
    command = ["evaluate", "--model", str(tmp_path / "run"), "--json", str(tmp_path / "scores")]
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert "nats per text" in shown and "word error rate" in shown
    scores = json.loads((tmp_path / "scores").read_text())
    assert scores["recordings"] == scores["texts"] == 3
    # A new model has about 40.
    assert scores["nats_per_text"] < 10
