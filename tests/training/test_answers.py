import pytest

from rt_keras.training.answers import score_answer, words_of


@pytest.mark.parametrize(
    "answer, references, exact, f1",
    [
        ("the Normans.", ["Normans"], 1, 1),
        # One of two words, which is one of one: precision 1/2, recall 1.
        ("tall Normans", ["the Normans"], 0, 2 / 3),
        ("10 and 10", ["10"], 0, 0.5),
        ("yes", ["no", "yes it is"], 0, 0.5),
        ("", ["Normans"], 0, 0),
        ("The", ["an"], 1, 1),
    ],
)
def test_scores(answer, references, exact, f1):
    assert score_answer(answer, references) == (exact, pytest.approx(f1))


def test_articles_are_whole_words():
    assert words_of("A theatre -- an ant's") == ["theatre", "ants"]
