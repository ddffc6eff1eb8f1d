"""`rt-keras benchmark`: measures speed, memory and learning.

example: rt-keras benchmark speed
"""

from rt_keras.cli.options import add_commands

BENCHMARKS = ("speed", "quality", "pretrained", "hands", "compare")


def add_arguments(parser):
    """Adds the command's subcommands to an `argparse` parser."""
    add_commands(parser, "rt_keras.benchmarks", BENCHMARKS)
