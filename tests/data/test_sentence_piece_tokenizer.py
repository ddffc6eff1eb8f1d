import io

import pytest
import sentencepiece

from rt_keras.data import SentencePieceTokenizer


def test_tokens_are_those_of_the_package(sentence_piece_model):
    processor = sentencepiece.SentencePieceProcessor(model_proto=sentence_piece_model)
    text = "the lazy dog"
    tokens = SentencePieceTokenizer(sentence_piece_model)(text)
    assert list(map(int, tokens)) == processor.encode(text)


def test_model_without_padding_needs_another_piece_for_it():
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["a b a b"] * 9), model_writer=model, vocab_size=7, minloglevel=2
    )
    with pytest.raises(ValueError, match=r"pad_token must be one of the 7 .*pad_token='<pad>'"):
        SentencePieceTokenizer(model.getvalue())
    tokenizer = SentencePieceTokenizer(model.getvalue(), pad_token="<s>")
    assert (tokenizer.pad_token_id, tokenizer.end_token_id) == (1, 2)
    assert tokenizer.get_config()["pad_token"] == "<s>"


def test_unknown_end_token(sentence_piece_model):
    with pytest.raises(ValueError, match="end_token='<eot>'"):
        SentencePieceTokenizer(sentence_piece_model, end_token="<eot>")


@pytest.mark.parametrize("content", ["truncated", "text", "empty"])
def test_a_broken_file_is_named(content, sentence_piece_model, tmp_path):
    path = tmp_path / "broken.spm"
    contents = {"truncated": sentence_piece_model[:200], "text": b"hello\n", "empty": b""}
    path.write_bytes(contents[content])
    with pytest.raises(ValueError, match="proto must be a SentencePiece model.*broken.spm'"):
        SentencePieceTokenizer(str(path))
    with pytest.raises(ValueError, match=r"Received: \d+ bytes, which is damaged"):
        SentencePieceTokenizer(contents[content])
