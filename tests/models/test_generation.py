"""Checks before generation. The tests of each model check its generated tokens."""

import keras_hub
import numpy as np
import pytest

import rt_keras
from rt_keras import models
from rt_keras.data import ByteTokenizer
from rt_keras.layers import FullHeads, LocalHeads
from rt_keras.models.generation import check_texts


@pytest.fixture(scope="module")
def model():
    backbone = models.RoutingTransformerBackbone(258, 1, 4, 4, [LocalHeads(1, 4)])
    preprocessor = models.RoutingTransformerCausalLMPreprocessor(ByteTokenizer(), sequence_length=8)
    model = models.RoutingTransformerCausalLM(backbone, preprocessor)
    model.compile(sampler="greedy", run_eagerly=True)
    return model


@pytest.mark.parametrize(
    "prompt, max_length, error, message",
    [
        ("12345678", None, ValueError, "prompt must have at most 8 tokens.*Received: 9"),
        (["1", "123"], 3, ValueError, "prompt 1 must have at most 3 tokens.*Received: 4"),
        ("a", 0, ValueError, "sequence_length must be at least 1. .*=0"),
        ("a", "6", ValueError, "sequence_length must be at least 1. .*='6'"),
        ("\udcff", None, ValueError, "prompt must be valid UTF-8"),
        (5, None, TypeError, "prompt must be a string"),
        (b"a", None, TypeError, "prompt must be a string"),
    ],
)
def test_prompts_that_cannot_be_continued_are_refused(model, prompt, max_length, error, message):
    with pytest.raises(error, match=message):
        model.generate(prompt, max_length=max_length)


def test_no_prompts_and_a_prompt_that_just_fits(model):
    assert model.generate([]) == []
    assert model.generate("1234567") == "1234567"


def test_texts_of_an_encoder_decoder_that_cannot_be_right_are_refused():
    backbone = models.RoutingTransformerSeq2SeqBackbone(
        258, 1, 1, 4, 4, [LocalHeads(1, 4)], [LocalHeads(1, 4)], [FullHeads(1)]
    )
    preprocessor = models.RoutingTransformerSeq2SeqLMPreprocessor(ByteTokenizer(), 6, 4)
    model = models.RoutingTransformerSeq2SeqLM(backbone, preprocessor)
    model.compile(sampler="greedy", jit_compile=False)
    assert model.generate([]) == []
    assert model.generate({"encoder_text": [], "decoder_text": []}) == []
    with pytest.raises(ValueError, match="encoder_text must have at most 6 tokens.*Received: 7"):
        model.generate({"encoder_text": ["12345"], "decoder_text": [""]})
    with pytest.raises(ValueError, match="decoder_text must have at most 4 tokens.*Received: 5"):
        model.generate({"encoder_text": ["1"], "decoder_text": ["1234"]})
    with pytest.raises(ValueError, match=r"decoder_text must have one shape.*\(2,\) and \(1,\)"):
        model.generate({"encoder_text": ["1", "2"], "decoder_text": ["1"]})
    with pytest.raises(ValueError, match=r"must have one shape.*\(2,\) and \(0,\)"):
        model.generate({"encoder_text": ["1", "2"]})


@pytest.mark.parametrize("tokenizer", ["t2t_subwords"], indirect=True)
def test_invalid_utf8_is_refused_if_the_tokenizer_needs_utf8(tokenizer):
    with pytest.raises(ValueError, match="prompt 1 must be valid UTF-8"):
        check_texts("prompt", ["a", b"\xff"], tokenizer, limit=8)
    check_texts("prompt", ["a", b"\xff"], ByteTokenizer(), limit=8)


@pytest.mark.parametrize(
    "name, options, message",
    [
        ("Random", {"temperature": 0.0}, "temperature of RandomSampler must .*temperature=0.0"),
        ("Random", {"temperature": float("nan")}, "must be finite .*Received: temperature=nan"),
        ("TopP", {"p": 1.5}, "must be above 0 and at most 1. Received: p=1.5"),
        ("TopK", {"k": 0}, "k of TopKSampler must be from 1 to 258.* Received: k=0"),
        ("Speculative", {}, "must draw from the model alone.*SpeculativeSampler, .* draft model"),
    ],
)
def test_samplers_out_of_range_are_refused(model, name, options, message):
    sampler = getattr(keras_hub.samplers, f"{name}Sampler")(**options)
    model.compile(sampler=sampler, jit_compile=False)
    with pytest.raises(ValueError, match=message):
        model.generate("a", max_length=4)
    with pytest.raises(ValueError, match=message):
        next(models.streaming.stream(model, "a", max_length=4))


@pytest.mark.parametrize("adapted", [False, True])
def test_tokens_and_masks_may_be_lists(adapted):
    model = models.RoutingTransformerCausalLM(
        models.RoutingTransformerBackbone(20, 1, 8, 8, [LocalHeads(2, 4)])
    )
    if adapted:
        backbone = keras_hub.models.LlamaBackbone(20, 1, 2, 8, 8, 2)
        model = rt_keras.adapt(keras_hub.models.LlamaCausalLM(backbone), [FullHeads(2)])
    model.compile(sampler="greedy", run_eagerly=True)
    rows = {"token_ids": [[1, 2, 0, 0], [3, 4, 5, 0]], "padding_mask": [[1, 1, 0, 0], [1, 1, 1, 0]]}
    arrays = {name: np.array(x) for name, x in rows.items()}
    at_start = {"cache": model.new_cache(2, 4), "cache_update_index": 0}
    for call in (
        lambda x: model.generate(x, stop_token_ids=None)["token_ids"],
        lambda x: model.score(**x),
        lambda x: model.call_with_cache(x["token_ids"], **at_start)[0],
    ):
        np.testing.assert_array_equal(call(rows), call(arrays))
    whole = "must be from 0 to 19. Received: 1.5"
    for message, call in (
        (r"token_ids must have rows of one length.*Received: lengths \[1, 2\]", [[1], [2, 3]]),
        (r"token_ids must be \[batch, length\].*Received: \(2,\)", [1, 2]),
        (r"padding_mask must be .*\(1, 4\). Received: \(2, 4\)", [[1, 2, 3, 4]]),
    ):
        with pytest.raises(ValueError, match=message):
            model.score(call, rows["padding_mask"])
    for ids, message in (
        ([[1.5] * 4] * 2, whole),
        ([[-1] * 4] * 2, "token_ids must be from 0 to 19. Received: -1"),
        ([[20] * 4] * 2, "token_ids must be from 0 to 19. Received: 20"),
        ([[1] * 3] * 2, r"\(2, 3\). Received: \(2, 4"),
    ):
        with pytest.raises(ValueError, match=message):
            model.generate({**rows, "token_ids": ids}, stop_token_ids=None)
    with pytest.raises(ValueError, match="dictionary with .padding_mask.*Received: .'token_ids'"):
        model.generate({"token_ids": rows["token_ids"]}, stop_token_ids=None)
    if adapted:
        assert model.read([[1], [2, 3]], verbose=0)["count"].tolist() == [1, 2]
        with pytest.raises(ValueError, match="inputs must be rows of token ids.*Received: inputs"):
            model.read([1, 2])
