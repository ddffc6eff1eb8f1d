import functools

import numpy as np
import pytest

from rt_keras.data import (
    ByteTokenizer,
    evaluation_questions,
    load_questions,
    pack_examples,
    training_questions,
)
from rt_keras.data.questions import with_first_answer
from rt_keras.models import RoutingTransformerSpanPredictorPreprocessor
from tests.data.checks import check_order, hashed, write_questions

PREPROCESSOR = RoutingTransformerSpanPredictorPreprocessor(ByteTokenizer(), 32)


@pytest.fixture
def data_dir(tmp_path):
    write_questions(tmp_path / "squad", train=3, validation=1)
    return tmp_path / "squad"


@pytest.fixture
def questions(data_dir):
    return with_first_answer(load_questions("squad", "train", data_dir=data_dir))


def test_questions_of_squad_and_their_order(data_dir, questions, tmp_path):
    (found,) = load_questions("squad", "validation", data_dir=data_dir).as_numpy_iterator()
    assert found["question"].decode() == "who is 0?" and found["context"].decode() == "é: 0 is Ann."
    assert found["answers"].tolist() == [b"Ann", b"Ann."]
    assert found["answer_starts"].tolist() == [8, 8]
    packed = pack_examples(questions, tmp_path / "packed")
    check_order(functools.partial(training_questions, packed, hashed, 2))


@pytest.mark.slow
def test_labels_of_questions_are_the_places_of_the_answers(questions, tmp_path):
    packed = pack_examples(questions, tmp_path / "packed")
    for inputs, labels, weights in training_questions(packed, PREPROCESSOR, 2).take(3):
        assert inputs["token_ids"].shape == (2, 32) and np.all(weights == 1)
        for row, (first, last) in zip(inputs["token_ids"], labels):
            answer = ByteTokenizer().detokenize(row[int(first) : int(last) + 1])
            assert answer.numpy() == b"Ann"
    _, last = evaluation_questions(questions, PREPROCESSOR, 2)
    assert last[2].numpy().tolist() == [[1, 1], [0, 0]]
