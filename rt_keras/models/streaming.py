"""Text as it is generated, piece by piece."""

import codecs

import keras_hub
import numpy as np
import tensorflow as tf

from rt_keras.models.generation import bucket, check_prompts, check_sampler

# Tokens that are generated in the graph before the next piece comes out.
TOKENS_AT_ONCE = 8


def stream(model, prompt, max_length=None, stop_token_ids=None):
    """Continues one prompt as `model.generate` does, and gives the text in pieces, as it comes.

    The pieces joined are what `generate` returns, the prompt included. Bytes of one character are
    never torn: of byte tokenizers, pieces end with a whole character; of others, which write some
    characters in several tokens, with a whole word.

    Args:
        model: a `RoutingTransformerCausalLM` with a preprocessor, compiled with the sampler to use.
        prompt: string.
        max_length: the most tokens, those of the prompt and its start token included. Defaults to
            the preprocessor's `sequence_length`.
        stop_token_ids: ids that end the text. Defaults to the tokenizer's end of text.

    Yields:
        Strings, none of them empty.

    Raises:
        ValueError: if the model has no preprocessor, the prompt has no room, or the sampler weighs
            several continuations before it decides, as beam and contrastive search do.

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
        raise ValueError("model has no preprocessor, which streaming needs for its tokenizer")
    if type(model.sampler).get_next_token is keras_hub.samplers.Sampler.get_next_token:
        raise ValueError(
            f"sampler is a {type(model.sampler).__name__}, which cannot be streamed: it decides "
            "between several continuations at their end"
        )
    check_sampler(model.sampler)
    tokenizer = model.preprocessor.tokenizer
    if stop_token_ids is None:
        stop_token_ids = [tokenizer.end_token_id]
    inputs = model.preprocessor.generate_preprocess([prompt], sequence_length=max_length)
    tokens = tf.cast(inputs["token_ids"], tf.int32)
    width, known = tokens.shape[1], check_prompts(np.asarray(inputs["padding_mask"]))
    start, advance = _functions(model)
    cache = ()
    if model.cached_decoding:
        cache = start(tokens, tf.constant(known), bucket(known, width))
    text = TextPieces(tokenizer)
    index, done = known, False
    yield from text.new(tokens[0, :known])
    while index < width and not done:
        count = min(TOKENS_AT_ONCE, width - index)
        tokens, cache = advance(tokens, cache, tf.constant(index), tf.constant(count))
        new = tokens[0, index : index + count].numpy().tolist()
        stops = [place for place, token in enumerate(new) if token in stop_token_ids]
        index, done = index + count, bool(stops)
        yield from text.new(tokens[0, : index - count + stops[0] if done else index])
    yield from text.rest()


def _functions(model):
    """The two compiled functions: a prompt to its cache, and some more tokens."""
    if model.stream_functions is None:

        def start(tokens, known, length):
            return model.prefill(tokens[:, :length], known - 1, tokens.shape[1])[1]

        def advance(tokens, cache, index, count):
            def step(tokens, cache, index, left):
                logits, _, cache = model.next_logits(tokens, cache, index)
                token = model.sampler.get_next_token(model.sampler.compute_probabilities(logits))
                here = tf.range(tokens.shape[1]) == index
                tokens = tf.where(here, tf.cast(token, tokens.dtype)[:, None], tokens)
                return tokens, cache, index + 1, left - 1

            state = (tokens, cache, index, count)
            return tf.while_loop(lambda *state: state[3] > 0, step, state)[:2]

        options = {"jit_compile": model.jit_generate, "reduce_retracing": True}
        model.stream_functions = (
            tf.function(start, **options),
            tf.function(advance, **options),
        )
    return model.stream_functions


class TextPieces:
    """What is new and whole in the text of ever more tokens.

    Args:
        tokenizer: the tokenizer that they are of.
    """

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.text, self.taken = b"", 0

    def new(self, tokens):
        """Yields what is new in the text of `[length]` tokens, if anything is."""
        special = self.tokenizer.special_token_ids
        kept = [token for token in np.asarray(tokens).tolist() if token not in special]
        self.text = np.asarray(self.tokenizer.detokenize(kept)).item() if kept else b""
        if isinstance(self.text, str):
            self.text = self.text.encode("utf-8")
        end = len(self.text)
        if self.tokenizer.needs_utf8:
            # All but the last word, which may go on.
            end = max(self.text.rfind(space) + 1 for space in (b" ", b"\n", b"\t"))
        if end > self.taken:
            piece = self.decoder.decode(self.text[self.taken : end])
            self.taken = end
            if piece:
                yield piece

    def rest(self):
        """Yields what was held back, once the text has ended."""
        piece = self.decoder.decode(self.text[self.taken :], final=True)
        if piece:
            yield piece
