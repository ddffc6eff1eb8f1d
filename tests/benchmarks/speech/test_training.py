import numpy as np
import pytest
import soundfile

from rt_keras.benchmarks.speech.kinds import REPLACEMENTS
from rt_keras.benchmarks.speech.training import copy_weights, train
from rt_keras.data import compute_sentence_piece_proto
from rt_keras.layers import LocalHeads
from rt_keras.models import RoutingTransformerSpeechBackbone

SETTINGS = {
    "seed": 0,
    "steps": 20,
    "layers": 1,
    "width": 16,
    "length": 64,
    "keys": 12,
    "batch": 1,
    "preset": None,
    "learning_rate": 1e-2,
}
TONES = {"la": 400, "do": 1200}


def write_speech(folder):
    """Writes tones with names, in a folder for each split."""
    time = np.arange(8_000) / 16_000
    for split in ("train", "validation", "test"):
        for number, (name, pitch) in enumerate(4 * list(TONES.items())):
            path = folder / split / f"{number}.wav"
            path.parent.mkdir(parents=True, exist_ok=True)
            soundfile.write(path, 0.3 * np.sin(2 * np.pi * pitch * time), 16_000)
            path.with_suffix(".txt").write_text(name)
    return folder


def write_vocabulary(path):
    path.write_bytes(compute_sentence_piece_proto([b"la do"] * 9, 300, characters=True))
    return path


@pytest.mark.end_to_end
def test_a_model_learns_and_other_heads_replace_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "prepared"))
    folder, vocabulary = write_speech(tmp_path / "speech"), write_vocabulary(tmp_path / "a.spm")
    settings = {**SETTINGS, "directory": str(folder), "vocabulary": str(vocabulary), "kind": "full"}
    reports = []
    found = train(settings, lambda *message: reports.append(message))
    assert found["nats"][-1] < found["nats"][0] and len(found["nats"]) == 20
    assert found["character_error_rate"] >= 0 and found["nats_per_text"] > 0
    assert set(found["swapped"]) == set(REPLACEMENTS)
    assert reports[-1][0] == "test" and reports[-1][1]["step"] == 20


def test_weights_of_other_sizes_are_refused():
    small, large = (
        RoutingTransformerSpeechBackbone(9, 1, width, 16, [LocalHeads(2, 4)], num_mel_bins=4)
        for width in (8, 16)
    )
    with pytest.raises(ValueError, match="--preset must hold a model of the same sizes"):
        copy_weights(small, large)
