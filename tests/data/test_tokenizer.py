"""Tests of all tokenizers; `tests/convert/t2t` has those of one against a reference."""

import numpy as np
import pytest
import sentencepiece
import tensorflow as tf

from rt_keras import convert, data
from rt_keras.data.tokenizer import ListTokenizer, TextTokenizer, fingerprint

TEXTS = ["the quick fox", "", "the dog jumps, the fox jumps."]
WORDS = ["<pad>", "<EOS>", "<unk>", "the", "fox", "@-@", "jumps", "."]

own = pytest.mark.parametrize("tokenizer", ["bytes", "t2t_subwords", "words"], indirect=True)


def ids(tokens):
    return [list(map(int, row)) for row in tokens]


# === All tokenizers ===


def test_special_tokens_and_names_of_tokens(tokenizer):
    # Tensor2Tensor's models start from padding.
    starts = "pad" if isinstance(tokenizer, convert.T2TSubwordTokenizer) else "end"
    assert tokenizer.start_token_id == getattr(tokenizer, f"{starts}_token_id")
    assert tokenizer.needs_utf8 == (not isinstance(tokenizer, data.ByteTokenizer))
    ends = {tokenizer.pad_token_id, tokenizer.end_token_id}
    assert set(tokenizer.special_token_ids) == ends and len(ends) == 2
    assert tokenizer.id_to_token(tokenizer.end_token_id) == tokenizer.end_token
    names = [tokenizer.id_to_token(number) for number in range(tokenizer.vocabulary_size())]
    assert names == tokenizer.get_vocabulary()
    assert [tokenizer.token_to_id(name) for name in names] == list(range(len(names)))


def test_text_never_becomes_a_special_token(tokenizer):
    text = f"the {tokenizer.end_token} quick {tokenizer.pad_token} fox"
    assert not set(tokenizer.special_token_ids) & set(ids([tokenizer(text)])[0])


def test_tf_data_on_one_string_and_on_batches_that_come_back(tokenizer):
    def there_and_back(strings):
        tokens = tokenizer(strings)
        return tokens, tokenizer.detokenize(tokens)

    strings = tf.data.Dataset.from_tensor_slices(TEXTS)
    one_by_one = [row.tolist() for row in strings.map(tokenizer).as_numpy_iterator()]
    ((batch, texts),) = strings.batch(3).map(there_and_back)
    assert isinstance(batch, tf.RaggedTensor)
    assert one_by_one == batch.to_list() == ids(tokenizer(TEXTS))
    assert one_by_one[1] == [] and all(one_by_one[0] + one_by_one[2])
    expected = list(TEXTS)
    if isinstance(tokenizer, data.WordPieceTokenizer):
        expected[2] = "the dog jumps , the fox jumps ."
    if isinstance(tokenizer, data.SentencePieceTokenizer):
        expected[2] = "the dog jumps, the fox jumps \u2047 "  # The model has not seen a full stop.
    assert [text.decode() for text in texts.numpy()] == expected


@pytest.mark.slow
def test_a_saved_model_takes_and_gives_strings(tokenizer, tmp_path):
    module, strings = tf.Module(), tf.TensorSpec([None], tf.string)
    module.tokenizer = tokenizer
    module.encode = tf.function(lambda text: tokenizer(text).to_tensor(), [strings])
    module.decode = tf.function(tokenizer.detokenize, [tf.TensorSpec([None, None], tf.int32)])
    tf.saved_model.save(module, tmp_path)
    loaded = tf.saved_model.load(tmp_path)
    # Escapes, and a character that no vocabulary has.
    texts = tf.constant(["the quick fox", "the_\\ 9☃;\n"])
    tokens = loaded.encode(texts)
    rows = tf.ragged.constant(ids(tokenizer(texts))).to_tensor()
    np.testing.assert_array_equal(tokens, rows)
    found, expected = loaded.decode(tokens), tf.constant(tokenizer.detokenize(tokens))
    np.testing.assert_array_equal(found, expected)
    assert loaded.decode(loaded.encode(texts[:1])).numpy().tolist() == [b"the quick fox"]


def test_preset_folder_and_a_length_that_pads_and_cuts(tokenizer, tmp_path):
    tokenizer.save_to_preset(str(tmp_path))
    rows = ids(tokenizer(TEXTS))
    for cls in (type(tokenizer), TextTokenizer):
        loaded = cls.from_preset(str(tmp_path))
        assert type(loaded) is type(tokenizer)
        assert loaded.pad_token_id == tokenizer.pad_token_id
        assert loaded.end_token_id == tokenizer.end_token_id
        assert ids(loaded(TEXTS)) == rows
        assert fingerprint(loaded) == fingerprint(tokenizer)
    cut = type(tokenizer).from_preset(str(tmp_path), sequence_length=5)
    padded = [(row + [tokenizer.pad_token_id] * 5)[:5] for row in rows]
    np.testing.assert_array_equal(cut(TEXTS), padded)
    np.testing.assert_array_equal(cut(""), padded[1])
    assert tuple(cut.tokenize(tf.constant([""])).shape) == (1, 5)


def test_what_cannot_be_read_is_named(tokenizer):
    with pytest.raises(ValueError, match="^inputs 1 must be valid UTF-8. Received: 'a.udcff'"):
        tokenizer(["the", "a\udcff"])
    with pytest.raises(TypeError, match="^inputs must be a string. Received: 3"):
        tokenizer(3)
    if isinstance(tokenizer, ListTokenizer):
        assert len(tokenizer(b"a\xff"))
    else:
        with pytest.raises(ValueError, match="^inputs 1 must be valid UTF-8. Received: b'a"):
            tokenizer(tf.constant([b"the", b"a\xff"]))


# === Those with lists of tokens ===


@own
def test_special_tokens_leave_no_trace_in_text(tokenizer):
    tokens = ids([tokenizer("the fox")])[0]
    pad, end = tokenizer.pad_token_id, tokenizer.end_token_id
    for rows in ([[end, *tokens, end, pad], [pad] * (len(tokens) + 3)], [[*tokens, end], []]):
        assert tokenizer.detokenize(rows).numpy().tolist() == [b"the fox", b""]
    assert tokenizer.detokenize(np.array([tokens])).numpy().tolist() == [b"the fox"]
    assert tokenizer.detokenize([end, *tokens, pad]).numpy() == b"the fox"
    assert tokenizer.detokenize([]).numpy() == b""


@own
def test_names_and_ids_outside_the_vocabulary_are_refused(tokenizer):
    for bad in (-1, tokenizer.vocabulary_size()):
        with pytest.raises(ValueError, match=f"id must be from 0 to .*id={bad}"):
            tokenizer.id_to_token(bad)
    with pytest.raises(ValueError, match="token must be .* Received: token='nothing'"):
        tokenizer.token_to_id("nothing")
    with pytest.raises(ValueError, match=r"must be a string or a batch of strings.*shape \(1, 1\)"):
        tokenizer.tokenize([["a"]])
    with pytest.raises(ValueError, match="sequence_length must be at least 1.*sequence_length=0"):
        type(tokenizer)(sequence_length=0)


@pytest.mark.parametrize(
    "cls", [data.WordTokenizer, data.WordPieceTokenizer, convert.T2TSubwordTokenizer]
)
def test_a_vocabulary_file_that_is_not_utf8_is_named(cls, tmp_path):
    path = tmp_path / "words.txt"
    path.write_bytes(b"one\ntwo\xff\n")
    with pytest.raises(ValueError, match=r"words.txt is not UTF-8 text: see line 2"):
        cls(str(path))


def test_a_preset_of_another_class_is_refused(tmp_path):
    data.ByteTokenizer().save_to_preset(str(tmp_path))
    with pytest.raises(ValueError, match="must hold a WordPieceTokenizer.*holds a ByteTokenizer"):
        data.WordPieceTokenizer.from_preset(str(tmp_path))


def test_fingerprints_differ_with_vocabulary_and_config():
    words = [data.WordTokenizer(WORDS), data.WordTokenizer([*WORDS, "dog"])]
    tokenizers = [*words, data.WordTokenizer(WORDS, oov_token="the"), data.ByteTokenizer()]
    assert len(set(map(fingerprint, tokenizers))) == 4


# === Bytes ===


def test_every_byte_has_a_token_of_its_own():
    tokenizer = data.ByteTokenizer(sequence_length=256, dtype="int64")
    again = data.ByteTokenizer.from_config(tokenizer.get_config())
    tokens = again(bytes(range(256)))
    assert tokens.dtype == "int64" and tokens.numpy().tolist() == list(range(2, 258))
    assert tokenizer.detokenize(tokens).numpy() == bytes(range(256))
    with pytest.raises(tf.errors.InvalidArgumentError):
        tokenizer.detokenize([258])


# === Words ===


def test_words_are_what_white_space_separates():
    tokenizer = data.WordTokenizer(WORDS)
    assert tokenizer(" the\tfox @-@ the\n fox  .").numpy().tolist() == [3, 4, 5, 3, 4, 7]
    assert tokenizer("thefox fox. Fox").numpy().tolist() == [2, 2, 2]


@pytest.mark.parametrize(
    "words, message",
    [
        (["<pad>", "<EOS>", "the"], "oov_token must be one of .*oov_token='<unk>'"),
        (["<pad>", "<unk>", "the"], "end_token must be one of .*end_token='<EOS>'"),
        ([*WORDS, "fox"], "'fox' twice"),
    ],
)
def test_a_vocabulary_that_will_not_do_is_refused(words, message):
    with pytest.raises(ValueError, match=message):
        data.WordTokenizer(words)


def test_a_vocabulary_is_of_all_words_by_frequency(tmp_path):
    documents = tf.data.Dataset.from_tensor_slices(["b a <unk>\nb", "c a b"])
    path = tmp_path / "vocabulary.txt"
    assert data.write_word_vocabulary(documents, path) == 6
    tokenizer = data.WordTokenizer(path)
    assert tokenizer.get_vocabulary() == ["<pad>", "<EOS>", "b", "a", "<unk>", "c"]
    assert tokenizer("c d").numpy().tolist() == [5, 4]


# === Parts of words ===


def test_word_pieces_and_other_names_for_special_tokens(word_piece_vocabulary):
    tokenizer = data.WordPieceTokenizer(word_piece_vocabulary)
    tokens = [tokenizer.id_to_token(int(token)) for token in tokenizer("the fox jumps zebra.")]
    assert tokens == ["the", "fox", "jump", "##s", "[UNK]", "."]
    vocabulary = ["<none>" if token == "[PAD]" else token for token in word_piece_vocabulary]
    with pytest.raises(ValueError, match=r"pad_token must be one of the 11 .*pad_token='\[PAD\]'"):
        data.WordPieceTokenizer(vocabulary)
    tokenizer = data.WordPieceTokenizer(vocabulary, pad_token="<none>", end_token=".")
    assert (tokenizer.pad_token_id, tokenizer.end_token_id) == (0, 10)
    assert tokenizer.get_config()["end_token"] == "."


def test_sentence_pieces_are_those_of_the_package(sentence_piece_model):
    processor = sentencepiece.SentencePieceProcessor(model_proto=sentence_piece_model)
    tokenizer = data.SentencePieceTokenizer(sentence_piece_model)
    assert ids([tokenizer("the lazy dog")]) == [processor.encode("the lazy dog")]


def test_a_broken_file_of_a_model_is_named(sentence_piece_model, tmp_path):
    path = tmp_path / "broken.spm"
    path.write_bytes(sentence_piece_model[:200])
    with pytest.raises(ValueError, match="proto must be a SentencePiece model.*broken.spm'"):
        data.SentencePieceTokenizer(str(path))
    with pytest.raises(ValueError, match="Received: 0 bytes, which is damaged"):
        data.SentencePieceTokenizer(b"")
