"""`rt-keras benchmark approximate`: how well other heads stand in for full attention.

Models with full attention are trained; then each kind of heads takes its place, with the same
weights, before and after `distill`. `tasks.py` has what they learn, `kinds.py` the heads,
`models.py` the models, `training.py` a run, `forward.py` their time and memory.
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
    "length": (512, "tokens in a sequence"),
    "keys": (128, "the most keys that a query of sparse heads sees"),
    "layers": (2, "number of blocks"),
    "width": (128, "width of the blocks"),
    "heads": (4, "heads of a block"),
    "batch": (8, "sequences in a batch"),
    "steps": (1500, "steps of the training with full attention"),
}


def add_arguments(parser):
    """Adds the command's options to an `argparse` parser."""
    parser.description = (
        "Trains small models like RoBERTa and GPT-2 with full attention, puts other heads in its "
        "place, and measures what they lose: without any training, and after some steps of "
        "distillation."
    )
    parser.epilog = (
        "example: rt-keras benchmark approximate --tasks copy --kinds full local nearest "
        "--json approximate.json"
    )
    options.add_names(parser, "tasks", TASKS)
    options.add_names(parser, "kinds", KINDS)
    add_integers(parser, {**INTEGERS, "distill_steps": (200, "steps of distillation, 0 for none")})
    options.add_learning_rate(parser, 1e-3)
    options.add_directory(parser, "masked and causal")
    meaning = "numbers of tokens at which a forward pass is timed"
    options.add_numbers(parser, "time-lengths", (), meaning)


def main(args):
    """Trains, adapts and measures, and prints the tables.

    With `--json`, the file is written after each task, and tasks that it holds with the same
    settings are not repeated.

    Args:
        args: namespace of the options.

    Returns:
        A dictionary of JSON values: `figures`, one for each task and kind, with `accuracy` and
        `loss` as swapped in and, with `_distilled` behind the name, after distillation; and
        `times`, one for each kind and length.

    Raises:
        ValueError: if an option is out of range, or the file is of another benchmark.
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
    """Raises a ValueError of one line if an option is out of range."""
    options.check_at_least_one(args, *INTEGERS)
    check_range(args, "distill_steps", 0)
    options.check_multiple(args, "width", args.heads, "--heads ")
    if args.length < 64 or args.length % 2:
        raise ValueError(f"--length must be even and at least 64. Received: {args.length}")
    options.check_learning_rate(args)


def _measure_alone(task, kinds, settings):
    """The figures of a task, from a process of its own, whose memory is free afterwards."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_measure, task, kinds, settings).result()


def _measure(task, kinds, settings):
    from rt_keras.benchmarks.approximate.training import measure_task

    return measure_task(task, kinds, settings)


def measure_times(kinds, lengths, settings):
    """The time and memory of a forward pass of one sequence.

    Args:
        kinds: list of strings, of `KINDS`.
        lengths: list of ints, tokens.
        settings: dictionary of the options.

    Returns:
        A list of dictionaries of `kind`, `length`, `seconds` and `peak_bytes`.
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
    """The tables of a result.

    Args:
        result: what `main` returns.

    Returns:
        Lines of text: for each task, the share of full attention's accuracy that is lost.
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
    beside = "" if unigram is None else f"; the commonest byte of a sequence {unigram:.3f}"
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
