"""`rt-keras train`: trains the model that a configuration describes.

example: rt-keras train --config books --data my/book.txt --output runs/book
"""

import dataclasses
from pathlib import Path

from rt_keras.cli import options


def add_arguments(parser):
    """Adds the command's arguments to an `argparse` parser."""
    meaning = "the configuration; `rt-keras configs` lists the published ones"
    options.add_options(parser, {"--config NAME|FILE": meaning})
    meaning = "change a key of the configuration, such as optimizer.learning_rate=5e-4"
    options.add_options(parser, {"--set KEY=VALUE": meaning}, action="append", default=[])
    options.add_data(parser, default="those of the configuration")
    options.add_options(parser, {"--output DIR": "folder of the run"}, required=True)
    parser.add_argument(
        "--resume",
        nargs="?",
        const=True,
        choices=["auto"],
        default=False,
        help="continue the run in DIR; --config may then be omitted. --set trainer.steps=N trains "
        "longer (a cosine schedule then spans N steps). With `auto`, start a run if there is none",
    )
    parser.add_argument("--overwrite", action="store_true", help="delete the run in DIR first")


def main(args):
    """Trains a model and prints its progress."""
    from rt_keras.training import config as config_lib
    from rt_keras.training import run

    name, saved = args.config, Path(args.output) / "config.yaml"
    if name is None and args.resume and saved.exists():
        name = saved
    if name is None:
        raise ValueError(
            "--config is missing, such as --config books; `rt-keras configs` lists published ones"
        )
    config = config_lib.load_config(name, args.set)
    if args.data is not None:
        config = _with_data(config, args)
    return run.train(config, args.output, args.resume, args.overwrite)


def _with_data(config, args):
    """Returns a configuration with the data of `--data`."""
    from rt_keras.training.experiment import Experiment

    names = ("data.name", "data.directory")
    twice = [text for text in args.set if text.partition("=")[0].strip() in names]
    if twice:
        raise ValueError(f"--data and --set {twice[0]} are mutually exclusive")
    data = Experiment(config).task.data_named(args.data, config.data.name)
    data = dataclasses.replace(config.data, **{"directory": None, **data})
    return dataclasses.replace(config, data=data)
