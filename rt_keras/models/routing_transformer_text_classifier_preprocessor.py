"""Preprocessor of text classifiers, from strings to token ids."""

import keras
import keras_hub

from rt_keras.models.text_preprocessor import EncoderPreprocessor


@keras.saving.register_keras_serializable(package="rt_keras")
class RoutingTransformerTextClassifierPreprocessor(
    EncoderPreprocessor, keras_hub.models.TextClassifierPreprocessor
):
    """KerasHub's preprocessor of text classifiers, for any tokenizer of `rt_keras.data`.

    A sequence consists of end of text, the tokens of a text, and end of text. It is truncated or
    padded to `sequence_length`. A second text follows the first and is also followed by end of
    text.

    Args:
        tokenizer: a tokenizer of `rt_keras.data`, such as `ByteTokenizer`.
        sequence_length: int, length of the sequences. Defaults to 512.
        truncate: string, method for truncating two texts: `"round_robin"` keeps equally many tokens
            of both, and `"waterfall"` keeps the first text. Defaults to `"round_robin"`.
        **kwargs: other keyword arguments of `keras_hub.models.TextClassifierPreprocessor`.

    Call arguments:
        x: a string, strings `[batch]`, or a tuple of these, such as the two texts of a pair.
        y: labels, passed through. Defaults to None. If `y` is passed, even as `y=None`, a tuple `x`
            contains texts. If `x` is the only argument, a tuple contains texts and labels, as in
            all of KerasHub.
        sample_weight: weights, passed through. Defaults to None.

    Returns:
        A dictionary of "token_ids" and "padding_mask", `[batch, sequence_length]`; with labels, a
        tuple of this dictionary and the labels.

    Raises:
        TypeError: if `tokenizer` is not a tokenizer of `rt_keras.data`.
        ValueError: if `sequence_length` is less than 1.

    >>> from rt_keras.data import ByteTokenizer
    >>> preprocessor = RoutingTransformerTextClassifierPreprocessor(ByteTokenizer(), 8)
    >>> x, y = preprocessor((["ab"], ["c"]), [1])
    >>> x["token_ids"].numpy().tolist()
    [[1, 99, 100, 1, 101, 1, 0, 0]]
    """
