"""Preprocessor of span predictors, from questions and contexts to token ids and back."""

import keras
import keras_hub
import tensorflow as tf

from rt_keras.data.batches import check_at_least_one
from rt_keras.data.tokenizer import TextTokenizer
from rt_keras.models.routing_transformer_encoder_backbone import RoutingTransformerEncoderBackbone
from rt_keras.models.text_preprocessor import check_tokenizer, make_packer


@keras.saving.register_keras_serializable(package="rt_keras")
class RoutingTransformerSpanPredictorPreprocessor(keras_hub.models.Preprocessor):
    """Packs a question and its context into one sequence, and finds the tokens of the answer.

    A sequence consists of end of text, the question, end of text, the context, and end of text. It
    is padded to `sequence_length`. If it is too long, the context is truncated.

    An answer is a part of the context that starts and ends with whole tokens: at any byte with a
    `ByteTokenizer`, at word boundaries with other tokenizers.

    Args:
        tokenizer: a tokenizer of `rt_keras.data`, such as `ByteTokenizer`.
        sequence_length: int, length of the sequences. Defaults to 512.
        **kwargs: keyword arguments of `keras_hub.models.Preprocessor`, such as `name`.

    Call arguments:
        x: dictionary of "question" and "context", strings `[batch]`; and, for training, "answer",
            strings `[batch]`, and "answer_start", int `[batch]`, the number of characters of the
            context before the answer, as in SQuAD.
        y, sample_weight: passed through if there are no answers. Default to None.

    Returns:
        A dictionary of "token_ids", "padding_mask" and "context_mask", `[batch, sequence_length]`,
        the last True at the tokens of the context. With answers, a tuple `(x, y, sample_weight)`:
        `y` contains the positions of the first and the last token of the answer, `[batch, 2]`, and
        `sample_weight`, `[batch, 2]`, is 0 where the answer is truncated.

    Raises:
        TypeError: if `tokenizer` is not a tokenizer of `rt_keras.data`.
        ValueError: if `sequence_length` is less than 1, or if strings have no batch dimension.

    >>> from rt_keras.data import ByteTokenizer
    >>> preprocessor = RoutingTransformerSpanPredictorPreprocessor(ByteTokenizer(), 24)
    >>> x = {"question": ["who?"], "context": ["it was Ann"]}
    >>> answers = {"answer": ["Ann"], "answer_start": [7]}
    >>> inputs, spans, weights = preprocessor({**x, **answers})
    >>> spans.numpy(), weights.numpy()
    (array([[13, 15]], dtype=int32), array([[1., 1.]], dtype=float32))
    >>> preprocessor.answers(x, spans)
    ['Ann']
    """

    backbone_cls = RoutingTransformerEncoderBackbone
    tokenizer_cls = TextTokenizer

    def __init__(self, tokenizer, sequence_length=512, **kwargs):
        check_tokenizer(tokenizer)
        check_at_least_one(sequence_length=sequence_length)
        super().__init__(**kwargs)
        self.tokenizer = tokenizer
        self.sequence_length = sequence_length
        # Keeps the question and truncates the context.
        self.truncate = "waterfall"
        self.packer = self.offset_packer = None

    def build(self, input_shape):
        self.packer = make_packer(self)
        self.offset_packer = keras_hub.layers.MultiSegmentPacker(
            self.sequence_length,
            start_value=0,
            end_value=0,
            pad_value=0,
            truncate=self.truncate,
        )
        self.built = True

    def call(self, x, y=None, sample_weight=None):
        x = {name: tf.convert_to_tensor(values) for name, values in x.items()}
        if x["context"].shape.rank != 1:
            raise ValueError(
                "x must have batches of strings, such as {'question': ['who?'], 'context': ['Ann']}"
                f". Received: a context of shape {x['context'].shape}"
            )
        token_ids, starts, ends = self._sequences(x)
        in_context = ends > 0
        inputs = {
            "token_ids": token_ids,
            "padding_mask": token_ids != self.tokenizer.pad_token_id,
            "context_mask": in_context,
        }
        if "answer" not in x:
            return keras.utils.pack_x_y_sample_weight(inputs, y, sample_weight)
        spans, weights = self._spans(x, in_context, starts, ends)
        return inputs, spans, weights

    def _spans(self, x, in_context, starts, ends):
        """Returns the first and last token of each answer, and weights, 0 if it is truncated."""
        count = x["answer_start"]
        before = tf.strings.substr(x["context"], tf.zeros_like(count), count, unit="UTF8_CHAR")
        first = tf.strings.length(before)
        last = first + tf.strings.length(x["answer"])
        first, last = (tf.cast(place, ends.dtype)[:, None] for place in (first, last))
        inside = tf.cast(in_context & (ends > first) & (starts < last), tf.int32)
        begin = tf.argmax(inside, axis=1, output_type=tf.int32)
        # The last of the tokens inside.
        length = self.sequence_length
        end = length - 1 - tf.argmax(inside[:, ::-1], axis=1, output_type=tf.int32)
        whole = tf.reduce_any(inside > 0, axis=1) & (tf.reduce_max(ends, axis=1) >= last[:, 0])
        weights = tf.repeat(tf.cast(whole, tf.float32)[:, None], 2, axis=1)
        return tf.where(whole[:, None], tf.stack([begin, end], axis=1), 0), weights

    def _sequences(self, x):
        """Returns token ids and the byte offsets of context tokens; the end is 0 for others."""
        question, _, _ = self.tokenizer.tokenize_with_offsets(x["question"])
        context, starts, ends = self.tokenizer.tokenize_with_offsets(x["context"])
        token_ids, _ = self.packer((question, context))
        nothing = tf.zeros_like(question, starts.dtype)
        starts, ends = (self.offset_packer((nothing, places))[0] for places in (starts, ends))
        return token_ids, starts, ends

    def answers(self, x, spans):
        """Returns the texts of spans.

        Args:
            x: dictionary of "question" and "context", strings `[batch]`.
            spans: int `[batch, 2]`, positions of the first and the last token of each answer.

        Returns:
            A list of strings, `""` for spans outside the context. Inside a TensorFlow function, a
            string tensor of the exact bytes.
        """
        if not self.built:
            self.build(None)
        contexts = tf.convert_to_tensor(x["context"])
        _, starts, ends = self._sequences({**x, "context": contexts})
        first = tf.gather(starts, spans[:, 0], batch_dims=1)
        last = tf.gather(ends, spans[:, 1], batch_dims=1)
        texts = tf.strings.substr(contexts, first, tf.maximum(last - first, 0))
        if not tf.executing_eagerly():
            return texts
        return [text.decode("utf-8", errors="replace") for text in texts.numpy()]

    def get_config(self):
        return {**super().get_config(), "sequence_length": self.sequence_length}
