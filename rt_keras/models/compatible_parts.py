"""Checks that tokenizers, preprocessors and backbones fit together."""

from rt_keras import data
from rt_keras.data.tokenizer import TextTokenizer

TOKENIZERS = [name for name in data.__all__ if name.endswith("Tokenizer")]


def check_tokenizer(tokenizer):
    """Raises a TypeError if a tokenizer is not one of `rt_keras.data`."""
    if not isinstance(tokenizer, TextTokenizer):
        raise TypeError(
            "tokenizer must be a tokenizer of rt_keras.data, such as "
            f"{', '.join(TOKENIZERS)}. "
            f"Received: a {type(tokenizer).__name__}"
        )


def check_backbone(backbone, cls, preprocessor=None):
    """Raises an error if a backbone does not fit a model.

    Args:
        backbone: the backbone.
        cls: the class that it must have.
        preprocessor: the preprocessor of the model, or None. Defaults to None.

    Raises:
        TypeError: if the backbone is of another class.
        ValueError: if the backbone has fewer tokens than the preprocessor.
    """
    if not isinstance(backbone, cls):
        raise TypeError(f"backbone must be a {cls.__name__}. Received: a {type(backbone).__name__}")
    if preprocessor is not None and preprocessor.tokenizer.is_loaded:
        tokens = preprocessor.tokenizer.vocabulary_size()
        if backbone.vocabulary_size < tokens:
            raise ValueError(
                f"backbone must have at least the {tokens} tokens of the preprocessor. Received: "
                f"vocabulary_size={backbone.vocabulary_size}"
            )
