"""Routing Transformer that answers questions from passages."""

import dataclasses

import keras
import numpy as np
import tensorflow as tf

from rt_keras.models.causal_lm.causal_lm import RoutingTransformerCausalLM
from rt_keras.models.generation import bucket
from rt_keras.models.programs import compile_once
from rt_keras.models.retrieval.reader_preprocessor import (
    RoutingTransformerReaderPreprocessor,
    tokens_to_answer,
)
from rt_keras.models.streaming import check_can_stream, continued


@dataclasses.dataclass(frozen=True)
class ReadPassages:
    """Passages that a model has read; see `RoutingTransformerReader.read_passages`.

    Args:
        tokens: int32 array `[length]`, the tokens of the passages.
        cache: the cache of a model after these tokens.
    """

    tokens: np.ndarray
    cache: object


@keras.saving.register_keras_serializable(package="rt_keras")
class RoutingTransformerReader(RoutingTransformerCausalLM):
    """A `RoutingTransformerCausalLM` that reads passages and answers a question about them.

    It is trained on sequences of passages, a question and its answer, with the loss on the answer
    alone. It can start from the weights of a `RoutingTransformerCausalLM`.

    Args:
        backbone: a `RoutingTransformerBackbone`.
        preprocessor: a `RoutingTransformerReaderPreprocessor`. Defaults to None, for inputs of
            token ids.
        loss_chunk_size: see `RoutingTransformerCausalLM`. Defaults to None.
        **kwargs: keyword arguments of `keras_hub.models.CausalLM`, such as `name`.

    Call arguments:
        inputs: dictionary of "token_ids", int `[batch, length]`; and "padding_mask", bool or int
            `[batch, length]`, 0 for padding.
        training: bool, whether to apply dropout and collect statistics of the centroids.
            Defaults to None, for Keras's default.

    Returns:
        Logits, `[batch, length, vocabulary_size]`.

    Raises:
        ValueError: if `loss_chunk_size` is not a positive integer.

    Source: Krishna et al. 2021, Hurdles to Progress in Long-form Question Answering, section 2.2.

    >>> from rt_keras.data import ByteTokenizer
    >>> from rt_keras.layers import LocalHeads
    >>> from rt_keras.models import RoutingTransformerBackbone
    >>> backbone = RoutingTransformerBackbone(258, 1, 8, 16, [LocalHeads(2, block_size=4)])
    >>> preprocessor = RoutingTransformerReaderPreprocessor(ByteTokenizer(), 1, 20, 10, 8)
    >>> reader = RoutingTransformerReader(backbone, preprocessor)
    >>> reader.compile(sampler="greedy")
    >>> read = reader.read_passages(["The sky is blue."])
    >>> answer = "".join(reader.stream_answer("why?", read))
    >>> len(answer) <= 8
    True
    """

    kind = "reader"
    preprocessor_cls = RoutingTransformerReaderPreprocessor
    # `keras_hub.models.CausalLM.from_preset` takes any class with the backbone of a preset; of two
    # such classes, a random one.
    backbone_cls = None

    @classmethod
    def from_preset(cls, preset, load_weights=True, **kwargs):
        """See `RoutingTransformerCausalLM.from_preset`."""
        loaded = RoutingTransformerCausalLM.from_preset(preset, load_weights, **kwargs)
        if not isinstance(loaded, cls):
            raise ValueError(
                f"preset must hold a {cls.__name__}. Received: preset={preset!r}, which holds a "
                f"{type(loaded).__name__}"
            )
        return loaded

    def generate(self, inputs, max_length=None, stop_token_ids="auto", strip_prompt=True):
        """Answers questions.

        Args:
            inputs: dictionary of "question", strings `[batch]`, and "passages", strings
                `[batch, passages]`, the best first; or of one question and the list of its
                passages.
            max_length: int, maximum number of tokens with those of the passages and the question.
                Defaults to the preprocessor's `sequence_length`.
            stop_token_ids: ids that end an answer. Defaults to `"auto"`, for end of text.
            strip_prompt: bool, whether to leave out passages and question. Defaults to True.

        Returns:
            A list of strings, or one string for one question.
        """
        if self.preprocessor is None:
            return super().generate(inputs, max_length, stop_token_ids, strip_prompt)
        one = isinstance(inputs["question"], str)
        if one:
            inputs = {name: [x] for name, x in inputs.items()}
        for question in inputs["question"]:
            tokens_to_answer(question, self.preprocessor)  # Raises an error if it is too long.
        answers = super().generate(inputs, max_length, stop_token_ids, strip_prompt)
        return answers[0] if one else answers

    def read_passages(self, passages):
        """Reads passages once, for any number of questions about them.

        Args:
            passages: list of at most `num_passages` strings, the best first.

        Returns:
            A `ReadPassages`.

        Raises:
            ValueError: if there are more passages, or if the heads do not decode with a cache.
        """
        if not self.cached_decoding:
            raise ValueError(
                "read_passages() needs heads that decode with a cache; see cached_decoding"
            )
        tokens = self.preprocessor.passage_tokens([passages]).to_tensor()
        count, width = tokens.shape[1], self.preprocessor.sequence_length
        tokens = tf.pad(tokens, [[0, 0], [0, width - count]])
        return ReadPassages(tokens[0, :count].numpy(), self.prompt_cache(tokens, count))

    def stream_answer(self, question, read, max_answer_length=None):
        """Answers a question about passages that have been read, yielding the text in chunks.

        Args:
            question: string.
            read: a `ReadPassages`, which stays unchanged.
            max_answer_length: int, maximum number of tokens in the answer. Defaults to the
                preprocessor's `answer_length`.

        Yields:
            Strings, none of them empty. Joined, they equal the output of `generate`, up to its
            length.

        Raises:
            ValueError: if the question is empty or has too many tokens, or if the sampler compares
                several continuations, as beam and contrastive search do.
        """
        question = tokens_to_answer(question, self.preprocessor)[None]  # [1, count]
        check_can_stream(self)
        first, count = len(read.tokens), question.shape[1]
        # Few lengths, so that few programs are compiled.
        chunk = tf.pad(question, [[0, 0], [0, bucket(count, 2**30) - count]])

        def read_chunk(chunk, cache, first, count):
            return self.backbone.call_with_cache(chunk, cache, first, count=count)[1]

        read_question = compile_once(self, "question", read_chunk, of_blocks=True)
        # The first step of the answer reads the last token of the question.
        cache = read_question(chunk, read.cache, tf.constant(first), tf.constant([count - 1]))
        length = min(max_answer_length or 2**30, self.preprocessor.answer_length)
        tokens = tf.concat([read.tokens[None], question, tf.zeros([1, length], tf.int32)], axis=1)
        width = self.preprocessor.sequence_length
        tokens = tf.pad(tokens, [[0, 0], [0, width - tokens.shape[1]]])
        yield from continued(self, tokens, first + count, first + count + length, cache)
