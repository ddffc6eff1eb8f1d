"""`rt-keras benchmark decode`: what a token costs in generation, at several positions.

Each contender generates the last tokens of sequences of several lengths, in a process of its own;
they take turns, and times are medians.
"""

import os

from rt_keras.benchmarks import machine, options, rivals, workers
from rt_keras.options import add_integers
from rt_keras.tables import table

# Whether each kind has a cache. The others call the model on all positions for each token.
CACHED = {"nearest_shared": True, "nearest_separate": True, "full": True, "balanced_shared": False}
KINDS = tuple(CACHED)
LENGTHS = (1024, 4096, 16384)
# Tokens that are generated without a cache, when each is a pass over all positions.
RECOMPUTED = 4


def add_arguments(parser):
    """Adds the command's options to an `argparse` parser."""
    parser.description = (
        "Measures the time per token of greedy generation at several positions, with batch size 1: "
        "with a cache for language models with two local and two nearest routing heads, or with "
        "full heads; without one for balanced routing heads and other packages (GEGLU of four "
        "times the width, vocabulary 256, float32, compiled by XLA)."
    )
    parser.epilog = "example: rt-keras benchmark decode --lengths 1024 4096 --json decode.json"
    options.add_kinds(parser, KINDS)
    parser.add_argument(
        "--lengths",
        type=int,
        nargs="+",
        default=LENGTHS,
        metavar="N",
        help="sequence lengths, multiples of the window, up to which tokens are generated "
        "(default: 1024, 4096, 16384)",
    )
    parser.add_argument(
        "--tokens",
        type=int,
        default=128,
        help=f"number of tokens to generate with a cache (default: 128); {RECOMPUTED} without one",
    )
    add_integers(parser, options.MODEL)
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
    shape = {name: getattr(args, name) for name in options.MODEL}
    result = measure(
        args.lengths, args.kinds, args.tokens, shape, args.repeats, chosen, args.threads
    )
    print(report(result))
    return result


def check(args):
    """Raises a ValueError of one line if an option is out of range."""
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
    """Measures the time per token of each kind and rival, at the end of each length.

    Args:
        lengths: list of ints, the positions up to which tokens are generated.
        kinds: list of strings among `KINDS`.
        tokens: int, the number of tokens to generate with a cache.
        shape: dictionary of the ints `window`, `layers` and `width`.
        repeats: int, the maximum number of runs for a median.
        chosen_rivals: what `rt_keras.benchmarks.rivals.choose` returned. Defaults to None, no
            rivals.
        threads: int, the number of threads of each process. Defaults to the number of cores.

    Returns:
        A dictionary of JSON values: the machine, the settings, and one entry of `figures` for each
        contender and length, whose `seconds` are those of one token. Making the cache is included,
        once for all `tokens`.

    Raises:
        RuntimeError: if nothing could be measured.
    """
    chosen_rivals = chosen_rivals or {}
    threads = threads or machine.count_cores()
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
        contenders[name] = options.contender(
            f"{module}:prepare_generation",
            name,
            chosen_rivals.get(name, ()),
            length=length,
            tokens=count,
            **shape,
        )

    def say(name, what):
        options.say(f"n = {length:,} {name}, {counts[name]} tokens: {what}")

    found = workers.contest(contenders, repeats, threads, say)
    of_a_token = {
        name: {
            **figure,
            "cached": CACHED.get(name, False),
            "tokens": counts[name],
            "seconds": figure["seconds"] / counts[name],
            "runs": [run / counts[name] for run in figure["runs"]],
        }
        for name, figure in found.items()
    }
    return options.figures_of(of_a_token, chosen_rivals, ["full"], length=length)


def title(result):
    """Two lines: what was measured, and on which machine."""
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
