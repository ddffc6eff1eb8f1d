import numpy as np
import pytest
import tensorflow as tf

from rt_keras.data import WordTokenizer, write_word_vocabulary

WORDS = ["<pad>", "<EOS>", "<unk>", "the", "fox", "@-@", "jumps", "."]


def test_words_are_what_white_space_separates():
    tokenizer = WordTokenizer(WORDS)
    assert tokenizer(" the\tfox @-@ the\n fox  .").numpy().tolist() == [3, 4, 5, 3, 4, 7]
    assert tokenizer("thefox fox. Fox").numpy().tolist() == [2, 2, 2]


def test_a_sequence_length_pads_and_cuts():
    tokenizer = WordTokenizer(WORDS, sequence_length=3)
    np.testing.assert_array_equal(
        tokenizer(["the fox", "", "the fox jumps ."]), [[3, 4, 0], [0, 0, 0], [3, 4, 6]]
    )
    np.testing.assert_array_equal(tokenizer("the"), [3, 0, 0])


def test_padding_and_end_leave_no_trace_in_text():
    tokenizer = WordTokenizer(WORDS)
    texts = tokenizer.detokenize([[1, 3, 4, 1, 0], [6, 0, 0, 0, 0]])
    assert texts.numpy().tolist() == [b"the fox", b"jumps"]


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
        WordTokenizer(words)


def test_a_vocabulary_is_of_all_words_by_frequency(tmp_path):
    documents = tf.data.Dataset.from_tensor_slices(["b a <unk>\nb", "c a b"])
    path = tmp_path / "vocabulary.txt"
    assert write_word_vocabulary(documents, path) == 6
    tokenizer = WordTokenizer(path)
    assert tokenizer.get_vocabulary() == ["<pad>", "<EOS>", "b", "a", "<unk>", "c"]
    assert tokenizer("c d").numpy().tolist() == [5, 4]
