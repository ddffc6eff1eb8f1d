"""Tokenizers of KerasHub whose configurations say all that they were made from."""

import keras
import keras_hub

from rt_keras.models.adapted.backbones import BACKBONES


@keras.saving.register_keras_serializable(package="rt_keras")
class AdaptedLlama3Tokenizer(keras_hub.tokenizers.Llama3Tokenizer):
    """`keras_hub.tokenizers.Llama3Tokenizer` that keeps its special tokens when it is saved.

    KerasHub's leaves them out of its configuration, and looks for Llama 3's in any vocabulary.

    Args:
        bos_token, eos_token: strings, what a text begins and ends with.
        misc_special_tokens: set or list of strings, other tokens that are not split.
        **kwargs: arguments of `keras_hub.tokenizers.Llama3Tokenizer`.
    """

    backbone_cls = BACKBONES[keras_hub.models.Llama3Backbone]

    def __init__(
        self,
        vocabulary=None,
        merges=None,
        bos_token="<|begin_of_text|>",
        eos_token="<|end_of_text|>",
        misc_special_tokens=(),
        **kwargs,
    ):
        # KerasHub's changes the set.
        misc_special_tokens = set(misc_special_tokens)
        super().__init__(vocabulary, merges, bos_token, eos_token, misc_special_tokens, **kwargs)

    def get_config(self):
        return {**super().get_config(), **_special_tokens(self)}


def _special_tokens(tokenizer):
    """The arguments that `Llama3Tokenizer.get_config` leaves out."""
    start, end = tokenizer.start_token, tokenizer.end_token
    return {
        "bos_token": start,
        "eos_token": end,
        "misc_special_tokens": sorted({*tokenizer.special_tokens} - {start, end}),
    }


def adapted_preprocessor(preprocessor):
    """A preprocessor whose tokenizer is saved whole; the same one where KerasHub's is."""
    return _with_tokenizer(
        preprocessor, keras_hub.tokenizers.Llama3Tokenizer, AdaptedLlama3Tokenizer
    )


def restored_preprocessor(preprocessor):
    """The inverse of `adapted_preprocessor`."""
    return _with_tokenizer(
        preprocessor, AdaptedLlama3Tokenizer, keras_hub.tokenizers.Llama3Tokenizer
    )


def _with_tokenizer(preprocessor, before, after):
    tokenizer = getattr(preprocessor, "tokenizer", None)
    if type(tokenizer) is not before:
        return preprocessor
    config = {**tokenizer.get_config(), **_special_tokens(tokenizer)}
    # KerasHub's takes a set alone.
    config["misc_special_tokens"] = set(config["misc_special_tokens"])
    config |= {"vocabulary": tokenizer.vocabulary, "merges": tokenizer.merges}
    config = {**preprocessor.get_config(), "tokenizer": after.from_config(config)}
    return type(preprocessor).from_config(config)
