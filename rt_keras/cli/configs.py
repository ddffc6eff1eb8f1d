"""`rt-keras configs`: lists the published configurations, or the keys of a configuration.

The outputs of strictly causal models never depend on later tokens. Those of the others do, in
training and in evaluation, through the members of their clusters.

example: rt-keras configs --keys
"""

import json

from rt_keras.cli.options import add_options
from rt_keras.data.tables import table
from rt_keras.training import config_files


def add_arguments(parser):
    """Adds the command's arguments to an `argparse` parser."""
    meaning = "list every key of a configuration instead, with its default, range and meaning"
    add_options(parser, {"--keys": meaning}, action="store_true")


def main(args):
    """Lists the published configurations, or the keys of a configuration."""
    return _list_keys() if args.keys else _list_configs()


def _list_configs():
    """Prints the name of each configuration, its causality, and the first comment of its file."""
    from rt_keras.training.config import load_config
    from rt_keras.training.experiment import Experiment

    found = {}
    for name in config_files.published_names():
        causal = Experiment(load_config(name)).is_strictly_causal
        found[name] = {"summary": config_files.read_summary(name), "strictly_causal": causal}
    rows = [
        (name, "yes" if config["strictly_causal"] else "no", config["summary"])
        for name, config in found.items()
    ]
    print(table({"name": "", "strictly causal": "", "summary": ""}, rows))
    return found


def _list_keys():
    """Prints each key with its default, its allowed values and its meaning."""
    from rt_keras.training.config import config_keys

    found = {
        key.name: {"default": key.default, "allowed": key.values, "meaning": key.meaning}
        for key in config_keys()
    }
    rows = [(x, yaml_text(y["default"]), y["allowed"], y["meaning"]) for x, y in found.items()]
    print(table({"key": "", "default": "", "allowed": "", "meaning": ""}, rows))
    return found


def yaml_text(value):
    """Formats a value as in a configuration file.

    >>> yaml_text(None), yaml_text(True), yaml_text(1e-07), yaml_text("adam")
    ('null', 'true', '1e-07', 'adam')
    """
    return value if isinstance(value, str) else json.dumps(value)
