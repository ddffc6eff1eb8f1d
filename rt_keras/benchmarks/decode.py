"""`rt-keras benchmark decode`: what a token costs in generation, at several positions.

Each contender generates the last tokens of sequences of several lengths, in a process of its own;
they take turns, and times are medians.
"""

import os

from rt_keras.benchmarks import machine, options, rivals, workers
from rt_keras.tables import table

# Whether each keeps a cache. Others call the model on all positions for each token.
CACHED = {"nearest_shared": True, "nearest_separate": True, "full": True, "balanced_shared": False}
KINDS = tuple(CACHED)
LENGTHS = (1024, 4096, 16384)
# Tokens that are generated where each is a pass over all positions.
RECOMPUTED = 4


def add_arguments(parser):
    """Adds the command's options to an `argparse` parser."""
    parser.description = (
        "Milliseconds that a token takes in generation at several positions, greedily, batch 1: "
        "of language models with two local and two nearest routing heads, or full heads, with a "
        "cache; with balanced routing heads, and of other packages, without one. GEGLU of four "
        "times the width, vocabulary 256, float32, compiled by XLA."
    )
    parser.epilog = "example: rt-keras benchmark decode --lengths 1024 4096 --json decode.json"
    parser.add_argument(
        "--kinds",
        nargs="+",
        default=KINDS,
        metavar="KIND",
        help=f"which to measure: {', '.join(KINDS)} (all)",
    )
    parser.add_argument(
        "--lengths",
        type=int,
        nargs="+",
        default=LENGTHS,
        metavar="N",
        help="positions, multiples of the window; tokens are generated up to here "
        "(1024, 4096, 16384)",
    )
    parser.add_argument(
        "--tokens",
        type=int,
        default=128,
        help=f"how many to generate with a cache (128); without one there are {RECOMPUTED}",
    )
    options.add_model(parser)
    options.add_shared(parser, rivals.MODELS)


def main(args):
    """Measures, prints the table, and writes what was asked for.

    Args:
        args: what a parser with `add_arguments` found.

    Raises:
        ValueError: if an option is out of range.
        RuntimeError: if there is nothing that could be measured.
    """
    check(args)
    chosen = rivals.choose(args.rivals, rivals.MODELS, options.say)
    shape = {name: getattr(args, name) for name in options.MODEL}
    result = measure(
        args.lengths, args.kinds, args.tokens, shape, args.repeats, chosen, args.threads
    )
    print(report(result))
    return result


def check(args):
    """Raises ValueError, with one readable line, where an option cannot be."""
    options.check_at_least_one(args, "tokens", "repeats", "threads")
    options.check_model(args, args.lengths)
    for length in args.lengths:
        if length <= max(args.tokens, RECOMPUTED):
            raise ValueError(
                f"--lengths must be greater than --tokens {args.tokens} and {RECOMPUTED}. "
                f"Received: {length}"
            )
    options.check_among("kinds", args.kinds, KINDS)


def measure(lengths, kinds, tokens, shape, repeats, chosen_rivals=None, threads=None):
    """Seconds a token of each kind and rival, at the end of each length.

    Args:
        lengths: positions up to which the tokens are generated.
        kinds: among `KINDS`.
        tokens: how many to generate with a cache.
        shape: dictionary of `window`, `layers` and `width`.
        repeats: most runs that a median is of.
        chosen_rivals: those of `rt_keras.benchmarks.rivals.choose`, or None for none.
        threads: for each process; by default as many as there are cores.

    Returns:
        A dictionary of JSON values: the machine in words, the settings, and for each contender and
        length one entry of `figures`, whose `seconds` are those of one token. The start of a cache
        counts in, once for all `tokens`.
    """
    chosen_rivals = chosen_rivals or {}
    threads = threads or machine.cores()
    load_average = [os.getloadavg()[0]]
    figures = []
    for length in dict.fromkeys(lengths):
        figures += _measure_length(
            length, dict.fromkeys(kinds), tokens, shape, chosen_rivals, repeats, threads
        )
    if not figures:
        raise RuntimeError("Nothing could be measured: every model failed.")
    return {
        "benchmark": "decode",
        **options.origin(chosen_rivals, load_average),
        "settings": {
            **shape,
            "heads": 4,
            "vocabulary": 256,
            "batch": 1,
            "sampler": "greedy",
            "dtype": "float32",
            "compiler": "XLA",
            "threads": threads,
            "repeats": repeats,
        },
        "figures": figures,
    }


def _measure_length(length, kinds, tokens, shape, chosen_rivals, repeats, threads):
    counts = {name: tokens if CACHED.get(name) else RECOMPUTED for name in (*kinds, *chosen_rivals)}
    contenders = {}
    for name, count in counts.items():
        module = "rival_models" if name in chosen_rivals else "models"
        contenders[name] = {
            "target": f"rt_keras.benchmarks.{module}:prepare_generation",
            "arguments": {"kind": name, "length": length, "tokens": count, **shape},
            "imports": chosen_rivals.get(name, ()),
        }

    def say(name, what):
        options.say(f"n = {length:,} {name}, {counts[name]} tokens: {what}")

    found = workers.contest(contenders, repeats, threads, say)
    seconds = {name: figure["seconds"] / counts[name] for name, figure in found.items()}
    baselines = [name for name in ("full", *chosen_rivals) if name in found]
    return [
        {
            "kind": name,
            "package": rivals.package(chosen_rivals[name]) if name in chosen_rivals else "rt_keras",
            "cached": CACHED.get(name, False),
            "length": length,
            "tokens": counts[name],
            "seconds": seconds[name],
            "runs": [run / counts[name] for run in figure["runs"]],
            "peak_bytes": figure["peak_bytes"],
            "times_as_fast_as": {other: seconds[other] / seconds[name] for other in baselines},
        }
        for name, figure in found.items()
    ]


def title(result):
    """What was measured and where, in two lines."""
    settings = result["settings"]
    return (
        f"generation: {settings['layers']} layers of width {settings['width']}, 4 heads, window "
        f"{settings['window']}, batch 1, greedy, float32\n{result['machine']}"
    )


def report(result):
    """The figures as a table with one row for each length and model.

    Args:
        result: what `measure` returned.

    Returns:
        Lines of text.
    """
    baselines = dict.fromkeys(name for f in result["figures"] for name in f["times_as_fast_as"])
    columns = {"length": ",", "kind": "", "cache": "", "time per\ntoken (ms)": ".3f"}
    columns |= {"peak (MB)": ",.0f", **options.speedup_columns(baselines, ".3g")}
    rows = [
        [
            figure["length"],
            figure["kind"].replace("_", " "),
            "yes" if figure["cached"] else "no",
            1000 * figure["seconds"],
            figure["peak_bytes"] / 1e6,
            *(figure["times_as_fast_as"].get(name) for name in baselines),
        ]
        for figure in result["figures"]
    ]
    return f"{title(result)}\n\n{table(columns, rows)}"
