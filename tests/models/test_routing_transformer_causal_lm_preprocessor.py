import keras_hub
import pytest
import tensorflow as tf

from rt_keras.data import ByteTokenizer
from rt_keras.layers import LocalHeads
from rt_keras.models import RoutingTransformerBackbone, RoutingTransformerCausalLM
from rt_keras.models import RoutingTransformerCausalLMPreprocessor as Preprocessor

TEXTS = ["the quick fox", "", "the fox jumps"]


def same(results, others):
    for result, other in zip(tf.nest.flatten(results), tf.nest.flatten(others), strict=True):
        tf.debugging.assert_equal(result, tf.cast(other, result.dtype))


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


@pytest.mark.end_to_end
def test_same_in_a_pipeline(tokenizer):
    preprocessor = Preprocessor(tokenizer, sequence_length=8)
    texts = tf.data.Dataset.from_tensor_slices(TEXTS)
    (batched,) = texts.batch(3).map(preprocessor)
    (one_by_one,) = texts.map(preprocessor).batch(3)
    same(batched, preprocessor(TEXTS))
    same(one_by_one, batched)


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


@pytest.mark.end_to_end
def test_served_model_takes_and_gives_strings(tokenizer, tmp_path):
    preprocessor = Preprocessor(tokenizer, sequence_length=16)
    module = tf.Module()
    module.preprocessor = preprocessor
    module.echo = tf.function(
        lambda text: preprocessor.generate_postprocess(preprocessor.generate_preprocess(text)),
        input_signature=[tf.TensorSpec([None], tf.string)],
    )
    tf.saved_model.save(module, tmp_path)
    echo = tf.saved_model.load(tmp_path).echo
    assert echo(tf.constant(["the quick fox", ""])).numpy().tolist() == [b"the quick fox", b""]


def test_generated_bytes_that_are_not_utf8():
    preprocessor = Preprocessor(ByteTokenizer(), sequence_length=4)
    tokens = {"token_ids": [[1, 99, 257, 0]], "padding_mask": [[1, 1, 1, 0]]}
    assert preprocessor.generate_postprocess(tokens) == ["a\ufffd"]
    tokens = {name: tf.constant(values) for name, values in tokens.items()}
    in_graph = tf.function(preprocessor.generate_postprocess)(tokens)
    assert in_graph.numpy().tolist() == [b"a\xff"]


@pytest.fixture
def model(tokenizer):
    backbone = RoutingTransformerBackbone(
        vocabulary_size=tokenizer.vocabulary_size(),
        num_layers=1,
        hidden_dim=8,
        intermediate_dim=8,
        head_groups=[LocalHeads(1, block_size=4)],
    )
    return RoutingTransformerCausalLM(backbone, Preprocessor(tokenizer, sequence_length=12))


def test_preset(model, tokenizer, tmp_path):
    model.save_to_preset(str(tmp_path))
    expected = model.preprocessor(TEXTS)
    for cls in (Preprocessor, keras_hub.models.CausalLMPreprocessor):
        loaded = cls.from_preset(str(tmp_path))
        assert type(loaded) is Preprocessor and type(loaded.tokenizer) is type(tokenizer)
        same(loaded(TEXTS), expected)
    assert Preprocessor.from_preset(str(tmp_path), sequence_length=5).sequence_length == 5
    for cls in (type(tokenizer), keras_hub.tokenizers.Tokenizer):
        loaded = cls.from_preset(str(tmp_path))
        assert loaded.get_vocabulary() == tokenizer.get_vocabulary()


def test_preset_with_a_tokenizer_alone_gets_a_default_preprocessor(model, tokenizer, tmp_path):
    model.backbone.save_to_preset(str(tmp_path))
    tokenizer.save_to_preset(str(tmp_path))
    loaded = Preprocessor.from_preset(str(tmp_path), sequence_length=20)
    same(loaded(TEXTS), Preprocessor(tokenizer, sequence_length=20)(TEXTS))


def test_generate_continues_text(tokenizer, model):
    model.compile(sampler="greedy", run_eagerly=True)
    (text,) = model.generate(["the fox"], max_length=12)
    assert text.startswith("the fox")


def test_bad_arguments():
    with pytest.raises(TypeError, match="such as ByteTokenizer, Sent.* Received: a str"):
        Preprocessor("bytes")
    with pytest.raises(ValueError, match="sequence_length=0"):
        Preprocessor(ByteTokenizer(), sequence_length=0)
