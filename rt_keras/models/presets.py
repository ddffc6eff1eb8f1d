"""The published configurations as presets without weights."""

import functools

import keras

from rt_keras import config_files


class _Presets:
    """What `presets` of a class is: names and what they are, of those that the class can load."""

    def __get__(self, instance, cls):
        from rt_keras.models.configured import TASKS

        return {
            name: {"metadata": {"description": description, "path": "rt_keras"}}
            for name, (section, description) in published().items()
            if cls in (TASKS[kind_of(section)], TASKS[kind_of(section)].backbone_cls)
        }


class PublishedPresets:
    """What backbones and models have before KerasHub's bases: presets of the configurations.

    A configuration of `configs/` is a preset of its name, without weights: the sizes of a published
    model, to train anew.
    """

    presets = _Presets()

    @classmethod
    def from_preset(cls, preset, load_weights=True, **kwargs):
        """A model like that of a folder, a handle of KerasHub, or a published configuration.

        Args:
            preset: name of a configuration, of `presets`; or what KerasHub's `from_preset` takes,
                such as a folder.
            load_weights: whether to load the weights that a folder or a handle has. Configurations
                have none.
            **kwargs: `dtype`, by default Keras's present dtype policy; and for others than
                configurations those of KerasHub's `from_preset`.

        Returns:
            A model; for a configuration, without preprocessor.

        Raises:
            ValueError: if weights are asked of a configuration, or it is of another kind of model.

        >>> from rt_keras.models import RoutingTransformerImageBackbone
        >>> name = "sparse_imagetransformer_base"
        >>> RoutingTransformerImageBackbone.from_preset(name, load_weights=False).num_layers
        12
        """
        # KerasHub cannot load what was saved under a mixed policy unless it is told another.
        kwargs.setdefault("dtype", keras.config.dtype_policy())
        if preset not in published():
            return super().from_preset(preset, load_weights=load_weights, **kwargs)
        if preset not in cls.presets:
            kind = kind_of(published()[preset][0])
            raise ValueError(f"preset={preset!r} is of kind {kind}, not of {cls.__name__}")
        if load_weights:
            raise ValueError(
                f"preset={preset!r} is a configuration and has no weights: give load_weights=False"
            )
        from rt_keras.models.configured import make_backbone

        section = published()[preset][0]
        backbone = make_backbone(section, section["vocabulary_size"], **kwargs)
        return backbone if isinstance(backbone, cls) else cls(backbone)


@functools.cache
def published():
    """The published models: for each name its `model` section and its description.

    Those that leave the vocabulary to a tokenizer are not among them.
    """
    found = {}
    for name in config_files.published_names():
        section = config_files.read_config(name)["model"]
        if "vocabulary_size" in section:
            found[name] = section, config_files.read_summary(name)
    return found


def kind_of(section):
    """Which kind of model a `model` section describes."""
    return section.get("kind", "causal_lm")
