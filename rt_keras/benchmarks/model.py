"""`rt-keras benchmark model`: whole training steps, side by side.

Small language models of the same shape are trained, each in a process of its own; they take turns,
and times are medians. Their input pipeline takes turns with them.
"""

import math
import os

from rt_keras.benchmarks import machine, options, rivals, workers
from rt_keras.options import add_integers
from rt_keras.tables import table

KINDS = (
    "balanced_shared",
    "balanced_separate",
    "nearest_shared",
    "nearest_separate",
    "local_routing",
    "local",
    "local_same_keys",
    "full",
)
BASELINES = ("local", "local_same_keys", "full")
INPUT = "input"
# The shape of a batch: defaults and meanings.
SHAPE = {
    "length": (8192, "sequence length, a multiple of the window"),
    "batch": (1, "sequences in a batch"),
}


def add_arguments(parser):
    """Adds the command's options to an `argparse` parser."""
    parser.description = (
        "Measures tokens per second in training, for language models with two local and two "
        "routing heads, with heads that do both, with local heads only, with full heads, and of "
        "other packages that are installed (GEGLU of four times the width, vocabulary 256, Adam, "
        "float32, compiled by XLA), and for the pipeline that makes their batches from text files."
    )
    parser.epilog = "example: rt-keras benchmark model --length 2048 --json model.json"
    options.add_kinds(
        parser,
        KINDS,
        "; local_same_keys has local heads with blocks of half the window instead of routing "
        "heads, for as many keys per query",
    )
    add_integers(parser, {**SHAPE, **options.MODEL})
    parser.add_argument(
        "--relative-positions",
        action="store_true",
        help="give our heads relative positions up to the window",
    )
    options.add_shared(parser, rivals.MODELS)


def main(args):
    """Measures and prints the table.

    Args:
        args: namespace of the options.

    Returns:
        What `measure` returns.

    Raises:
        ValueError: if an option is out of range.
        RuntimeError: if nothing could be measured.
    """
    check(args)
    chosen = rivals.choose(args.rivals, rivals.MODELS, options.say)
    shape = {name: getattr(args, name) for name in (*SHAPE, *options.MODEL)}
    result = measure(shape, args.kinds, args.repeats, chosen, args.threads, args.relative_positions)
    print(report(result))
    return result


def check(args):
    """Raises a ValueError of one line if an option is out of range."""
    options.check_at_least_one(args, *SHAPE, "repeats", "threads")
    options.check_model(args, [args.length])
    options.check_among("kinds", args.kinds, KINDS)


def measure(shape, kinds, repeats, chosen_rivals=None, threads=None, relative_positions=False):
    """Measures a training step of each kind and rival, and the input pipeline.

    Args:
        shape: dictionary of the ints `length`, `batch`, `window`, `layers` and `width`.
        kinds: list of strings among `KINDS`.
        repeats: int, the maximum number of steps for a median.
        chosen_rivals: what `rt_keras.benchmarks.rivals.choose` returned. Defaults to None, no
            rivals.
        threads: int, the number of threads of each process. Defaults to the number of cores.
        relative_positions: bool, whether our heads have relative positions. Defaults to False.

    Returns:
        A dictionary of JSON values: the machine, the settings, one entry of `figures` for each
        contender, and the `input` pipeline, with the ratio of its tokens per second to those of the
        fastest of our kinds.

    Raises:
        RuntimeError: if nothing could be measured.
    """
    chosen_rivals = chosen_rivals or {}
    threads = threads or machine.count_cores()
    load_average = [os.getloadavg()[0]]
    contenders = _contenders(shape, dict.fromkeys(kinds), chosen_rivals, relative_positions)
    found = workers.contest(
        contenders, repeats, threads, lambda name, what: options.say(f"{name}: {what}")
    )
    pipeline = found.pop(INPUT, None)
    if not found:
        raise RuntimeError("Nothing could be measured: every model failed.")
    point = {name: shape[name] for name in SHAPE}
    for figure in found.values():
        figure["tokens_per_second"] = math.prod(point.values()) / figure["seconds"]
    figures = options.figures_of(found, chosen_rivals, BASELINES, **point)
    return {
        "benchmark": "model",
        **options.origin(chosen_rivals, load_average),
        "settings": {
            **shape,
            "heads": 4,
            "vocabulary": 256,
            "relative_positions": relative_positions,
            "optimizer": "Adam",
            "dtype": "float32",
            "compiler": "XLA",
            "threads": threads,
            "repeats": repeats,
        },
        "figures": figures,
        "input": pipeline and _input(pipeline, shape, figures),
    }


def _contenders(shape, kinds, chosen_rivals, relative_positions):
    contenders = {
        kind: options.contender(
            "models:prepare_step", kind, **shape, relative_positions=relative_positions
        )
        for kind in kinds
    }
    for kind, imports in chosen_rivals.items():
        contenders[kind] = options.contender("rival_models:prepare_step", kind, imports, **shape)
    contenders[INPUT] = {
        "target": "rt_keras.benchmarks.input_pipeline:prepare",
        "arguments": {name: shape[name] for name in SHAPE},
    }
    return contenders


def _input(pipeline, shape, figures):
    from rt_keras.benchmarks.input_pipeline import tokens_of_a_run

    rate = tokens_of_a_run(shape["length"], shape["batch"]) / pipeline["seconds"]
    ours = [f["tokens_per_second"] for f in figures if f["package"] == "rt_keras"]
    return {
        **pipeline,
        "tokens_per_second": rate,
        "times_the_fastest_step": rate / max(ours) if ours else None,
    }


def title(result):
    """Two lines: what was measured, and on which machine."""
    settings = result["settings"]
    return (
        f"training step: {settings['layers']} layers of width {settings['width']}, 4 heads, window "
        f"{settings['window']}, n = {settings['length']:,}, batch {settings['batch']}, Adam, "
        f"float32\n{result['machine']}"
    )


def report(result):
    """The figures as a table with one row for each model.

    Args:
        result: what `measure` returned.

    Returns:
        Lines of text.
    """
    baselines = list(result["figures"][0]["times_as_fast_as"])
    columns = {"kind": "", "time per\nstep (s)": ".4f", "tokens/s": ",.0f", "peak (MB)": ",.0f"}
    columns |= options.speedup_columns(baselines, ".2f")
    rows = [
        [
            figure["kind"].replace("_", " "),
            figure["seconds"],
            figure["tokens_per_second"],
            figure["peak_bytes"] / 1e6,
            *(figure["times_as_fast_as"][name] for name in baselines),
        ]
        for figure in result["figures"]
    ]
    lines = [title(result), "", table(columns, rows)]
    if result["input"]:
        rate, times = (result["input"][x] for x in ("tokens_per_second", "times_the_fastest_step"))
        more = "" if times is None else f", {times:,.0f} times as many as the fastest step takes"
        lines += ["", f"input from text files: {rate:,.0f} tokens/s{more}"]
    return "\n".join(lines)
