"""`rt-keras benchmark quality`: where does routing attention pay?

Small models that differ in their attention heads alone are trained on tasks that need tokens from
far away. `tasks/` has the tasks, `kinds.py` the heads, `training.py` a run, `report.py` the tables.
"""

import itertools
import json
from pathlib import Path

from rt_keras.benchmarks import options
from rt_keras.benchmarks.quality import report, training
from rt_keras.benchmarks.quality.kinds import KINDS
from rt_keras.benchmarks.quality.tasks import TASKS
from rt_keras.benchmarks.quality.tasks.task import HELD_OUT
from rt_keras.files import write_json
from rt_keras.options import add_plot, check_picture

DEFAULT_KINDS = ("full", "local", "local_and_nearest", "local_routing")
# Tokens of a batch by default, and the fewest sequences.
BATCH_TOKENS, LEAST_BATCH = 2048, 4


def add_arguments(parser):
    """Adds the command's options to an `argparse` parser."""
    parser.description = (
        "Trains equal models with different kinds of attention heads on tasks that need distant "
        "tokens, and measures what they learn. Attention is causal everywhere; balanced and hashed "
        "heads choose whom they see by looking at the whole sequence, though."
    )
    parser.epilog = (
        "example: rt-keras benchmark quality --tasks recall mqar --seeds 0 1 --json quality.json"
    )
    parser.add_argument(
        "--tasks",
        nargs="+",
        default=["recall"],
        metavar="NAME",
        help=f"what to learn: {', '.join(TASKS)} (default: recall)",
    )
    parser.add_argument(
        "--kinds",
        nargs="+",
        default=DEFAULT_KINDS,
        metavar="NAME",
        help=f"heads to train: {', '.join(KINDS)} (default: {' '.join(DEFAULT_KINDS)})",
    )
    parser.add_argument(
        "--seeds",
        nargs="+",
        type=int,
        default=[0],
        metavar="N",
        help="seeds of weights and data, one run for each (default: 0)",
    )
    parser.add_argument(
        "--steps", type=int, default=1000, help="number of training steps (default: 1000)"
    )
    parser.add_argument(
        "--length", type=int, help="tokens in a sequence (default: what the task is known for)"
    )
    parser.add_argument(
        "--test-lengths",
        nargs="+",
        type=int,
        default=[],
        metavar="N",
        help="lengths at which trained models are tested too (default: none)",
    )
    parser.add_argument(
        "--keys",
        type=int,
        help="keys that a query of sparse heads sees, on average (default: a 16th of the length, "
        "at least 8)",
    )
    parser.add_argument(
        "--clusters", type=int, help="clusters of a routing head (default: length / (2 keys))"
    )
    parser.add_argument("--layers", type=int, default=2, help="number of blocks (default: 2)")
    parser.add_argument("--width", type=int, default=128, help="width of the blocks (default: 128)")
    parser.add_argument(
        "--batch",
        type=int,
        help=f"sequences in a batch (default: {BATCH_TOKENS:,} tokens, at least {LEAST_BATCH})",
    )
    parser.add_argument(
        "--learning-rate",
        type=float,
        default=2e-3,
        help="highest learning rate of Adam (default: 2e-3)",
    )
    parser.add_argument(
        "--directory",
        metavar="DIR",
        help="folder of texts for the task text (default: the source of Python's library)",
    )
    add_plot(parser, "the learning curves")


def main(args):
    """Trains a model for each task, seed and kind, and prints the tables.

    With `--json`, the file is written after every run, and runs that it holds are not repeated.

    Args:
        args: namespace of the options.

    Returns:
        A dictionary of JSON values with one entry of `figures` for each run; see
        `rt_keras.benchmarks.quality.training.train`. Those that the file held before come first.

    Raises:
        ValueError: if an option is out of range, or the file is of another benchmark.
    """
    check(args)
    result = options.earlier(args.json, {"benchmark": "quality", "figures": []})
    done = {_identity(figure["settings"]): figure for figure in result["figures"]}
    wanted = [
        run_settings(args, task, kind, seed)
        for task, seed, kind in itertools.product(
            *(dict.fromkeys(x) for x in (args.tasks, args.seeds, args.kinds))
        )
    ]
    for settings in wanted:
        if _identity(settings) in done:
            options.say(f"{training.describe(settings)}: already in {args.json}")
            continue
        figure = training.train_alone(settings)
        done[_identity(settings)] = figure
        result["figures"].append(figure)
        if args.json:
            write_json(args.json, result)
    figures = [done[_identity(settings)] for settings in wanted]
    scores = {name: task.score for name, task in TASKS.items()}
    print(report.report(figures, scores))
    if args.plot:
        report.draw(figures, scores, Path(args.plot))
        print(f"wrote {args.plot}")
    return result


def check(args):
    """Raises a ValueError of one line if an option is out of range."""
    options.check_among("tasks", args.tasks, TASKS)
    options.check_among("kinds", args.kinds, KINDS)
    given = [name for name in ("keys", "clusters", "batch") if getattr(args, name) is not None]
    options.check_at_least_one(args, "layers", *given)
    if args.steps < 1 or args.steps % training.TESTS:
        raise ValueError(
            f"--steps must be a multiple of {training.TESTS}, the number of tests on the way. "
            f"Received: {args.steps}"
        )
    if args.width < 1 or args.width % 8:
        raise ValueError(f"--width must be a multiple of 8. Received: {args.width}")
    if not args.learning_rate > 0:
        raise ValueError(f"--learning-rate must be above 0. Received: {args.learning_rate}")
    for seed in args.seeds:
        if not 0 <= seed < HELD_OUT:
            raise ValueError(f"--seeds must be from 0 to {HELD_OUT - 1:,}. Received: {seed}")
    if args.directory is not None and "text" not in args.tasks:
        raise ValueError(
            f"--directory is for the task text. Received: --tasks {' '.join(args.tasks)}"
        )
    for name in args.tasks:
        TASKS[name](args.length, args.directory)
        for length in args.test_lengths:
            try:
                TASKS[name](length, args.directory)
            except ValueError as error:
                raise ValueError(f"--test-lengths: {error}") from None
    check_picture(args)


def run_settings(args, task, kind, seed):
    """All that a run depends on, with defaults filled in.

    Args:
        args: namespace of the options.
        task: string, one of `TASKS`.
        kind: string, one of `KINDS`.
        seed: int.

    Returns:
        A dictionary of JSON values; see `rt_keras.benchmarks.quality.training.train`.
    """
    length = TASKS[task](args.length, args.directory).length
    keys = args.keys or max(8, length // 16)
    return {
        "task": task,
        "kind": kind,
        "seed": seed,
        "length": length,
        "test_lengths": args.test_lengths,
        "steps": args.steps,
        "keys": keys,
        "clusters": args.clusters or max(1, length // (2 * keys)),
        "layers": args.layers,
        "width": args.width,
        "batch": args.batch or max(LEAST_BATCH, BATCH_TOKENS // length),
        "learning_rate": args.learning_rate,
        "directory": args.directory if task == "text" else None,
    }


def _identity(settings):
    return json.dumps(settings, sort_keys=True)
