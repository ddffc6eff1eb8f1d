import json

import pytest
import tensorflow as tf

from rt_keras.cli import vocabulary
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


def test_all_texts_of_a_list_are_read():
    examples = {"question": ["a?", "b?"], "passages": [["a1", "a2"], ["b1", ""]], "id": ["x", "y"]}
    texts = vocabulary._texts(tf.data.Dataset.from_tensor_slices(examples))
    assert sorted(texts) == [b"", b"a1", b"a2", b"a?", b"b1", b"b?"]
    assert list(vocabulary._texts(tf.data.Dataset.from_tensors("text"))) == [b"text"]
    numbers = tf.data.Dataset.from_tensors({"text": "t", "label": 3})
    assert list(vocabulary._texts(numbers)) == [b"t"]


@pytest.mark.end_to_end
@pytest.mark.parametrize(("kind", "letters"), [("retriever", "ZX"), ("reader", "ZXY")])
def test_a_vocabulary_knows_questions_and_passages(run, tmp_path, kind, letters):
    line = {"question": "why, Zoe?", "answers": ["Yes"], "passages": ["Xerxes"], "negatives": []}
    (tmp_path / "train.jsonl").write_text(f"{json.dumps(line)}\n" * 3)
    command = ["vocabulary", "--config", kind, "--data", tmp_path, "--output", tmp_path / "q.spm"]
    command += ["--size", 300, "--set", f"data.data_dir={tmp_path / 'prepared'}"]
    status, _, error = run(*command)
    assert status == 0, error
    tokenizer = SentencePieceTokenizer(str(tmp_path / "q.spm"))
    # Letters of a question, of a passage and, for a reader, of an answer.
    assert set(letters) <= set("".join(tokenizer.get_vocabulary()))
