"""Configuration files: the published ones, and reading a file with its base.

A file holds sections of keys as YAML. With `base: NAME`, it builds on another configuration, either
a published one or a file in the same folder, and holds only the keys that differ. A list replaces
that of the base; a key such as `heads[0].num_heads` changes one option in it.
"""

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


def find_config(name, folder=""):
    """Finds the file of a configuration.

    Args:
        name: name of a published configuration, or path of a YAML file.
        folder: folder that a relative path starts from. Defaults to "", the working directory.

    Returns:
        A `Path`.

    Raises:
        FileNotFoundError: if there is no such configuration.

    >>> find_config("quickstart").name
    'quickstart.yaml'
    """
    for path in (files.config_folder() / f"{name}.yaml", Path(folder) / name):
        if path.is_file():
            return path
    raise FileNotFoundError(
        f"there is no configuration {str(name)!r}; give a YAML file or a published one, such as "
        f"{nearest(str(name), published_names())!r}. `rt-keras configs` lists them"
    )


def nearest(name, names):
    """Returns the name that is most similar to a wrong one."""
    return difflib.get_close_matches(name, names, n=1, cutoff=0.0)[0]


def read_summary(name):
    """Reads the summary of a configuration, the first sentence of the comment at its start.

    >>> read_summary("cifar10_full")
    'CIFAR-10: full attention.'
    """
    text = find_config(name).read_text(encoding="utf-8")
    # Up to the first line that ends with a full stop.
    comment = re.match(r"(#.*\n)*?#.*\.\n|(#.*\n)*", text)[0]
    return " ".join(line.strip("# ") for line in comment.splitlines())


def read_config(path, bases=()):
    """Reads the keys of a configuration file and of its bases.

    Args:
        path: `Path` of a file, from `find_config`.
        bases: tuple of the files that build on this one. Defaults to `()`.

    Returns:
        A list, with the configuration without a base first and `path` last, of two dictionaries for
        each file: from keys, such as "model.hidden_dim", to values, which are not validated; and
        from keys, also of entries in lists, to the places that set them, such as
        "configs/books.yaml, line 4".

    Raises:
        FileNotFoundError: if the file of a base does not exist.
        ValueError: if a file is not a YAML mapping, is empty, holds a key twice, or builds on
            itself.

    >>> ((values, places),) = read_config(find_config("quickstart"))
    >>> values["data.name"], places["data.name"].partition(".yaml")[2]
    ('python_source', ', line 26')
    """
    if path.resolve() in bases:
        names = " builds on ".join(file.stem for file in (*bases, path))
        raise ValueError(f"{path}: a configuration cannot build on itself: {names}")
    values, places = _read(path)
    base = values.pop("base", None)
    if base is None:
        return [(values, places)]
    if not isinstance(base, str):
        raise ValueError(f"{path}: base must be the name or path of a configuration, not {base!r}")
    layers = read_config(find_config(base, path.parent), (*bases, path.resolve()))
    return [*layers, (values, places)]


def _read(path):
    """Returns the values in a YAML file by their keys, and the places of its keys."""
    try:
        node = yaml.compose(path.read_text(encoding="utf-8"), Loader=_Loader)
        shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
        places = {key: f"{shown}, line {line}" for key, line in _lines(node)}
        values = flatten(_Loader("").construct_document(node)) if node else {}
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not a YAML file: it is not UTF-8 text") from None
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not valid YAML: {error}") from None
    except (RecursionError, AttributeError):
        problem = "it must hold sections with keys, and no anchor that refers to itself"
        raise ValueError(f"{path} is not a configuration: {problem}") from None
    if not values:
        raise ValueError(f"{path} is empty; it must hold sections with keys")
    return values, places


class _Loader(yaml.SafeLoader):
    """A YAML loader that also reads 1e-3, without a decimal point, as a number."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+[eE][-+]?\d+$"), list("-+0123456789")
)


def parse(text, name):
    """Parses a value in YAML; the name is for messages.

    >>> parse("{num_heads: 2, window: null, rate: 1e-3}", "--heads")
    {'num_heads': 2, 'window': None, 'rate': 0.001}
    """
    try:
        return yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"{name} is not valid YAML: {error}") from None


def _lines(node, outer=""):
    """Yields the keys below a YAML node and their lines; refuses a key that is given twice."""
    if isinstance(node, yaml.SequenceNode):
        for i, entry in enumerate(node.value):
            yield f"{outer}[{i}]", entry.start_mark.line + 1
            yield from _lines(entry, f"{outer}[{i}]")
    if isinstance(node, yaml.MappingNode):
        lines = {}
        for key, value in node.value:
            name, line = key.value, key.start_mark.line + 1
            if name in lines:
                both = f"lines {lines[name]} and {line}"
                raise yaml.YAMLError(f"the key {name!r} is given twice, in {both}")
            lines[name] = line
            inner = f"{outer}.{name}" if outer else f"{name}"
            yield inner, line
            yield from _lines(value, inner)


def flatten(sections, outer=""):
    """Returns the values of nested sections by dotted keys. Lists, and their entries, are values.

    >>> flatten({"model": {"image": {"height": 2}, "heads": [{"class": "LocalHeads"}]}})
    {'model.image.height': 2, 'model.heads': [{'class': 'LocalHeads'}]}
    """
    values = {}
    for name, value in sections.items():
        if isinstance(value, dict) and "class" not in value:
            values |= flatten(value, f"{outer}{name}.")
        else:
            values[f"{outer}{name}"] = value
    return values


def parse_assignment(text):
    """Parses a text `key=value` whose value is YAML; returns a string and a value.

    >>> parse_assignment("model.num_layers=3")
    ('model.num_layers', 3)
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ValueError(f"override {text!r} must have the form section.key=value")
    return key.strip(), parse(value, f"the value of override {text!r}")
