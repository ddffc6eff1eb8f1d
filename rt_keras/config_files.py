"""Configuration files: where the published ones are, and how one is read with what it builds on.

A file holds sections of keys as YAML. With `base: NAME` it builds on another configuration, a
published one or a file beside it, and holds only the keys that differ.
"""

import difflib
from pathlib import Path

import yaml

from rt_keras import files

# Sections inside sections, keys included: more than any key needs, such as model.local.num_heads.
DEEPEST = 4


def published_names():
    """The names of the published configurations, in alphabetical order.

    >>> "quickstart" in published_names()
    True
    """
    return sorted(path.stem for path in files.config_folder().glob("*.yaml"))


def find_config(name, beside=None):
    """The file of a configuration.

    Args:
        name: name of a published configuration, or path of a YAML file.
        beside: folder that a relative path starts from; by default the working directory.

    Returns:
        A `Path`.

    Raises:
        FileNotFoundError: if there is no such configuration.

    >>> find_config("quickstart").name
    'quickstart.yaml'
    """
    for path in (files.config_folder() / f"{name}.yaml", Path(beside or "") / name):
        if path.is_file():
            return path
    nearest = difflib.get_close_matches(str(name), published_names(), n=1, cutoff=0.0)[0]
    raise FileNotFoundError(
        f"there is no configuration {str(name)!r}; give a YAML file or a published one, such as "
        f"{nearest!r}. `rt-keras configs` lists them"
    )


def read_summary(name):
    """The first line of a configuration's file, a comment that says what it is.

    >>> read_summary("cifar10_full")
    'CIFAR-10: full attention.'
    """
    with open(find_config(name), encoding="utf-8") as file:
        return file.readline().strip().lstrip("# ")


def read_config(name):
    """Reads the sections of a configuration, over those of its base.

    Args:
        name: name of a published configuration, or path of a YAML file.

    Returns:
        A dictionary of sections, which are dictionaries of values and sections. Nothing says yet
        that there are such keys, or that they may have such values.

    Raises:
        FileNotFoundError: if the file or its base does not exist.
        ValueError: if a file is no YAML mapping, is empty, or builds on itself.

    >>> read_config("quickstart")["data"]["name"]
    'python_source'
    """
    return _read(find_config(name), chain=())


def merge(base, changes):
    """The sections of `base` with those of `changes` over them.

    >>> merge({"a": {"x": 1, "y": 2}}, {"a": {"y": 3}, "b": {"z": 4}})
    {'a': {'x': 1, 'y': 3}, 'b': {'z': 4}}
    """
    merged = dict(base)
    for key, value in changes.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = merge(merged[key], value) if both else value
    return merged


def flatten(sections, prefix=""):
    """Yields dotted keys and values of nested sections.

    >>> dict(flatten({"model": {"local": {"num_heads": 2}, "num_layers": 1}}))
    {'model.local.num_heads': 2, 'model.num_layers': 1}
    """
    for key, value in sections.items():
        if isinstance(value, dict):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _read(path, chain):
    chain = (*chain, path.resolve())
    values = _load(path)
    if "base" not in values:
        return values
    base = values.pop("base")
    if not isinstance(base, str):
        raise ValueError(f"{path}: base must be the name or path of a configuration, not {base!r}")
    base = find_config(base, beside=path.parent)
    if base.resolve() in chain:
        names = " builds on ".join(link.stem for link in (*chain, base))
        raise ValueError(f"{path}: a configuration cannot build on itself: {names}")
    return merge(_read(base, chain), values)


def _load(path):
    """The mapping that a YAML file holds."""
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not a YAML file: it is not UTF-8 text") from None
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not valid YAML: {error}") from None
    except RecursionError:
        raise ValueError(f"{path} is nested too deeply") from None
    if values is None:
        raise ValueError(f"{path} is empty; it must hold sections with keys")
    if not isinstance(values, dict):
        raise ValueError(f"{path} must hold sections with keys, not {type(values).__name__}")
    _check_depth(path, values)
    return values


def _check_depth(path, values, depth=1):
    if depth > DEEPEST:
        raise ValueError(
            f"{path} is nested too deeply: keys have at most {DEEPEST} parts. Does a YAML anchor "
            "refer to itself?"
        )
    for value in values.values() if isinstance(values, dict) else values:
        if isinstance(value, (dict, list)):
            _check_depth(path, value, depth + 1)
