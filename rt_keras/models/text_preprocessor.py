"""Base classes of the text preprocessors: tokenizers of `rt_keras.data`, packing for encoders."""

import keras
import keras_hub

from rt_keras import data
from rt_keras.data.batches import check_at_least_one
from rt_keras.data.tokenizer import TextTokenizer
from rt_keras.models.routing_transformer_encoder_backbone import RoutingTransformerEncoderBackbone

# All are imported here, so that Keras can load presets with any of them by name.
TOKENIZERS = [getattr(data, name) for name in data.__all__ if name.endswith("Tokenizer")]


class TextPreprocessor:
    """Mixin of preprocessors for any tokenizer of `rt_keras.data`.

    List it before KerasHub's base class.

    Args:
        tokenizer: a tokenizer of `rt_keras.data`.
        **kwargs: arguments of KerasHub's preprocessor. Those that end in "_length" must be at least
            1.

    Raises:
        TypeError: if `tokenizer` is not a tokenizer of `rt_keras.data`.
        ValueError: if a length is less than 1.
    """

    tokenizer_cls = TextTokenizer

    def __init__(self, tokenizer, **kwargs):
        check_tokenizer(tokenizer)
        check_at_least_one(**{name: x for name, x in kwargs.items() if name.endswith("_length")})
        super().__init__(tokenizer, **kwargs)


class EncoderPreprocessor(TextPreprocessor):
    """Mixin of preprocessors that pack texts into one sequence.

    List it before KerasHub's base class.

    Args:
        tokenizer, sequence_length, truncate: see `RoutingTransformerTextClassifierPreprocessor`.
        **kwargs: other arguments of KerasHub's preprocessor.
    """

    backbone_cls = RoutingTransformerEncoderBackbone

    def __init__(self, tokenizer, sequence_length=512, truncate="round_robin", **kwargs):
        super().__init__(tokenizer, sequence_length=sequence_length, truncate=truncate, **kwargs)

    def build(self, input_shape):
        self.packer = make_packer(self)
        self.built = True

    def call(self, x, y=None, sample_weight=None):
        outputs = super().call(x, y, sample_weight)
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(outputs)
        # The backbones have no segment embedding.
        x = {name: values for name, values in x.items() if name != "segment_ids"}
        return keras.utils.pack_x_y_sample_weight(x, y, sample_weight)


def check_tokenizer(tokenizer):
    """Raises a TypeError if a tokenizer is not one of `rt_keras.data`."""
    if not isinstance(tokenizer, TextTokenizer):
        raise TypeError(
            "tokenizer must be a tokenizer of rt_keras.data, such as "
            f"{', '.join(tokenizer.__name__ for tokenizer in TOKENIZERS)}. "
            f"Received: a {type(tokenizer).__name__}"
        )


def make_packer(preprocessor):
    """Creates the layer that packs texts into one sequence, separated by end-of-text tokens.

    Args:
        preprocessor: a preprocessor with `tokenizer`, `sequence_length` and `truncate`.
    """
    tokenizer = preprocessor.tokenizer
    return keras_hub.layers.MultiSegmentPacker(
        # Not the start token, which is padding in some tokenizers.
        start_value=tokenizer.end_token_id,
        end_value=tokenizer.end_token_id,
        pad_value=tokenizer.pad_token_id,
        truncate=preprocessor.truncate,
        sequence_length=preprocessor.sequence_length,
    )
