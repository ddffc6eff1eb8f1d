"""KerasHub tasks on adapted backbones."""

import keras
import keras_hub

from rt_keras.models.adapted.adapted_causal_lm import AdaptedCausalLM
from rt_keras.models.adapted.adapted_seq_2_seq_lm import AdaptedSeq2SeqLM
from rt_keras.models.adapted.adapted_text_embedder import AdaptedTextEmbedder
from rt_keras.models.adapted.backbones import BACKBONES
from rt_keras.models.adapted.quantized import Quantized
from rt_keras.models.adapted.saving import SavedWhole

# Additional base classes of adapted tasks, by KerasHub class.
MIXINS = {
    keras_hub.models.CausalLM: AdaptedCausalLM,
    keras_hub.models.Seq2SeqLM: AdaptedSeq2SeqLM,
    keras_hub.models.TextEmbedder: AdaptedTextEmbedder,
}


def _tasks_of(backbone_cls):
    """Returns KerasHub's tasks for a backbone class."""
    classes = (getattr(keras_hub.models, name) for name in dir(keras_hub.models))
    return [
        cls
        for cls in classes
        if isinstance(cls, type)
        and issubclass(cls, keras_hub.models.Task)
        and cls.backbone_cls is backbone_cls
    ]


def _adapted(cls, backbone_cls):
    """Creates the adapted class of a task class."""
    mixins = [mixin for base, mixin in MIXINS.items() if issubclass(cls, base)][-1:]
    made = type(
        f"Adapted{cls.__name__}",
        (SavedWhole, Quantized, *mixins, cls),
        {"__module__": __name__, "backbone_cls": backbone_cls},
    )
    made.__doc__ = f"`keras_hub.models.{cls.__name__}` with heads of this package."
    return keras.saving.register_keras_serializable(package="rt_keras")(made)


# Adapted classes by the class that they adapt.
TASKS = {
    cls: _adapted(cls, adapted) for base, adapted in BACKBONES.items() for cls in _tasks_of(base)
}
