"""Preprocessor of causal language models, from strings to token ids and back."""

import keras
import keras_hub
import tensorflow as tf

from rt_keras.data.batches import check_at_least_one
from rt_keras.data.tokenizer import TextTokenizer
from rt_keras.models.causal_lm.causal_lm_backbone import RoutingTransformerBackbone
from rt_keras.models.compatible_parts import check_tokenizer
from rt_keras.models.generation import check_texts, no_tokens


@keras.saving.register_keras_serializable(package="rt_keras")
class RoutingTransformerCausalLMPreprocessor(keras_hub.models.CausalLMPreprocessor):
    """KerasHub's preprocessor of causal language models, for any tokenizer of `rt_keras.data`.

    A sequence consists of end of text, the tokens of a text, and end of text. It is truncated or
    padded to `sequence_length`. It starts with end of text because training packs documents one
    after the other, so that end of text precedes each document. With a `T2TSubwordTokenizer`, it
    starts with padding, as in the models of that tokenizer. Preprocessing runs inside TensorFlow
    functions, so that a served model takes and returns strings.

    Args:
        tokenizer: a tokenizer of `rt_keras.data`, such as `ByteTokenizer`.
        sequence_length: int, length of the sequences. Defaults to 1024.
        **kwargs: keyword arguments of `keras_hub.models.CausalLMPreprocessor`, such as `name`.

    Call arguments:
        x: a string, or strings `[batch]`.

    Returns:
        Tuple `(x, y, sample_weight)` of `[batch, sequence_length]`, or `[sequence_length]` for a
        single string: `x` is a dictionary of "token_ids" and "padding_mask", `y` contains the next
        token of each position, and `sample_weight` is False where that token is padding.

    Raises:
        TypeError: if `tokenizer` is not a tokenizer of `rt_keras.data`.
        ValueError: if `sequence_length` is less than 1.

    >>> from rt_keras.data import ByteTokenizer
    >>> preprocessor = RoutingTransformerCausalLMPreprocessor(ByteTokenizer(), sequence_length=4)
    >>> x, y, sample_weight = preprocessor("ab")
    >>> x["token_ids"].numpy().tolist(), y.numpy().tolist()
    ([1, 99, 100, 1], [99, 100, 1, 0])
    >>> prompt = preprocessor.generate_preprocess(["ab"])
    >>> prompt["token_ids"].numpy().tolist()
    [[1, 99, 100, 0]]
    >>> preprocessor.generate_postprocess(prompt)
    ['ab']
    """

    backbone_cls = RoutingTransformerBackbone
    tokenizer_cls = TextTokenizer

    def __init__(self, tokenizer, sequence_length=1024, **kwargs):
        check_tokenizer(tokenizer)
        check_at_least_one(sequence_length=sequence_length)
        super().__init__(tokenizer, sequence_length=sequence_length, **kwargs)

    def generate_preprocess(self, x, sequence_length=None):
        """Converts prompts to the inputs of generation: a start token, the prompt and padding.

        Args:
            x: a string, or strings `[batch]`.
            sequence_length: int, number of tokens. Defaults to the preprocessor's.

        Returns:
            Dictionary of "token_ids" and "padding_mask", `[batch, sequence_length]`.

        Raises:
            ValueError: if `sequence_length` is less than 1, or if a prompt is too long or is not
                the UTF-8 that the tokenizer needs.
        """
        check_at_least_one(sequence_length=sequence_length)
        length = sequence_length or self.sequence_length
        if isinstance(x, (list, tuple)) and not x:
            return no_tokens(length)
        check_texts("prompt", x, self.tokenizer, length)
        return super().generate_preprocess(x, sequence_length=sequence_length)

    def generate_postprocess(self, x):
        """Converts tokens to strings, without padding and end-of-text tokens.

        Args:
            x: dictionary of "token_ids" and "padding_mask", from generation.

        Returns:
            A list of strings, or a string for a single sequence. Invalid UTF-8 becomes U+FFFD.
            Inside a TensorFlow function, a string tensor of the exact bytes.
        """
        return strings_of_tokens(self.tokenizer, x["token_ids"], x["padding_mask"])


def strings_of_tokens(tokenizer, token_ids, padding_mask):
    """Converts tokens to strings, without padding and end-of-text tokens.

    Args:
        tokenizer: the tokenizer of the tokens.
        token_ids: int `[batch, length]` or `[length]`.
        padding_mask: bool or int, of the same shape, 0 for padding.

    Returns:
        As for `RoutingTransformerCausalLMPreprocessor.generate_postprocess`.
    """
    tokens = tf.convert_to_tensor(token_ids)
    special = tf.constant(tokenizer.special_token_ids, tokens.dtype)
    is_special = tf.reduce_any(tokens[..., None] == special, axis=-1)  # [batch, length]
    tokens = tf.ragged.boolean_mask(tokens, tf.cast(padding_mask, tf.bool) & ~is_special)
    strings = tokenizer.detokenize(tokens)
    if tf.executing_eagerly() and tf.is_tensor(strings):
        return _decode(strings.numpy())
    return strings


def _decode(strings):
    """Decodes bytes, or an array of them."""
    if isinstance(strings, bytes):
        return strings.decode("utf-8", errors="replace")
    return [_decode(string) for string in strings]


# KerasHub finds the tokenizer of a preset by its backbone.
TextTokenizer.backbone_cls = RoutingTransformerBackbone
