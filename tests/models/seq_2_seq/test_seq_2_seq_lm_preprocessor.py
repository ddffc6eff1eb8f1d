import tensorflow as tf

from rt_keras.data import ByteTokenizer
from rt_keras.models import RoutingTransformerSeq2SeqLMPreprocessor as Preprocessor
from tests.models import checks

TEXTS = {
    "encoder_text": ["the quick fox jumps", "", "the dog"],
    "decoder_text": ["the fox", "the dog", ""],
}


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
    checks.same(preprocessor.generate_preprocess(sources), expected)
    for x in (tf.constant(sources), tuple(sources)):
        checks.same(preprocessor.generate_preprocess(x), expected)
