"""`rt-keras benchmark`: the commands of `rt_keras.benchmarks`."""

from rt_keras.options import add_commands

BENCHMARKS = {
    "speed": "measure the time and memory of attention, training steps and generation",
    "quality": "measure what models with different heads learn",
    "pretrained": "measure the effect of other heads on a pretrained language model",
    "hands": "measure what a person waits for with a pretrained language model",
    "compare": "train configurations and write a table of their scores",
}


def add_arguments(parser):
    """Adds the command's subcommands to an `argparse` parser."""
    parser.epilog = "example: rt-keras benchmark speed"
    add_commands(parser, "rt_keras.benchmarks", BENCHMARKS)
