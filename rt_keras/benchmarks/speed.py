"""`rt-keras benchmark speed`: the time and memory of attention, training steps and generation.

Each contender runs in a separate process that stays alive. Contenders take turns, and times are
medians.

Time and peak memory are for batch size 1 in float32, compiled with XLA. attention: forward, and
with the gradients of query, key and value, beside other packages that are installed; clustered and
improved_clustered are not causal. step: a training step of a language model with Adam. generation:
a token of such a model, after a sequence. Models have GEGLU of four times the width, and half of
their heads are local.

example: rt-keras benchmark speed attention --lengths 1024 4096 --json attention.json
"""

import itertools
import math
import statistics

import rt_keras
from rt_keras.benchmarks import machine, rivals, runs, workers
from rt_keras.cli.options import add_integers, add_options, check_at_least_one
from rt_keras.data.tables import grouped, table_of

ROUTING = ("balanced_shared", "balanced_separate", "nearest_shared", "nearest_separate")
CLUSTERED = ("clustered", "improved_clustered", "causal_clustered", "lsh")
BLOCKS = ("gated_delta", "moba", "content_blocks")
# Generation without a cache computes all positions again for each token.
WITHOUT_CACHE = ("balanced_shared", "balanced_separate")
KINDS = {
    "attention": ("full", "local", *ROUTING, "local_routing", *CLUSTERED, *BLOCKS),
    **dict.fromkeys(("step", "generation"), ("full", "local", *ROUTING, "local_routing")),
}
# Numbers of heads, windows and lengths.
SIZES = {
    "attention": {"heads": 8, "window": 256, "lengths": tuple(1024 * 2**i for i in range(6))},
    "step": {"heads": 4, "window": 128, "lengths": (8192,)},
    "generation": {"heads": 4, "window": 128, "lengths": (1024, 4096, 16384)},
}
SETTINGS = ("heads", "depth", "window", "layers", "tokens", "repeats", "threads")
# Number of tokens to generate without a cache.
RECOMPUTED = 4
# What is timed.
FORWARD, BACKWARD, STEP, TOKEN = "forward", "forward + backward", "step", "token"


def add_arguments(parser):
    """Adds the command's options to an `argparse` parser."""
    meaning = "what to measure: attention, step or generation (default: attention)"
    parser.add_argument("what", nargs="?", choices=KINDS, default="attention", help=meaning)
    meaning = (
        f"kinds of heads: {', '.join(KINDS['attention'])} (default: all; of models, the first 7)"
    )
    add_options(parser, {"--kinds NAME": meaning}, nargs="+", choices=KINDS["attention"])
    meaning = f"sequence lengths, multiples of the window ({_defaults('lengths')})"
    add_options(parser, {"--lengths N": meaning}, type=int, nargs="+")
    add_options(parser, {"--heads N": f"number of heads ({_defaults('heads')})"}, type=int)
    meaning = f"cluster size and block size of local attention ({_defaults('window')})"
    add_options(parser, {"--window N": meaning}, type=int)
    integers = {
        "depth": (64, "depth of a head"),
        "layers": (2, "blocks of a model"),
        "tokens": (128, f"tokens to generate with a cache; {RECOMPUTED} without one"),
        "repeats": (9, "maximum number of runs for a median; long runs are repeated less often"),
    }
    add_integers(parser, integers)
    meaning = f"other packages to measure: {', '.join(rivals.ATTENTION)} (default: all installed)"
    add_options(parser, {"--rivals NAME": meaning}, nargs="*", choices=rivals.ATTENTION)
    meaning = "number of threads per process (default: all cores)"
    add_options(parser, {"--threads N": meaning}, type=int, default=machine.count_cores())


def _defaults(name):
    shown = {what: str(sizes[name]).strip("()").replace(",", "") for what, sizes in SIZES.items()}
    return "default: " + "; ".join(f"{what}: {value}" for what, value in shown.items())


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
    result = measure(args, rivals.choose(args.rivals) if args.what == "attention" else {})
    print(report(result))
    return result


def check(args):
    """Fills in the defaults that depend on what is measured.

    Raises:
        ValueError: if an option is out of range.
    """
    for name, default in {"kinds": KINDS[args.what], **SIZES[args.what]}.items():
        if getattr(args, name) is None:
            setattr(args, name, default)
    check_at_least_one(args, *SETTINGS)
    for kind in args.kinds:
        if kind not in KINDS[args.what]:
            known = ", ".join(KINDS[args.what])
            raise ValueError(f"--kinds of {args.what} must be among {known}. Received: {kind}")
    if args.rivals and args.what != "attention":
        raise ValueError(f"--rivals are for attention. Received: {args.what}")
    shortest = max(args.tokens, RECOMPUTED) if args.what == "generation" else 0
    for length in args.lengths:
        if length <= shortest or length % args.window:
            above = f" above --tokens {args.tokens}" if shortest else ""
            raise ValueError(
                f"--lengths must be positive multiples of --window {args.window}{above}: there "
                f"are length / window clusters. Received: {length}"
            )


def measure(args, chosen_rivals):
    """Measures time and peak memory of each kind and rival at each length.

    Contenders that fail, as when they run out of memory, are left out and reported on standard
    error.

    Args:
        args: namespace of the options, see `check`.
        chosen_rivals: dictionary from `rt_keras.benchmarks.rivals.choose`.

    Returns:
        A dictionary of JSON values: the machine, the settings, one entry of `figures` for each
        contender, length and pass, and the `slopes` of time and memory by length. The seconds of
        generation are those of a token.

    Raises:
        RuntimeError: if every contender fails.
    """
    passes = {"attention": (FORWARD, BACKWARD), "step": (STEP,), "generation": (TOKEN,)}
    figures = [
        figure
        for length, timed in itertools.product(dict.fromkeys(args.lengths), passes[args.what])
        for figure in _measure_point(args, chosen_rivals, length, timed)
    ]
    if not figures:
        raise RuntimeError("Nothing was measured: every contender failed.")
    return {
        "benchmark": "speed",
        "what": args.what,
        "machine": machine.describe(),
        "version": rt_keras.__version__,
        "rivals": rivals.versions(chosen_rivals),
        "settings": runs.values(args, SETTINGS),
        "figures": figures,
        "slopes": slopes(figures),
    }


def _measure_point(args, chosen_rivals, length, timed):
    """Measures the contenders at one length."""
    sizes = {"length": length, **runs.values(args, ("window", "heads", "depth"))}
    contenders = {
        kind: _contender(args, kind, chosen_rivals.get(kind, ()), sizes, timed)
        for kind in (*args.kinds, *chosen_rivals)
    }
    measured = workers.contest(contenders, args.repeats, args.threads, f"n = {length:,}, {timed}, ")
    for kind, figure in measured.items():
        tokens = contenders[kind].arguments.get("tokens", 1)
        figure["seconds"] /= tokens
        figure["runs"] = [run / tokens for run in figure["runs"]]
    seconds = {kind: figure["seconds"] for kind, figure in measured.items()}
    baselines = [name for name in ("full", "local", *chosen_rivals) if name in seconds]
    return [
        {
            "kind": kind,
            "package": rivals.package(chosen_rivals[kind]) if kind in chosen_rivals else "rt_keras",
            "pass": timed,
            "length": length,
            **figure,
            "times_as_fast_as": {name: seconds[name] / seconds[kind] for name in baselines},
        }
        for kind, figure in measured.items()
    ]


def _contender(args, kind, imports, sizes, timed):
    """Returns the contender of a kind, or of a rival, which needs imports."""
    if timed == STEP:
        target, more = "models:prepare_step", {"batch": 1, "layers": args.layers}
    elif timed == TOKEN:
        tokens = RECOMPUTED if kind in WITHOUT_CACHE else args.tokens
        target, more = "models:prepare_generation", {"tokens": tokens, "layers": args.layers}
    else:
        target = "rivals:prepare" if imports else "attention_kinds:prepare"
        more = {"direction": "forward" if timed == FORWARD else "forward_backward"}
    target = f"rt_keras.benchmarks.{target}"
    return workers.Contender(target, {"kind": kind, **sizes, **more}, imports)


def report(result):
    """Formats the figures as a table with one row for each length, pass and kind.

    Args:
        result: dictionary from `measure`.

    Returns:
        A string. The last columns are the speedups over the baselines.
    """
    names = dict.fromkeys(x for figure in result["figures"] for x in figure["times_as_fast_as"])

    def speedup(name):
        return lambda figure: figure["times_as_fast_as"].get(name)

    columns = {
        "length": (",", lambda figure: figure["length"]),
        "pass": ("", lambda figure: figure["pass"]),
        "kind": ("", lambda figure: runs.words(figure["kind"])),
        "time (ms)": (",.3f", lambda figure: 1000 * figure["seconds"]),
        "peak (MB)": (",.0f", lambda figure: figure["peak_bytes"] / 1e6),
    }
    columns |= {f"speedup over\n{runs.words(x)}": (".2f", speedup(x)) for x in names}
    return f"{_title(result)}\n\n{table_of(result['figures'], columns)}"


def _title(result):
    heads = "{heads} heads of depth {depth}, window {window}, n / {window} clusters"
    layers = "" if result["what"] == "attention" else "{layers} blocks, "
    shape = f"{layers}{heads}, float32, XLA".format(**result["settings"])
    return f"{result['what']}: {shape}\n{result['machine']}"


def slopes(figures):
    """Returns how time and memory grow with the length.

    Args:
        figures: list of dictionaries with `kind`, `pass`, `length`, `seconds` and `peak_bytes`.

    Returns:
        A list of dictionaries with `kind`, `pass` and, for `seconds` and `peak_bytes`, the slopes
        of lines fitted to the logarithms. Kinds with a single length are left out.

    >>> figures = [
    ...     {"kind": "full", "pass": "step", "length": n, "seconds": n**2, "peak_bytes": n}
    ...     for n in (10, 20, 40)
    ... ]
    >>> [round(slopes(figures)[0][name], 3) for name in ("seconds", "peak_bytes")]
    [2.0, 1.0]
    """
    lines = grouped(figures, lambda figure: (figure["kind"], figure["pass"]))
    return [
        {"kind": kind, "pass": timed, **{x: _slope(line, x) for x in ("seconds", "peak_bytes")}}
        for (kind, timed), line in lines.items()
        if len(line) > 1
    ]


def _slope(line, quantity):
    points = [[math.log(figure[name]) for figure in line] for name in ("length", quantity)]
    return statistics.linear_regression(*points).slope
