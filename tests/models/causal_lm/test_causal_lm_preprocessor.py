import tensorflow as tf

from rt_keras.data import ByteTokenizer
from rt_keras.models import RoutingTransformerCausalLMPreprocessor as Preprocessor

TEXTS = ["the quick fox", "", "the fox jumps"]


def test_training_example_is_one_document(tokenizer):
    (x, y, weights) = Preprocessor(tokenizer, sequence_length=20)(TEXTS)
    for row, text in enumerate(TEXTS):
        tokens, end = list(map(int, tokenizer(text))), tokenizer.end_token_id
        padding = [tokenizer.pad_token_id] * (19 - len(tokens))
        expected = [tokenizer.start_token_id, *tokens, end, *padding][:20]
        assert x["token_ids"][row].numpy().tolist() == expected
        assert y[row].numpy().tolist() == [*tokens, end, *padding]
        assert weights[row].numpy().tolist() == [i <= len(tokens) for i in range(20)]
        assert x["padding_mask"][row].numpy().tolist() == [i < len(tokens) + 2 for i in range(20)]


def test_prompt_starts_with_the_start_token_and_ends_with_none(tokenizer):
    prompt = Preprocessor(tokenizer).generate_preprocess(["the fox"], sequence_length=12)
    tokens = list(map(int, tokenizer("the fox")))
    padding = [tokenizer.pad_token_id] * (11 - len(tokens))
    assert prompt["token_ids"][0].numpy().tolist() == [tokenizer.start_token_id, *tokens, *padding]
    assert int(tf.reduce_sum(tf.cast(prompt["padding_mask"], tf.int32))) == 1 + len(tokens)


def test_there_and_back(tokenizer):
    preprocessor = Preprocessor(tokenizer, sequence_length=16)
    texts = ["the quick fox", ""]
    assert preprocessor.generate_postprocess(preprocessor.generate_preprocess(texts)) == texts
    one = preprocessor.generate_preprocess(texts[0])
    assert preprocessor.generate_postprocess(one) == texts[0]


def test_generated_bytes_that_are_not_utf8():
    preprocessor = Preprocessor(ByteTokenizer(), sequence_length=4)
    tokens = {"token_ids": [[1, 99, 257, 0]], "padding_mask": [[1, 1, 1, 0]]}
    assert preprocessor.generate_postprocess(tokens) == ["a\ufffd"]
    tokens = {name: tf.constant(values) for name, values in tokens.items()}
    in_graph = tf.function(preprocessor.generate_postprocess)(tokens)
    assert in_graph.numpy().tolist() == [b"a\xff"]
