import keras_hub
import numpy as np
import pytest
import tensorflow as tf

from rt_keras.data import ByteTokenizer
from rt_keras.layers import FullHeads
from rt_keras.models import RoutingTransformerSeq2SeqBackbone, RoutingTransformerSeq2SeqLM
from rt_keras.models import RoutingTransformerSeq2SeqLMPreprocessor as Preprocessor

TEXTS = {
    "encoder_text": ["the quick fox jumps", "", "the dog"],
    "decoder_text": ["the fox", "the dog", ""],
}


def same(results, others):
    for result, other in zip(tf.nest.flatten(results), tf.nest.flatten(others), strict=True):
        tf.debugging.assert_equal(result, tf.cast(other, result.dtype))


def packed(tokenizer, text, length, end=True):
    """Computes token ids and the mask of a text in plain Python."""
    ids = [tokenizer.start_token_id, *map(int, tokenizer(text))]
    # An end token that does not fit replaces the last token.
    ids = [*ids[: length - 1], tokenizer.end_token_id] if end else ids[:length]
    padding = length - len(ids)
    return ids + [tokenizer.pad_token_id] * padding, [True] * len(ids) + [False] * padding


def test_training_example(tokenizer):
    x, y, weights = Preprocessor(tokenizer, 9, 24)(TEXTS)
    assert x["encoder_token_ids"].shape == (3, 9) and x["decoder_token_ids"].shape == (3, 24)
    for row, (source, target) in enumerate(zip(*TEXTS.values())):
        ids, mask = packed(tokenizer, source, 9)
        assert x["encoder_token_ids"][row].numpy().tolist() == ids
        assert x["encoder_padding_mask"][row].numpy().tolist() == mask
        ids, mask = packed(tokenizer, target, 25)
        assert x["decoder_token_ids"][row].numpy().tolist() == ids[:-1]
        assert x["decoder_padding_mask"][row].numpy().tolist() == mask[:-1]
        assert y[row].numpy().tolist() == ids[1:]
        assert weights[row].numpy().tolist() == mask[1:]


def test_other_lengths_for_one_call():
    preprocessor = Preprocessor(ByteTokenizer(), 9, 24)
    x, y, _ = preprocessor(TEXTS, encoder_sequence_length=4, decoder_sequence_length=5)
    assert x["encoder_token_ids"].shape == (3, 4) and y.shape == (3, 5)
    preprocessor.decoder_sequence_length = 7
    assert preprocessor(TEXTS)[1].shape == (3, 7)


def test_same_in_a_pipeline():
    preprocessor = Preprocessor(ByteTokenizer(), 12, 8)
    texts = tf.data.Dataset.from_tensor_slices(TEXTS)
    (batched,) = texts.batch(3).map(preprocessor)
    (one_by_one,) = texts.map(preprocessor).batch(3)
    same(batched, preprocessor(TEXTS))
    same(one_by_one, batched)


def test_prompt_starts_with_the_start_token_and_ends_with_none(tokenizer):
    prompt = Preprocessor(tokenizer, 24, 12).generate_preprocess(TEXTS)
    for row, (source, target) in enumerate(zip(*TEXTS.values())):
        ids, mask = packed(tokenizer, source, 24)
        assert prompt["encoder_token_ids"][row].numpy().tolist() == ids
        assert prompt["encoder_padding_mask"][row].numpy().tolist() == mask
        ids, mask = packed(tokenizer, target, 12, end=False)
        assert prompt["decoder_token_ids"][row].numpy().tolist() == ids
        assert prompt["decoder_padding_mask"][row].numpy().tolist() == mask


def test_sources_alone_have_empty_prompts():
    preprocessor = Preprocessor(ByteTokenizer(), 32, 8)
    sources = TEXTS["encoder_text"]
    expected = preprocessor.generate_preprocess({"encoder_text": sources, "decoder_text": [""] * 3})
    same(preprocessor.generate_preprocess(sources), expected)
    same(preprocessor.generate_preprocess(tf.constant(sources)), expected)


def test_there_and_back(tokenizer):
    preprocessor = Preprocessor(tokenizer, 24, 24)
    prompt = preprocessor.generate_preprocess(TEXTS)
    assert preprocessor.generate_postprocess(prompt) == TEXTS["decoder_text"]
    x, _, _ = preprocessor(TEXTS)
    assert preprocessor.generate_postprocess(x) == TEXTS["decoder_text"]


def test_generated_bytes_that_are_not_utf8():
    tokens = {"decoder_token_ids": [[1, 99, 257, 0]], "decoder_padding_mask": [[1, 1, 1, 0]]}
    assert Preprocessor(ByteTokenizer(), 4, 4).generate_postprocess(tokens) == ["a\ufffd"]


@pytest.mark.end_to_end
def test_served_model_takes_and_gives_strings(tmp_path):
    preprocessor = Preprocessor(ByteTokenizer(), 16, 16)
    strings = tf.TensorSpec([None], tf.string)
    module = tf.Module()
    module.preprocessor = preprocessor
    module.echo = tf.function(
        lambda texts: preprocessor.generate_postprocess(preprocessor.generate_preprocess(texts)),
        input_signature=[{"encoder_text": strings, "decoder_text": strings}],
    )
    tf.saved_model.save(module, tmp_path)
    loaded = tf.saved_model.load(tmp_path)
    texts = {name: tf.constant(values) for name, values in TEXTS.items()}
    assert [text.decode() for text in loaded.echo(texts).numpy()] == TEXTS["decoder_text"]


def test_preset(tokenizer, tmp_path):
    heads = [FullHeads(1)]
    backbone = RoutingTransformerSeq2SeqBackbone(
        vocabulary_size=tokenizer.vocabulary_size(),
        num_encoder_layers=1,
        num_layers=1,
        hidden_dim=4,
        intermediate_dim=4,
        encoder_head_groups=heads,
        head_groups=heads,
        cross_head_groups=heads,
    )
    preprocessor = Preprocessor(tokenizer, 9, 7)
    RoutingTransformerSeq2SeqLM(backbone, preprocessor).save_to_preset(str(tmp_path))
    for cls in (Preprocessor, keras_hub.models.Seq2SeqLMPreprocessor):
        loaded = cls.from_preset(str(tmp_path))
        assert type(loaded) is Preprocessor and type(loaded.tokenizer) is type(tokenizer)
        same(loaded(TEXTS), preprocessor(TEXTS))
    changed = Preprocessor.from_preset(str(tmp_path), decoder_sequence_length=5)
    assert (changed.encoder_sequence_length, changed.decoder_sequence_length) == (9, 5)


def test_config_makes_an_equal_one():
    preprocessor = Preprocessor(ByteTokenizer(), 9, 7)
    copy = Preprocessor.from_config(preprocessor.get_config())
    assert copy.get_config() == preprocessor.get_config()
    np.testing.assert_array_equal(copy(TEXTS)[1], preprocessor(TEXTS)[1])


def test_bad_arguments():
    with pytest.raises(TypeError, match="tokenizer must be .* Received: a str"):
        Preprocessor("bytes")
    for name in ("encoder_sequence_length", "decoder_sequence_length"):
        with pytest.raises(ValueError, match=f"{name} must be at least 1. Received: {name}=0"):
            Preprocessor(ByteTokenizer(), **{name: 0})
