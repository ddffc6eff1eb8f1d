"""`rt-keras benchmark input`: how fast text is packed and read, and training starts.

Each contender works in a process of its own; they take turns, and times are medians.
"""

import os

from rt_keras.benchmarks import machine, options, workers
from rt_keras.options import add_integers, check_range
from rt_keras.tables import table

SHAPE = {
    "length": (8192, "number of tokens in a sequence"),
    "batch": (8, "number of sequences in a batch"),
}
INTEGERS = {
    **SHAPE,
    "gigabytes": (10, "size of the packed files that training starts on, which take no room"),
    "step": (1_000_000, "number of the batch that training starts with"),
}


def add_arguments(parser):
    """Adds the command's options to an `argparse` parser."""
    parser.description = (
        "Measures the input of a language model on bytes: packing 16 MiB of text into files, "
        "reading batches of sequences from random places of them, and the time to the first batch "
        "of a training that starts, or goes on at a late step, on much larger files."
    )
    parser.epilog = "example: rt-keras benchmark input --gigabytes 100 --json input.json"
    add_integers(parser, INTEGERS)
    options.add_repeats_and_threads(parser)


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
    options.check_at_least_one(args, *SHAPE, "gigabytes", "repeats", "threads")
    check_range(args, "step", 0)
    shape = {name: getattr(args, name) for name in SHAPE}
    result = measure(shape, args.gigabytes, args.step, args.repeats, args.threads)
    print(report(result))
    return result


def measure(shape, gigabytes, step, repeats, threads=None):
    """Measures packing, reading, and the start of a training.

    Args:
        shape: dictionary of the ints `length` and `batch`.
        gigabytes: int, the size of the files that training starts on.
        step: int, the step that training goes on at.
        repeats: int, the maximum number of runs for a median.
        threads: int, the number of threads of each process. Defaults to the number of cores.

    Returns:
        A dictionary of JSON values: the machine, the settings, and `figures`, one for each of
        "packing", "reading", "first batch at step 0" and the same at `step`. Those of the first two
        have `tokens_per_second`.

    Raises:
        RuntimeError: if nothing could be measured.
    """
    threads = threads or machine.count_cores()
    load_average = [os.getloadavg()[0]]
    found = workers.contest(
        _contenders(shape, gigabytes, step),
        repeats,
        threads,
        lambda name, what: options.say(f"{name}: {what}"),
    )
    if not found:
        raise RuntimeError("Nothing could be measured: everything failed.")
    tokens = _tokens(shape)
    return {
        "benchmark": "input",
        **options.origin({}, load_average),
        "settings": {
            **shape,
            "gigabytes": gigabytes,
            "step": step,
            "tokenizer": "bytes",
            "threads": threads,
            "repeats": repeats,
        },
        "figures": [
            {
                "kind": kind,
                "package": "rt_keras",
                **figure,
                "tokens_per_second": tokens[kind] / figure["seconds"] if kind in tokens else None,
            }
            for kind, figure in found.items()
        ],
    }


def _contenders(shape, gigabytes, step):
    def contender(function, **arguments):
        target = f"rt_keras.benchmarks.input_pipeline:{function}"
        return {"target": target, "arguments": arguments}

    contenders = {"packing": contender("prepare_packing"), "reading": contender("prepare", **shape)}
    for first in dict.fromkeys((0, step)):
        contenders[f"first batch at step {first:,}"] = contender(
            "prepare_start", gigabytes=gigabytes, step=first, **shape
        )
    return contenders


def _tokens(shape):
    """The number of tokens in a run of packing and of reading."""
    from rt_keras.benchmarks import input_pipeline

    return {
        "packing": input_pipeline.FILES * (input_pipeline.BYTES + 1),
        "reading": input_pipeline.tokens_of_a_run(**shape),
    }


def report(result):
    """The figures as a table.

    Args:
        result: what `measure` returned.

    Returns:
        Lines of text.
    """
    settings = result["settings"]
    title = (
        f"input: {settings['batch']} x {settings['length']:,} bytes a batch; the first batch is of "
        f"{settings['gigabytes']:,} GB of packed text\n{result['machine']}"
    )
    columns = {"what": "", "time (s)": ".4f", "tokens/s": ",.0f", "peak (MB)": ",.0f"}
    rows = [
        [
            figure["kind"],
            figure["seconds"],
            figure["tokens_per_second"],
            figure["peak_bytes"] / 1e6,
        ]
        for figure in result["figures"]
    ]
    return f"{title}\n\n{table(columns, rows)}"
