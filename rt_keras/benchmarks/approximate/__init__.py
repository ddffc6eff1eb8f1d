"""`rt-keras benchmark approximate`: accuracy lost when other heads replace full attention.

The benchmark trains models with full attention. Each kind of heads then replaces full attention
with the same weights, and is measured before and after `distill`. `tasks.py` has the tasks,
`kinds.py` the heads, `models.py` the models, `training.py` a run, and `forward.py` the forward pass
that is timed.
"""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

from rt_keras.benchmarks import machine, options, workers
from rt_keras.benchmarks.approximate.kinds import KINDS, NOT_CAUSAL
from rt_keras.files import write_json
from rt_keras.options import add_integers, check_range
from rt_keras.tables import table_of

TASKS = ("masked", "causal", "copy", "span")
INTEGERS = {
    "length": (512, "tokens per sequence"),
    "keys": (128, "maximum number of keys that a query of sparse heads sees"),
    "layers": (2, "number of blocks"),
    "width": (128, "width of the blocks"),
    "heads": (4, "heads per block"),
    "batch": (8, "sequences per batch"),
    "steps": (1500, "training steps with full attention"),
}


def add_arguments(parser):
    """Adds the command's options to an `argparse` parser."""
    parser.description = (
        "Trains small models like RoBERTa and GPT-2 with full attention, replaces it with other "
        "heads, and measures the accuracy lost: without further training, and after some steps of "
        "distillation."
    )
    parser.epilog = (
        "example: rt-keras benchmark approximate --tasks copy --kinds full local nearest "
        "--json approximate.json"
    )
    options.add_names(parser, "tasks", TASKS)
    options.add_names(parser, "kinds", KINDS)
    add_integers(parser, {**INTEGERS, "distill_steps": (200, "steps of distillation; 0 for none")})
    options.add_learning_rate(parser, 1e-3)
    options.add_directory(parser, "the tasks masked and causal")
    meaning = "sequence lengths, in tokens, at which to time a forward pass"
    options.add_numbers(parser, "time-lengths", (), meaning)


def main(args):
    """Trains, adapts and measures models, and prints the tables.

    With `--json`, the file is written after each task. Tasks that it already holds with the same
    settings are skipped.

    Args:
        args: namespace of the options.

    Returns:
        A dictionary of JSON values: `figures`, one for each task and kind, with `accuracy` and
        `loss` right after the swap and, with the suffix `_distilled`, after distillation; and
        `times`, one for each kind and length.

    Raises:
        ValueError: if an option is out of range, or the file belongs to another benchmark.
    """
    check(args)
    empty = {"benchmark": "approximate", "machine": machine.describe(), "figures": [], "times": []}
    result = options.earlier(args.json, empty)
    names = (*INTEGERS, "distill_steps", "directory", "learning_rate")
    settings = options.values(args, names)
    for task in dict.fromkeys(args.tasks):
        done = {
            x["kind"] for x in result["figures"] if (x["task"], x["settings"]) == (task, settings)
        }
        left_out = done.union(NOT_CAUSAL if task == "causal" else ())
        wanted = [kind for kind in dict.fromkeys(args.kinds) if kind not in left_out]
        if wanted:
            result["figures"] += _measure_alone(task, wanted, settings)
            if args.json:
                write_json(args.json, result)
    if args.time_lengths:
        result["times"] += measure_times(args.kinds, args.time_lengths, settings)
    print(report(result))
    return result


def check(args):
    """Raises a `ValueError` if an option is out of range."""
    options.check_at_least_one(args, *INTEGERS)
    check_range(args, "distill_steps", 0)
    options.check_multiple(args, "width", args.heads, "--heads ")
    if args.length < 64 or args.length % 2:
        raise ValueError(f"--length must be even and at least 64. Received: {args.length}")
    options.check_learning_rate(args)


def _measure_alone(task, kinds, settings):
    """Measures a task in a separate process, which frees its memory."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_measure, task, kinds, settings).result()


def _measure(task, kinds, settings):
    from rt_keras.benchmarks.approximate.training import measure_task

    return measure_task(task, kinds, settings)


def measure_times(kinds, lengths, settings):
    """Measures time and memory of a forward pass over one sequence.

    Args:
        kinds: list of strings, keys of `KINDS`.
        lengths: list of ints, in tokens.
        settings: dictionary of the options.

    Returns:
        A list of dictionaries with `kind`, `length`, `seconds` and `peak_bytes`.
    """
    sizes = {name: settings[name] for name in ("keys", "layers", "width", "heads")}
    found = []
    for length in lengths:
        contenders = {
            kind: workers.contender(
                "approximate.forward:prepare", kind=kind, length=length, **sizes
            )
            for kind in kinds
        }
        times = workers.contest(contenders, 3, machine.count_cores())
        found += [
            {"kind": kind, "length": length, **{key: x[key] for key in ("seconds", "peak_bytes")}}
            for kind, x in times.items()
        ]
    return found


def report(result):
    """Formats a result as tables.

    Args:
        result: dictionary, as returned by `main`.

    Returns:
        A string with a table for each task: accuracy, loss, and the share of full attention's
        accuracy that is lost; and a table of times, if any.
    """
    lines = [result["machine"]]
    for task in dict.fromkeys(figure["task"] for figure in result["figures"]):
        figures = [figure for figure in result["figures"] if figure["task"] == task]
        lines += ["", _title(figures[0]), "", _task_table(figures)]
    if result["times"]:
        columns = {
            **options.KIND,
            "tokens": (",", lambda figure: figure["length"]),
            "forward (s)": (".3f", lambda figure: figure["seconds"]),
            **options.PEAK,
        }
        lines += ["", "one sequence, forward", "", table_of(result["times"], columns)]
    return "\n".join(lines)


def _title(figure):
    settings = figure["settings"]
    unigram = figure.get("unigram_accuracy")
    beside = "" if unigram is None else f"; most common byte of a sequence {unigram:.3f}"
    return (
        f"{figure['task']}: {settings['length']:,} tokens, {settings['layers']} blocks of width "
        f"{settings['width']}, {settings['steps']:,} steps of full attention, "
        f"{settings['distill_steps']:,} of distillation{beside}"
    )


def _task_table(figures):
    best = next((x["accuracy"] for x in figures if x["kind"] == "full"), None)

    def lost(accuracy):
        return None if accuracy is None or not best else 1 - accuracy / best

    columns = dict(options.KIND)
    for when, suffix in (("", ""), (",\ndistilled", "_distilled")):
        columns |= {
            f"accuracy{when}": (".3f", lambda x, suffix=suffix: x.get(f"accuracy{suffix}")),
            f"loss{when}": (".3f", lambda x, suffix=suffix: x.get(f"loss{suffix}")),
            f"lost{when}": (".1%", lambda x, suffix=suffix: lost(x.get(f"accuracy{suffix}"))),
        }
    return table_of(figures, columns)
