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
    """What a configuration is: the comment at its start, up to a line that ends a sentence.

    >>> read_summary("cifar10_full")
    'CIFAR-10: full attention.'
    """
    lines = []
    with open(find_config(name), encoding="utf-8") as file:
        for line in file:
            if not line.startswith("#"):
                break
            lines.append(line.strip("# \n"))
            if lines[-1].endswith("."):
                break
    return " ".join(lines)


def read_config(name):
    """Reads the sections of a configuration, over those of its base.

    Args:
        name: name of a published configuration, or path of a YAML file.

    Returns:
        A dictionary of sections, which are dictionaries of values and sections. Nothing says yet
        that there are such keys, or that they may have such values.

    Raises:
        FileNotFoundError: if the file or its base does not exist.
        ValueError: if a file is no YAML mapping, is empty, holds a key twice, or builds on itself.

    >>> read_config("quickstart")["data"]["name"]
    'python_source'
    """
    return _read(find_config(name), chain=())


class GivenTwice(yaml.YAMLError):
    """The error that a mapping holds a key twice, of which YAML's readers would drop the first."""


def parse(text):
    """What a text in YAML holds.

    Args:
        text: string.

    Returns:
        Dictionaries, lists and values.

    Raises:
        yaml.YAMLError: if it is not valid YAML; a `GivenTwice` if a mapping holds a key twice.

    >>> parse("{num_heads: 2, window: null}")
    {'num_heads': 2, 'window': None}
    """
    return yaml.load(text, Loader=_Loader)


class _Loader(yaml.SafeLoader):
    """Refuses a key that is given twice."""

    def compose_mapping_node(self, anchor):
        # Before `<<` brings in keys of other mappings, which the mapping's own may replace.
        node = super().compose_mapping_node(anchor)
        found = {}
        for key, _ in node.value:
            if key.id != "scalar":
                continue
            before = found.setdefault((key.tag, key.value), key)
            if before is not key:
                one, other = (mark.line + 1 for mark in (before.start_mark, key.start_mark))
                lines = f"line {one}" if one == other else f"lines {one} and {other}"
                raise GivenTwice(f"the key {key.value!r} is given twice, in {lines}")
        return node


def parse_assignment(text):
    """The key and the value of a text `key=value`, with the value as YAML.

    Args:
        text: string.

    Returns:
        Tuple of a string and a value.

    Raises:
        ValueError: if it has another form, or the value is not valid YAML.

    >>> parse_assignment("model.num_layers=3")
    ('model.num_layers', 3)
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ValueError(f"override {text!r} must have the form section.key=value")
    try:
        return key.strip(), parse(value)
    except GivenTwice as error:
        raise ValueError(f"override {text!r}: {error}") from None
    except (yaml.YAMLError, RecursionError):
        raise ValueError(f"the value of override {text!r} is not valid YAML") from None


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
        values = parse(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not a YAML file: it is not UTF-8 text") from None
    except GivenTwice as error:
        raise ValueError(f"{path}: {error}") from None
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
