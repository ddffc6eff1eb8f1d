import numpy as np
import pytest
import tensorflow as tf

from rt_keras.data import load_question_answers
from rt_keras.data.questions import reading_examples, retrieval_pairs
from tests.data.checks import write_lines as write
from tests.data.test_question_folder import EMPTY, KILT_LINES, WHOLE, decoded

LISTS = ("answers", "passages", "negatives", "documents")
QUESTIONS = [
    {"question": "a?", "answers": ["A", "AA"], "passages": ["a1", "a2", "a3"], "negatives": ["x"]},
    {"question": "é?", "answers": [" ", "É"], "negatives": ["x", "y"]},
    {"question": "c?", "passages": ["c1"], "negatives": ["x", "y", "z"]},
    {"question": "d?", "negatives": ["x"]},
]


def make_questions(questions=QUESTIONS):
    """Questions as `load_question_answers` returns them."""

    def read():
        for question in questions:
            lists = {name: np.array(question.get(name, []), object) for name in LISTS}
            yield {"question": question["question"], **lists}

    specs = {name: tf.TensorSpec([None], tf.string) for name in LISTS}
    return tf.data.Dataset.from_generator(
        read, output_signature={"question": tf.TensorSpec([], tf.string), **specs}
    )


def test_pairs_have_a_right_passage_or_else_an_answer():
    pairs = retrieval_pairs(make_questions())
    assert pairs.element_spec == {
        "question": tf.TensorSpec([], tf.string),
        "passages": tf.TensorSpec([1], tf.string),
    }
    with pytest.warns(UserWarning, match="^1 questions have no passage and are left out$"):
        examples = list(pairs.as_numpy_iterator())
    found = [(x["question"].decode(), x["passages"].tolist()) for x in examples]
    assert found == [("a?", [b"a1"]), ("é?", ["É".encode()]), ("c?", [b"c1"])]


def test_pairs_have_the_first_negatives_and_missing_ones_are_an_error():
    pairs = retrieval_pairs(make_questions(QUESTIONS[1:3]), 2).as_numpy_iterator()
    found = [pair["passages"].tolist() for pair in pairs]
    assert found == [["É".encode(), b"x", b"y"], [b"c1", b"x", b"y"]]
    message = r"at least 2 negatives. Received: 1 for 'a\?'"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        list(retrieval_pairs(make_questions(), 2))


def test_reading_examples_have_the_best_passages_and_the_first_answer():
    examples = reading_examples(make_questions(), 2)
    assert examples.element_spec["passages"] == tf.TensorSpec([2], tf.string)
    with pytest.warns(UserWarning, match="^2 questions have no answer and are left out$"):
        examples = list(examples.as_numpy_iterator())
    found = [
        (x["question"].decode(), x["passages"].tolist(), x["answer"].decode()) for x in examples
    ]
    # An answer of white space is not one.
    assert found == [("a?", [b"a1", b"a2"], "A"), ("é?", [b"", b""], "É")]


def test_questions_of_a_folder_come_in_a_fixed_order(tmp_path):
    numbers = ({"question": f"{number}?"} for number in range(9))
    write(tmp_path / "train.jsonl", WHOLE, *numbers)
    examples = load_question_answers("question_folder", "train", tmp_path, data_dir=tmp_path)
    questions = [decoded(example) for example in examples.as_numpy_iterator()]
    assert WHOLE in questions and {"question": "8?", **EMPTY} in questions and len(questions) == 10
    assert [decoded(example) for example in examples.as_numpy_iterator()] == questions
    with pytest.raises(ValueError, match="split must be one of train .* needs the file test.jsonl"):
        load_question_answers("question_folder", "test", tmp_path, data_dir=tmp_path)
    write(tmp_path / "eli5-dev-kilt.jsonl", *KILT_LINES)
    with pytest.raises(ValueError, match="'train'.* needs the file NAME-train-kilt.jsonl of KILT"):
        load_question_answers("kilt", "train", tmp_path, data_dir=tmp_path)
    with pytest.raises(ValueError, match="name must be question_folder or kilt. .*'eli5'"):
        load_question_answers("eli5", "train", tmp_path)
