import numpy as np
import pytest
import soundfile

from rt_keras.benchmarks import speech
from rt_keras.benchmarks.speech.kinds import REPLACEMENTS
from rt_keras.benchmarks.speech.training import train
from rt_keras.data import compute_sentence_piece_proto
from tests.benchmarks.checks import parse, rows, train_here

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


@pytest.mark.weekly
def test_a_model_learns_and_other_heads_replace_its_own(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "prepared"))
    train_here(monkeypatch, speech, train)
    others = {"local": REPLACEMENTS["local"]}
    monkeypatch.setattr("rt_keras.benchmarks.speech.training.REPLACEMENTS", others)
    vocabulary = tmp_path / "a.spm"
    vocabulary.write_bytes(compute_sentence_piece_proto([b"la do"] * 9, 300, characters=True))
    paths = {"directory": write_speech(tmp_path / "speech"), "vocabulary": vocabulary}
    small = {"steps": 20, "layers": 1, "width": 16, "length": 64, "keys": 12, "batch": 1}
    args = parse(speech, **paths, **small, learning_rate=1e-2, kinds="full")
    (found,) = speech.main(args)["figures"]
    assert found["nats"][-1] < found["nats"][0] and set(found["swapped"]) == {"local"}
    errors = [f"{found[f'{x}_error_rate']:.3f}" for x in ("character", "word")]
    row = ["full", errors[0], "-", errors[1], "-", f"{found['weights']:,}"]
    assert row in [words[:6] for words in rows(capsys)]
