"""`rt-keras benchmark model`: time and memory of training steps.

Small language models of the same shape are trained, each in a separate process. They take turns
with each other and with their input pipeline, and times are medians.
"""

import os

from rt_keras.benchmarks import options, rivals, workers
from rt_keras.options import add_integers, add_options
from rt_keras.tables import table_of

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
    "batch": (1, "sequences per batch"),
}


def add_arguments(parser):
    """Adds the command's options to an `argparse` parser."""
    parser.description = (
        "Measures tokens per second in training, for language models with two local and two "
        "routing heads, with heads that do both, with local heads only, with full heads, and of "
        "other installed packages; and for their input pipeline from text files. All use GEGLU of "
        "four times the width, vocabulary 256, Adam, float32. XLA compiles those of this package."
    )
    parser.epilog = "example: rt-keras benchmark model --length 2048 --json model.json"
    more = (
        "; local_same_keys replaces the routing heads with local heads whose blocks are half the "
        "window, for as many keys per query"
    )
    options.add_names(parser, "kinds", KINDS, more=more)
    add_integers(parser, {**SHAPE, **options.MODEL})
    meaning = "give heads of this package relative positions up to the window"
    add_options(parser, {"--relative-positions": meaning}, action="store_true")
    options.add_shared(parser, rivals.MODELS)


def main(args):
    """Measures and prints the table.

    Args:
        args: namespace of the options.

    Returns:
        The dictionary that `measure` returns.

    Raises:
        ValueError: if an option is out of range.
        RuntimeError: if every contender fails.
    """
    check(args)
    result = measure(args, rivals.choose(args.rivals, rivals.MODELS))
    print(report(result))
    return result


def check(args):
    """Raises a `ValueError` if an option is out of range."""
    options.check_at_least_one(args, *SHAPE, "repeats", "threads")
    options.check_model(args, [args.length])


def measure(args, chosen_rivals):
    """Measures a training step of each kind and rival, and the input pipeline.

    Args:
        args: namespace of the options.
        chosen_rivals: dictionary from `rt_keras.benchmarks.rivals.choose`.

    Returns:
        A dictionary of JSON values: the machine, the settings, one entry of `figures` for each
        contender, and the `input` pipeline, with the ratio of its tokens per second to those of the
        fastest kind of this package.

    Raises:
        RuntimeError: if every contender fails.
    """
    load = os.getloadavg()[0]
    found = workers.contest(_contenders(args, chosen_rivals), args.repeats, args.threads)
    pipeline = found.pop(INPUT, None)
    for figure in found.values():
        figure["tokens_per_second"] = args.batch * args.length / figure["seconds"]
    point = options.values(args, SHAPE)
    figures = options.figures_of(found, chosen_rivals, BASELINES, **point)
    settings = options.values(args, (*SHAPE, *options.MODEL, "relative_positions"))
    settings |= {"heads": 4, "vocabulary": 256, "optimizer": "Adam"}
    settings |= {"dtype": "float32", "compiler": "XLA"}
    more = {"benchmark": "model", "input": pipeline and _input(pipeline, point, figures)}
    return options.result(args, figures, load, chosen_rivals, settings, **more)


def _contenders(args, chosen_rivals):
    shape = options.values(args, (*SHAPE, *options.MODEL))
    ours = {**shape, "relative_positions": args.relative_positions}
    contenders = {
        kind: workers.contender("models:prepare_step", kind=kind, **ours) for kind in args.kinds
    }
    for kind, imports in chosen_rivals.items():
        place = "rival_models:prepare_step"
        contenders[kind] = workers.contender(place, *imports, kind=kind, **shape)
    pipeline = workers.contender("input_pipeline:prepare", **options.values(args, SHAPE))
    return {**contenders, INPUT: pipeline}


def _input(pipeline, point, figures):
    from rt_keras.benchmarks.input_pipeline import tokens_of_a_run

    rate = tokens_of_a_run(**point) / pipeline["seconds"]
    ours = [f["tokens_per_second"] for f in figures if f["package"] == "rt_keras"]
    return {
        **pipeline,
        "tokens_per_second": rate,
        "times_the_fastest_step": rate / max(ours) if ours else None,
    }


def report(result):
    """Formats the figures as a table with one row for each model.

    Args:
        result: dictionary from `measure`.

    Returns:
        A string.
    """
    columns = {
        **options.KIND,
        "time per\nstep (s)": (".4f", lambda figure: figure["seconds"]),
        "tokens/s": (",.0f", lambda figure: figure["tokens_per_second"]),
        **options.PEAK,
        **options.speedups(result["figures"], ".2f"),
    }
    settings = result["settings"]
    title = (
        f"training step: {options.shape(result)}, n = {settings['length']:,}, batch "
        f"{settings['batch']}, Adam, float32\n{result['machine']}"
    )
    lines = [title, "", table_of(result["figures"], columns)]
    if result["input"]:
        rate, times = (result["input"][x] for x in ("tokens_per_second", "times_the_fastest_step"))
        more = "" if times is None else f", {times:,.0f} times the rate of the fastest step"
        lines += ["", f"input from text files: {rate:,.0f} tokens/s{more}"]
    return "\n".join(lines)
