import keras_hub
import numpy as np
import tensorflow as tf

from rt_keras.serving.served_tokenizer import served_tokenizer


def byte_pairs(special):
    tokens = [*"abht12ĠĊ", "th", *special]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    return keras_hub.tokenizers.BytePairTokenizer(vocabulary, ["t h"], unsplittable_tokens=special)


def test_byte_pairs_have_the_tokens_of_python_with_more_than_ten_special_tokens():
    tokenizer = byte_pairs([f"<{number}>" for number in range(12)])
    served = served_tokenizer(tokenizer)
    texts = ["a th\n", "", "<10>  <1>th<11>12\n tha", " <1><1> ", "hth<2>"]
    found = served.tokens(tf.constant(texts))
    assert found.to_list() == [np.asarray(tokenizer(text)).tolist() for text in texts]
    written = served.strings(found.to_tensor(), tf.sequence_mask(found.row_lengths()))
    assert [text.decode() for text in written.numpy()] == texts
    assert served.tokens(tf.constant([], tf.string)).nrows() == 0


def test_a_token_that_no_line_of_a_file_can_hold_is_served():
    tokenizer = byte_pairs(["<\t>"])
    found = served_tokenizer(tokenizer).tokens(tf.constant(["th<\t>a"]))
    assert found.to_list() == [np.asarray(tokenizer("th<\t>a")).tolist()]
