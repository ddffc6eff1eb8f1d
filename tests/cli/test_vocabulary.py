import pytest

from rt_keras.data import SentencePieceTokenizer
from tests.cli.checks import assert_one_line


@pytest.mark.end_to_end
def test_a_vocabulary_is_made_from_the_training_split(run, books, tmp_path):
    path = tmp_path / "books.spm"
    words = ["vocabulary", "--config", "books", "--data", books, "--output", path, "--size", "300"]
    words += ["--set", f"data.data_dir={tmp_path}"]
    status, output, _ = run(*words)
    assert status == 0 and output == f"wrote the vocabulary {path}\n"
    tokenizer = SentencePieceTokenizer(str(path))
    assert tokenizer.detokenize(tokenizer("a b\n c")) == "a b\n c"
    status, _, error = run(*words[:-4], "--size", "20", *words[-2:])
    assert_one_line(status, error, "vocabulary_size=20")
    status, _, error = run("vocabulary", "--config", "mnist_full", "--output", path)
    assert_one_line(status, error, "--config mnist_full is for images")
