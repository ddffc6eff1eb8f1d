"""`rt-keras benchmark documents`: translation of whole documents with different heads.

Encoder-decoders that differ only in their attention heads are trained on the same pages in two
languages. `pages.py` has the pages, `training.py` a run.
"""

import statistics

from rt_keras.benchmarks import options, training_runs
from rt_keras.benchmarks.quality.report import grouped
from rt_keras.benchmarks.training_runs import TESTS
from rt_keras.drawing import drawing
from rt_keras.options import add_integers, add_options, add_plot, check_picture, check_range
from rt_keras.tables import table_of

KINDS = {
    "full": "full attention within a page",
    "full_parts": "full attention within parts of a page, each translated alone",
    "local": "the query's block and the previous one",
    "random": "local heads, and heads that see random members",
    "local_routing": "half of the keys in a window and half in a cluster, under one softmax",
}
INTEGERS = {
    "steps": (600, "number of training steps"),
    "layers": (2, "number of blocks of the encoder, and of the decoder"),
    "width": (128, "width of the blocks"),
    "length": (4096, "maximum number of tokens in a page; the rest is left out"),
    "part": (512, "tokens in a part of a page"),
    "keys": (96, "average number of keys that a query of sparse heads sees"),
    "batch": (1, "pages per batch, or parts of as many tokens"),
    "translated": (0, "test pages to translate for BLEU and chrF"),
}


def add_arguments(parser):
    """Adds the command's options to an `argparse` parser."""
    parser.description = (
        "Trains encoder-decoders that differ only in their attention heads on pages in two "
        "languages, and measures the loss on test pages: by place, and on terms, words in at most "
        "2% of the training pages, that are new in a page, come again, or come again after more "
        "than a part. Cross-attention has full heads."
    )
    parser.epilog = (
        "example: rt-keras benchmark documents --directory pages --vocabulary pages.spm --seeds "
        "0 1 2 --json documents.json"
    )
    options.add_names(parser, "kinds", KINDS)
    options.add_numbers(parser, "seeds", [0], "seeds of weights and data, one run per seed")
    meaning = "the folder of parallel documents, such as python -m rt_keras.data.manual_pages makes"
    add_options(parser, {"--directory DIR": meaning}, required=True)
    meaning = "the SentencePiece vocabulary, as from rt-keras vocabulary"
    add_options(parser, {"--vocabulary FILE": meaning}, required=True)
    add_integers(parser, INTEGERS)
    options.add_learning_rate(parser, 2e-3)
    add_plot(parser, "the loss by place in the page")


def main(args):
    """Trains a model for each seed and kind, and prints the table.

    With `--json`, the file is written after each run. Runs that it already holds are skipped.

    Args:
        args: namespace of the options.

    Returns:
        A dictionary of JSON values with one entry of `figures` for each run; see
        `rt_keras.benchmarks.documents.training.train`. Entries from the file come first.

    Raises:
        ValueError: if an option is out of range, the documents cannot be read, or the file belongs
            to another benchmark.
    """
    check(args)
    return training_runs.tabulate(args, "documents", run_settings, train_alone, report, draw)


def check(args):
    """Raises a `ValueError` if an option is out of range."""
    options.check_at_least_one(args, "layers", "keys", "batch")
    options.check_multiple(args, "steps", TESTS, "the number of tests in a run, ")
    options.check_multiple(args, "width", 8)
    options.check_learning_rate(args)
    check_range(args, "seeds", 0)
    check_range(args, "translated", 0)
    # A part has at least a token between two ends.
    check_range(args, "part", 3)
    options.check_multiple(args, "length", args.part)
    check_picture(args)


def run_settings(args, name, seed):
    """Returns the settings of a run, a dictionary of JSON values."""
    names = ("directory", "vocabulary", *INTEGERS, "learning_rate")
    return {"kind": name, "seed": seed, **options.values(args, names)}


def train_alone(settings):
    """Trains a model in a separate process; see `documents.training.train`."""
    target = "rt_keras.benchmarks.documents.training:train"
    return training_runs.train_alone(target, settings, training_runs.describe(settings))


def report(figures):
    """Formats the table, with one row for each kind.

    Args:
        figures: list of dictionaries from `rt_keras.benchmarks.documents.training.train`.

    Returns:
        A string. "spread" is the standard deviation of the loss over seeds.
    """
    settings = figures[0]["settings"]
    columns = {
        "kind": ("", lambda runs: options.words(runs[0]["settings"]["kind"])),
        "nats per\ntoken": (".3f", lambda runs: mean_loss(runs, "all")),
        "spread": (".3f", _spread),
        "new\nterms": (".3f", lambda runs: mean_loss(runs, "new")),
        "terms\nagain": (".3f", lambda runs: mean_loss(runs, "again")),
        f"after over\n{settings['part']:,} tokens": (".3f", lambda runs: mean_loss(runs, "far")),
        "BLEU": (".1f", lambda runs: _translation(runs, "bleu", "greedy")),
        "chrF": (".1f", lambda runs: _translation(runs, "chrf", "greedy")),
        "BLEU,\nbeams": (".1f", lambda runs: _translation(runs, "bleu", "beam")),
        "chrF,\nbeams": (".1f", lambda runs: _translation(runs, "chrf", "beam")),
        "BLEU,\nrandom": (".1f", lambda runs: _translation(runs, "bleu", "random")),
        "chrF,\nrandom": (".1f", lambda runs: _translation(runs, "chrf", "random")),
        "step\n(ms)": (",.0f", lambda runs: 1e3 * statistics.median(x["seconds"] for x in runs)),
    }
    if not any("bleu" in figure for figure in figures):
        columns = {name: x for name, x in columns.items() if name[:4] not in ("BLEU", "chrF")}
    title = (
        f"test pages of {settings['directory']}: {settings['steps']:,} steps of "
        f"{settings['batch']} x {settings['length']:,} tokens on either side, {settings['layers']} "
        f"+ {settings['layers']} blocks of width {settings['width']}, {settings['keys']:,} keys, "
        f"learning rate {settings['learning_rate']:g}"
    )
    machines = dict.fromkeys(figure["machine"] for figure in figures)
    return "\n".join([*machines, title, "", table_of(grouped(figures, "kind").values(), columns)])


def mean_loss(runs, group):
    """Returns the mean loss of a group of tokens over runs, or None without such tokens."""
    found = [run["losses"][group] for run in runs if group in run["losses"]]
    return statistics.mean(found) if found else None


def _spread(runs):
    return statistics.stdev(run["losses"]["all"] for run in runs) if len(runs) > 1 else None


def _translation(runs, score, sampler):
    # Runs of earlier versions have no "random".
    found = [run[score][sampler] for run in runs if sampler in run.get(score, {})]
    return statistics.mean(found) if found else None


def draw(figures, path):
    """Draws the loss of each kind by place in the page.

    Args:
        figures: list of dictionaries from `rt_keras.benchmarks.documents.training.train`.
        path: string or `Path`, the file to write; its extension (`.png`, `.svg` or `.pdf`) sets the
            format.
    """
    with drawing(path, figsize=(8, 4.5)) as figure:
        axis = figure.subplots()
        for kind, runs in grouped(figures, "kind").items():
            places = [name for name in runs[0]["losses"] if name.isdecimal()]
            losses = [mean_loss(runs, place) for place in places]
            axis.plot(range(len(places)), losses, marker="o", label=options.words(kind))
        axis.set_xticks(range(len(places)), [f"to {int(place):,}" for place in places])
        axis.set(xlabel="place in the page (tokens)", ylabel="nats per token")
        axis.grid(True, alpha=0.3)
        axis.legend(frameon=False)
