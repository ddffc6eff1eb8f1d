"""Attention heads from the lists of a configuration."""

import pkgutil

import keras

from rt_keras import layers
from rt_keras.arguments import defaults_of
from rt_keras.training.config_fields import located
from rt_keras.training.config_files import nearest

# Options of every Keras layer.
LAYER_OPTIONS = ("name", "dtype", "trainable")


def make_heads(entry, path, places=None):
    """Creates the heads that a list in a configuration describes.

    An entry `{class: LocalHeads, num_heads: 4, block_size: 64}` stands for
    `rt_keras.layers.LocalHeads(num_heads=4, block_size=64)`. Values of options may be such entries,
    of `rt_keras.layers.key_sets` too. Other classes have the name that they are registered with, or
    an importable one, such as `mypackage.MyHeads`.

    Args:
        entry: the entry, or a list of entries.
        path: string, the key of the entry, such as "model.heads", for messages.
        places: dictionary from keys to the files and lines that set them. Defaults to None.

    Returns:
        A head group or a list of head groups.

    Raises:
        ValueError: if there is no such class, or it does not accept the options.

    >>> (group,) = make_heads([{"class": "FullHeads", "num_heads": 2}], "model.heads")
    >>> group.num_heads
    2
    """
    if isinstance(entry, list):
        return [make_heads(x, f"{path}[{i}]", places) for i, x in enumerate(entry)]
    is_entry = isinstance(entry, dict) and isinstance(entry.get("class"), str)
    options = dict(entry) if is_entry else {}
    for name, value in options.items():
        if isinstance(value, list) and any(isinstance(x, dict) for x in value):
            options[name] = make_heads(value, f"{path}.{name}", places)
    try:
        if not is_entry:
            raise ValueError("heads need a class, as in {class: LocalHeads, num_heads: 4, ...}")
        cls = _find_class(options.pop("class"))
        known = {*defaults_of(cls), *LAYER_OPTIONS} - {"kwargs"}
        for name in options.keys() - known:
            likely = nearest(str(name), known)
            raise ValueError(f"{name} is unknown; the nearest option of {cls.__name__} is {likely}")
        return cls(**options)
    except (TypeError, ValueError) as error:
        raise located(error, path, places) from error


def _find_class(name):
    """Returns the class, or the function, of a name."""
    for module in (layers, layers.key_sets):
        if hasattr(module, name):
            return getattr(module, name)
    registered = keras.saving.get_registered_object(name)
    if registered is not None:
        return registered
    if "." in name:
        try:
            return pkgutil.resolve_name(name)
        except (ImportError, AttributeError, ValueError) as error:
            raise ValueError(f"class {name} cannot be imported: {error}") from error
    names = [*layers.__all__, *layers.key_sets.__all__]
    raise ValueError(f"unknown class {name}; the nearest is {nearest(name, names)}")
