"""`rt-keras benchmark speech`: error rates and times of speech recognizers with different heads.

Encoders that differ only in their attention heads are trained with CTC on the same recordings.
Then each other kind of heads replaces full attention in the model that was trained with it. A third
table has times. `kinds.py` has the heads, `training.py` a run, and `step.py` what is timed.
"""

import functools
import statistics

from rt_keras.benchmarks import machine, options, training_runs, workers
from rt_keras.benchmarks.quality.report import grouped
from rt_keras.benchmarks.speech.kinds import MEANINGS
from rt_keras.benchmarks.training_runs import TESTS
from rt_keras.drawing import drawing
from rt_keras.options import add_integers, add_options, add_plot, check_picture, check_range
from rt_keras.tables import table_of

INTEGERS = {
    "steps": (2000, "number of training steps"),
    "layers": (4, "number of blocks"),
    "width": (128, "width of the blocks"),
    "length": (800, "positions of 40 ms in a sequence, which joined recordings fill"),
    "keys": (96, "average number of keys that a query of sparse heads sees"),
    "batch": (2, "sequences per batch"),
}


def add_arguments(parser):
    """Adds the command's options to an `argparse` parser."""
    parser.description = (
        "Trains speech recognizers that differ only in their attention heads, and measures the "
        "errors on test recordings: after training with these heads, and after they replace full "
        "attention in a trained model."
    )
    parser.epilog = (
        "example: rt-keras benchmark speech --directory speech --vocabulary speech.spm --kinds "
        "full local --json speech.json"
    )
    meanings = "; ".join(f"{name}: {meaning}" for name, meaning in MEANINGS.items())
    options.add_names(parser, "kinds", MEANINGS, more=f". {meanings}")
    options.add_numbers(parser, "seeds", [0], "seeds of weights and data, one run per seed")
    meaning = "the folder of recordings, such as python -m rt_keras.data.debian_speech makes"
    add_options(parser, {"--directory DIR": meaning}, required=True)
    meaning = "the SentencePiece vocabulary, as from rt-keras vocabulary --characters"
    add_options(parser, {"--vocabulary FILE": meaning}, required=True)
    meaning = "a trained model of the same sizes, to start from (default: random weights)"
    add_options(parser, {"--preset DIR": meaning})
    add_integers(parser, INTEGERS)
    options.add_learning_rate(parser, 1e-3)
    meaning = "positions in a sequence at which to time steps and forward passes"
    options.add_numbers(parser, "time-lengths", (), meaning)
    add_plot(parser, "the errors of all kinds beside the times of a forward pass")


def main(args):
    """Trains a model for each seed and kind, and prints the tables.

    With `--json`, the file is written after each run. Runs that it already holds are skipped.

    Args:
        args: namespace of the options.

    Returns:
        A dictionary of JSON values with one entry of `figures` for each run, see
        `rt_keras.benchmarks.speech.training.train`, and one entry of `times` for each kind and
        length. Entries from the file come first.

    Raises:
        ValueError: if an option is out of range, the recordings cannot be read, or the file belongs
            to another benchmark.
    """
    check(args)
    times = measure_times(args)
    picture = functools.partial(draw, times)
    result = training_runs.tabulate(args, "speech", run_settings, train_alone, report, picture)
    if times:
        result["times"] = times
        print("", times_table(times), sep="\n")
    return result


def check(args):
    """Raises a `ValueError` if an option is out of range."""
    options.check_at_least_one(args, "layers", "keys", "batch", "length")
    options.check_multiple(args, "steps", TESTS, "the number of tests in a run, ")
    options.check_multiple(args, "width", 8)
    options.check_learning_rate(args)
    check_range(args, "seeds", 0)
    check_range(args, "keys", 6)
    check_range(args, "time_lengths", args.keys)
    check_picture(args)
    if args.plot and not args.time_lengths:
        raise ValueError("--plot needs --time-lengths, since the picture shows times too")


def run_settings(args, name, seed):
    """Returns the settings of a run, a dictionary of JSON values."""
    names = ("directory", "vocabulary", "preset", *INTEGERS, "learning_rate")
    return {"kind": name, "seed": seed, **options.values(args, names)}


def train_alone(settings):
    """Trains a model in a separate process; see `speech.training.train`."""
    target = "rt_keras.benchmarks.speech.training:train"
    return training_runs.train_alone(target, settings, training_runs.describe(settings))


def measure_times(args):
    """Measures training steps and forward passes, all kinds in turns.

    Args:
        args: namespace of the options.

    Returns:
        A list of dictionaries with `kind`, `length`, `what` ("step" or "forward"), `seconds` and
        `peak_bytes`.
    """
    sizes = {name: getattr(args, name) for name in ("layers", "width", "keys")}
    found = []
    for length in args.time_lengths:
        for what in ("step", "forward"):
            contenders = {
                kind: workers.contender(
                    "speech.step:prepare", kind=kind, what=what, length=length, **sizes
                )
                for kind in dict.fromkeys(args.kinds)
            }
            times = workers.contest(contenders, 5, machine.count_cores(), f"{what}, {length:,}: ")
            found += [
                {"kind": kind, "length": length, "what": what}
                | {key: x[key] for key in ("seconds", "peak_bytes")}
                for kind, x in times.items()
            ]
    return found


def report(figures):
    """Formats the table, with one row for each kind.

    Args:
        figures: list of dictionaries from `rt_keras.benchmarks.speech.training.train`.

    Returns:
        A string. "spread" is the standard deviation over seeds, and "swapped in" the errors of
        these heads instead of full attention, without further training.
    """
    settings, rows = figures[0]["settings"], grouped(figures, "kind")
    swapped = [run["swapped"] for run in rows.get("full", ())]

    def errors_in_place(runs):
        kind = runs[0]["settings"]["kind"]
        found = [x[kind]["character_error_rate"] for x in swapped if kind in x]
        return statistics.mean(found) if found else None

    columns = {
        "kind": ("", lambda runs: options.words(runs[0]["settings"]["kind"])),
        "character\nerrors": (".3f", lambda runs: mean_errors(runs)),
        "spread": (".3f", _spread),
        "word\nerrors": (".3f", lambda runs: mean_errors(runs, "word_error_rate")),
        "swapped\nin": (".3f", errors_in_place),
        "weights": (",", lambda runs: runs[0]["weights"]),
        "step\n(ms)": (",.0f", lambda runs: 1e3 * statistics.median(x["seconds"] for x in runs)),
    }
    title = (
        f"test recordings of {settings['directory']}: {settings['steps']:,} steps of "
        f"{settings['batch']} x {settings['length']:,} positions, {settings['layers']} blocks of "
        f"width {settings['width']}, {settings['keys']:,} keys, learning rate "
        f"{settings['learning_rate']:g}"
    )
    machines = dict.fromkeys(figure["machine"] for figure in figures)
    return "\n".join([*machines, title, "", table_of(rows.values(), columns)])


def mean_errors(runs, name="character_error_rate"):
    """Returns the mean error rate of runs."""
    return statistics.mean(run[name] for run in runs)


def _spread(runs):
    errors = [run["character_error_rate"] for run in runs]
    return statistics.stdev(errors) if len(errors) > 1 else None


def times_table(times):
    """Formats times as a table, a row for each kind and length."""
    rows = {}
    for figure in times:
        rows.setdefault((figure["kind"], figure["length"]), {})[figure["what"]] = figure
    full = {key[1]: row["step"]["seconds"] for key, row in rows.items() if key[0] == "full"}
    columns = {
        "kind": ("", lambda row: options.words(row["step"]["kind"])),
        "positions": (",", lambda row: row["step"]["length"]),
        "step (s)": (".3f", lambda row: row["step"]["seconds"]),
        "of full": (".2f", lambda row: _share(row["step"], full)),
        "forward (s)": (".3f", lambda row: row["forward"]["seconds"]),
        "peak (MB)": (",.0f", lambda row: row["step"]["peak_bytes"] / 1e6),
    }
    return table_of([row for row in rows.values() if len(row) == 2], columns)


def _share(figure, full):
    seconds = full.get(figure["length"])
    return seconds and figure["seconds"] / seconds


def draw(times, figures, path):
    """Draws the character errors of each kind beside the time of a forward pass.

    Args:
        times: list of dictionaries from `measure_times`; the first length is drawn.
        figures: list of dictionaries from `rt_keras.benchmarks.speech.training.train`.
        path: string or `Path`, the file to write; its extension (`.png`, `.svg` or `.pdf`) sets the
            format.
    """
    length = times[0]["length"]
    forward = [x for x in times if (x["what"], x["length"]) == ("forward", length)]
    seconds = {x["kind"]: x["seconds"] for x in forward}
    with drawing(path, figsize=(8, 4.5)) as figure:
        axis = figure.subplots()
        for kind, runs in grouped(figures, "kind").items():
            if kind in seconds:
                point = seconds[kind], mean_errors(runs)
                axis.plot(*point, "o")
                axis.annotate(options.words(kind), point, (5, 4), textcoords="offset points")
        axis.set(
            xlabel=f"forward pass of {length:,} positions (s)",
            ylabel="character error rate of test recordings",
        )
        axis.margins(x=0.15)
        axis.grid(True, alpha=0.3)
