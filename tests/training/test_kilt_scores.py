import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rt_keras.training.kilt_scores import kilt_scores, r_precision, recall_at_k, rouge_l

IDS = st.sampled_from("abcdef")
SETS = st.lists(st.sets(IDS, max_size=3), max_size=4)
# The F scores of rouge are below those of the formula: it adds this to the denominator.
SMALL = 1e-8


def mean_of(name, *questions):
    """The score of questions, each an answer, its references, found ids and right sets."""
    return kilt_scores(*map(list, zip(*questions)))[name]


@pytest.mark.parametrize(
    "answer, references, precision, recall",
    [
        ("it is blue", ["the sky is blue"], 2 / 3, 2 / 4),
        # Case, articles and punctuation count; the number of spaces does not.
        ("The  sky,", ["the sky"], 0, 0),
        ("the \n sky", [" the sky "], 1, 1),
        ("sky", ["a", "the sky", "sea"], 1, 1 / 2),
        # Each sentence is compared with each, and equal words count once.
        ("up it goes. down it goes.", ["down it goes. up it goes."], 1, 1),
        ("so so so", ["so it is so"], 1, 1 / 3),
    ],
)
def test_rouge_l(answer, references, precision, recall):
    expected = 2 * precision * recall / (precision + recall + SMALL)
    assert rouge_l(answer, references) == pytest.approx(expected, abs=1e-12)


@pytest.mark.slow
def test_rouge_l_of_empty_and_of_long_texts():
    for answer, references in (("", ["a"]), ("a", [""]), ("...", ["a"]), ("a", [])):
        assert rouge_l(answer, references) == 0
    limit = sys.getrecursionlimit()
    words = [str(number) for number in range(700)]
    assert rouge_l(" ".join(words), [" ".join(words[::-1] + words)]) > 0.99
    assert sys.getrecursionlimit() == limit


@pytest.mark.parametrize(
    "found, right, precision",
    [
        (["b", "a"], [{"a", "c"}], 1 / 2),
        (["a", "a", "c"], [{"a", "c"}], 1),
        # The best set counts, here the second.
        (["b", "e", "g"], [{"a", "b"}, {"b"}, {"g", "i", "k"}], 1),
        (["b", "e", "g"], [{"a", "b"}, {"e"}, {"g", "i", "k"}], 1 / 2),
        (["a"], [set()], 0),
    ],
)
def test_r_precision(found, right, precision):
    assert r_precision(found, right) == precision


@pytest.mark.parametrize(
    "found, right, k, recall",
    [
        (["b", "b", "a"], [{"a"}], 2, 1),
        # The two take one place, the second, after x.
        (["a", "x", "b"], [{"a", "b"}], 1, 0),
        (["a", "x", "b"], [{"a", "b"}], 2, 1),
        (list("begxahyz"), [{"a", "b"}, {"e"}, {"g", "h", "i"}], 5, 2 / 3),
    ],
)
def test_recall_at_k(found, right, k, recall):
    assert recall_at_k(found, right, k) == recall


@given(st.lists(IDS), SETS)
def test_scores_of_documents_are_shares(found, right):
    recalls = [recall_at_k(found, right, k) for k in range(1, 30)]
    assert recalls == sorted(recalls) and recalls[0] >= 0 and recalls[-1] <= 1
    distinct = set(map(frozenset, right))
    complete = [ids for ids in distinct if ids and ids <= set(found)]
    assert recalls[-1] == (len(complete) / len(distinct) if right else 0)
    assert 0 <= r_precision(found, right) <= 1


def test_means_over_questions():
    # The cases of KILT's own tests in other words: right, right without its page, and half right.
    questions = [
        ("rain", ["rain"], ["3"], [{"3"}]),
        ("the rain", ["rain"], ["9"], [{"3"}]),
        ("rain", ["it was rain"], ["9"], [{"3"}]),
    ]
    scores = kilt_scores(*map(list, zip(*questions)))
    assert scores == pytest.approx(
        {
            "exact_match": 2 / 3,
            # The article does not count in the second, and two of three words lack in the third.
            "f1": (1 + 1 + 1 / 2) / 3,
            "rouge_l": (1 + 2 / 3 + 1 / 2) / 3,
            "r_precision": 1 / 3,
            "recall_at_5": 1 / 3,
            "kilt_f1": 1 / 3,
            "kilt_rouge_l": 1 / 3,
        },
        abs=1e-7,
    )
    assert list(scores) == [
        *("rouge_l", "f1", "exact_match"),
        *("r_precision", "recall_at_5", "kilt_rouge_l", "kilt_f1"),
    ]


def test_an_answer_without_all_of_its_documents_does_not_count():
    half = ("rain", ["rain"], ["3", "9"], [{"3", "4"}])
    assert mean_of("kilt_f1", half) == mean_of("kilt_rouge_l", half) == 0
    assert mean_of("f1", half) == 1 and mean_of("r_precision", half) == 1 / 2


def test_answers_and_references_without_words():
    # Without words, two answers are equal but have nothing in common; an empty one has no score.
    for answer, references, exact_match, f1 in (
        ("The!", ["a"], 1, 0),
        (" ", ["the"], 0, 0),
        ("rain", ["", "Rain."], 1, 1),
    ):
        question = (answer, references, ["3"], [{"3"}])
        assert mean_of("exact_match", question) == exact_match
        assert mean_of("f1", question) == mean_of("kilt_f1", question) == f1
        assert mean_of("rouge_l", question) == 0


def test_arguments_that_are_wrong():
    with pytest.raises(ValueError, match="one item for each question.*'found': 2, 'right': 1"):
        kilt_scores(["a"], [["a"]], [["1"], ["2"]], [[{"1"}]])
    with pytest.raises(ValueError, match="there must be a question"):
        kilt_scores([], [], [], [])
    with pytest.raises(ValueError, match=r"right must be a list of sets of ids. .*\['12'\]"):
        r_precision(["12"], ["12"])
    with pytest.raises(ValueError, match="k must be at least 1. Received: k=0"):
        recall_at_k(["12"], [{"12"}], 0)


def test_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "rouge", None)
    with pytest.raises(ModuleNotFoundError, match="needs the extra `retrieval`"):
        rouge_l("a", ["a"])
