import pytest

from rt_keras.data import load_question_answers
from tests.data.test_kilt import LINES
from tests.data.test_question_folder import EMPTY, WHOLE, decoded, write


@pytest.fixture
def folder(tmp_path):
    write(tmp_path / "train.jsonl", WHOLE, *({"question": f"{number}?"} for number in range(9)))
    write(tmp_path / "eli5-dev-kilt.jsonl", *LINES)
    return tmp_path


def test_questions_of_a_folder_in_a_fixed_order(folder):
    examples = load_question_answers("question_folder", "train", folder, data_dir=folder)
    found = [decoded(example) for example in examples.as_numpy_iterator()]
    assert WHOLE in found and {"question": "8?", **EMPTY} in found and len(found) == 10
    assert [decoded(example) for example in examples.as_numpy_iterator()] == found


def test_a_missing_split_says_which_file_it_needs(folder):
    with pytest.raises(ValueError, match="split must be one of train .* needs the file test.jsonl"):
        load_question_answers("question_folder", "test", folder, data_dir=folder)
    with pytest.raises(ValueError, match="'train'.* needs the file NAME-train-kilt.jsonl of KILT"):
        load_question_answers("kilt", "train", folder, data_dir=folder)
    with pytest.raises(ValueError, match="name must be question_folder or kilt. .*'eli5'"):
        load_question_answers("eli5", "train", folder)
