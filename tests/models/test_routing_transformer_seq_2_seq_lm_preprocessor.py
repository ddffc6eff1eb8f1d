import keras_hub
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


def test_prompt_starts_with_the_start_token_and_ends_with_none():
    tokenizer = ByteTokenizer()
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


def test_preset(tmp_path):
    tokenizer = ByteTokenizer()
    heads = [FullHeads(1)]
    backbone = RoutingTransformerSeq2SeqBackbone(258, 1, 1, 4, 4, heads, heads, heads)
    preprocessor = Preprocessor(tokenizer, 9, 7)
    RoutingTransformerSeq2SeqLM(backbone, preprocessor).save_to_preset(str(tmp_path))
    for cls in (Preprocessor, keras_hub.models.Seq2SeqLMPreprocessor):
        loaded = cls.from_preset(str(tmp_path))
        assert type(loaded) is Preprocessor and type(loaded.tokenizer) is type(tokenizer)
        same(loaded(TEXTS), preprocessor(TEXTS))
    changed = Preprocessor.from_preset(str(tmp_path), decoder_sequence_length=5)
    assert (changed.encoder_sequence_length, changed.decoder_sequence_length) == (9, 5)
