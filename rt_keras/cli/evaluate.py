"""`rt-keras evaluate`: scores a model on held-out examples."""

from rt_keras.cli import examples, options
from rt_keras.tables import table


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

    scores = evaluation.evaluate(model, data, verbose=1)
    counts = [(key, ",") for key, value in scores.items() if isinstance(value, int)]
    rows = [
        (key.replace("_", " "), format(scores[key], spec))
        for key, spec in (*task_of(model).units, *counts)
    ]
    print(f"scores on {name}\n{table({'': '', 'value': '>'}, rows)}")
    return scores
