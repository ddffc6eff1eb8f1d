"""`rt-keras benchmark images`: bits per dimension of images with different heads.

Image models that differ only in their attention heads are trained on the same images, beside a
PixelCNN of as many weights and the codecs PNG and lossless WebP. `kinds.py` has the heads,
`training.py` a run.
"""

import statistics

from rt_keras.benchmarks import options, training_runs
from rt_keras.benchmarks.images.kinds import CODECS, HEADS, MEANINGS, head_keys, parse
from rt_keras.benchmarks.quality.report import grouped
from rt_keras.benchmarks.training_runs import TESTS
from rt_keras.drawing import drawing
from rt_keras.options import add_integers, add_options, add_plot, check_picture, check_range
from rt_keras.tables import table_of

DEFAULT_KINDS = ("full", "local", "random", "nearest", "local_routing", "pixel_cnn", "png", "webp")
INTEGERS = {
    "steps": (1000, "number of training steps"),
    "layers": (4, "number of blocks"),
    "width": (128, "width of the blocks"),
    "keys": (84, "average number of keys that a query of sparse heads sees"),
    "batch": (4, "images per batch"),
    "test_images": (500, "images of the test split for the score"),
}


def add_arguments(parser):
    """Adds the command's options to an `argparse` parser."""
    parser.description = (
        "Trains image models that differ only in their attention heads, and measures bits per "
        "dimension of test images, the lower the better; beside them a PixelCNN and codecs. The "
        "rows of the Routing Transformer paper's table of hyperparameters are kinds with options."
    )
    parser.epilog = (
        "example: rt-keras benchmark images --directory /usr/share/datasets/fashion-mnist --kinds "
        "local nearest nearest:routing_layers=1 --seeds 0 1 2 --json images.json"
    )
    meanings = "; ".join(f"{name}: {meaning}" for name, meaning in MEANINGS.items())
    meaning = (
        f"kinds to measure. {meanings}. Options follow after colons: routing_heads, heads of a "
        "layer that route (default: half, or all with local_routing); routing_layers, upper layers "
        "with such heads (default: all); keys, as --keys. (default: "
        + " ".join(DEFAULT_KINDS)
        + ")"
    )
    add_options(parser, {"--kinds NAME": meaning}, nargs="+", default=DEFAULT_KINDS)
    options.add_numbers(parser, "seeds", [0], "seeds of weights and data, one run per seed")
    add_options(
        parser,
        {
            "--data NAME": "the data set: idx_images, mnist, fashion_mnist or cifar10 (default: "
            "idx_images)",
        },
        choices=("idx_images", "mnist", "fashion_mnist", "cifar10"),
        default="idx_images",
    )
    add_options(parser, {"--directory DIR": "the folder of idx_images"})
    add_integers(parser, INTEGERS)
    options.add_learning_rate(parser, 2e-3)
    add_plot(parser, "bits per dimension of all kinds")


def main(args):
    """Trains a model for each seed and kind, and prints the table.

    With `--json`, the file is written after each run. Runs that it already holds are skipped.

    Args:
        args: namespace of the options.

    Returns:
        A dictionary of JSON values with one entry of `figures` for each run; see
        `rt_keras.benchmarks.images.training.train`. Entries from the file come first.

    Raises:
        ValueError: if an option is out of range, the images cannot be read, or the file belongs to
            another benchmark.
    """
    check(args)
    return training_runs.tabulate(args, "images", run_settings, train_alone, report, draw)


def check(args):
    """Raises a `ValueError` if an option is out of range."""
    options.check_at_least_one(args, "layers", "keys", "batch", "test_images")
    options.check_multiple(args, "steps", TESTS, "the number of tests in a run, ")
    options.check_multiple(args, "width", 8)
    options.check_learning_rate(args)
    check_range(args, "seeds", 0)
    if (args.directory is None) == (args.data == "idx_images"):
        raise ValueError(
            f"--directory must name the folder of idx_images, and is for no other data. Received: "
            f"--data {args.data}, --directory {args.directory}"
        )
    for name in args.kinds:
        # The length only sets sizes.
        head_keys(name, HEADS, args.layers, args.keys, length=784)
    check_picture(args)


def run_settings(args, name, seed):
    """Returns the settings of a run.

    Args:
        args: namespace of the options.
        name: string, a kind and its options.
        seed: int.

    Returns:
        A dictionary of JSON values; see `rt_keras.benchmarks.images.training.train`.
    """
    names = ("data", "directory", *INTEGERS, "learning_rate")
    settings = {"kind": name, "seed": seed, **options.values(args, names)}
    if parse(name)[0] in CODECS:
        # What a codec does not depend on.
        settings["seed"] = 0
    return settings


def train_alone(settings):
    """Trains a model in a separate process; see `rt_keras.benchmarks.images.training.train`."""
    target = "rt_keras.benchmarks.images.training:train"
    return training_runs.train_alone(target, settings, training_runs.describe(settings))


def report(figures):
    """Formats the table, with one row for each kind.

    Args:
        figures: list of dictionaries from `rt_keras.benchmarks.images.training.train`.

    Returns:
        A string. "spread" is the standard deviation over seeds, and "divergence" the mean
        Jensen-Shannon divergence between local and routing heads, at most 0.693.
    """
    settings = figures[0]["settings"]
    columns = {
        "kind": ("", lambda runs: options.words(runs[0]["settings"]["kind"])),
        "bits per\ndimension": (".3f", mean_bits),
        "spread": (".3f", _spread),
        "divergence": (".3f", mean_divergence),
        "weights": (",", lambda runs: runs[0].get("weights")),
        "step\n(ms)": (",.0f", _milliseconds),
    }
    title = (
        f"{settings['test_images']:,} test images of {settings['directory'] or settings['data']}: "
        f"{settings['steps']:,} steps of {settings['batch']} images, {settings['layers']} blocks "
        f"of width {settings['width']}, {settings['keys']:,} keys, learning rate "
        f"{settings['learning_rate']:g}"
    )
    machines = dict.fromkeys(figure["machine"] for figure in figures)
    return "\n".join([*machines, title, "", table_of(grouped(figures, "kind").values(), columns)])


def mean_bits(runs):
    """Returns the mean bits per dimension of the test images."""
    return statistics.mean(run["test_bits"] for run in runs)


def _spread(runs):
    return statistics.stdev(run["test_bits"] for run in runs) if len(runs) > 1 else None


def mean_divergence(runs):
    """Returns the mean divergence between heads of different kinds over all layers, or None."""
    pairs = [pair for run in runs for pair in run.get("divergences", ())]
    means = [pair["mean"] for pair in pairs if len(set(pair["kinds"])) == 2]
    return statistics.mean(means) if means else None


def _milliseconds(runs):
    if "seconds" not in runs[0]:
        return None
    return 1e3 * statistics.median(run["seconds"] for run in runs)


def draw(figures, path):
    """Draws the bits per dimension of all kinds as bars, with those of each seed as points.

    Args:
        figures: list of dictionaries from `rt_keras.benchmarks.images.training.train`.
        path: string or `Path`, the file to write; its extension (`.png`, `.svg` or `.pdf`) sets the
            format.
    """
    rows = sorted(grouped(figures, "kind").items(), key=lambda row: -mean_bits(row[1]))
    with drawing(path, figsize=(8, 1 + 0.4 * len(rows))) as figure:
        axis = figure.subplots()
        axis.barh([options.words(kind) for kind, _ in rows], [mean_bits(x) for _, x in rows])
        for place, (_, runs) in enumerate(rows):
            axis.plot([run["test_bits"] for run in runs], [place] * len(runs), "k.")
        least = min(mean_bits(runs) for _, runs in rows)
        axis.set(xlabel="bits per dimension of test images", xlim=(0.8 * least, None))
        axis.grid(True, axis="x", alpha=0.3)
