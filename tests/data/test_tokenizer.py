"""Tests that apply to all tokenizers."""

import numpy as np
import pytest
import tensorflow as tf

from rt_keras import data
from rt_keras.data.tokenizer import TextTokenizer, check_strings, fingerprint

TEXTS = ["the quick fox", "", "the dog jumps, the fox jumps."]


def ids(tokens):
    return [list(map(int, row)) for row in tokens]


def test_special_tokens(tokenizer):
    assert tokenizer.end_token_id != tokenizer.pad_token_id
    # Tensor2Tensor's models start from padding.
    starts = "pad" if isinstance(tokenizer, data.T2TSubwordTokenizer) else "end"
    assert tokenizer.start_token_id == getattr(tokenizer, f"{starts}_token_id")
    assert sorted(tokenizer.special_token_ids) == sorted(
        [tokenizer.pad_token_id, tokenizer.end_token_id]
    )
    assert tokenizer.id_to_token(tokenizer.end_token_id) == tokenizer.end_token
    assert len(tokenizer.get_vocabulary()) == tokenizer.vocabulary_size()


def test_text_never_becomes_a_special_token(tokenizer):
    text = f"the {tokenizer.end_token} quick {tokenizer.pad_token} fox"
    assert not set(tokenizer.special_token_ids) & set(ids([tokenizer(text)])[0])


def test_tf_data_on_one_string_and_on_batches(tokenizer):
    strings = tf.data.Dataset.from_tensor_slices(TEXTS)
    one_by_one = [row.tolist() for row in strings.map(tokenizer).as_numpy_iterator()]
    (batch,) = strings.batch(3).map(tokenizer)
    assert isinstance(batch, tf.RaggedTensor)
    assert one_by_one == batch.to_list() == ids(tokenizer(TEXTS))
    assert one_by_one[1] == []
    assert all(one_by_one[0] + one_by_one[2])


def test_graph_gives_back_what_can_be_given_back(tokenizer):
    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def there_and_back(strings):
        return tokenizer.detokenize(tokenizer(strings))

    expected = ["the quick fox", "", "the dog jumps, the fox jumps."]
    if isinstance(tokenizer, data.WordPieceTokenizer):
        expected[2] = "the dog jumps , the fox jumps ."
    if isinstance(tokenizer, data.SentencePieceTokenizer):
        expected[2] = "the dog jumps, the fox jumps \u2047 "  # The model has not seen a full stop.
    assert [text.decode() for text in there_and_back(tf.constant(TEXTS)).numpy()] == expected


@pytest.mark.end_to_end
def test_saved_model_takes_and_gives_strings(tokenizer, tmp_path):
    module = tf.Module()
    module.tokenizer = tokenizer
    strings = tf.TensorSpec([None], tf.string)
    module.encode = tf.function(lambda text: tokenizer(text).to_tensor(), input_signature=[strings])
    module.decode = tf.function(
        tokenizer.detokenize, input_signature=[tf.TensorSpec([None, None], tf.int32)]
    )
    tf.saved_model.save(module, tmp_path)
    loaded = tf.saved_model.load(tmp_path)
    text = tf.constant(["the quick fox"])
    tokens = loaded.encode(text)
    assert tokens.numpy().tolist() == ids(tokenizer(["the quick fox"]))
    assert loaded.decode(tokens).numpy().tolist() == [b"the quick fox"]


@pytest.mark.parametrize("inputs", ["a\udcff", ["the", "a\udcff"], np.array(["\udcff"])])
def test_strings_that_utf8_cannot_write_are_named(tokenizer, inputs):
    row = "inputs 1" if len(inputs) == 2 and inputs[0] == "the" else "inputs"
    with pytest.raises(ValueError, match=rf"^{row} must be valid UTF-8. Received: 'a?.udcff'"):
        tokenizer(inputs)


@pytest.mark.parametrize("inputs", [b"a\xff", tf.constant([b"the", b"a\xff"])])
def test_bytes_that_are_not_utf8_are_named_where_they_cannot_be_read(tokenizer, inputs):
    if isinstance(tokenizer, (data.SentencePieceTokenizer, data.WordPieceTokenizer)):
        with pytest.raises(ValueError, match=r"^inputs( 1)? must be valid UTF-8. Received: b'a"):
            tokenizer(inputs)
    else:
        tokenizer(inputs)


@pytest.mark.parametrize("inputs", [3, None, [1.5], ["a", None]])
def test_what_is_not_a_string_is_named(tokenizer, inputs):
    with pytest.raises(TypeError, match=r"^inputs( 1)? must be a string. Received: "):
        tokenizer(inputs)


def test_long_strings_are_shortened_in_errors():
    with pytest.raises(ValueError) as caught:
        check_strings("text", b"a" * 1000 + b"\xff", needs_utf8=True)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("name", ["WordTokenizer", "WordPieceTokenizer", "T2TSubwordTokenizer"])
def test_a_vocabulary_file_that_is_not_utf8_is_named(name, tmp_path):
    path = tmp_path / "words.txt"
    path.write_bytes(b"one\ntwo\xff\n")
    with pytest.raises(ValueError, match=r"words.txt, line 2: it must be UTF-8"):
        getattr(data, name)(str(path))


def test_preset_folder(tokenizer, tmp_path):
    tokenizer.save_to_preset(str(tmp_path))
    for cls in (type(tokenizer), TextTokenizer):
        loaded = cls.from_preset(str(tmp_path))
        assert type(loaded) is type(tokenizer)
        assert loaded.pad_token_id == tokenizer.pad_token_id
        assert loaded.end_token_id == tokenizer.end_token_id
        assert ids(loaded(TEXTS)) == ids(tokenizer(TEXTS))
    assert type(tokenizer).from_preset(str(tmp_path), sequence_length=5).sequence_length == 5


def test_preset_of_another_class_is_refused(tmp_path):
    data.ByteTokenizer().save_to_preset(str(tmp_path))
    with pytest.raises(ValueError, match="must hold a WordPieceTokenizer.*holds a ByteTokenizer"):
        data.WordPieceTokenizer.from_preset(str(tmp_path))


def test_fingerprints_are_those_of_the_saved_tokenizer(tokenizer, tmp_path):
    tokenizer.save_to_preset(tmp_path)
    assert fingerprint(type(tokenizer).from_preset(str(tmp_path))) == fingerprint(tokenizer)


def test_fingerprints_differ_with_vocabulary_and_config():
    words = ["<pad>", "<EOS>", "<unk>", "the"]
    tokenizers = [
        data.ByteTokenizer(),
        data.WordTokenizer(words),
        data.WordTokenizer([*words, "fox"]),
        data.WordTokenizer(words, oov_token="the"),
    ]
    assert len(set(map(fingerprint, tokenizers))) == 4
