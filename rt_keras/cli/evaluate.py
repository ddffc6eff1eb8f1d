"""`rt-keras evaluate`: scores a model on held-out examples."""

import sys

from rt_keras.cli import examples, options


def add_arguments(parser):
    """Adds the command's arguments to an `argparse` parser."""
    parser.epilog = "example: rt-keras evaluate --model runs/books --split test --json scores.json"
    options.add_model(parser)
    options.add_examples(parser)


def main(args):
    """Scores a model on one split of a data set."""
    return evaluate(*examples.load(args))


def evaluate(model, data, name):
    """Scores a model and prints the scores.

    Args:
        model: the model.
        data: `tf.data.Dataset` of the examples.
        name: string, what the examples are called.

    Returns:
        What `rt_keras.training.evaluation.evaluate` returns.
    """
    from rt_keras.training import evaluation
    from rt_keras.training.tasks import task_of

    print(f"evaluating on {name}", flush=True)
    scores = evaluation.evaluate(model, data, verbose=1 if sys.stdout.isatty() else 0)
    for key, digits in task_of(model).units:
        print(f"{scores[key]:{digits}} {key.replace('_', ' ')}")
    counts = [f"{value:,} {key}" for key, value in scores.items() if isinstance(value, int)]
    print(f"of {', '.join(counts[:-1])} and {counts[-1]}")
    return scores
