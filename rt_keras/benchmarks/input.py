"""`rt-keras benchmark input`: time to pack and read text, and to start training.

Each contender runs in a separate process. Contenders take turns, and times are medians.
"""

import os

from rt_keras.benchmarks import options, workers
from rt_keras.options import add_integers, check_range
from rt_keras.tables import table_of

SHAPE = {
    "length": (8192, "tokens per sequence"),
    "batch": (8, "sequences per batch"),
}
INTEGERS = {
    **SHAPE,
    "gigabytes": (10, "size in GB of the packed files to start on, which take no disk space"),
    "step": (1_000_000, "index of the batch at which training resumes"),
}


def add_arguments(parser):
    """Adds the command's options to an `argparse` parser."""
    parser.description = (
        "Measures the input pipeline of a language model on bytes: packing 16 MiB of text into "
        "files, reading batches of sequences from random places, and the time to the first batch "
        "when training starts, or resumes at a late step, on much larger files."
    )
    parser.epilog = "example: rt-keras benchmark input --gigabytes 100 --json input.json"
    add_integers(parser, INTEGERS)
    options.add_repeats_and_threads(parser)


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
    options.check_at_least_one(args, *SHAPE, "gigabytes", "repeats", "threads")
    check_range(args, "step", 0)
    result = measure(args)
    print(report(result))
    return result


def measure(args):
    """Measures packing, reading, and the start of training.

    Args:
        args: namespace of the options.

    Returns:
        A dictionary of JSON values: the machine, the settings, and `figures`, one for each of
        "packing", "reading", "first batch at step 0" and the first batch at `--step`. The first two
        have `tokens_per_second`.

    Raises:
        RuntimeError: if every contender fails.
    """
    from rt_keras.benchmarks import input_pipeline

    load, shape = os.getloadavg()[0], options.values(args, SHAPE)
    contenders = {
        "packing": workers.contender("input_pipeline:prepare_packing"),
        "reading": workers.contender("input_pipeline:prepare", **shape),
    }
    for step in (0, args.step):
        sizes = {**shape, "gigabytes": args.gigabytes, "step": step}
        start = workers.contender("input_pipeline:prepare_start", **sizes)
        contenders[f"first batch at step {step:,}"] = start
    found = workers.contest(contenders, args.repeats, args.threads)
    tokens = {
        "packing": input_pipeline.FILES * (input_pipeline.BYTES + 1),
        "reading": input_pipeline.tokens_of_a_run(**shape),
    }
    for kind, figure in found.items():
        rate = tokens[kind] / figure["seconds"] if kind in tokens else None
        figure["tokens_per_second"] = rate
    settings = {**options.values(args, INTEGERS), "tokenizer": "bytes"}
    figures = options.figures_of(found, {})
    return options.result(args, figures, load, {}, settings, benchmark="input")


def report(result):
    """Formats the figures as a table.

    Args:
        result: dictionary from `measure`.

    Returns:
        A string.
    """
    settings = result["settings"]
    columns = {
        "what": ("", lambda figure: figure["kind"]),
        "time (s)": (".4f", lambda figure: figure["seconds"]),
        "tokens/s": (",.0f", lambda figure: figure["tokens_per_second"]),
        **options.PEAK,
    }
    return (
        f"input: {settings['batch']} x {settings['length']:,} bytes per batch; first batch from "
        f"{settings['gigabytes']:,} GB of packed text\n{result['machine']}\n\n"
        f"{table_of(result['figures'], columns)}"
    )
