"""`rt-keras evaluate`: scores a model on held-out examples.

example: rt-keras evaluate --model runs/books --split test --json scores.json
"""

from rt_keras.cli import options
from rt_keras.data.tables import table
from rt_keras.training.strategy import STRATEGIES, make_strategy


def add_arguments(parser):
    """Adds the command's arguments to an `argparse` parser."""
    options.add_examples(parser)
    contexts = ["window", "stateful", "sliding"]
    meaning = (
        "what precedes a token of a text: its sequence, its whole document, or overlapping windows "
        "(default: window)"
    )
    options.add_options(parser, {"--context": meaning}, choices=contexts, default="window")
    meaning = "tokens from one window to the next, with --context sliding (default: half a window)"
    options.add_options(parser, {"--stride N": meaning}, type=int)
    meaning = "sequences or examples in a batch of each device; fewer need less memory"
    options.add_integers(parser, {"batch_size": (4, meaning)})
    options.add_plot(parser, "bits per byte by number of previous tokens, with --context stateful,")
    meaning = (
        "one device, all GPUs of this machine, or a TPU (default: one_device). With TF_CONFIG, all "
        "devices of the workers that it names"
    )
    options.add_options(parser, {"--strategy": meaning}, choices=STRATEGIES, default="one_device")
    meaning = "name or address of the TPU (default: a local one)"
    options.add_options(parser, {"--tpu-address NAME": meaning}, default="")


def main(args):
    """Scores a model on one split of a data set."""
    from rt_keras.analysis import context_picture

    if args.plot is not None and args.context != "stateful":
        raise ValueError("--plot needs --context stateful")
    options.check_picture(args)
    options.check_at_least_one(args, "batch_size")
    strategy = make_strategy(args.strategy, args.tpu_address)
    with strategy.scope():
        loaded = options.load_examples(args)
    is_chief = strategy.extended.should_checkpoint
    given = {name: getattr(args, name) for name in ("batch_size", "context", "stride")}
    scores = evaluate(*loaded, int(is_chief), **given)
    if args.plot is not None and is_chief:
        context_picture.draw({args.model: scores["by_position"]}, args.plot)
        print(f"wrote {args.plot}")
    return {**scores, "is_chief": is_chief}


def evaluate(model, task, data, name, verbose=1, **options):
    """Scores a model and prints the scores.

    Args:
        model: the model.
        task: its task.
        data: `tf.data.Dataset` of the examples.
        name: string, the name of the examples.
        verbose: int, 0 to print nothing. Defaults to 1.
        **options: `batch_size`, `context` and `stride` of `rt_keras.training.evaluation.evaluate`.

    Returns:
        The dictionary that `rt_keras.training.evaluation.evaluate` returns.
    """
    from rt_keras.training import evaluation

    scores = evaluation.evaluate(model, data, verbose=verbose, **options)
    counts = [(key, ",") for key, value in scores.items() if isinstance(value, int)]
    rows = [
        (key.replace("_", " "), format(scores[key], spec))
        for key, spec in (*task.text_units, *task.units, *counts)
    ]
    if verbose:
        print(f"scores on {name}\n{table({'': '', 'value': '>'}, rows)}")
    return scores
