"""Registration of commands, and options that several commands share."""

import importlib
from pathlib import Path

from rt_keras.files import check_writable

# The extensions of supported picture formats.
PICTURES = (".png", ".svg", ".pdf")


def add_commands(parser, package, names):
    """Adds one subcommand for each module of a package.

    Args:
        parser: `argparse.ArgumentParser` of the command that gets the subcommands.
        package: string, the package. A module has `add_arguments(parser)` and, unless it also has
            subcommands, `main(args)`.
        names: iterable of strings, the names of the subcommands.
    """
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name in names:
        module = importlib.import_module(f"{package}.{name}")
        main = getattr(module, "main", None)
        add_command(commands, name, module.add_arguments, main, module.__doc__)


def add_command(commands, name, add_arguments, main, text=None):
    """Adds one subcommand.

    Args:
        commands: the object that `ArgumentParser.add_subparsers` returned.
        name: string.
        add_arguments: function that adds the subcommand's arguments to a parser.
        main: function of the parsed arguments that returns a dictionary of JSON values; None for a
            command with subcommands.
        text: string, its help, the docstring of its module: a sentence, which may follow the name
            of the command; further paragraphs; and, last, an example. Defaults to that of `main`.
    """
    # Python leaves out docstrings with the option -OO.
    text = text or main and main.__doc__ or f"{name}.\n\n"
    summary, *more, example = (" ".join(part.split()) for part in text.split("\n\n"))
    summary = summary.rpartition("`: ")[2]
    title = summary[0].lower() + summary[1:].rstrip(".")
    description = " ".join([summary[0].upper() + summary[1:], *more])
    command = commands.add_parser(name, help=title, description=description, epilog=example)
    add_arguments(command)
    if main is not None:
        command.set_defaults(run=main)
        command.add_argument("--json", metavar="FILE", help="write the printed figures to FILE")


def add_model(parser):
    """Adds `--model`."""
    add_options(parser, {"--model DIR": "the folder of a run or of a preset"}, required=True)


def add_language_model(parser):
    """Adds `--model`, a pretrained language model."""
    meaning = "folder or preset name of a pretrained language model, as for rt-keras adapt"
    add_options(parser, {"--model DIR|PRESET": meaning}, required=True)


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
    meaning = "tokens in a sequence of a text (default: the sequence length in training)"
    add_options(parser, {"--sequence-length N": meaning}, type=int)


def load_model(path):
    """Loads the model in the folder of a run or of a preset; returns the model and its task.

    Args:
        path: string or `Path`, the folder.
    """
    from rt_keras.training import experiment
    from rt_keras.training.tasks import task_of

    model = experiment.load_model(path)
    return model, task_of(model)


def load_examples(args):
    """Loads the model of `--model` and the examples of `--data` and `--split`.

    Args:
        args: namespace of `model`, `data`, `split` and `sequence_length`.

    Returns:
        A tuple of the model, its task, a `tf.data.Dataset` of examples for it, and their name.
    """
    from rt_keras.training import config as config_lib

    model, task = load_model(args.model)
    if args.sequence_length is not None:
        _set_length(args, model)
    run = Path(args.model) / "config.yaml"
    used = config_lib.load_config(run).data if run.exists() else None
    if args.data is not None:
        config = config_lib.DataConfig(**task.data_named(args.data, used and used.name))
    elif used is not None:
        config = used
    else:
        raise ValueError(f"--data is missing; {args.model} does not name a data set")
    note = task.split_note(config)
    if note:
        print(note)
    examples = task.load_split(config, args.split, model.preprocessor)
    return model, task, examples, f"the {args.split} split of {config.name}"


def _set_length(args, model):
    """Sets the sequence length of a model's preprocessor to `--sequence-length`."""
    if not hasattr(model.preprocessor, "sequence_length"):
        raise ValueError(f"--sequence-length does not apply to --model {args.model}")
    check_range(args, "sequence_length", 1, getattr(model.backbone, "max_sequence_length", None))
    model.preprocessor.sequence_length = args.sequence_length


def load_that(option, path, generates, name):
    """Loads the model in the folder of a run or of a preset if it is of one kind.

    Args:
        option: string, the option that names the folder, for the error.
        path: string or `Path`, the folder.
        generates: string, the required value of `generates` of its task.
        name: string, the kind of model in words, for the error.

    Raises:
        ValueError: if it holds another kind of model.
    """
    model, task = load_model(path)
    if task.generates != generates:
        raise ValueError(f"{option} {path} holds a {task.kind} model, not {name}")
    return model


def add_options(parser, options, **common):
    """Adds options with common keyword arguments.

    Args:
        parser: an `argparse` parser or group of options.
        options: dictionary from options, as shown in the help, to their meanings, such as
            `{"--output DIR": "a new or empty folder"}`.
        **common: keyword arguments of `add_argument` for all options.

    >>> import argparse
    >>> parser = argparse.ArgumentParser()
    >>> add_options(parser, {"--rows N": "rows", "--max-length N": "tokens"}, type=int)
    >>> parser.parse_args(["--max-length", "3"])
    Namespace(rows=None, max_length=3)
    """
    for option, meaning in options.items():
        flag, _, metavar = option.partition(" ")
        # An option without a value takes no metavar.
        shown = {"metavar": metavar} if metavar else {}
        parser.add_argument(flag, help=meaning, **shown, **common)


def add_integers(parser, integers):
    """Adds integer options.

    Args:
        parser: an `argparse` parser or group of options.
        integers: dictionary from names, with underscores, to pairs of a default and a meaning.
    """
    for name, (default, meaning) in integers.items():
        option = f"--{name.replace('_', '-')} N"
        add_options(parser, {option: f"{meaning} (default: {default})"}, type=int, default=default)


def add_plot(parser, what):
    """Adds `--plot`.

    Args:
        parser: an `argparse` parser or group of options.
        what: string, the content of the picture.
    """
    add_options(parser, {"--plot FILE": f"draw {what} to FILE ({', '.join(PICTURES)})"})


def check_picture(args):
    """Raises an error if `--plot` is given and does not name a writable picture.

    Args:
        args: namespace of the options.

    >>> import argparse
    >>> check_picture(argparse.Namespace(plot="heads.txt"))
    Traceback (most recent call last):
    ValueError: --plot must end in .png or .svg or .pdf. Received: heads.txt
    """
    if args.plot is None:
        return
    if Path(args.plot).suffix not in PICTURES:
        raise ValueError(f"--plot must end in {' or '.join(PICTURES)}. Received: {args.plot}")
    check_writable("--plot", args.plot)


def check_text_files(args, *names):
    """Raises a ValueError if any of the named options is given and is not a file."""
    for name in names:
        path = getattr(args, name)
        if path is not None and not Path(path).is_file():
            raise ValueError(f"--{name} must be a text file. Received: {path}")


def print_parts(parts):
    """Prints the parts of a text as they come, and returns the text."""
    text = ""
    for part in parts:
        print(part, end="", flush=True)
        text += part
    print()
    return text


def check_at_least_one(args, *names):
    """Raises a ValueError if any of the named options is given and less than 1.

    Args:
        args: namespace of the options.
        *names: strings, the options, with underscores.
    """
    for name in names:
        check_range(args, name, 1)


def check_range(args, name, lowest, highest=None):
    """Raises a ValueError if an option, or a number in its list, is given and out of range.

    Args:
        args: namespace of the options.
        name: string, the option, with underscores.
        lowest: number, the minimum value.
        highest: number, the maximum value. Defaults to None, for no limit.

    >>> import argparse
    >>> check_range(argparse.Namespace(top_k=0), "top_k", 1, 258)
    Traceback (most recent call last):
    ValueError: --top-k must be from 1 to 258. Received: 0
    """
    values = getattr(args, name)
    for value in values if isinstance(values, (list, tuple)) else [values]:
        if value is not None and not lowest <= value <= (value if highest is None else highest):
            allowed = f"at least {lowest}" if highest is None else f"from {lowest} to {highest}"
            option = f"--{name.replace('_', '-')}"
            raise ValueError(f"{option} must be {allowed}. Received: {value}")
