"""The preprocessor of text classifiers, from strings to token ids."""

import keras
import keras_hub

from rt_keras.models.text_preprocessor import EncoderPreprocessor


@keras.saving.register_keras_serializable(package="rt_keras")
class RoutingTransformerTextClassifierPreprocessor(
    EncoderPreprocessor, keras_hub.models.TextClassifierPreprocessor
):
    """KerasHub's preprocessor of text classifiers, for any tokenizer of `rt_keras.data`.

    A text becomes: end of text, its tokens, end of text; truncated or padded to `sequence_length`.
    A second text follows the first one, with another end of text after it.

    Args:
        tokenizer: a tokenizer of `rt_keras.data`, such as `ByteTokenizer`.
        sequence_length: int, length of the sequences. Defaults to 512.
        truncate: string, how two texts are truncated: `"round_robin"`, the default, takes as much
            from both, and `"waterfall"` keeps the first one.
        **kwargs: other keyword arguments of `keras_hub.models.TextClassifierPreprocessor`.

    Call arguments:
        x: a string, strings `[batch]`, or a tuple of those, such as the two texts of a pair.
        y: labels, passed through. Defaults to None. With it, even as `y=None`, a tuple stands for
            texts; as the only argument it stands for texts and labels, as in all of KerasHub.
        sample_weight: weights, passed through. Defaults to None.

    Returns:
        A dictionary of "token_ids" and "padding_mask", `[batch, sequence_length]`; with labels, a
        tuple of it and them.

    Raises:
        TypeError: if `tokenizer` is not a tokenizer of `rt_keras.data`.
        ValueError: if `sequence_length` is less than 1.

    >>> from rt_keras.data import ByteTokenizer
    >>> preprocessor = RoutingTransformerTextClassifierPreprocessor(ByteTokenizer(), 8)
    >>> x, y = preprocessor((["ab"], ["c"]), [1])
    >>> x["token_ids"].numpy().tolist()
    [[1, 99, 100, 1, 101, 1, 0, 0]]
    """
