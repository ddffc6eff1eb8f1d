import json

import pytest

from rt_keras.data import SentencePieceTokenizer
from tests.cli.checks import assert_one_line


@pytest.mark.weekly
def test_a_vocabulary_is_made_from_the_texts_of_the_training_split(run, tmp_path):
    line = {"question": "why, Zoe?", "answers": ["Yes"], "passages": ["Xerxes"], "negatives": []}
    (tmp_path / "train.jsonl").write_text(f"{json.dumps(line)}\n" * 3)
    path = tmp_path / "q.spm"
    command = ["vocabulary", "--config", "reader", "--data", tmp_path, "--output", path]
    command += ["--set", f"data.data_dir={tmp_path / 'prepared'}"]
    status, output, error = run(*command, "--size", 300)
    assert (status, output) == (0, f"wrote the vocabulary {path}\n"), error
    # Letters of a question, of a passage and of an answer.
    assert set("ZXY") <= set("".join(SentencePieceTokenizer(str(path)).get_vocabulary()))
    status, _, error = run("vocabulary", "--config", "mnist_full", "--output", path)
    assert_one_line(status, error, "--config mnist_full is for images")
