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

    figures, rows = {}, []
    for name in config_files.published_names():
        causal = Experiment(load_config(name)).is_strictly_causal
        summary = config_files.read_summary(name)
        figures[name] = {"summary": summary, "strictly_causal": causal}
        rows.append((name, "yes" if causal else "no", summary))
    print(table({"name": "", "strictly causal": "", "summary": ""}, rows))
    return figures


def _list_keys():
    """Prints each key with its default, its allowed values and its meaning."""
    from rt_keras.training.config import config_keys

    keys = config_keys()
    rows = [(key.name, yaml_text(key.default), key.values, key.meaning) for key in keys]
    columns = "default", "allowed", "meaning"
    print(table(dict.fromkeys(("key", *columns), ""), rows))
    return {key.name: dict(zip(columns, (key.default, *row[2:]))) for key, row in zip(keys, rows)}


def yaml_text(value):
    """Formats a value as in a configuration file.

    >>> yaml_text(None), yaml_text(True), yaml_text(1e-07), yaml_text("adam")
    ('null', 'true', '1e-07', 'adam')
    """
    return value if isinstance(value, str) else json.dumps(value)
