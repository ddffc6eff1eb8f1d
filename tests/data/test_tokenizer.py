"""What all tokenizers have in common."""

import pytest
import tensorflow as tf

from rt_keras import data
from rt_keras.data.tokenizer import TextTokenizer

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
    with pytest.raises(ValueError, match="holds a ByteTokenizer, not a WordPieceTokenizer"):
        data.WordPieceTokenizer.from_preset(str(tmp_path))
