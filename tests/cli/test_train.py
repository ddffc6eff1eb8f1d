import json
import re
import shutil

import numpy as np
import pytest
import tensorflow as tf

from rt_keras.layers.key_sets import Persistent, Strided, Window
from rt_keras.training.experiment import load_model
from tests.cli.checks import assert_one_line, overrides


@pytest.mark.end_to_end
def test_a_run_is_trained_refused_and_resumed(run, tiny_settings, tmp_path):
    folder, figures = tmp_path / "run", tmp_path / "figures.json"
    train = ["train", "--config", "books", *overrides(tiny_settings), "--output", folder]
    status, output, error = run(*train, "--json", figures)
    assert status == 0 and json.loads(figures.read_text())["steps"] == 4
    header, first, second, trained, best, _ = output.splitlines()
    assert re.fullmatch(
        r"training [\d,]+ parameters \(causal_lm\) on text_folder: 4 steps of 2 x 32 tokens, "
        "validated every 2",
        header,
    )
    assert first.startswith("step 2 of 4: loss ") and " left" in first
    assert second.startswith("step 4 of 4: loss ") and ", validation nats per token " in second
    assert trained.startswith("trained for 4 steps in ") and "nats per token" in best
    assert "compiling" in error.splitlines() and "\r" not in error and "\x1b" not in error

    status, _, error = run(*train)
    assert_one_line(status, error, "already holds a run", "--resume", "--overwrite")
    status, output, _ = run("train", "--resume", "--output", folder)
    assert status == 0 and "nothing left to train" in output and "tokens/s" not in output
    status, output, _ = run(*train, "--resume=auto")
    assert status == 0 and "nothing left to train" in output


UNION = """
model:
  union:
    num_heads: 4
    window: {block_size: 8}
    strided: {stride: 6}
    persistent: {num_persistent_keys: 3}
"""


@pytest.mark.end_to_end
def test_a_union_of_sets_of_keys_from_a_file_to_a_served_model(run, tiny_settings, tmp_path):
    file, folder = tmp_path / "union.yaml", tmp_path / "run"
    file.write_text(UNION)
    others = {
        key: value
        for key, value in tiny_settings.items()
        if not key.startswith(("model.local", "model.routing"))
    }
    settings = {**others, "model.union.strided.stride": 5, "trainer.steps": 2}
    assert run("train", "--config", file, *overrides(settings), "--output", folder)[0] == 0
    model = load_model(folder)
    (heads,) = model.backbone.transformer_blocks[0].attention.head_groups
    assert heads.key_sets == (Window(8), Strided(5), Persistent(3))

    tokens = np.random.default_rng(0).integers(3, 250, [2, 32])
    tokens[:, 0] = model.preprocessor.tokenizer.start_token_id
    mask = np.ones_like(tokens, bool)
    logits = model({"token_ids": tokens, "padding_mask": mask})
    cache, found = model.new_cache(2, 32), []
    for start, end in ((0, 11), *((i, i + 1) for i in range(11, 20)), (20, 32)):
        chunk, _, cache = model.call_with_cache(tokens[:, start:end], cache, start)
        found.append(chunk)
    np.testing.assert_allclose(np.concatenate(found, axis=1), logits, rtol=0, atol=1e-4)

    assert run("evaluate", "--model", folder)[0] == 0
    written = run("generate", "--model", folder, "--prompt", "a", "--max-length", 8)
    assert written[0] == 0
    assert run("export", "--model", folder, "--output", tmp_path / "exported")[0] == 0
    served = tf.saved_model.load(str(tmp_path / "exported" / "1"))
    scores = served.signatures["score"](ids=tf.constant(tokens[:, 1:], tf.int32))
    expected = tf.nn.log_softmax(tf.cast(logits, tf.float32))[:, :-1]
    expected = np.take_along_axis(expected.numpy(), tokens[:, 1:, None], axis=2)[..., 0]
    np.testing.assert_allclose(scores["log_probabilities"], expected, rtol=0, atol=1e-4)


def as_of_a_file(settings):
    """The `--set` arguments of the settings without their data, which `--data` names."""
    left_out = ("data.name", "data.directory")
    return overrides({key: value for key, value in settings.items() if key not in left_out})


@pytest.mark.end_to_end
def test_one_file_is_split_trained_on_resumed_and_scored(run, tiny_settings, tmp_path):
    file, folder = tmp_path / "a book", tmp_path / "run"
    file.write_text("".join(f"the café opens at {hour}.\n" for hour in range(200)))
    settings = as_of_a_file({**tiny_settings, "data.data_dir": tmp_path / "prepared"})
    train = ["train", "--config", "books", *settings, "--data", file, "--output", folder]
    status, output, error = run(*train)
    assert status == 0, error
    note = "split by position: first 90% of a book for training, next 5% for validation, last 5%"
    assert [line for line in output.splitlines() if line.startswith(note)]
    assert "on text_file: 4 steps" in output and (folder / "model").is_dir()
    status, output, error = run(*train, "--resume")
    assert status == 0 and "nothing left to train" in output, error
    for data in ([], ["--data", file]):
        status, output, error = run("evaluate", "--model", folder, *data)
        assert status == 0 and note in output and "the test split of text_file" in output, error
    with file.open("a") as more:
        more.write("more")
    assert_one_line(*run(*train, "--resume")[::2], "training data have changed", "a book has")


@pytest.mark.parametrize(
    "data, parts",
    [
        (["--data", "no/such.txt"], ["no/such.txt", "no such folder or text file"]),
        (["--data", "pg91"], ["'pg91'", "or a folder or text file"]),
        (
            ["--data", "pg19", "--set", "data.directory=x"],
            ["--data and --set data.directory=x are mutually exclusive"],
        ),
    ],
)
def test_bad_data_give_one_line(run, tmp_path, data, parts):
    status, _, error = run("train", "--config", "books", *data, "--output", tmp_path / "run")
    assert_one_line(status, error, *parts)
    assert not (tmp_path / "run").exists()


def test_a_folder_that_lacks_a_split_says_how_to_add_it(run, tiny_settings, books, tmp_path):
    shutil.copytree(books / "train", tmp_path / "texts" / "train")
    data = {"data.data_dir": tmp_path / "prepared", "data.directory": tmp_path / "texts"}
    given = overrides({**tiny_settings, **data})
    status, _, error = run("train", "--config", "books", *given, "--output", tmp_path / "run")
    assert_one_line(status, error, "texts needs a folder validation of .txt files")


@pytest.mark.parametrize(
    "settings, parts",
    [
        ({"optimizer.lerning_rate": 1}, ["lerning_rate", "optimizer.learning_rate"]),
        ({"optimizer.learning_rate": "fast"}, ["optimizer.learning_rate", "'fast'", "number"]),
        ({"model.hidden_dim": 15}, ["model.hidden_dim is 15", "multiple of 2"]),
        ({"model.routing.window_size": 64}, ["model.routing.window_size is 64", "only 32"]),
        ({"data.sequence_length": 8}, ["data.sequence_length is only 8", "one window"]),
        ({"model.routing.num_clusters": 0}, ["model.routing.num_clusters is 0", "at least 1"]),
        ({"data.directory": "no/such/folder"}, ["no/such/folder", "directory must exist"]),
        (
            {"optimizer.learning_rate": 1e30, "model.routing.num_heads": 0},
            ["the loss is nan at step", "last good checkpoint"],
        ),
    ],
)
def test_bad_settings_give_one_line(run, tiny_settings, tmp_path, settings, parts):
    given = overrides({**tiny_settings, **settings})
    status, _, error = run("train", "--config", "books", *given, "--output", tmp_path / "run")
    assert_one_line(status, error, *parts)


def test_an_empty_folder_gives_one_line(run, tiny_settings, tmp_path):
    (tmp_path / "empty").mkdir()
    given = overrides({**tiny_settings, "data.directory": tmp_path / "empty"})
    status, _, error = run("train", "--config", "books", *given, "--output", tmp_path / "run")
    assert_one_line(status, error, "empty", "must hold .txt files")


@pytest.mark.parametrize(
    "arguments, parts",
    [
        ([], ["--config is missing"]),
        (["--config", "bokos"], ["'bokos'", "books"]),
        (["--resume", "--config", "books"], ["no run to resume"]),
        (["--resume=auto"], ["--config is missing"]),
    ],
)
def test_bad_arguments_give_one_line(run, tmp_path, arguments, parts):
    status, _, error = run("train", *arguments, "--output", tmp_path)
    assert_one_line(status, error, *parts)
