"""Published configurations as presets without weights."""

import functools
from pathlib import Path

import keras

from rt_keras import config_files
from rt_keras.keys import read_section
from rt_keras.models.kept_arguments import KeptArguments
from rt_keras.models.model_section import ModelSection, arguments_of


class _Presets:
    """Descriptor of the `presets` of a class: their names and descriptions."""

    def __get__(self, instance, cls):
        return {
            name: {"metadata": {"description": description, "path": "rt_keras"}}
            for name, (model, description) in published().items()
            if model.kind == cls.kind
        }


class PublishedPresets(KeptArguments):
    """Mixin that creates backbones and tasks from configurations.

    List it before KerasHub's base classes. Each published configuration is a preset of the same
    name without weights, for training from scratch. `kind` is the value of `model.kind` in the
    configurations of a class.
    """

    kind = None
    presets = _Presets()

    @classmethod
    def from_section(cls, model, vocabulary_size, dtype=None):
        """Creates a model with new weights and no preprocessor from a configuration.

        Args:
            model: the `rt_keras.models.model_section.ModelSection` of a configuration.
            vocabulary_size: int, number of token ids, or of values of an image channel.
            dtype: dtype policy. Defaults to Keras's global policy.

        Returns:
            A model of this class.
        """
        backbone = cls.backbone_cls.from_section(model, vocabulary_size, dtype)
        return cls(backbone, **arguments_of(cls, model))

    @classmethod
    def from_preset(cls, preset, load_weights=True, **kwargs):
        """Creates a model from a folder, a KerasHub handle or a published configuration.

        Args:
            preset: string, the name of a published configuration, one of `presets`; or a value
                that KerasHub's `from_preset` accepts, such as a folder.
            load_weights: bool, whether to load the weights. Must be False for a configuration,
                which has none. Defaults to True.
            **kwargs: `dtype`, by default Keras's global dtype policy. For folders and handles, also
                the other keyword arguments of KerasHub's `from_preset`.

        Returns:
            A model of this class; from a configuration, without a preprocessor.

        Raises:
            ValueError: if `load_weights` is True for a configuration, or if the configuration
                describes another kind of model.

        >>> from rt_keras.models import RoutingTransformerImageBackbone
        >>> name = "sparse_imagetransformer_base"
        >>> RoutingTransformerImageBackbone.from_preset(name, load_weights=False).num_layers
        12
        """
        # KerasHub cannot load a model saved under a mixed policy without an explicit dtype.
        # Quantized layers have separate policies.
        if not _is_quantized(preset):
            kwargs.setdefault("dtype", keras.config.dtype_policy())
        if preset not in published():
            return super().from_preset(preset, load_weights=load_weights, **kwargs)
        model, _ = published()[preset]
        if model.kind != cls.kind:
            raise ValueError(f"{cls.__name__} cannot load preset={preset!r} of kind {model.kind}")
        if load_weights:
            raise ValueError(
                f"preset={preset!r} is a configuration without weights; pass load_weights=False"
            )
        return cls.from_section(model, model.vocabulary_size, **kwargs)


def _is_quantized(preset):
    """Returns True if a preset is the folder of a quantized model."""
    config = Path(preset, "config.json")
    return config.is_file() and '"DTypePolicyMap"' in config.read_text(encoding="utf-8")


@functools.cache
def published():
    """Returns the `ModelSection` and the description of each published model, by name.

    Configurations whose vocabulary size depends on a tokenizer are left out.
    """
    found = {}
    for name in config_files.published_names():
        values = config_files.read_config(name)["model"]
        if "vocabulary_size" in values:
            model = read_section(ModelSection, values, "model.")
            found[name] = model, config_files.read_summary(name)
    return found
