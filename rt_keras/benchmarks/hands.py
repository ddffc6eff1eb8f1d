"""`rt-keras benchmark hands`: what a person waits for with a pretrained language model.

The waits, from the start of Python on: first and further texts after a prompt, training steps of
LoRA or of all weights, and an export with its first answer. keras_hub is KerasHub's own model, and
adapt is rt_keras.adapt with its default heads. They take turns, each in a new process.

example: rt-keras benchmark hands --model SmolLM2-135M --tasks generate --json hands.json
"""

# `hands_measure.py` measures a cell of the table.

import itertools
import statistics
import time
from pathlib import Path

from rt_keras.benchmarks import runs
from rt_keras.options import add_integers, add_options, check_at_least_one
from rt_keras.tables import table

CONTENDERS = ("keras_hub", "adapt")
TASKS = ("generate", "fit_lora", "fit_all", "export")


def add_arguments(parser):
    """Adds the command's options to an `argparse` parser."""
    runs.add_language_model(parser)
    runs.add_names(parser, "contenders", CONTENDERS)
    runs.add_names(parser, "tasks", TASKS)
    meaning = "tokens of the prompts (default: 8 8000)"
    add_options(parser, {"--prompt-lengths N": meaning}, type=int, nargs="+", default=(8, 8000))
    meaning = "tokens of the texts to train on (default: 512)"
    add_options(parser, {"--fit-lengths N": meaning}, type=int, nargs="+", default=(512,))
    add_integers(parser, {"repeats": (1, "processes for each figure, which is their median")})


def main(args):
    """Measures all cells and prints the table.

    With `--json`, the file is written after each cell, and cells that it contains are not repeated.

    Args:
        args: namespace of the options.

    Returns:
        A dictionary of JSON values with one entry of `figures` for each process: its `settings`,
        and the results of `rt_keras.benchmarks.hands_measure.measure`.

    Raises:
        ValueError: if an option is out of range, the model does not exist, or the file is from
            another benchmark.
        RuntimeError: if nothing could be measured.
    """
    check_at_least_one(args, "prompt_lengths", "fit_lengths", "repeats")
    runs.check_language_model(args)
    result, figures = runs.figures_of(
        args.json, "hands", cells(args), lambda settings: _measure(args.model, settings)
    )
    print(report(figures))
    return result


def cells(args):
    """Returns the settings of all processes, in which the contenders take turns.

    Args:
        args: namespace of the options.

    Returns:
        A list of dictionaries of JSON values.
    """
    lengths = {"generate": args.prompt_lengths, "export": [None]}
    return [
        {"name": Path(args.model).name, "task": task, "length": length, "kind": kind, "turn": turn}
        for task in dict.fromkeys(args.tasks)
        for length in dict.fromkeys(lengths.get(task, args.fit_lengths))
        for turn, kind in itertools.product(range(args.repeats), dict.fromkeys(args.contenders))
        # KerasHub does not export a model with its tokenizer.
        if (task, kind) != ("export", "keras_hub")
    ]


def _measure(model, settings):
    """Measures a cell in a new process; returns None if memory ran out."""
    task, length, kind = (settings[name] for name in ("task", "length", "kind"))
    where = f"{task} of {kind}" + (f", {length:,} tokens" if length else "")
    cell = model, task, length, kind, time.time()
    return runs.attempt(where, "rt_keras.benchmarks.hands_measure:measure", *cell)


def report(figures):
    """Returns the figures as a table with a row for each wait.

    Args:
        figures: list of dictionaries, see `main`.

    Returns:
        Lines of text.
    """
    rows = {}
    for figure in figures:
        settings = figure["settings"]
        for wait, value in figure["waits"].items():
            row = rows.setdefault((settings["task"], settings["length"], wait), {})
            row.setdefault(settings["kind"], []).append(value)
    lines = []
    for (task, length, wait), values in rows.items():
        medians = [statistics.median(values[x]) if x in values else None for x in CONTENDERS]
        ratio = None if None in medians else medians[1] / medians[0]
        lines.append([runs.words(task), length, runs.words(wait), *medians, ratio])
    columns = {"task": "", "tokens": ",", "wait (s)": ""}
    columns |= {**dict.fromkeys(CONTENDERS, ",.3f"), "ratio": ",.2f"}
    head = [figures[0]["settings"]["name"], runs.machines(figures), ""]
    return "\n".join([*head, table(columns, lines)])
