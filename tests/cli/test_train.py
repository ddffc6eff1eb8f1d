import json
import re

import pytest

from tests.cli.checks import assert_one_line, overrides


@pytest.mark.slow
def test_one_file_is_split_trained_on_resumed_and_scored(run, tiny_settings, tmp_path):
    file, folder, figures = tmp_path / "a book", tmp_path / "run", tmp_path / "figures.json"
    file.write_text("".join(f"the café opens at {hour}.\n" for hour in range(200)))
    settings = {**tiny_settings, "data.data_dir": tmp_path / "prepared"}
    # `--data` names them.
    del settings["data.name"], settings["data.directory"]
    train = ["train", "--config", "books", *overrides(settings), "--data", file]
    train += ["--output", folder]
    status, output, error = run(*train, "--json", figures)
    assert status == 0 and json.loads(figures.read_text())["steps"] == 4, error
    header, note, *epochs, trained, best, _ = output.splitlines()
    assert re.fullmatch(
        r"training [\d,]+ parameters \(causal_lm\) on text_file: 4 steps of 2 x 32 tokens, "
        "validated every 2",
        header,
    )
    split = "split by position: first 90% of a book for training, next 5% for validation, last 5%"
    assert note.startswith(split)
    # Keras's lines for files.
    assert epochs[::2] == ["Epoch 1/2", "Epoch 2/2"]
    assert all(line.startswith("2/2 - ") and "val_nats_per_token" in line for line in epochs[1::2])
    assert trained.startswith("trained for 4 steps in ") and "nats per token" in best
    log = (folder / "log.csv").read_bytes()
    for resume in ("--resume", "--resume=auto"):
        status, output, error = run(*train, resume)
        assert status == 0 and "nothing left to train" in output and best in output, error
        assert "trained for" not in output and (folder / "log.csv").read_bytes() == log
    for data in ([], ["--data", file]):
        status, output, error = run("evaluate", "--model", folder, *data)
        assert status == 0 and split in output and "the test split of text_file" in output, error
    with file.open("a") as more:
        more.write("more")
    assert_one_line(*run(*train, "--resume")[::2], "training data have changed", "a book is")
