"""Preprocessor of text embedders, from strings to token ids."""

import keras
import keras_hub

from rt_keras.data.batches import check_at_least_one
from rt_keras.data.tokenizer import TextTokenizer
from rt_keras.models.compatible_parts import check_tokenizer
from rt_keras.models.retrieval.encoder_backbone import RoutingTransformerEncoderBackbone


@keras.saving.register_keras_serializable(package="rt_keras")
class RoutingTransformerTextEmbedderPreprocessor(keras_hub.models.TextEmbedderPreprocessor):
    """KerasHub's preprocessor of text embedders, for any tokenizer of `rt_keras.data`.

    A sequence consists of end of text, the tokens of a text, and end of text. It is truncated or
    padded to `sequence_length`.

    Args:
        tokenizer: a tokenizer of `rt_keras.data`, such as `ByteTokenizer`.
        sequence_length: int, length of the sequences. Defaults to 512.
        truncate: string, method for truncating two texts that are embedded as one:
            `"round_robin"` or `"waterfall"`. Defaults to `"round_robin"`.
        **kwargs: other keyword arguments of `keras_hub.models.TextEmbedderPreprocessor`.

    Call arguments:
        x: a string, strings `[batch]`, or a tuple of these.
        y: labels, passed through. Defaults to None.
        sample_weight: weights, passed through. Defaults to None.

    Returns:
        A dictionary of "token_ids" and "padding_mask", `[batch, sequence_length]`; with labels, a
        tuple of this dictionary and the labels.

    Raises:
        TypeError: if `tokenizer` is not a tokenizer of `rt_keras.data`.
        ValueError: if `sequence_length` is less than 1.

    >>> from rt_keras.data import ByteTokenizer
    >>> preprocessor = RoutingTransformerTextEmbedderPreprocessor(ByteTokenizer(), 6)
    >>> preprocessor(["ab"])["token_ids"].numpy().tolist()
    [[1, 99, 100, 1, 0, 0]]
    """

    backbone_cls = RoutingTransformerEncoderBackbone
    tokenizer_cls = TextTokenizer

    def __init__(self, tokenizer, sequence_length=512, truncate="round_robin", **kwargs):
        check_tokenizer(tokenizer)
        check_at_least_one(sequence_length=sequence_length)
        super().__init__(tokenizer, sequence_length=sequence_length, truncate=truncate, **kwargs)

    def build(self, input_shape):
        end = self.tokenizer.end_token_id
        self.packer = keras_hub.layers.MultiSegmentPacker(
            # Not the start token, which is padding in some tokenizers.
            start_value=end,
            end_value=end,
            pad_value=self.tokenizer.pad_token_id,
            truncate=self.truncate,
            sequence_length=self.sequence_length,
        )
        self.built = True

    def _format_output(self, token_ids, segment_ids):
        return {"token_ids": token_ids, "padding_mask": token_ids != self.tokenizer.pad_token_id}
