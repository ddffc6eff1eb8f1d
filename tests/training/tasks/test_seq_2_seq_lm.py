"""Encoder-decoders, from a configuration to scores and generated texts."""

import math

import pytest

from rt_keras.cli import main
from rt_keras.training import experiment
from rt_keras.training.config import make_config
from rt_keras.training.evaluation import evaluate
from rt_keras.training.run import train
from rt_keras.training.tasks import task_of_kind
from tests.training.tasks.checks import TINY, assert_batches_are_as_specified

pytestmark = pytest.mark.slow

TASK = task_of_kind("seq_2_seq_lm")

LOCAL = {"class": "LocalHeads", "num_heads": 1, "block_size": 8}


@pytest.fixture(scope="module")
def of_pairs(tmp_path_factory):
    """A configuration of an encoder-decoder, and the folder of its run."""
    folder = tmp_path_factory.mktemp("pairs")
    for split, count in (("train", 8), ("validation", 3), ("test", 3)):
        lines = [f"{split} {number}" for number in range(count)]
        (folder / f"{split}.source").write_text("\n".join(lines) + "\n")
        (folder / f"{split}.target").write_text("\n".join(lines).upper() + "\n")
    config = make_config(
        {
            **TINY,
            "trainer.steps": 2,
            "trainer.validation_every": 2,
            "model.kind": "seq_2_seq_lm",
            "model.num_encoder_layers": 1,
            "model.heads": [LOCAL],
            "model.cross_heads": [{**LOCAL, "key_block_size": 12}],
            "data.name": "pairs_folder",
            "data.directory": str(folder),
            "data.data_dir": str(folder / "prepared"),
            "data.sequence_length": 16,
            "data.encoder_sequence_length": 24,
        }
    )
    train(config, folder / "run", verbose=0)
    return config, folder / "run"


def test_a_folder_is_read_as_the_data_set_in_use_is(tmp_path):
    for used, name in ((None, "pairs_folder"), ("parallel_documents", "parallel_documents")):
        found = TASK.data_named(str(tmp_path), used)
        assert found == {"name": name, "directory": str(tmp_path)}


def test_batches_are_as_specified(of_pairs):
    assert_batches_are_as_specified(of_pairs[0])


def test_an_encoder_decoder_is_scored_by_its_second_text(of_pairs):
    config, run = of_pairs
    model = experiment.load_model(run)
    pairs = TASK.load_split(config.data, "test")
    scores = evaluate(model, pairs, batch_size=2)
    texts = [pair["decoder_text"] for pair in pairs.as_numpy_iterator()]
    assert scores["documents"] == 3 and scores["tokens"] == sum(len(text) + 1 for text in texts)
    assert scores["perplexity_per_token"] == pytest.approx(math.exp(scores["nats_per_token"]))


def test_the_command_line_writes_texts(of_pairs):
    _, run = of_pairs
    command = ["generate", "--model", str(run), "--prompt", "test 1", "--max-length", "9"]
    assert main(command) == 0
