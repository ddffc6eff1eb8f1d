"""KerasHub tasks on adapted backbones."""

import gc

import keras
import keras_hub

from rt_keras.keras_internals import layers_of
from rt_keras.models.adapted.adapted_causal_lm import AdaptedCausalLM
from rt_keras.models.adapted.adapted_seq_2_seq_lm import AdaptedSeq2SeqLM
from rt_keras.models.adapted.architectures import adapted_class
from rt_keras.models.adapted.backbones import BACKBONES
from rt_keras.models.adapted.tokenizers import adapted_preprocessor
from rt_keras.models.retrieval.contrastive import Contrastive


class AdaptedTextEmbedder(Contrastive):
    """Mixin of adapted text embedders: training on questions and passages; see `Contrastive`."""


class AdaptedTask:
    """Mixin of adapted tasks: their tokenizers, quantization, and saving."""

    def __setattr__(self, name, value):
        # Before Keras sees a layer of the model in it.
        value = adapted_preprocessor(value) if name == "preprocessor" else value
        super().__setattr__(name, value)

    @property
    def cached_decoding(self):
        """True if all heads can decode one position at a time."""
        return self.backbone.cached_decoding

    @property
    def adaptation(self):
        """Summary of each attention layer, an `Adaptation`; `print` shows a table."""
        return self.backbone.adaptation

    def quantize(self, *args, **kwargs):
        """Quantizes in seconds, and also a model that was never called; see `keras.Model`."""
        if self.preprocessor is not None:
            # Keras refuses layers that have not been called.
            _build(self.preprocessor)
        # Keras collects garbage for each weight, which searches all objects in memory.
        gc.freeze()
        try:
            super().quantize(*args, **kwargs)
        finally:
            gc.unfreeze()

    def save(self, filepath, overwrite=True, zipped=None, **kwargs):
        """See `keras.Model.save`. Raises a ValueError if the preprocessor could not be loaded."""
        _check_saved_whole(self.preprocessor)
        return super().save(filepath, overwrite=overwrite, zipped=zipped, **kwargs)

    def save_to_preset(self, preset_dir, **kwargs):
        """See KerasHub's. Raises a ValueError if the preprocessor could not be loaded."""
        _check_saved_whole(self.preprocessor)
        return super().save_to_preset(preset_dir, **kwargs)


def _build(layer):
    """Builds a layer that needs no input shape, and the layers inside it."""
    if not layer.built:
        layer.build(None)
    for inner in layers_of(layer):
        _build(inner)


def _check_saved_whole(preprocessor):
    for part in (preprocessor, getattr(preprocessor, "tokenizer", None)):
        name = keras.saving.get_registered_name(type(part))
        if part is not None and keras.saving.get_registered_object(name) is not type(part):
            raise ValueError(
                f"{type(part).__name__} could not be loaded again. Register its class with "
                "keras.saving.register_keras_serializable, or set preprocessor = None to save "
                "the model alone"
            )


# Mixins of adapted tasks by KerasHub's class.
MIXINS = {
    keras_hub.models.CausalLM: AdaptedCausalLM,
    keras_hub.models.Seq2SeqLM: AdaptedSeq2SeqLM,
    keras_hub.models.TextEmbedder: AdaptedTextEmbedder,
}


def _adapted_tasks():
    """Yields KerasHub's tasks of the backbones that can be adapted, with their adapted classes."""
    for name in dir(keras_hub.models):
        cls = getattr(keras_hub.models, name)
        if not (isinstance(cls, type) and issubclass(cls, keras_hub.models.Task)):
            continue
        if cls.backbone_cls in BACKBONES:
            # KerasHub's Seq2SeqLM is a CausalLM.
            mixins = [mixin for base, mixin in MIXINS.items() if issubclass(cls, base)][-1:]
            backbone_cls = BACKBONES[cls.backbone_cls]
            yield cls, adapted_class(cls, AdaptedTask, *mixins, backbone_cls=backbone_cls)


# Adapted classes by the class that they adapt.
TASKS = dict(_adapted_tasks())
