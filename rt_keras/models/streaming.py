"""Streaming of text while it is generated."""

import codecs

import keras_hub
import numpy as np
import tensorflow as tf

from rt_keras.data.batches import check_at_least_one
from rt_keras.data.tokenizer import needs_utf8
from rt_keras.models.generation import (
    check_prompts,
    check_sampler,
    check_texts,
    start_tokens,
    stop_tokens,
)
from rt_keras.models.token_loop import add_tokens

# Number of tokens generated in the graph for each chunk but the first, which has one, so that it
# comes early.
TOKENS_AT_ONCE = 8


def stream(model, prompt, max_length=None, stop_token_ids="auto"):
    """Continues a prompt as `model.generate` does, yielding the text in chunks.

    The joined chunks equal the output of `generate`, including the prompt. A chunk ends with a
    whole character if the tokens are bytes, and with a whole word for other tokenizers, which can
    split a character into several tokens.

    Args:
        model: a `RoutingTransformerCausalLM`, or an adapted causal language model, with a
            preprocessor, compiled with the sampler to use.
        prompt: string, or bytes that need not be UTF-8 if the tokenizer reads them.
        max_length: int, maximum number of tokens, including the prompt and its start token.
            Defaults to the preprocessor's `sequence_length`.
        stop_token_ids: ids that end the text, which contains the first of them unless it is a
            special token; None for up to `max_length` tokens. Defaults to "auto", for the end
            tokens of the tokenizer.

    Yields:
        Strings, none of them empty.

    Raises:
        ValueError: if the model has no preprocessor, the prompt is too long, `max_length` is less
            than 1, or the sampler compares several continuations, as beam and contrastive search
            do.

    >>> from rt_keras.data import ByteTokenizer
    >>> from rt_keras.layers import LocalHeads
    >>> from rt_keras import models
    >>> backbone = models.RoutingTransformerBackbone(258, 1, 8, 8, [LocalHeads(1, block_size=4)])
    >>> preprocessor = models.RoutingTransformerCausalLMPreprocessor(ByteTokenizer())
    >>> model = models.RoutingTransformerCausalLM(backbone, preprocessor)
    >>> model.compile(sampler="greedy")
    >>> "".join(stream(model, "ab", max_length=6)) == model.generate("ab", max_length=6)
    True
    """
    if model.preprocessor is None:
        raise ValueError("model must have a preprocessor, since streaming needs its tokenizer")
    check_can_stream(model)
    check_at_least_one(max_length=max_length)
    # KerasHub's preprocessors would truncate it in silence.
    added = len(start_tokens(model.preprocessor))
    limit = max_length or model.preprocessor.sequence_length
    texts = [prompt] if isinstance(prompt, bytes) else prompt
    check_texts("prompt", texts, model.preprocessor.tokenizer, limit, added)
    inputs = model.preprocessor.generate_preprocess([prompt], sequence_length=max_length)
    tokens = tf.cast(inputs["token_ids"], tf.int32)
    width, known = tokens.shape[1], check_prompts(np.asarray(inputs["padding_mask"]))
    cache = model.prompt_cache(tokens, known - 1)
    yield from continued(model, tokens, known, width, cache, stop_token_ids, with_prompt=True)


def check_can_stream(model):
    """Raises a ValueError if the sampler of a model does not choose one token at a time."""
    check_sampler(model.sampler, model.backbone.vocabulary_size)
    if type(model.sampler).get_next_token is keras_hub.samplers.Sampler.get_next_token:
        raise ValueError(
            "The sampler must choose one token at a time to be streamed. Received: a "
            f"{type(model.sampler).__name__}, which compares several continuations"
        )


def continued(model, tokens, known, width, cache, stop_token_ids="auto", with_prompt=False):
    """Continues tokens, yielding the text in chunks.

    Args:
        model: see `stream`.
        tokens: int `[1, length]`, of which the first `known` are known.
        known: int, number of known tokens.
        width: int, number of tokens at the end, at most `length`.
        cache: the cache of the first `known - 1` tokens.
        stop_token_ids: see `stream`.
        with_prompt: bool, whether to yield the text of the known tokens first. Defaults to False.

    Yields:
        Strings, none of them empty.
    """
    tokenizer = model.preprocessor.tokenizer
    if stop_token_ids == "auto":
        stop_token_ids = stop_tokens(tokenizer)
    first = 0 if with_prompt else known
    text = TextChunks(tokenizer)
    index, done = known, False
    yield from text.new(tokens[0, first:known])
    while index < width and not done:
        count = 1 if index == known else min(TOKENS_AT_ONCE, width - index)
        tokens, cache = add_tokens(model, tokens, cache, index, count)
        new = tokens[0, index : index + count].numpy().tolist()
        stops = [place for place, token in enumerate(new) if token in (stop_token_ids or ())]
        done = bool(stops)
        # As in `generate`, the text contains the token that ends it.
        yield from text.new(tokens[0, first : index + (stops[0] + 1 if done else count)])
        index += count
    yield from text.rest()


class TextChunks:
    """Turns a growing list of tokens into chunks of text.

    Args:
        tokenizer: the tokenizer of the tokens.

    >>> from rt_keras.data import ByteTokenizer
    >>> chunks = TextChunks(ByteTokenizer())
    >>> tokens = ByteTokenizer()("aé").numpy()
    >>> [list(chunks.new(tokens[:count])) for count in (2, 3)]
    [['a'], ['é']]
    """

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.text, self.taken = b"", 0

    def new(self, tokens):
        """Yields the text that new tokens complete, if any.

        Args:
            tokens: int `[length]`, the tokens of the previous call followed by new ones.
        """
        special = self.tokenizer.special_token_ids
        tokens = [token for token in np.asarray(tokens).tolist() if token not in special]
        self.text = np.asarray(self.tokenizer.detokenize(tokens)).item() if tokens else b""
        if isinstance(self.text, str):
            self.text = self.text.encode("utf-8")
        end = len(self.text)
        if needs_utf8(self.tokenizer):
            # Without the last word, which may continue.
            end = max(self.text.rfind(space) + 1 for space in (b" ", b"\n", b"\t"))
        if end > self.taken:
            chunk = self.decoder.decode(self.text[self.taken : end])
            self.taken = end
            if chunk:
                yield chunk

    def rest(self):
        """Yields the remaining text at the end, if any."""
        chunk = self.decoder.decode(self.text[self.taken :], final=True)
        if chunk:
            yield chunk
