import keras
import keras_hub
import numpy as np
import pytest

from rt_keras import models
from rt_keras.data import ByteTokenizer
from rt_keras.layers import RoutingHeads
from rt_keras.models.streaming import TextChunks, stream
from tests.models.checks import make_lm

PREPROCESSOR = models.RoutingTransformerCausalLMPreprocessor(ByteTokenizer(), sequence_length=64)


def make_model(**changes):
    return make_lm(PREPROCESSOR, vocabulary_size=258, num_layers=1, **changes)


@pytest.fixture(scope="module")
def model():
    return make_model()


def test_heads_that_decode_without_a_cache_stream_what_they_generate():
    uncached = make_model(head_groups=[RoutingHeads(1, 2, 4, assignment="balanced")])
    uncached.compile(sampler="greedy", run_eagerly=True)
    options = {"max_length": 9, "stop_token_ids": None}
    assert "".join(stream(uncached, "ab", **options)) == uncached.generate("ab", **options)


def test_chunks_of_every_tokenizer_are_whole(tokenizer):
    text = "the quick fox jumps over the the dog"
    tokens = [tokenizer.start_token_id, *np.asarray(tokenizer(text)).tolist()]
    chunks = TextChunks(tokenizer)
    found = [chunk for end in range(len(tokens)) for chunk in chunks.new(tokens[: end + 1])]
    found += chunks.rest()
    kept = [token for token in tokens if token not in tokenizer.special_token_ids]
    whole = np.asarray(tokenizer.detokenize(kept)).item()
    assert "".join(found) == (whole if isinstance(whole, str) else whole.decode())
    if tokenizer.needs_utf8:
        assert all(chunk[-1].isspace() for chunk in found[:-1])


class Recites(keras_hub.samplers.Sampler):
    """Samples given bytes regardless of the probabilities."""

    def __init__(self, text):
        super().__init__()
        self.tokens = keras.ops.array([byte + 2 for byte in text] + [1] * 64)
        self.place = keras.Variable(0, dtype="int32", trainable=False)

    def get_next_token(self, probabilities):
        token = keras.ops.take(self.tokens, self.place)
        self.place.assign_add(1)
        return token[None]


@pytest.mark.slow
def test_characters_are_not_split_and_the_text_ends_at_its_end(model):
    text = "aé☃𝄞" * 3
    model.compile(sampler=Recites(text.encode()), jit_compile=False)
    chunks = list(stream(model, "", max_length=64))
    assert "".join(chunks) == text and len(chunks) > 4 and chunks[0] == "a"
    assert not any("\ufffd" in chunk for chunk in chunks)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stop", "text"),
    [("auto", "one. two."), ([ord(".") + 2], "one."), ((1,), "one. two."), ([], "one. two.")],
)
def test_streams_end_as_generate_does(model, stop, text):
    texts = []
    for read in (model.generate, lambda *x, **y: "".join(stream(model, *x, **y))):
        model.compile(sampler=Recites(b"one. two."), jit_compile=False)
        texts.append(read("", max_length=32, stop_token_ids=stop))
    assert texts == [text, text]
    with pytest.raises(ValueError, match="must be at least 1. Received: max_length=0"):
        next(stream(model, "a", max_length=0))


@pytest.mark.parametrize("sampler", ["beam", "contrastive"])
def test_samplers_that_decide_at_the_end_are_refused(model, sampler):
    model.compile(sampler=sampler)
    with pytest.raises(ValueError, match="must choose one token at a time"):
        next(stream(model, "a"))
