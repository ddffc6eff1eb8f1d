"""KerasHub tokenizers whose configurations contain all their arguments."""

import keras
import keras_hub

from rt_keras.models.adapted.backbones import BACKBONES


@keras.saving.register_keras_serializable(package="rt_keras")
class AdaptedLlama3Tokenizer(keras_hub.tokenizers.Llama3Tokenizer):
    """`keras_hub.tokenizers.Llama3Tokenizer` that saves its special tokens.

    KerasHub's tokenizer omits them from its configuration, and looks for those of Llama 3 in any
    vocabulary.

    Args:
        bos_token, eos_token: strings, first and last token of a text.
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
        # KerasHub's constructor changes the set.
        misc_special_tokens = set(misc_special_tokens)
        super().__init__(vocabulary, merges, bos_token, eos_token, misc_special_tokens, **kwargs)

    def get_config(self):
        return {**super().get_config(), **_special_tokens(self)}


def _special_tokens(tokenizer):
    """Returns the arguments that `Llama3Tokenizer.get_config` omits."""
    start, end = tokenizer.start_token, tokenizer.end_token
    return {
        "bos_token": start,
        "eos_token": end,
        "misc_special_tokens": sorted({*tokenizer.special_tokens} - {start, end}),
    }


def adapted_preprocessor(preprocessor):
    """Returns a preprocessor whose tokenizer is saved completely; the same one if it already is."""
    return _with_tokenizer(
        preprocessor, keras_hub.tokenizers.Llama3Tokenizer, AdaptedLlama3Tokenizer
    )


def restored_preprocessor(preprocessor):
    """Inverts `adapted_preprocessor`."""
    return _with_tokenizer(
        preprocessor, AdaptedLlama3Tokenizer, keras_hub.tokenizers.Llama3Tokenizer
    )


def _with_tokenizer(preprocessor, before, after):
    tokenizer = getattr(preprocessor, "tokenizer", None)
    if type(tokenizer) is not before:
        return preprocessor
    config = {**tokenizer.get_config(), **_special_tokens(tokenizer)}
    # KerasHub's constructor takes only a set.
    config["misc_special_tokens"] = set(config["misc_special_tokens"])
    config |= {"vocabulary": tokenizer.vocabulary, "merges": tokenizer.merges}
    config = {**preprocessor.get_config(), "tokenizer": after.from_config(config)}
    return type(preprocessor).from_config(config)
