"""`rt-keras benchmark decode`: time per generated token at several positions.

Each contender generates the last tokens of sequences of several lengths, in a separate process.
Contenders take turns, and times are medians.
"""

import os

from rt_keras.benchmarks import options, rivals, workers
from rt_keras.options import add_integers
from rt_keras.tables import table_of

# Kinds with and without a cache. Without one, each token needs a pass over all positions.
CACHED = {
    "nearest_shared": True,
    "nearest_separate": True,
    "gated_delta": True,
    "moba": True,
    "full": True,
    "balanced_shared": False,
}
KINDS = tuple(CACHED)
LENGTHS = (1024, 4096, 16384)
# Number of tokens to generate without a cache.
RECOMPUTED = 4


def add_arguments(parser):
    """Adds the command's options to an `argparse` parser."""
    parser.description = (
        "Measures the time per token of greedy generation at several positions, with batch size 1. "
        "Language models with full heads, with those of Gated DeltaNet or MoBA, or with two local "
        "and two nearest routing heads use a cache; balanced routing heads and other packages have "
        "none. All have GEGLU of four times the width and a vocabulary of 256, in float32. XLA "
        "compiles those of this package."
    )
    parser.epilog = "example: rt-keras benchmark decode --lengths 1024 4096 --json decode.json"
    options.add_names(parser, "kinds", KINDS)
    meaning = "sequence lengths up to which to generate, multiples of the window"
    options.add_numbers(parser, "lengths", LENGTHS, meaning)
    meaning = f"number of tokens to generate with a cache; {RECOMPUTED} without one"
    add_integers(parser, {"tokens": (128, meaning), **options.MODEL})
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
    options.check_at_least_one(args, "tokens", "repeats", "threads")
    options.check_model(args, args.lengths)
    for length in args.lengths:
        if length <= max(args.tokens, RECOMPUTED):
            raise ValueError(
                f"--lengths must be greater than --tokens {args.tokens} and {RECOMPUTED}. "
                f"Received: {length}"
            )


def measure(args, chosen_rivals):
    """Measures the time per token of each kind and rival, at the end of each length.

    Args:
        args: namespace of the options.
        chosen_rivals: dictionary from `rt_keras.benchmarks.rivals.choose`.

    Returns:
        A dictionary of JSON values: the machine, the settings, and one entry of `figures` for each
        contender and length. Its `seconds` are per token, and include the time to make the cache,
        spread over all tokens.

    Raises:
        RuntimeError: if every contender fails.
    """
    load = os.getloadavg()[0]
    figures = [
        figure
        for length in dict.fromkeys(args.lengths)
        for figure in _measure_length(args, chosen_rivals, length)
    ]
    settings = options.values(args, options.MODEL)
    settings |= {"heads": 4, "vocabulary": 256, "batch": 1, "sampler": "greedy"}
    settings |= {"dtype": "float32", "compiler": "XLA"}
    return options.result(args, figures, load, chosen_rivals, settings, benchmark="decode")


def _measure_length(args, chosen_rivals, length):
    sizes = {"length": length, **options.values(args, options.MODEL)}
    contenders = {}
    for name in (*args.kinds, *chosen_rivals):
        module = "rival_models" if name in chosen_rivals else "models"
        contenders[name] = workers.contender(
            f"{module}:prepare_generation",
            *chosen_rivals.get(name, ()),
            kind=name,
            tokens=args.tokens if CACHED.get(name) else RECOMPUTED,
            **sizes,
        )
    found = workers.contest(contenders, args.repeats, args.threads, f"n = {length:,}, ")
    for name, figure in found.items():
        tokens = contenders[name]["arguments"]["tokens"]
        figure |= {"cached": CACHED.get(name, False), "tokens": tokens}
        figure["seconds"] /= tokens
        figure["runs"] = [run / tokens for run in figure["runs"]]
    return options.figures_of(found, chosen_rivals, ["full"], length=length)


def report(result):
    """Formats the figures as a table with one row for each length and model.

    Args:
        result: dictionary from `measure`.

    Returns:
        A string.
    """
    columns = {
        "length": (",", lambda figure: figure["length"]),
        **options.KIND,
        "cache": ("", lambda figure: "yes" if figure["cached"] else "no"),
        "time per\ntoken (ms)": (".3f", lambda figure: 1000 * figure["seconds"]),
        **options.PEAK,
        **options.speedups(result["figures"], ".3g"),
    }
    return (
        f"generation: {options.shape(result)}, batch 1, greedy, float32\n{result['machine']}\n\n"
        f"{table_of(result['figures'], columns)}"
    )
