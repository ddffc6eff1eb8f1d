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
from tests.data.checks import write_questions

PREPROCESSOR = RoutingTransformerSpanPredictorPreprocessor(ByteTokenizer(), 32)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("squad")
    write_questions(folder, train=3, validation=1)
    return folder


def test_questions_of_squad(data_dir):
    (found,) = load_questions("squad", "validation", data_dir=data_dir).as_numpy_iterator()
    assert found["question"].decode() == "who is 0?" and found["context"].decode() == "é: 0 is Ann."
    assert found["answers"].tolist() == [b"Ann", b"Ann."]
    assert found["answer_starts"].tolist() == [8, 8]
    with pytest.raises(ValueError, match="split must be one of train, validation"):
        load_questions("squad", "test", data_dir=data_dir)
    with pytest.raises(ValueError, match="name must be squad or squad/v1.1. .*'squad/v2.0'"):
        load_questions("squad/v2.0", "train", data_dir=data_dir)


@pytest.mark.end_to_end
def test_training_and_evaluation_batches(data_dir, tmp_path):
    questions = with_first_answer(load_questions("squad", "train", data_dir=data_dir))
    packed = pack_examples(questions, tmp_path)
    whole = list(training_questions(packed, PREPROCESSOR, 2, seed=1).take(3))
    for inputs, labels, weights in whole:
        assert inputs["token_ids"].shape == (2, 32) and np.all(weights == 1)
        for row, (first, last) in zip(inputs["token_ids"], labels):
            answer = ByteTokenizer().detokenize(row[int(first) : int(last) + 1])
            assert answer.numpy() == b"Ann"
    later = next(iter(training_questions(packed, PREPROCESSOR, 2, seed=1, first_batch=2)))
    np.testing.assert_array_equal(later[0]["token_ids"], whole[2][0]["token_ids"])
    _, last = evaluation_questions(questions, PREPROCESSOR, 2)
    assert last[2].numpy().tolist() == [[1, 1], [0, 0]]
