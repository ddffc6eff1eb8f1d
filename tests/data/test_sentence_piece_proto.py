from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rt_keras.data import SentencePieceTokenizer, compute_sentence_piece_proto

TEXTS = [(Path(__file__).parents[2] / "README.md").read_bytes()]


@pytest.fixture(scope="module")
def tokenizer():
    return SentencePieceTokenizer(compute_sentence_piece_proto(TEXTS, 600))


@settings(max_examples=25)
@given(st.text(st.characters(codec="utf-8", exclude_characters="\0\u2581"), max_size=12))
def test_every_text_comes_back_unchanged(tokenizer, text):
    assert tokenizer.detokenize(tokenizer(text)) == text


def test_frequent_parts_are_tokens(tokenizer):
    assert tokenizer.vocabulary_size() <= 600
    assert len(tokenizer("a model with the heads")) < 10
    assert [tokenizer.pad_token_id, tokenizer.end_token_id] == [0, 1]


@pytest.mark.parametrize(
    ("texts", "reason"), [([], "there is no text"), (TEXTS, "too small|smaller")]
)
def test_what_cannot_be_trained_is_told(texts, reason):
    with pytest.raises(ValueError, match=f"vocabulary_size=20; .*({reason})"):
        compute_sentence_piece_proto(texts, 20)
