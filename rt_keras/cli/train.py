"""`rt-keras train`: trains the model that a configuration describes."""

from pathlib import Path

from rt_keras.cli import options
from rt_keras.config_files import flatten


def add_arguments(parser):
    """Adds the command's arguments to an `argparse` parser."""
    parser.epilog = "example: rt-keras train --config books --data my/book.txt --output runs/book"
    options.add_config(parser, required=False)
    options.add_data(parser, default="those of the configuration")
    parser.add_argument("--output", required=True, metavar="DIR", help="folder of the run")
    parser.add_argument(
        "--resume",
        nargs="?",
        const=True,
        choices=["auto"],
        default=False,
        help="continue the run in DIR; --config may then be omitted, and --set trainer.steps=N "
        "trains on after its end (a cosine schedule then follows the cosine of N steps). With "
        "`auto`, start it if there is none",
    )
    parser.add_argument("--overwrite", action="store_true", help="delete the run in DIR first")


def main(args):
    """Trains a model and prints how it went."""
    from rt_keras.training import config as config_lib

    name, saved = args.config, Path(args.output) / "config.yaml"
    if name is None and args.resume and saved.exists():
        name = saved
    if name is None:
        raise ValueError(
            "--config is missing, such as --config books for text; `rt-keras configs` lists the "
            "published ones"
        )
    config = config_lib.load_config(name, args.set)
    if args.data is not None:
        config = _with_data(config, args)
    return train(config, args.output, args.resume, args.overwrite)


def _with_data(config, args):
    """The configuration with the data of `--data`."""
    from rt_keras.training import config as config_lib
    from rt_keras.training.tasks import task_named

    names = ("data.name", "data.directory")
    twice = [text for text in args.set if text.partition("=")[0].strip() in names]
    if twice:
        raise ValueError(f"--data and --set {twice[0]} exclude each other")
    data = {"directory": None, **task_named(config.model.kind).data_named(args.data)}
    values = {f"data.{name}": value for name, value in data.items()}
    return config_lib.make_config({**dict(flatten(config.as_dict())), **values})


def train(config, output, resume=False, overwrite=False):
    """Trains a model and prints a summary.

    Args:
        config, output, resume, overwrite: see `rt_keras.training.run.train`.

    Returns:
        What `rt_keras.training.run.train` returns.
    """
    from rt_keras.training import run
    from rt_keras.training.tasks import task_named

    figures = run.train(config, output, resume, overwrite)
    if not figures["is_chief"]:
        return figures
    if figures["new_steps"]:
        print(
            f"trained for {figures['new_steps']:,} steps in {figures['seconds']:.0f} s, "
            f"{figures['tokens_per_second']:,.0f} tokens/s"
        )
    loss_name = task_named(config.model.kind).loss_name
    print(
        f"best model: {Path(output) / 'model'}, from step {figures['best_step']:,}, with "
        f"{figures[f'validation_{loss_name}']:.3f} {loss_name.replace('_', ' ')} on validation"
    )
    return figures
