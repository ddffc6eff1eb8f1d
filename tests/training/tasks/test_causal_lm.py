from pathlib import Path

import numpy as np
import pytest

from rt_keras.data import ByteTokenizer
from rt_keras.training.config import make_config
from rt_keras.training.experiment import Experiment
from rt_keras.training.tasks import task_of_kind
from tests.training.tasks.checks import assert_batches_are_as_specified

TASK = task_of_kind("causal_lm")


def test_batches_are_as_specified(tiny_settings):
    assert_batches_are_as_specified(make_config(tiny_settings))


@pytest.fixture
def folder(tiny_settings, tmp_path):
    """Keys of a configuration that reads a folder of two files."""
    for split in ("train", "test"):
        (tmp_path / "texts" / split).mkdir(parents=True)
        (tmp_path / "texts" / split / "1.txt").write_text("the fox " * 20)
    return {
        **tiny_settings,
        "data.name": "text_folder",
        "data.directory": str(tmp_path / "texts"),
        "data.data_dir": str(tmp_path / "prepared"),
    }


def test_a_split_without_text_is_named(folder, tmp_path):
    experiment = Experiment(make_config(folder))
    for split in ("train", "test"):
        for name in ("1.txt", "2.txt"):
            (tmp_path / "texts" / split / name).write_text("")
        with pytest.raises(ValueError, match=f"the {split} split of text_folder has no text: all "):
            experiment.load_split(split)
        (tmp_path / "texts" / split / "2.txt").write_text("the end")
        experiment.load_split(split)
    (tmp_path / "texts" / "train" / "2.txt").write_text("")
    with pytest.raises(ValueError, match="the train split of text_folder has no text: all of its"):
        experiment.training_batches()


def packed_folders(settings):
    """The packed folders after creating batches of a configuration."""
    Experiment(make_config(settings)).training_batches()
    return sorted(Path(settings["data.data_dir"]).glob("text_folder/texts-*/packed-train-*"))


@pytest.fixture
def words(word_piece_vocabulary, tmp_path):
    """Keys of a configuration with another tokenizer."""
    (tmp_path / "words").write_text("\n".join(word_piece_vocabulary))
    return {"tokenizer.name": "word_piece", "tokenizer.vocabulary": str(tmp_path / "words")}


def test_a_split_is_packed_once_for_its_documents_and_vocabulary(folder, words):
    (packed,) = packed_folders(folder)
    assert np.load(packed / "00000.npy").tolist() == [1, *ByteTokenizer()("the fox " * 20).numpy()]
    assert (packed.parent / "1.0.0").is_dir()
    # Neither the length nor the seed matters.
    others = {"data.sequence_length": 64, "trainer.seed": 5}
    assert packed_folders({**folder, **others}) == [packed]
    assert len(packed_folders({**folder, **words})) == 2
    Path(folder["data.directory"], "train", "1.txt").write_text("the dog")
    assert len(packed_folders(folder)) == 3


def test_data_named_by_a_user(books):
    assert TASK.data_named("pg19") == {"name": "pg19"}
    assert TASK.data_named(str(books)) == {"name": "text_folder", "directory": str(books)}
    file = str(books / "train" / "0.txt")
    assert TASK.data_named(file) == {"name": "text_file", "directory": file}
    with pytest.raises(FileNotFoundError, match="is no/such; there is no such folder or text file"):
        TASK.data_named("no/such")
    with pytest.raises(ValueError, match="--data is 'pg91'; .* pg19, .* or a folder or text file"):
        TASK.data_named("pg91")


def test_scores_are_of_bytes_and_words():
    scores = TASK.scores({"nats": 12.0, "labels": 6.0}, counts={"bytes": 3, "words": 2})
    assert list(scores) == [name for name, _ in TASK.units]
    assert scores["nats_per_token"] == 2.0
    assert scores["bits_per_byte"] == pytest.approx(12 / 0.6931472 / 3)
    assert scores["perplexity_per_word"] == pytest.approx(403.4288)


def test_text_must_be_utf8_for_a_tokenizer_that_needs_it(folder, words):
    Path(folder["data.directory"], "test", "1.txt").write_bytes(b"caf\xe9")
    Experiment(make_config(folder)).load_split("test")
    with pytest.raises(ValueError, match="1.txt is not UTF-8 text"):
        Experiment(make_config({**folder, **words})).load_split("test")
