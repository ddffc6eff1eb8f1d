"""`rt-keras benchmark`: the commands of `rt_keras.benchmarks`."""

from rt_keras.options import add_commands

BENCHMARKS = {
    "attention": "measure the time and memory of each kind of attention",
    "model": "measure training steps, in tokens per second",
    "decode": "measure the time per generated token",
    "input": "measure the speed of packing and reading text, and of starting to train",
    "quality": "measure what models with different heads learn",
    "images": "measure bits per dimension of images with different heads",
    "documents": "measure the translation of documents with different heads",
    "speech": "measure the errors of speech recognizers with different heads",
    "retrieval": "measure how often retrievers find the passage that answers a question",
    "answers": "measure answers from passages, beside controls",
    "pretrained": "measure the effect of other heads on a pretrained language model",
    "repetition": "measure the recall of a passage that was read long before",
    "compare": "compare the figures in two files and fail if any got worse",
    "plot": "draw the figures of the attention benchmark",
}


def add_arguments(parser):
    """Adds the command's subcommands to an `argparse` parser."""
    parser.epilog = "example: rt-keras benchmark attention"
    add_commands(parser, "rt_keras.benchmarks", BENCHMARKS)
