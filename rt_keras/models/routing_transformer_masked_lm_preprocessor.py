"""Preprocessor of masked language models, from strings to masked token ids."""

import math

import keras
import keras_hub

from rt_keras.models.text_preprocessor import EncoderPreprocessor


@keras.saving.register_keras_serializable(package="rt_keras")
class RoutingTransformerMaskedLMPreprocessor(
    EncoderPreprocessor, keras_hub.models.MaskedLMPreprocessor
):
    """KerasHub's preprocessor of masked language models, for any tokenizer of `rt_keras.data`.

    A sequence consists of end of text, the tokens of a text, and end of text. It is truncated or
    padded to `sequence_length`. Some of its tokens, except special ones, are selected for
    prediction. Each of them is replaced by the mask token, replaced by a random token, or left
    unchanged. The mask token follows the last token id of the tokenizer, so a model has one more
    token id than its tokenizer.

    Args:
        tokenizer: a tokenizer of `rt_keras.data`, such as `ByteTokenizer`.
        sequence_length: int, length of the sequences. Defaults to 512.
        truncate: string, method for truncating several texts in one sequence; see
            `keras_hub.layers.MultiSegmentPacker`. Defaults to `"round_robin"`.
        mask_selection_rate: float, share of the tokens to predict. Defaults to 0.15.
        mask_selection_length: int, maximum number of tokens to predict in a sequence. Defaults to
            `mask_selection_rate` times `sequence_length`, rounded up.
        mask_token_rate: float, share of these tokens that the mask token replaces. Defaults to 0.8.
        random_token_rate: float, share of these tokens that a random token replaces. Defaults to
            0.1.
        **kwargs: other keyword arguments of `keras_hub.models.MaskedLMPreprocessor`.

    Call arguments:
        x: a string, strings `[batch]`, or a tuple of these, which are packed into one sequence. For
            a tuple of two, pass `y=None` after it, as in all of KerasHub.

    Returns:
        Tuple `(x, y, sample_weight)`: `x` is a dictionary of "token_ids" and "padding_mask",
        `[batch, sequence_length]`, and "mask_positions", `[batch, mask_selection_length]`; `y`
        contains the tokens at those positions, and `sample_weight` is 0 at unused positions.

    Raises:
        TypeError: if `tokenizer` is not a tokenizer of `rt_keras.data`.
        ValueError: if a length is less than 1.

    Source: Devlin et al. 2019, BERT, section 3.1.

    >>> from rt_keras.data import ByteTokenizer
    >>> preprocessor = RoutingTransformerMaskedLMPreprocessor(ByteTokenizer(), sequence_length=40)
    >>> x, y, sample_weight = preprocessor(["a text of some twenty bytes"])
    >>> x["token_ids"].shape, x["mask_positions"].shape, y.shape
    (TensorShape([1, 40]), TensorShape([1, 6]), TensorShape([1, 6]))
    >>> preprocessor.vocabulary_size
    259
    """

    def __init__(
        self,
        tokenizer,
        sequence_length=512,
        truncate="round_robin",
        mask_selection_rate=0.15,
        mask_selection_length=None,
        **kwargs,
    ):
        if mask_selection_length is None:
            mask_selection_length = most_masks(mask_selection_rate, sequence_length)
        super().__init__(
            tokenizer,
            sequence_length,
            truncate,
            mask_selection_rate=mask_selection_rate,
            mask_selection_length=mask_selection_length,
            **kwargs,
        )

    @property
    def mask_token_id(self):
        """The id of the mask token."""
        return self.tokenizer.vocabulary_size()

    @property
    def vocabulary_size(self):
        """The number of token ids that a model needs: those of the tokenizer and the mask."""
        return vocabulary_with_mask(self.tokenizer)

    def build(self, input_shape):
        super().build(input_shape)
        # KerasHub's preprocessors take the mask from the tokenizer; those of `rt_keras.data` have
        # none.
        self.masker = keras_hub.layers.MaskedLMMaskGenerator(
            vocabulary_size=self.vocabulary_size,
            mask_selection_rate=self.mask_selection_rate,
            mask_selection_length=self.mask_selection_length,
            mask_token_id=self.mask_token_id,
            mask_token_rate=self.mask_token_rate,
            random_token_rate=self.random_token_rate,
            unselectable_token_ids=self.tokenizer.special_token_ids,
        )


def most_masks(rate, length):
    """Returns the number of tokens to predict: a share of the length rounded up, at least 1.

    >>> most_masks(0.15, 40), most_masks(0.15, 41), most_masks(0.15, 1)
    (6, 7, 1)
    """
    # Rounded first, since 0.15 * 40 is slightly above 6.
    return max(1, math.ceil(round(rate * length, 6)))


def vocabulary_with_mask(tokenizer):
    """Returns the number of token ids of an encoder: those of its tokenizer and the mask."""
    return tokenizer.vocabulary_size() + 1
