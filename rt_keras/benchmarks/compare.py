"""`rt-keras benchmark compare`: trains configurations and writes a table of their scores.

Trains each configuration with each seed, as `rt-keras train` does, scores it on held-out examples,
as `rt-keras evaluate` does, and writes figures.json and table.md. The same command with the same
folder continues where it was interrupted.

example: rt-keras benchmark compare books books:model.num_lower_layers=0 --set
data.directory=my/books --seeds 3 --steps 1500 --output runs/compared
"""

import itertools
import re
from pathlib import Path

from rt_keras.benchmarks import machine, runs
from rt_keras.cli.options import add_options, check_at_least_one
from rt_keras.files import whole_file, write_json


def add_arguments(parser):
    """Adds the command's options to an `argparse` parser."""
    meaning = (
        "name or YAML file of a configuration, with changes of keys after colons, such as "
        "books:model.num_layers=3:model.dropout=0.1"
    )
    parser.add_argument("configs", metavar="CONFIG", nargs="+", help=meaning)
    add_options(parser, {"--output DIR": "folder of the runs and of the table"}, required=True)
    meaning = "change a key of all configurations, such as data.directory=my/books"
    add_options(parser, {"--set KEY=VALUE": meaning}, action="append", default=[])
    runs.add_seeds(parser)
    meaning = "training steps, with a validation after the last (default: those of each)"
    add_options(parser, {"--steps N": meaning}, type=int)
    add_options(parser, {"--split": "split to score: validation or test (default: test)"})
    parser.set_defaults(split="test")


def main(args):
    """Trains, scores, prints the table and writes it.

    Args:
        args: namespace of the options.

    Returns:
        A dictionary of JSON values with one entry of `figures` for each run; see `train`.

    Raises:
        ValueError: if an option or a configuration is wrong, or differs from that of a run in the
            folder.
    """
    from rt_keras.training.config import load_config

    check_at_least_one(args, "seeds", "steps")
    wanted = [
        settings_of(args, text, seed)
        for seed, text in itertools.product(range(args.seeds), dict.fromkeys(args.configs))
    ]
    for settings in wanted:
        load_config(settings["config"], settings["set"])
    figures = []
    for settings in wanted:
        runs.say(f"{settings['name']}, seed {settings['seed']}")
        figures.append({"settings": settings, **runs.alone(train, settings, args.output)})
    result = {"benchmark": "compare", "machine": machine.describe(), "figures": figures}
    write_json(Path(args.output, "figures.json"), result)
    with whole_file(Path(args.output, "table.md")) as part:
        part.write_text(table(figures))
    print(f"{result['machine']}\n\n{table(figures)}")
    return result


def settings_of(args, text, seed):
    """Returns the settings of a run, from a configuration with changes after colons."""
    config, *changes = re.split(r":(?=\w+\.)", text)
    steps = [f"trainer.{name}={args.steps}" for name in ("steps", "validation_every")]
    return {
        "name": ":".join([Path(config).stem, *changes]),
        "config": config,
        "seed": seed,
        "split": args.split,
        "set": [*(steps if args.steps else ()), *args.set, *changes, f"trainer.seed={seed}"],
    }


def train(settings, output):
    """Trains and scores one model.

    Args:
        settings: dictionary from `settings_of`.
        output: string, the folder of the runs.

    Returns:
        A dictionary of the `scores` in the order of `rt-keras evaluate`, the `formats` of the main
        ones, the number of `parameters`, and the `tokens_per_second` of training, None if the run
        was finished before.
    """
    from rt_keras.training import evaluation, run
    from rt_keras.training.config import load_config
    from rt_keras.training.experiment import Experiment, load_model

    config = load_config(settings["config"], settings["set"])
    name = re.sub(r"[^\w.=-]+", "-", settings["name"])
    folder = Path(output, f"{name}-{settings['seed']}")
    trained = run.train(config, folder, resume="auto")
    experiment = Experiment(config)
    examples = experiment.load_split(settings["split"])
    return {
        "scores": evaluation.evaluate(load_model(folder), examples, config.data.batch_size),
        "formats": dict([*experiment.task.text_units, *experiment.task.units]),
        "parameters": trained["parameters"],
        "tokens_per_second": trained["tokens_per_second"] or None,
    }


def table(figures):
    """Formats the figures as a table in Markdown, with one row for each configuration.

    Args:
        figures: list of dictionaries from `train`, with their `settings`.

    Returns:
        A string. Scores are means over seeds; "±" is followed by their standard deviation.
    """
    formats = {name: spec for figure in figures for name, spec in figure["formats"].items()}
    head = ["configuration", "seeds", *map(runs.words, formats), "parameters", "tokens/s"]
    lines = [head, ["---"] * len(head)]
    for name, rows in runs.grouped(figures, "name").items():
        cells = [_cell([x["scores"].get(score) for x in rows], formats[score]) for score in formats]
        speed = _cell([x["tokens_per_second"] for x in rows], ",.0f")
        lines.append([name, str(len(rows)), *cells, f"{rows[0]['parameters']:,}", speed])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cell(values, spec):
    """Returns the mean of values and, of several, their deviation; nothing if one is missing."""
    numbers = [runs.mean(values), runs.spread(values) if None not in values else None]
    return " ± ".join(f"{x:{spec}}" for x in numbers if x is not None)
