"""How commands are registered, and the options that several of them share."""

import importlib

from rt_keras import progress
from rt_keras.options import add_integers as add_integers
from rt_keras.options import add_options as add_options
from rt_keras.options import add_plot as add_plot
from rt_keras.options import check_at_least_one as check_at_least_one
from rt_keras.options import check_picture as check_picture
from rt_keras.options import check_range as check_range
from rt_keras.options import check_share as check_share
from rt_keras.training.cluster import STRATEGIES


def add_commands(parser, package, summaries):
    """Adds one subcommand for each module of a package.

    Args:
        parser: `argparse.ArgumentParser` of the command that gets the subcommands.
        package: string, the package. A module has `add_arguments(parser)` and, unless it has
            subcommands of its own, `main(args)`.
        summaries: dictionary from the names of the subcommands to their one-line descriptions.
    """
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, summary in summaries.items():
        module = importlib.import_module(f"{package}.{name.replace('-', '_')}")
        add_command(commands, name, summary, module.add_arguments, getattr(module, "main", None))


def add_command(commands, name, summary, add_arguments, main):
    """Adds one subcommand.

    Args:
        commands: what `ArgumentParser.add_subparsers` returned.
        name: string.
        summary: string, its one-line description.
        add_arguments: function that adds the subcommand's arguments to a parser.
        main: function of the parsed arguments that returns figures as JSON values. None for a
            command that has subcommands.
    """
    command = commands.add_parser(
        name, help=summary, description=f"{summary[0].upper()}{summary[1:]}."
    )
    add_arguments(command)
    if main is not None:
        command.set_defaults(run=main)
        command.add_argument("--json", metavar="FILE", help="write the printed figures to FILE")


def add_model(parser):
    """Adds `--model`."""
    add_options(parser, {"--model DIR": "the folder of a run or of a preset"}, required=True)


def add_config(parser, required):
    """Adds `--config` and `--set`."""
    meaning = "the configuration; `rt-keras configs` lists the published ones"
    add_options(parser, {"--config NAME|FILE": meaning}, required=required)
    meaning = "change a key of the configuration, such as optimizer.learning_rate=5e-4"
    add_options(parser, {"--set KEY=VALUE": meaning}, action="append", default=[])


def add_data(parser, default):
    """Adds `--data`."""
    meaning = (
        "a data set, such as python_source, pg19 or cifar10, a text file, or a folder of text "
        f"files or text pairs (default: {default})"
    )
    add_options(parser, {"--data NAME|PATH": meaning})


def add_examples(parser):
    """Adds `--model`, `--data`, `--split` and `--sequence-length`."""
    add_model(parser)
    add_data(parser, default="the data that the model was trained on")
    parser.add_argument("--split", default="test", help="train, validation or test (default: test)")
    meaning = "tokens in a sequence of a text (default: as many as the model was trained on)"
    add_options(parser, {"--sequence-length N": meaning}, type=int)


def add_strategy(parser):
    """Adds `--strategy` and `--tpu-address`."""
    meaning = (
        "one device, all GPUs of this machine, several machines that TF_CONFIG names, or a TPU "
        "(default: one_device)"
    )
    add_options(parser, {"--strategy": meaning}, choices=STRATEGIES, default="one_device")
    meaning = "name or address of the TPU (default: a local one)"
    add_options(parser, {"--tpu-address NAME": meaning}, default="")


def load_model(path):
    """The model in the folder of a run or of a preset, and its task.

    Args:
        path: string or `Path`, the folder.
    """
    with progress.bar(f"loading {path}"):
        from rt_keras.training import experiment
        from rt_keras.training.tasks import task_of

        model = experiment.load_model(path)
    return model, task_of(model)
