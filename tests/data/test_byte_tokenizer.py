import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from rt_keras.data import ByteTokenizer

texts = st.binary(max_size=40)


@given(texts)
def test_one_text_there_and_back(text):
    tokenizer = ByteTokenizer()
    tokens = tokenizer.tokenize(text)
    assert tokens.numpy().tolist() == [byte + 2 for byte in text]
    assert tokenizer.detokenize(tokens).numpy() == text


@given(st.lists(texts, min_size=1, max_size=5))
def test_batch_there_and_back(batch):
    tokenizer = ByteTokenizer()
    tokens = tokenizer.tokenize(batch)
    assert tokens.to_list() == [[byte + 2 for byte in text] for text in batch]
    assert tokenizer.detokenize(tokens).numpy().tolist() == batch


@settings(max_examples=30)
@given(texts, st.integers(1, 50))
def test_sequence_length_pads_or_cuts(text, length):
    tokenizer = ByteTokenizer(sequence_length=length)
    tokens = tokenizer.tokenize([text]).numpy()
    assert tokens.shape == (1, length)
    assert tokens[0].tolist() == ([byte + 2 for byte in text] + [0] * length)[:length]
    assert tokenizer.tokenize(text).numpy().tolist() == tokens[0].tolist()
    assert tokenizer.detokenize(tokens).numpy().tolist() == [text[:length]]


def test_every_byte_has_a_token_of_its_own():
    tokenizer = ByteTokenizer()
    tokens = tokenizer(bytes(range(256))).numpy()
    assert tokens.tolist() == list(range(2, 258))
    assert tokenizer.vocabulary_size() == 258


def test_detokenize_leaves_out_special_tokens():
    tokenizer = ByteTokenizer()
    assert tokenizer.detokenize([1, 99, 0, 100, 1, 0]).numpy() == b"ab"
    assert tokenizer.detokenize([[1, 99], [], [0]]).numpy().tolist() == [b"a", b"", b""]
    assert tokenizer.detokenize(np.array([[99, 100]])).numpy().tolist() == [b"ab"]
    assert tokenizer.detokenize([]).numpy() == b""


def test_token_beyond_the_vocabulary_is_an_error():
    with pytest.raises(tf.errors.InvalidArgumentError):
        ByteTokenizer().detokenize([258])


def test_names_of_tokens():
    tokenizer = ByteTokenizer()
    for token_id in range(258):
        assert tokenizer.token_to_id(tokenizer.id_to_token(token_id)) == token_id
    with pytest.raises(ValueError, match="id=258"):
        tokenizer.id_to_token(258)
    with pytest.raises(ValueError, match="ab"):
        tokenizer.token_to_id("ab")


def test_config_comes_back():
    tokenizer = ByteTokenizer(sequence_length=7, dtype="int64")
    again = ByteTokenizer.from_config(tokenizer.get_config())
    assert again.sequence_length == 7
    assert again("a").dtype == "int64"


def test_bad_arguments():
    with pytest.raises(ValueError, match="sequence_length=0"):
        ByteTokenizer(sequence_length=0)
    with pytest.raises(ValueError, match=r"shape \(1, 1\)"):
        ByteTokenizer().tokenize([["a"]])
