import json

import numpy as np
import pytest
import soundfile

from rt_keras import models
from rt_keras.data import ByteTokenizer, sound_file
from rt_keras.layers import LocalHeads
from tests.cli.checks import assert_one_line

CHIRP = 0.5 * np.sin(np.arange(24_000, dtype="float32") ** 2 / 2e4)


def write_model(folder, kind, normalization):
    """Writes a small model, of the classes whose names have the kind in them."""
    make_backbone = getattr(models, f"RoutingTransformer{kind}Backbone")
    make_model = getattr(models, f"RoutingTransformer{kind}Recognizer")
    backbone = make_backbone(258, 1, 8, 16, [LocalHeads(2, 4)], num_mel_bins=8)
    converter = models.RoutingTransformerAudioConverter(8, normalization)
    preprocessor = models.RoutingTransformerSpeechRecognizerPreprocessor(ByteTokenizer(), converter)
    model = make_model(backbone, preprocessor)
    rng = np.random.default_rng(0)
    for weight in model.trainable_variables:
        weight.assign(weight + rng.normal(size=weight.shape))
    model.save_to_preset(folder)
    return folder


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    kinds = {"Speech": "clip", "StreamingSpeech": "fixed"}
    return [write_model(folder / kind, kind, x) for kind, x in kinds.items()]


@pytest.fixture
def sounds(tmp_path):
    """Two files, of which one has another rate."""
    soundfile.write(tmp_path / "a.flac", CHIRP, 16_000)
    soundfile.write(tmp_path / "b.wav", CHIRP, 8_000)
    return tmp_path / "a.flac", tmp_path / "b.wav"


@pytest.mark.end_to_end
def test_each_file_has_a_line(run, saved, sounds, tmp_path):
    command = ["transcribe", "--model", saved[0], *sounds, "--json", tmp_path / "texts.json"]
    status, output, _ = run(*command)
    texts = json.loads((tmp_path / "texts.json").read_text())["texts"]
    assert status == 0 and list(texts) == [str(sound) for sound in sounds]
    assert all(f"{sound}: {texts[str(sound)]}\n" in output for sound in sounds)
    assert run("transcribe", "--model", saved[0], sounds[0], "--beam-width", 4)[0] == 0


@pytest.mark.end_to_end
def test_a_streamed_text_is_that_of_the_whole_sound(run, saved, sounds):
    command = ["transcribe", "--model", saved[1], sounds[0]]
    whole = run(*command)[1].splitlines()[-1]
    assert whole and run(*command, "--stream")[1].splitlines()[-1] == whole


def test_sounds_are_read_one_after_another(run, saved, sounds, monkeypatch):
    calls = []

    def read(path):
        calls.append(path.name)
        return CHIRP

    def transcribe(self, x, beam_width):
        calls.append("transcribed")
        return ["text"]

    monkeypatch.setattr(sound_file, "read_sound", read)
    monkeypatch.setattr(models.RoutingTransformerSpeechRecognizer, "transcribe", transcribe)
    assert run("transcribe", "--model", saved[0], *sounds)[0] == 0
    assert calls == ["a.flac", "transcribed", "b.wav", "transcribed"]


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (["SOUND", "no.wav"], ["no.wav does not exist"]),
        ([__file__], ["not a sound"]),
        (["SOUND", "--stream"], ["--stream needs a model of kind streaming_ctc; it is ctc"]),
        (["SOUND", "--beam-width", 0], ["--beam-width must be at least 1. Received: 0"]),
    ],
)
def test_wrong_use_is_refused_in_one_line(run, saved, sounds, options, parts):
    options = [sounds[0] if option == "SOUND" else option for option in options]
    status, _, error = run("transcribe", "--model", saved[0], *options)
    assert_one_line(status, error, *parts)


def test_a_model_of_texts_cannot_hear(run, tiny_run, sounds):
    status, _, error = run("transcribe", "--model", tiny_run, sounds[0])
    assert_one_line(status, error, "not one of speech")
