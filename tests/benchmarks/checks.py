"""Helpers of the tests of benchmarks."""

import argparse


def parse(command, *words, **options):
    """The arguments of a command, with the words and the options, whose lists have many values."""
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    parser.add_argument("--json")
    for name, value in options.items():
        values = value if isinstance(value, (list, tuple)) else [value]
        words = (*words, f"--{name.replace('_', '-')}", *values)
    return parser.parse_args([str(word) for word in words])
