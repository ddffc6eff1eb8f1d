"""`rt-keras benchmark`: the commands of `rt_keras.benchmarks`."""

from rt_keras.options import add_commands

BENCHMARKS = {
    "attention": "measure time and memory of every kind of attention",
    "model": "measure training steps, in tokens per second",
    "decode": "measure the time per generated token",
    "input": "measure how fast text is packed and read, and training starts",
    "quality": "measure what models with different heads learn",
    "approximate": "measure what other heads lose in the place of full attention",
    "pretrained": "measure what other heads cost a pretrained language model",
    "repetition": "measure what is remembered of a passage that was read long ago",
    "compare": "compare the figures in two files and fail if some got worse",
    "plot": "draw the figures of the attention benchmark",
}


def add_arguments(parser):
    """Adds the command's subcommands to an `argparse` parser."""
    parser.epilog = "example: rt-keras benchmark attention"
    add_commands(parser, "rt_keras.benchmarks", BENCHMARKS)
