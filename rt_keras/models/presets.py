"""Models from configurations and from presets."""

import importlib
import re
from pathlib import Path

import keras

from rt_keras.keras_internals import layers_of


class Loadable:
    """Mixin that creates backbones and tasks from presets.

    List it before KerasHub's base classes. `kind` is the value of `model.kind` in the
    configurations of a class.
    """

    kind = None

    @classmethod
    def from_preset(cls, preset, load_weights=True, **kwargs):
        """Creates a model from a folder or a KerasHub handle.

        Args:
            preset: string, a value that KerasHub's `from_preset` accepts, such as a folder.
            load_weights: bool, whether to load the weights. Defaults to True.
            **kwargs: `dtype`, by default Keras's global dtype policy, and the other keyword
                arguments of KerasHub's `from_preset`.

        Returns:
            A model of this class.
        """
        _import_modules(preset)
        # KerasHub cannot load a model saved under a mixed policy without an explicit dtype.
        # Quantized layers have separate policies.
        if not _is_quantized(preset):
            kwargs.setdefault("dtype", keras.config.dtype_policy())
        return super().from_preset(preset, load_weights=load_weights, **kwargs)

    def get_config(self):
        config = super().get_config()
        # A quantized output layer has another policy than the backbone.
        dtypes = {
            layer.name: keras.dtype_policies.serialize(layer.dtype_policy)
            for layer in layers_of(self)
            if isinstance(layer, keras.layers.Dense) and layer.quantization_mode
        }
        return {**config, "head_dtypes": dtypes} if dtypes and "backbone" in config else config

    @classmethod
    def from_config(cls, config):
        config = dict(config)
        if dtypes := config.pop("head_dtypes", None):
            config["backbone"] = keras.layers.deserialize(config["backbone"])
            config["backbone"].head_dtypes = dtypes
        return super().from_config(config)


def _import_modules(preset):
    """Imports the modules that a preset names, so that Keras need not search for their classes."""
    for path in Path(preset).glob("*.json"):
        text = path.read_text(encoding="utf-8")
        for name in set(re.findall(r'"module": "(rt_keras\.[\w.]+)"', text)):
            importlib.import_module(name)


def _is_quantized(preset):
    """Returns True if a preset is the folder of a quantized model."""
    config = Path(preset, "config.json")
    return config.is_file() and '"DTypePolicyMap"' in config.read_text(encoding="utf-8")
