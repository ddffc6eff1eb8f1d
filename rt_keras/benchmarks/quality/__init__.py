"""`rt-keras benchmark quality`: where does routing attention pay?

Small models that differ in their attention heads alone are trained on tasks that need tokens from
far away. `tasks/` has the tasks, `kinds.py` the heads, `training.py` a run, `report.py` the tables.
"""

import itertools
import json
import multiprocessing
import signal

from rt_keras import progress
from rt_keras.benchmarks import options
from rt_keras.benchmarks.quality import report
from rt_keras.benchmarks.quality.kinds import KINDS
from rt_keras.benchmarks.quality.tasks import TASKS, TESTS, make_task
from rt_keras.files import write_json
from rt_keras.options import add_integers, add_options, add_plot, check_picture, check_range

DEFAULT_KINDS = ("full", "local", "local_and_nearest", "local_routing")
INTEGERS = {
    "steps": (1000, "number of training steps"),
    "layers": (2, "number of blocks"),
    "width": (128, "width of the blocks"),
}
# Tokens of a batch by default, and the fewest sequences.
BATCH_TOKENS, LEAST_BATCH = 2048, 4
# Numbers that follow from the task if they are not given.
DERIVED = {
    "--length N": "tokens in a sequence (default: what the task is known for)",
    "--keys N": "keys that a query of sparse heads sees, on average (default: a 16th of the "
    "length, at least 8)",
    "--clusters N": "clusters of a routing head (default: length / (2 keys))",
    "--batch N": f"sequences in a batch (default: {BATCH_TOKENS:,} tokens, at least {LEAST_BATCH})",
}


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
    options.add_names(parser, "tasks", TASKS, ["recall"])
    options.add_names(parser, "kinds", KINDS, DEFAULT_KINDS)
    options.add_numbers(parser, "seeds", [0], "seeds of weights and data, one run for each")
    options.add_numbers(
        parser, "test-lengths", [], "lengths at which trained models are tested too"
    )
    add_integers(parser, INTEGERS)
    add_options(parser, DERIVED, type=int)
    options.add_learning_rate(parser, 2e-3)
    options.add_directory(parser, "the task text")
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
    runs = itertools.product(*map(dict.fromkeys, (args.tasks, args.seeds, args.kinds)))
    wanted = [run_settings(args, task, kind, seed) for task, seed, kind in runs]
    for settings in wanted:
        if _identity(settings) in done:
            progress.say(f"{describe(settings)}: already in {args.json}")
            continue
        figure = train_alone(settings)
        done[_identity(settings)] = figure
        result["figures"].append(figure)
        if args.json:
            write_json(args.json, result)
    figures = [done[_identity(settings)] for settings in wanted]
    scores = {name: make_task(name, args.length, args.directory).score for name in args.tasks}
    print(report.report(figures, scores))
    if args.plot:
        report.draw(figures, scores, args.plot)
        print(f"wrote {args.plot}")
    return result


def check(args):
    """Raises a ValueError of one line if an option is out of range."""
    from rt_keras.benchmarks.quality.tasks.task import HELD_OUT

    options.check_at_least_one(args, "layers", "keys", "clusters", "batch")
    options.check_multiple(args, "steps", TESTS, "the number of tests on the way, ")
    options.check_multiple(args, "width", 8)
    options.check_learning_rate(args)
    check_range(args, "seeds", 0, HELD_OUT - 1)
    if args.directory is not None and "text" not in args.tasks:
        raise ValueError(
            f"--directory is for the task text. Received: --tasks {' '.join(args.tasks)}"
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
    """All that a run depends on, with defaults filled in.

    Args:
        args: namespace of the options.
        task: string, one of `TASKS`.
        kind: string, one of `KINDS`.
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
        **options.values(args, ("test_lengths", "steps", "layers", "width", "learning_rate")),
    }


def _identity(settings):
    return json.dumps(settings, sort_keys=True)


def train_alone(settings):
    """Trains a model in a process of its own, whose peak memory is that of this run.

    Args:
        settings: dictionary; see `rt_keras.benchmarks.quality.training.train`.

    Returns:
        What `train` returned.

    Raises:
        ChildProcessError: if the process ended without an answer, as when memory runs out.
        Exception: what `train` raised.
    """
    name = describe(settings)
    steps, context = settings["steps"], multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_train_for, args=(theirs, settings), daemon=True)
    process.start()
    theirs.close()
    try:
        with progress.bar(f"training {name}", steps, "steps") as update:
            while True:
                kind, answer = ours.recv()
                if kind == "step":
                    update(completed=answer)
                elif kind == "test":
                    update(note=answer["note"])
                    progress.say(f"{name}: step {answer['step']} of {steps}, {answer['note']}")
                elif kind == "error":
                    raise answer
                else:
                    return answer
    except EOFError:
        process.join()
        raise ChildProcessError(
            f"training {name} ended with status {process.exitcode}, perhaps because memory ran out"
        ) from None
    finally:
        process.terminate()
        process.join()


def describe(settings):
    """What a run trains, in words.

    >>> describe({"task": "mqar", "kind": "full", "seed": 0})
    'full on mqar, seed 0'
    """
    return f"{settings['kind']} on {settings['task']}, seed {settings['seed']}"


def _train_for(connection, settings):
    """Trains in a process that another one has started, and sends it what happens."""
    from rt_keras.benchmarks.quality.training import train

    # An interruption is for the parent, which ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        answer = "done", train(settings, lambda *message: connection.send(message))
    except Exception as error:
        answer = "error", error
    connection.send(answer)
