"""`rt-keras train`: trains the model that a configuration describes."""

import dataclasses
from pathlib import Path

from rt_keras import options
from rt_keras.config_files import flatten


def add_arguments(parser):
    """Adds the command's arguments to an `argparse` parser."""
    parser.epilog = "example: rt-keras train --config books --data my/book.txt --output runs/book"
    options.add_config(parser, required=False)
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

    name, saved, load = args.config, Path(args.output) / "config.yaml", config_lib.load_config
    if name is None and args.resume and saved.exists():
        name, load = saved, config_lib.load_saved_config
    if name is None:
        raise ValueError(
            "--config is missing, such as --config books for text; `rt-keras configs` lists the "
            "published ones"
        )
    config = load(name, args.set)
    if args.data is not None:
        config = _with_data(config, args)
    return run.train(config, args.output, args.resume, args.overwrite)


def _with_data(config, args):
    """Returns the configuration with the data of `--data`."""
    from rt_keras.training import config as config_lib
    from rt_keras.training.experiment import Experiment

    names = ("data.name", "data.directory")
    twice = [text for text in args.set if text.partition("=")[0].strip() in names]
    if twice:
        raise ValueError(f"--data and --set {twice[0]} are mutually exclusive")
    data = {"directory": None, **Experiment(config).task.data_named(args.data)}
    values = {f"data.{name}": value for name, value in data.items()}
    return config_lib.make_config({**dict(flatten(dataclasses.asdict(config))), **values})
