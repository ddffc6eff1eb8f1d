import pytest

from rt_keras.data import WordPieceTokenizer


def test_tokens(word_piece_vocabulary):
    tokenizer = WordPieceTokenizer(word_piece_vocabulary)
    tokens = [tokenizer.id_to_token(int(token)) for token in tokenizer("the fox jumps zebra.")]
    assert tokens == ["the", "fox", "jump", "##s", "[UNK]", "."]


def test_other_names_for_special_tokens(word_piece_vocabulary):
    vocabulary = ["<none>" if token == "[PAD]" else token for token in word_piece_vocabulary]
    with pytest.raises(ValueError, match=r"pad_token must be one of the 11 .*pad_token='\[PAD\]'"):
        WordPieceTokenizer(vocabulary)
    tokenizer = WordPieceTokenizer(vocabulary, pad_token="<none>", end_token=".")
    assert (tokenizer.pad_token_id, tokenizer.end_token_id) == (0, 10)
    assert tokenizer.get_config()["end_token"] == "."
