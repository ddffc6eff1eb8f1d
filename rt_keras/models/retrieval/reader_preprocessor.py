"""Preprocessor of models that answer questions from passages."""

import keras
import keras_hub
import tensorflow as tf

from rt_keras.arguments import wrong_value
from rt_keras.data.batches import check_at_least_one
from rt_keras.data.tokenizer import TextTokenizer, batch_of_tokens, check_strings, needs_utf8
from rt_keras.models.causal_lm.causal_lm_backbone import RoutingTransformerBackbone
from rt_keras.models.causal_lm.causal_lm_preprocessor import strings_of_tokens
from rt_keras.models.compatible_parts import check_tokenizer


@keras.saving.register_keras_serializable(package="rt_keras")
class RoutingTransformerReaderPreprocessor(keras_hub.models.Preprocessor):
    """A preprocessor of passages, questions and answers.

    A sequence consists of the start token, the passages, the question and the answer, each followed
    by end of text. The best passage is next to the question:

    ```
    start, passage n, end, ..., passage 1, end, question, end, answer, end
    ```

    Each part is truncated to its own length, and there is no padding between the parts. A missing
    passage is an empty one. The passages come first, so that what a model has read of them can be
    kept for any number of questions.

    Args:
        tokenizer: a tokenizer of `rt_keras.data`, such as `ByteTokenizer`.
        num_passages: int, number of passages. Defaults to 7.
        passage_length: int, maximum number of tokens in a passage. Defaults to 288.
        question_length: int, maximum number of tokens in a question. Defaults to 64.
        answer_length: int, maximum number of tokens in an answer. Defaults to 256.
        **kwargs: keyword arguments of `keras_hub.models.Preprocessor`, such as `name`.

    Call arguments:
        x: dictionary of "question", strings `[batch]`; "passages", strings `[batch, passages]`, the
            best first, with at most `num_passages`; and "answer", strings `[batch]`.

    Returns:
        Tuple `(x, y, sample_weight)` of `[batch, sequence_length]`: `x` is a dictionary of
        "token_ids" and "padding_mask", `y` contains the next token of each position, and
        `sample_weight` is True where that token belongs to the answer or ends it.

    Raises:
        TypeError: if `tokenizer` is not a tokenizer of `rt_keras.data`.
        ValueError: if a length is less than 1, if there are more than `num_passages`, or if a
            question is empty or, in generation, too long.

    Source: Krishna et al. 2021, Hurdles to Progress in Long-form Question Answering, section 2.2.

    >>> from rt_keras.data import ByteTokenizer
    >>> preprocessor = RoutingTransformerReaderPreprocessor(ByteTokenizer(), 2, 3, 3, 3)
    >>> preprocessor.sequence_length
    17
    >>> x = {"question": ["q"], "passages": [["best", "x"]], "answer": ["a"]}
    >>> x, y, sample_weight = preprocessor(x)
    >>> preprocessor.tokenizer.detokenize(x["token_ids"][0, 1:2]).numpy()
    b'x'
    >>> y[sample_weight].numpy().tolist()
    [99, 1]
    """

    backbone_cls = RoutingTransformerBackbone
    tokenizer_cls = TextTokenizer

    def __init__(
        self,
        tokenizer,
        num_passages=7,
        passage_length=288,
        question_length=64,
        answer_length=256,
        **kwargs,
    ):
        check_tokenizer(tokenizer)
        super().__init__(**kwargs)
        self.tokenizer = tokenizer
        self.num_passages, self.passage_length = num_passages, passage_length
        self.question_length, self.answer_length = question_length, answer_length
        check_at_least_one(**self._lengths())
        # With the start token, and the end of each part.
        passages = num_passages * (passage_length + 1)
        self.sequence_length = 1 + passages + question_length + 1 + answer_length + 1

    def _lengths(self):
        """Returns the arguments of the constructor that are numbers, by name."""
        return {
            "num_passages": self.num_passages,
            "passage_length": self.passage_length,
            "question_length": self.question_length,
            "answer_length": self.answer_length,
        }

    def get_config(self):
        return {**super().get_config(), **self._lengths()}

    def call(self, x, y=None, sample_weight=None):
        passages = self.passage_tokens(x["passages"])
        question = self.question_tokens(x["question"])
        before = tf.concat([passages, question], axis=1)
        answer = self._with_end(self._tokens(x["answer"], self.answer_length))
        row, length = tf.concat([before, answer], axis=1), self.sequence_length + 1
        # [batch, (length)] -> [batch, sequence_length + 1]
        tokens, mask = self._pad(row, length), _mask_of(row, length)
        is_answer = mask & ~_mask_of(before, length)
        x = {"token_ids": tokens[:, :-1], "padding_mask": mask[:, :-1]}
        return keras.utils.pack_x_y_sample_weight(x, tokens[:, 1:], is_answer[:, 1:])

    def generate_preprocess(self, x, sequence_length=None):
        """Converts passages and questions to the inputs of generation.

        Args:
            x: dictionary of "question" and "passages"; see the class.
            sequence_length: int, number of tokens. Defaults to the preprocessor's.

        Returns:
            Dictionary of "token_ids" and "padding_mask", `[batch, sequence_length]`.

        Raises:
            ValueError: outside of TensorFlow functions, if passages and question have more tokens.
        """
        passages = self.passage_tokens(x["passages"])
        row = tf.concat([passages, self.question_tokens(x["question"])], axis=1)
        length = sequence_length or self.sequence_length
        _check_fits(row, length)
        return {"token_ids": self._pad(row, length), "padding_mask": _mask_of(row, length)}

    def generate_postprocess(self, x):
        """Converts tokens to strings; see `RoutingTransformerCausalLMPreprocessor`."""
        return strings_of_tokens(self.tokenizer, x["token_ids"], x["padding_mask"])

    def passage_tokens(self, passages):
        """Returns the tokens of passages, with start and ends.

        Args:
            passages: strings `[batch, passages]`, the best first.

        Returns:
            Ragged int32 `[batch, (length)]`.
        """
        passages = tf.convert_to_tensor(passages, tf.string)
        count = passages.shape[1]
        if count is None or count > self.num_passages:
            raise ValueError(
                f"passages must be at most {self.num_passages}, num_passages. Received: {count}"
            )
        missing = [[0, 0], [self.num_passages - count, 0]]
        # [batch, passages] -> [batch * num_passages], the best last
        flat = tf.reshape(tf.pad(tf.reverse(passages, [1]), missing, constant_values=""), [-1])
        tokens = self._with_end(self._tokens(flat, self.passage_length))
        # [batch, num_passages, (length)]
        rows = tf.RaggedTensor.from_uniform_row_length(tokens, self.num_passages)
        start = tf.fill([tf.shape(passages)[0], 1], self.tokenizer.start_token_id)
        return tf.concat([start, rows.merge_dims(1, 2)], axis=1)

    def question_tokens(self, question):
        """Returns the tokens of questions, with ends.

        Args:
            question: strings `[batch]`.

        Returns:
            Ragged int32 `[batch, (length)]`.
        """
        return self._with_end(self._tokens(question, self.question_length))

    def _tokens(self, texts, length):
        return batch_of_tokens(self.tokenizer(texts))[0][:, :length]

    def _with_end(self, tokens):
        end = tf.fill([tokens.nrows(), 1], self.tokenizer.end_token_id)
        return tf.concat([tokens, end], axis=1)

    def _pad(self, row, length):
        return row.to_tensor(self.tokenizer.pad_token_id, shape=[row.shape[0], length])


def _mask_of(row, length):
    """Returns a mask of the positions of a ragged tensor, bool `[batch, length]`."""
    return tf.sequence_mask(row.row_lengths(), length)


def _check_fits(row, length):
    """Raises a ValueError if a row of tokens would be truncated; not in TensorFlow functions."""
    if tf.executing_eagerly() and row.nrows():
        longest = int(tf.reduce_max(row.row_lengths()))
        if longest > length:
            needed = f"at least {longest}, the tokens of passages and question"
            raise wrong_value("max_length", needed, length)


def tokens_to_answer(question, preprocessor):
    """Returns the tokens of a question with their end, int32 `[length]`.

    Args:
        question: string.
        preprocessor: a `RoutingTransformerReaderPreprocessor`.

    Raises:
        ValueError: if the question cannot be answered as it is: if it is empty or too long.
    """
    tokenizer = preprocessor.tokenizer
    check_strings("question", question, needs_utf8(tokenizer))
    if not question.strip():
        raise ValueError(f"question must not be empty. Received: question={question!r}")
    tokens = tokenizer(tf.constant(question))
    if len(tokens) > preprocessor.question_length:
        raise ValueError(
            f"question must have at most {preprocessor.question_length} tokens, question_length. "
            f"Received: {len(tokens)} tokens"
        )
    return tf.concat([tokens, [tokenizer.end_token_id]], axis=0)
