"""`rt-keras benchmark quality`: tasks that small models learn with different heads.

Models that differ only in their attention heads are trained on tasks that need distant tokens.
`tasks/` has the tasks, `kinds.py` the heads, `training.py` a run, and `report.py` the tables.
"""

import itertools

from rt_keras.benchmarks import options, training_runs
from rt_keras.benchmarks.quality import report
from rt_keras.benchmarks.quality.kinds import KINDS, POSITIONS
from rt_keras.benchmarks.quality.tasks import TASKS, make_task
from rt_keras.benchmarks.training_runs import TESTS
from rt_keras.options import add_integers, add_options, add_plot, check_picture, check_range

DEFAULT_KINDS = ("full", "local", "local_and_nearest", "local_routing")
INTEGERS = {
    "steps": (1000, "number of training steps"),
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
    parser.description = (
        "Trains models that differ only in their attention heads on tasks that need distant "
        "tokens, and measures what they learn. Attention is causal, but balanced heads choose the "
        "members of clusters from the whole sequence."
    )
    parser.epilog = (
        "example: rt-keras benchmark quality --tasks recall mqar --seeds 0 1 --json quality.json"
    )
    options.add_names(parser, "tasks", TASKS, ["recall"])
    options.add_names(parser, "kinds", KINDS, DEFAULT_KINDS)
    options.add_numbers(parser, "seeds", [0], "seeds of weights and data, one run per seed")
    options.add_numbers(
        parser, "test-lengths", [], "further lengths at which to test the trained models"
    )
    add_integers(parser, INTEGERS)
    add_options(parser, DERIVED, type=int)
    options.add_learning_rate(parser, 2e-3)
    parser.add_argument(
        "--positions",
        choices=POSITIONS,
        default="relative",
        help="learned relative positions in windows, or sinusoidal embeddings of all positions "
        "(default: %(default)s)",
    )
    options.add_directory(parser, "the task text")
    add_plot(parser, "the learning curves")


def main(args):
    """Trains a model for each task, seed and kind, and prints the tables.

    With `--json`, the file is written after each run. Runs that it already holds are skipped.

    Args:
        args: namespace of the options.

    Returns:
        A dictionary of JSON values with one entry of `figures` for each run; see
        `rt_keras.benchmarks.quality.training.train`. Entries from the file come first.

    Raises:
        ValueError: if an option is out of range, or the file belongs to another benchmark.
    """
    check(args)
    runs = itertools.product(*map(dict.fromkeys, (args.tasks, args.seeds, args.kinds)))
    wanted = [run_settings(args, task, kind, seed) for task, seed, kind in runs]
    result, figures = training_runs.figures_of(args.json, "quality", wanted, train_alone, describe)
    scores = {name: make_task(name, args.length, args.directory).score for name in args.tasks}
    print(report.report(figures, scores))
    if args.plot:
        report.draw(figures, scores, args.plot)
        print(f"wrote {args.plot}")
    return result


def check(args):
    """Raises a `ValueError` if an option is out of range."""
    from rt_keras.benchmarks.quality.tasks.task import HELD_OUT

    options.check_at_least_one(args, "layers", "keys", "clusters", "batch")
    options.check_multiple(args, "steps", TESTS, "the number of tests in a run, ")
    options.check_multiple(args, "width", 8)
    options.check_learning_rate(args)
    check_range(args, "seeds", 0, HELD_OUT - 1)
    if args.directory is not None and "text" not in args.tasks:
        raise ValueError(
            f"--directory needs the task text. Received: --tasks {' '.join(args.tasks)}"
        )
    for name in args.tasks:
        make_task(name, args.length, args.directory)
        for length in args.test_lengths:
            try:
                make_task(name, length, args.directory)
            except ValueError as error:
                raise ValueError(f"--test-lengths: {error}") from None
    check_picture(args)


def run_settings(args, task, kind, seed):
    """Returns the settings of a run, with defaults filled in.

    Args:
        args: namespace of the options.
        task: string, a key of `TASKS`.
        kind: string, a key of `KINDS`.
        seed: int.

    Returns:
        A dictionary of JSON values; see `rt_keras.benchmarks.quality.training.train`.
    """
    length = make_task(task, args.length, args.directory).length
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
        **options.values(
            args, ("test_lengths", "steps", "layers", "width", "learning_rate", "positions")
        ),
    }


def train_alone(settings):
    """Trains a model in a separate process; see `rt_keras.benchmarks.quality.training.train`."""
    target = "rt_keras.benchmarks.quality.training:train"
    return training_runs.train_alone(target, settings, describe(settings))


def describe(settings):
    """Describes a run.

    >>> describe({"task": "mqar", "kind": "full", "seed": 0})
    'full on mqar, seed 0'
    """
    return f"{settings['kind']} on {settings['task']}, seed {settings['seed']}"
