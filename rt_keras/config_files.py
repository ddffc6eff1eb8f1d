"""Configuration files: the published ones, and reading a file with its base.

A file holds sections of keys as YAML. With `base: NAME`, it builds on another configuration, either
a published one or a file in the same folder, and holds only the keys that differ.
"""

import dataclasses
import difflib
import re
from pathlib import Path

import yaml

from rt_keras import files


def published_names():
    """Returns the names of the published configurations, in alphabetical order.

    >>> "quickstart" in published_names()
    True
    """
    return sorted(path.stem for path in files.config_folder().glob("*.yaml"))


def find_config(name, beside=None):
    """Finds the file of a configuration.

    Args:
        name: name of a published configuration, or path of a YAML file.
        beside: folder that a relative path starts from. Defaults to None, the working directory.

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
    """Reads the summary of a configuration, the first sentence of the comment at its start.

    >>> read_summary("cifar10_full")
    'CIFAR-10: full attention.'
    """
    text = find_config(name).read_text(encoding="utf-8")
    # Up to the first line that ends with a full stop.
    comment = re.match(r"(#.*\n)*?#.*\.\n|(#.*\n)*", text)[0]
    return " ".join(line.strip("# ") for line in comment.splitlines())


def read_config(name):
    """Reads the sections of a configuration, over those of its base.

    Args:
        name: name of a published configuration, or path of a YAML file.

    Returns:
        A dictionary of sections, which are dictionaries of values and sections. The keys and values
        are not validated.

    Raises:
        FileNotFoundError: if the file or its base does not exist.
        ValueError: if a file is not a YAML mapping, is empty, holds a key twice, or builds on
            itself.

    >>> read_config("quickstart")["data"]["name"]
    'python_source'
    """
    return _read(find_config(name), chain=())


def parse(text):
    """Parses a text in YAML.

    Args:
        text: string.

    Returns:
        Dictionaries, lists and values.

    Raises:
        yaml.YAMLError: if it is not valid YAML, or a mapping holds a key twice.

    >>> parse("{num_heads: 2, window: null}")
    {'num_heads': 2, 'window': None}
    """
    return yaml.load(text, Loader=_Loader)


class _Loader(yaml.SafeLoader):
    """A YAML loader that rejects duplicate keys. YAML's own loaders drop the first value."""

    def compose_mapping_node(self, anchor):
        # Before `<<` merges other mappings, whose keys may be overridden.
        node = super().compose_mapping_node(anchor)
        found = {}
        for key, _ in node.value:
            if key.id != "scalar":
                continue
            before = found.setdefault((key.tag, key.value), key)
            if before is not key:
                one, other = (mark.line + 1 for mark in (before.start_mark, key.start_mark))
                lines = f"line {one}" if one == other else f"lines {one} and {other}"
                raise yaml.YAMLError(f"the key {key.value!r} is given twice, in {lines}")
        return node


def parse_assignment(text):
    """Parses a text `key=value` whose value is YAML.

    Args:
        text: string.

    Returns:
        Tuple of a string and a value.

    Raises:
        ValueError: if the text has another form, or the value is not valid YAML.

    >>> parse_assignment("model.num_layers=3")
    ('model.num_layers', 3)
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ValueError(f"override {text!r} must have the form section.key=value")
    try:
        return key.strip(), parse(value)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"the value of override {text!r} is not valid YAML: {error}") from None


def merge(base, changes):
    """Merges the sections of `changes` into those of `base`.

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


def values_of(section):
    """Returns the values of a section, a dataclass, by their dotted keys."""
    return dict(flatten(dataclasses.asdict(section)))


def changed_values(section):
    """Returns the values of a section that differ from their defaults, by their dotted keys."""
    defaults = values_of(type(section)())
    return {key: value for key, value in values_of(section).items() if value != defaults.get(key)}


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
    """Reads the mapping in a YAML file."""
    try:
        values = parse(path.read_text(encoding="utf-8"))
        if isinstance(values, dict):
            # Finds a section inside itself, whose keys never end.
            list(flatten(values))
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not a YAML file: it is not UTF-8 text") from None
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not valid YAML: {error}") from None
    except RecursionError:
        problem = "is nested too deeply; does a YAML anchor refer to itself?"
        raise ValueError(f"{path} {problem}") from None
    if values is None:
        raise ValueError(f"{path} is empty; it must hold sections with keys")
    if not isinstance(values, dict):
        raise ValueError(f"{path} must hold sections with keys, not {type(values).__name__}")
    return values
