"""The published configurations as presets without weights."""

import functools
from pathlib import Path

import keras

from rt_keras import config_files
from rt_keras.keys import read_section
from rt_keras.models.kept_arguments import KeptArguments
from rt_keras.models.litert import LiteRTExport
from rt_keras.models.model_section import ModelSection, arguments_of


class _Presets:
    """The `presets` of a class: names and descriptions of those that it can load."""

    def __get__(self, instance, cls):
        return {
            name: {"metadata": {"description": description, "path": "rt_keras"}}
            for name, (model, description) in published().items()
            if model.kind == cls.kind
        }


class PublishedPresets(LiteRTExport, KeptArguments):
    """Mixin of backbones and tasks, before KerasHub's bases: models from configurations.

    A published configuration is a preset of its name, without weights: the sizes of a model to
    train from scratch. `kind` is what configurations of the class have as `model.kind`.
    """

    kind = None
    presets = _Presets()

    @classmethod
    def from_section(cls, model, vocabulary_size, dtype=None):
        """A model with new weights, and no preprocessor, as a configuration describes it.

        Args:
            model: the `rt_keras.models.model_section.ModelSection` of a configuration.
            vocabulary_size: int, number of token ids, or of values of a channel of an image.
            dtype: dtype policy. Defaults to Keras's global policy.

        Returns:
            A model of this class.
        """
        backbone = cls.backbone_cls.from_section(model, vocabulary_size, dtype)
        return cls(backbone, **arguments_of(cls, model))

    @classmethod
    def from_preset(cls, preset, load_weights=True, **kwargs):
        """A model like that of a folder, a handle of KerasHub, or a published configuration.

        Args:
            preset: string, the name of a published configuration, one of `presets`; or what
                KerasHub's `from_preset` takes, such as a folder.
            load_weights: bool, whether to load the weights that a folder or a handle has.
                Configurations have none. Defaults to True.
            **kwargs: `dtype`, by default Keras's global dtype policy; and for folders and handles
                the other keyword arguments of KerasHub's `from_preset`.

        Returns:
            A model of this class; from a configuration, without a preprocessor.

        Raises:
            ValueError: if weights of a configuration are asked for, or it is of another kind of
                model.

        >>> from rt_keras.models import RoutingTransformerImageBackbone
        >>> name = "sparse_imagetransformer_base"
        >>> RoutingTransformerImageBackbone.from_preset(name, load_weights=False).num_layers
        12
        """
        # KerasHub cannot load what was saved under a mixed policy unless it is told another;
        # quantized layers have policies of their own.
        if not _is_quantized(preset):
            kwargs.setdefault("dtype", keras.config.dtype_policy())
        if preset not in published():
            return super().from_preset(preset, load_weights=load_weights, **kwargs)
        model, _ = published()[preset]
        if model.kind != cls.kind:
            raise ValueError(f"preset={preset!r} is of kind {model.kind}, not of {cls.__name__}")
        if load_weights:
            raise ValueError(
                f"preset={preset!r} is a configuration and has no weights: give load_weights=False"
            )
        return cls.from_section(model, model.vocabulary_size, **kwargs)


def _is_quantized(preset):
    """Whether a preset is the folder of a model whose layers were quantized."""
    config = Path(preset, "config.json")
    return config.is_file() and '"DTypePolicyMap"' in config.read_text(encoding="utf-8")


@functools.cache
def published():
    """The published models: for each name its `ModelSection` and its description.

    Those that leave the vocabulary to a tokenizer are not among them.
    """
    found = {}
    for name in config_files.published_names():
        values = config_files.read_config(name)["model"]
        if "vocabulary_size" in values:
            model = read_section(ModelSection, values, "model.")
            found[name] = model, config_files.read_summary(name)
    return found
