"""`rt-keras benchmark quality`: what small models with different heads learn.

Trains models that differ only in their attention heads on tasks that need distant tokens, and
measures what they learn. Attention is causal.

example: rt-keras benchmark quality --tasks recall mqar --seeds 3 --json quality.json
"""

# `quality_tasks.py` has the tasks, `quality_heads.py` the heads and `quality_training.py` a run.

import itertools
import statistics

from rt_keras.benchmarks import runs
from rt_keras.benchmarks.quality_heads import KINDS, POSITIONS
from rt_keras.cli.options import add_integers, add_options, check_at_least_one
from rt_keras.data.tables import table_of

NAMES = ("recall", "mqar", "text")
# Number of tests during a training.
TESTS = 20
DEFAULT_KINDS = ("full", "local", "local_and_nearest", "local_routing")
INTEGERS = {
    "steps": (1000, f"number of training steps, a multiple of {TESTS}, the number of tests"),
    "layers": (2, "number of blocks"),
    "width": (128, "width of the blocks"),
}
# Default number of tokens per batch, and the minimum number of sequences.
BATCH_TOKENS, LEAST_BATCH = 2048, 4
# Options whose defaults depend on the task.
DERIVED = {
    "--length N": "tokens per sequence (default: depends on the task)",
    "--keys N": "average number of keys that a query of sparse heads sees (default: 1/16 of the "
    "length, at least 8)",
    "--clusters N": "clusters per routing head (default: length / (2 keys))",
    "--batch N": f"sequences per batch (default: {BATCH_TOKENS:,} tokens, at least {LEAST_BATCH})",
}


def add_arguments(parser):
    """Adds the command's options to an `argparse` parser."""
    runs.add_names(parser, "tasks", NAMES, ("recall",))
    runs.add_names(parser, "kinds", KINDS, DEFAULT_KINDS)
    runs.add_seeds(parser)
    add_integers(parser, INTEGERS)
    add_options(parser, DERIVED, type=int)
    add_options(parser, {"--learning-rate": "peak rate (default: 0.002)"}, type=float, default=2e-3)
    meaning = "learned positions in windows, or sinusoidal embeddings (default: relative)"
    parser.add_argument("--positions", choices=POSITIONS, default="relative", help=meaning)
    meaning = "folder of texts for the task text (default: the source of Python's standard library)"
    add_options(parser, {"--directory DIR": meaning})


def main(args):
    """Trains a model for each task, seed and kind, and prints the tables.

    With `--json`, the file is written after each run. Runs that it already holds are skipped.

    Args:
        args: namespace of the options.

    Returns:
        A dictionary of JSON values with one entry of `figures` for each run; see
        `rt_keras.benchmarks.quality_training.train`. Entries from the file come first.

    Raises:
        ValueError: if an option is out of range, or the file belongs to another benchmark.
    """
    check(args)
    cells = dict.fromkeys(itertools.product(args.tasks, range(args.seeds), args.kinds))
    wanted = [run_settings(args, task, kind, seed) for task, seed, kind in cells]
    return runs.figures_of(args.json, "quality", wanted, train_alone, report)


def check(args):
    """Raises a `ValueError` if an option is out of range."""
    from rt_keras.benchmarks.quality_tasks import TASKS

    check_at_least_one(args, "seeds", "layers", "keys", "clusters", "batch")
    _check_multiple(args, "steps", TESTS, "the number of tests in a run, ")
    _check_multiple(args, "width", 8)
    if not args.learning_rate > 0:
        raise ValueError(f"--learning-rate must be above 0. Received: {args.learning_rate}")
    if args.directory is not None and "text" not in args.tasks:
        tasks = " ".join(args.tasks)
        raise ValueError(f"--directory needs the task text. Received: --tasks {tasks}")
    for name in args.tasks:
        TASKS[name](args.length, args.directory)


def _check_multiple(args, name, number, what=""):
    """Raises a `ValueError` if an option is not a positive multiple of a number."""
    value = getattr(args, name)
    if value < 1 or value % number:
        raise ValueError(f"--{name} must be a multiple of {what}{number}. Received: {value}")


def run_settings(args, task, kind, seed):
    """Returns the settings of a run, with defaults filled in.

    Args:
        args: namespace of the options.
        task: string, a key of `TASKS`.
        kind: string, a key of `KINDS`.
        seed: int.

    Returns:
        A dictionary of JSON values; see `rt_keras.benchmarks.quality_training.train`.
    """
    from rt_keras.benchmarks.quality_tasks import TASKS

    length = TASKS[task](args.length, args.directory).length
    keys = args.keys or max(8, length // 16)
    return {
        "task": task,
        "kind": kind,
        "seed": seed,
        "length": length,
        "keys": keys,
        "clusters": args.clusters or max(1, length // (2 * keys)),
        "batch": args.batch or max(LEAST_BATCH, BATCH_TOKENS // length),
        "directory": args.directory if task == "text" else None,
        **runs.values(args, ("steps", "layers", "width", "learning_rate", "positions")),
    }


def train_alone(settings):
    """Trains a model in a new process; see `rt_keras.benchmarks.quality_training.train`."""
    from rt_keras.benchmarks.quality_training import train

    return runs.alone(train, settings, TESTS)


def report(figures):
    """Formats a table for each task, with one row for each kind.

    Args:
        figures: list of dictionaries from `rt_keras.benchmarks.quality_training.train`, with their
            `settings`.

    Returns:
        A string.
    """
    tables = map(task_report, runs.grouped(figures, "task").values())
    return "\n\n".join([runs.machines(figures), *tables])


def task_report(figures):
    """Formats the table of one task, below a line with the settings.

    Args:
        figures: list of the figures of runs that differ only in kind and seed.

    Returns:
        A string. "spread" is the standard deviation over seeds. "near", "far" and "new" are the
        groups of the task text.
    """
    score = "loss" if figures[0]["settings"]["task"] == "text" else "accuracy"
    columns = {
        "kind": ("", lambda rows: runs.words(rows[0]["settings"]["kind"])),
        score: (".3f", lambda rows: runs.mean(row[score][-1] for row in rows)),
        "spread": (".3f", lambda rows: runs.spread(row[score][-1] for row in rows)),
    }

    def group_loss(name):
        return lambda rows: runs.mean(row["groups"][name]["loss"] for row in rows)

    columns |= {f"loss:\n{name}": (".3f", group_loss(name)) for name in figures[0]["groups"]}
    columns |= {
        "weights": (",", lambda rows: rows[0]["weights"]),
        "step\n(ms)": (",.0f", lambda rows: 1e3 * statistics.median(x["seconds"] for x in rows)),
    }
    rows = runs.grouped(figures, "kind").values()
    return f"{_title(figures, score)}\n\n{table_of(rows, columns)}"


def _title(figures, score):
    settings = figures[0]["settings"]
    what = f"{runs.words(settings['task'])}, {score} on held-out sequences"
    return (
        f"{what}: {settings['length']:,} tokens, {settings['steps']:,} steps of "
        f"{settings['batch']} sequences, {settings['layers']} blocks of width {settings['width']}, "
        f"{settings['keys']:,} keys, {settings['clusters']:,} clusters, learning rate "
        f"{settings['learning_rate']:g}, {settings['positions']} positions"
    )
