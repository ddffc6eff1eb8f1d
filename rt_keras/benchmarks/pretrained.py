"""`rt-keras benchmark pretrained`: the effect of other heads on a pretrained language model.

Replaces the heads of a pretrained language model in the layers without a window, and measures each
kind of heads in a separate process: the loss on the second half of a text; the loss on its first
tokens, repeated at the end; how often the model finds a number hidden in a text; the time and
memory of the prefill, and the time of a token after it.

example: rt-keras benchmark pretrained --model SmolLM2-135M --text book.txt --lengths 2048 8000
--json pretrained.json
"""

# `pretrained_kinds.py` names the heads; `pretrained_measure.py` measures a cell of the table.

import functools
import itertools
from pathlib import Path

from rt_keras.benchmarks import runs
from rt_keras.benchmarks.pretrained_kinds import KINDS, parse
from rt_keras.cli.options import (
    add_integers,
    add_language_model,
    add_options,
    check_range,
    check_text_files,
)
from rt_keras.data.tables import table_of
from rt_keras.files import sum_of_file

# Minimum number of tokens of a sequence, which must fit the needle and the question.
LEAST = 128


def add_arguments(parser):
    """Adds the command's options to an `argparse` parser."""
    add_language_model(parser)
    add_options(parser, {"--text FILE": "the text to score"}, required=True)
    meaning = "the text to hide numbers in (default: --text)"
    add_options(parser, {"--other FILE": meaning})
    meaning = "tokens of a sequence (default: 8000)"
    add_options(parser, {"--lengths N": meaning}, type=int, nargs="+", default=(8000,))
    shown = "; ".join(f"{kind}: {meaning}" for kind, meaning in KINDS.items())
    meaning = (
        "kinds of heads, with options after colons, such as "
        f"content_blocks:block_size=8:num_blocks=16. {shown} (default: all)"
    )
    add_options(parser, {"--kinds NAME": meaning}, nargs="+", default=tuple(KINDS))
    meaning = "numbers that the model looks for, each in a separate sequence; 0 is faster"
    add_integers(parser, {"needles": (5, meaning)})
    meaning = (
        "only measure the losses and the keys that queries see, which is several times as fast, "
        "and correct on a busy machine"
    )
    parser.add_argument("--losses-only", action="store_true", help=meaning)


def main(args):
    """Measures all cells and prints the table.

    With `--json`, the file is written after each cell, and cells that it contains are not repeated.

    Args:
        args: namespace of the options.

    Returns:
        A dictionary of JSON values with one entry of `figures` for each kind and length:
        - `settings`: the cell, with its `kind` and `length`; `machine`.
        - `keys`: mean number of keys that a query sees in the replaced layers, over the second half
          of the sequence.
        - `book`: loss on the second half of the text, in nats per token.
        - `by_position`: loss on each 2,048 tokens of the text.
        - `again`: loss on the first 512 tokens, or a quarter of a short sequence, when they are
          repeated at the end, without the 8 tokens that identify the passage.
        - `needles`: share of numbers found, None without any; `needles_at_depths`: whether each was
          found, by depth.
        - `seconds`: median time of the prefill over the numbers; `first_seconds`: time with
          compilation.
        - `gigabytes`: peak memory of the first prefill beyond the model's.
        - `token_seconds`: time of a token after the prefill.

        Without `needles` and what follows if `losses_only`.

    Raises:
        ValueError: if an option is out of range, the model does not exist, a text is too short, or
            the file is from another benchmark.
        RuntimeError: if nothing could be measured.
    """
    check(args)
    cells = dict.fromkeys(itertools.product(args.lengths, args.kinds))
    wanted = [{"length": length, "kind": kind, **_settings(args)} for length, kind in cells]
    measure = functools.partial(_measure, args)
    return runs.figures_of(args.json, "pretrained", wanted, measure, report)


def _measure(args, settings):
    """Measures a cell in its own process; returns None if memory ran out."""
    from rt_keras.benchmarks.pretrained_measure import measure

    kind, length = settings["kind"], settings["length"]
    cell = args.text, args.other or args.text, kind, length, args.needles, args.losses_only
    return runs.attempt(f"{kind} at {length:,} tokens", measure, args.model, *cell)


def _settings(args):
    """Returns what identifies the model, the texts and the measurements of a cell."""
    names = {"model": args.model, "text": args.text, "other": args.other or args.text}
    settings = {name: Path(path).name for name, path in names.items()}
    settings |= {f"sum_of_{name}": sum_of_file(names[name]) for name in ("text", "other")}
    return settings | ({"losses_only": True} if args.losses_only else {"needles": args.needles})


def check(args):
    """Raises a one-line ValueError if an option is out of range."""
    check_range(args, "lengths", LEAST)
    check_range(args, "needles", 0)
    check_text_files(args, "text", "other")
    runs.check_language_model(args)
    for kind in args.kinds:
        parse(kind)


def report(figures):
    """Returns the figures as a table.

    Args:
        figures: list of dictionaries, see `main`.

    Returns:
        Lines of text.
    """

    def setting(name):
        return lambda figure: figure["settings"][name]

    full = {x["settings"]["length"]: x["book"] for x in figures if x["settings"]["kind"] == "full"}

    def over_full(figure):
        best = full.get(figure["settings"]["length"])
        return None if best is None else figure["book"] - best

    columns = {
        "tokens": (",", setting("length")),
        "kind": ("", lambda figure: runs.words(figure["settings"]["kind"])),
        "keys a\nquery sees": (",.0f", lambda figure: figure["keys"]),
        "loss\n(nats)": (".4f", lambda figure: figure["book"]),
        "over\nfull": (".4f", over_full),
        "again\n(nats)": (".3f", lambda figure: figure["again"]),
    }
    if "seconds" in figures[0]:
        columns |= {
            "needles\nfound": (".0%", lambda figure: figure["needles"]),
            "prefill\n(s)": (".2f", lambda figure: figure["seconds"]),
            "beyond the\nmodel (GB)": (".2f", lambda figure: figure["gigabytes"]),
            "a token\n(ms)": (".1f", lambda figure: 1000 * figure["token_seconds"]),
        }
    return "\n".join([_title(figures[0]), runs.machines(figures), "", table_of(figures, columns)])


def _title(figure):
    return "{model} on {text}, needles in {other}".format(**figure["settings"])
