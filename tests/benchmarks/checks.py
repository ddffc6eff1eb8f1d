"""Helpers of the tests of benchmarks."""

import argparse

import keras


def parse(command, *words, **options):
    """The arguments of a command, with the words and the options, whose lists have many values."""
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    parser.add_argument("--json")
    for name, value in options.items():
        values = value if isinstance(value, (list, tuple)) else [value]
        words = (*words, f"--{name.replace('_', '-')}", *values)
    return parser.parse_args([str(word) for word in words])


def train_here(monkeypatch, command, train):
    """Makes a command train in this process, without reports and without XLA."""
    compiled = keras.Model.compile

    def compile(model, *args, **options):
        compiled(model, *args, **{**options, "jit_compile": False})

    monkeypatch.setattr(keras.Model, "compile", compile)
    monkeypatch.setattr(command, "train_alone", lambda settings: train(settings, lambda *_: None))


def rows(capsys):
    """The words of each line that was printed."""
    return [line.split() for line in capsys.readouterr().out.splitlines()]
