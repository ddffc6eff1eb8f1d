"""Directives that write down what the code declares: keys, published configurations, commands."""

import argparse
import functools

from sphinx.util.docutils import SphinxDirective

from rt_keras import cli
from rt_keras.cli.configs import yaml_text
from rt_keras.cli.options import add_commands
from rt_keras.training import config_files

# Letters in a line of a command's usage.
WIDTH = 72


class Generated(SphinxDirective):
    """Parses the lines of Markdown that `lines` gives as if they stood in the page."""

    def run(self):
        """Returns the nodes of the lines."""
        text = "\n".join(self.lines())
        return self.parse_text_to_nodes(text, allow_section_headings=True)


class ConfigurationKeys(Generated):
    """A table for each section of a configuration, from the declarations of its keys."""

    def lines(self):
        """Markdown."""
        from rt_keras.training.config import config_keys

        sections = {}
        for key in config_keys():
            sections.setdefault(key.name.rpartition(".")[0], []).append(key)
        for section, keys in sections.items():
            yield from ("", f"## `{section}`", "")
            yield from ("| key | default | allowed | meaning |", "| --- | --- | --- | --- |")
            for key in keys:
                name, default = key.name.rpartition(".")[2], yaml_text(key.default)
                yield f"| `{name}` | `{default}` | {cell(key.values)} | {cell(key.meaning)} |"


class PublishedConfigurations(Generated):
    """A table of the published configurations, as `rt-keras configs` lists them."""

    def lines(self):
        """Markdown."""
        from rt_keras.training.config import load_config
        from rt_keras.training.experiment import Experiment

        yield from ("| name | strictly causal | summary |", "| --- | --- | --- |")
        for name in config_files.published_names():
            causal = "yes" if Experiment(load_config(name)).is_strictly_causal else "no"
            yield f"| `{name}` | {causal} | {cell(config_files.read_summary(name))} |"


class CommandLine(Generated):
    """A section for each command of `rt-keras`, from the parsers of its arguments."""

    def lines(self):
        """Markdown."""
        parser = argparse.ArgumentParser(prog="rt-keras")
        add_commands(parser, "rt_keras.cli", cli.COMMANDS)
        for command in subcommands(parser):
            yield from described(command, "##")


def described(parser, heading):
    """Markdown that describes the command of a parser, and its subcommands after it."""
    yield from ("", f"{heading} `{parser.prog}`", "", parser.description, "")
    nested = list(subcommands(parser))
    if not nested:
        parser.formatter_class = functools.partial(argparse.HelpFormatter, width=WIDTH)
        yield from ("```text", parser.format_usage().removeprefix("usage: ").rstrip(), "```", "")
        yield from ("| option | meaning |", "| --- | --- |")
        for action in parser._actions:
            if action.help is not argparse.SUPPRESS and action.dest != "help":
                yield f"| {names_of(parser, action)} | {meaning_of(action)} |"
    if parser.epilog and not nested:
        example = parser.epilog.removeprefix("example: ")
        yield from ("", "For example:", "", "```bash", example, "```")
    for command in nested:
        yield from described(command, f"{heading}#")


def subcommands(parser):
    """The parsers of a command's subcommands."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.values()


def names_of(parser, action):
    """An option's names and the name of its value, as code."""
    value = parser._get_formatter()._format_action_invocation(action)
    return "`" + value.replace("|", "\\|") + "`"


def meaning_of(action):
    """An option's help, and whether it has to be given."""
    text = cell(action.help or "")
    return f"{text} (required)" if action.required and action.option_strings else text


def cell(text):
    """Text that may stand in a cell of a Markdown table."""
    return text.replace("%%", "%").replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


def setup(app):
    """Registers the directives."""
    app.add_directive("configuration-keys", ConfigurationKeys)
    app.add_directive("published-configurations", PublishedConfigurations)
    app.add_directive("command-line", CommandLine)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
