"""`rt-keras benchmark pretrained`: the cost of other heads in a pretrained model.

`kinds.py` has the heads and `chosen_keys.py` those that are only for comparison. `readers.py` has
the language models, `measure.py` computes a cell of their table, and `embeddings.py` one of the
table of encoders.
"""

import itertools
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from rt_keras import progress
from rt_keras.benchmarks import machine, options
from rt_keras.benchmarks.pretrained.kinds import head_groups, line_of, meanings
from rt_keras.drawing import drawing
from rt_keras.files import sum_of_file, write_json
from rt_keras.options import add_options, add_plot, check_picture, check_range
from rt_keras.tables import table_of

# Minimum number of tokens of a sequence, which must fit the needle and the question.
LEAST = 128
# Line styles of kinds that see every key. As points, they would leave no room for the others.
EVERY_KEY = {"full": "--", "keras_hub": ":"}


def add_arguments(parser):
    """Adds the command's options to an `argparse` parser."""
    parser.description = (
        "Replaces the heads of a pretrained model in the layers without a window, and measures "
        "each kind of heads in a separate process. For a language model: the loss on the second "
        "half of a text; the loss on its first tokens, repeated at the end; how often the model "
        "finds a number hidden in a text; the time and memory of the prefill, and the time of a "
        "token after it. For an encoder: the similarity of the embeddings of a text's passages to "
        "those with full attention, how often a span of 64 tokens finds its passage, and the time "
        "of a passage."
    )
    parser.epilog = (
        "example: rt-keras benchmark pretrained --model SmolLM2-135M --text book.txt --lengths "
        "2048 8000 --json pretrained.json"
    )
    needed = {
        "--model DIR|PRESET": "folder or preset name of a pretrained language model or encoder, as "
        "for rt-keras adapt",
        "--text FILE": "the text to score or to take passages from",
    }
    add_options(parser, needed, required=True)
    meaning = "the text to hide numbers in, for a language model (default: --text)"
    add_options(parser, {"--other FILE": meaning})
    options.add_numbers(parser, "lengths", (8000,), "tokens of a sequence")
    of_decoders, of_encoders = (
        "; ".join(f"{kind}: {meaning}" for kind, meaning in known.items())
        for known in map(meanings, (True, False))
    )
    meaning = (
        "kinds of heads, with options after colons, such as "
        f"content_blocks:block_size=8:num_blocks=16. {of_decoders}. In encoders: {of_encoders} "
        "(default: all)"
    )
    add_options(parser, {"--kinds NAME": meaning}, nargs="+")
    meaning = (
        "numbers that a language model looks for, each in a separate sequence; 0 is faster "
        "(default: 5)"
    )
    add_options(parser, {"--needles N": meaning}, type=int, default=5)
    parser.add_argument(
        "--losses-only",
        action="store_true",
        help="only measure the losses of a language model and the keys that queries see, which is "
        "several times as fast and correct on a busy machine",
    )
    add_plot(parser, "the loss, or the cosine similarity, against the keys that a query sees")


def main(args):
    """Measures all cells and prints the table.

    With `--json`, the file is written after each cell, and cells that it contains are not repeated.

    Args:
        args: namespace of the options.

    Returns:
        A dictionary of JSON values with one entry of `figures` for each kind and length:
        - `kind`, `length`, `settings`: the cell.
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

        Without `needles` and what follows if `losses_only`. For an encoder:
        - `kind`, `length`, `settings`, and `keys`, the mean over all queries.
        - `cosine`: mean cosine similarity of the embeddings of passages to those with full
          attention.
        - `retrieval`: share of spans whose most similar passage is their own.
        - `seconds`: median time of a passage.

    Raises:
        ValueError: if an option is out of range, the model does not exist, a text is too short, or
            the file is from another benchmark.
        RuntimeError: if nothing could be measured.
    """
    causal = check(args)
    kinds = args.kinds or meanings(causal)
    empty = {"benchmark": "pretrained", "machine": machine.describe(), "figures": []}
    result = options.earlier(args.json, empty)
    other = args.other or args.text
    names = {"model": args.model, "text": args.text, "other": other}
    settings = {name: Path(path).name for name, path in names.items()}
    settings |= {f"sum_of_{name}": sum_of_file(names[name]) for name in ("text", "other")}
    measured = {"losses_only": True} if args.losses_only else {"needles": args.needles}
    of_decoders = measured if causal else {}
    settings |= of_decoders
    cells = list(itertools.product(*map(dict.fromkeys, (args.lengths, kinds))))
    for length, kind in cells:
        cell = {"kind": kind, "length": length, "settings": settings}
        where = f"{kind} at {length:,} tokens"
        if any(cell.items() <= figure.items() for figure in result["figures"]):
            progress.say(f"{where}: already in {args.json}")
            continue
        with progress.bar(f"measuring {where}"):
            texts = (args.text, other) if causal else (args.text,)
            figure = _measure_alone(causal, of_decoders, args.model, *texts, kind, length)
        if figure is None:
            progress.say(f"{where}: omitted: its process ended, perhaps because memory ran out")
            continue
        result["figures"].append({**figure, "settings": settings})
        if args.json:
            write_json(args.json, result)
    of_settings = [figure for figure in result["figures"] if figure["settings"] == settings]
    figures = [figure for figure in of_settings if (figure["length"], figure["kind"]) in cells]
    if not figures:
        raise RuntimeError("Nothing could be measured: all cells failed.")
    print(report(result["machine"], figures))
    if args.plot:
        draw(figures, args.plot)
        print(f"wrote {args.plot}")
    return result


def check(args):
    """Raises a one-line ValueError if an option is out of range.

    Returns:
        bool, whether the model has a decoder.
    """
    check_range(args, "lengths", LEAST)
    check_range(args, "needles", 0)
    check_picture(args)
    for name in ("text", "other"):
        path = getattr(args, name)
        if path is not None and not Path(path).is_file():
            raise ValueError(f"--{name} must be a text file. Received: {path}")
    from rt_keras.models.adapted.folders import attentions_of

    causal = "decoder" in attentions_of(args.model)
    if args.losses_only and not causal:
        raise ValueError(f"--losses-only needs a language model. Received: --model {args.model}")
    for kind in args.kinds or ():
        head_groups(kind, 1, causal)
    return causal


def _measure_alone(*cell):
    """Measures a cell in its own process. Returns None if the process ends, as without memory."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        try:
            return pool.submit(_measure, *cell).result()
        except BrokenProcessPool:
            return None


def _measure(causal, of_decoders, *cell):
    import tensorflow as tf

    from rt_keras.benchmarks.pretrained import embeddings, measure

    try:
        return (measure if causal else embeddings).measure(*cell, **of_decoders)
    except (MemoryError, tf.errors.ResourceExhaustedError):
        return None


def report(where, figures):
    """Returns the figures as a table.

    Args:
        where: string, the machine.
        figures: list of dictionaries, see `main`.

    Returns:
        Lines of text.
    """
    full = {x["length"]: x.get("book") for x in figures if x["kind"] == "full"}

    def over_full(figure):
        best = full.get(figure["length"])
        return None if best is None else figure["book"] - best

    columns = {
        "tokens": (",", lambda figure: figure["length"]),
        **options.KIND,
        "keys a\nquery sees": (",.0f", lambda figure: figure["keys"]),
    }
    if "cosine" in figures[0]:
        columns |= {
            "cosine": (".3f", lambda figure: figure["cosine"]),
            "passages\nfound": (".1%", lambda figure: figure["retrieval"]),
            "a passage\n(s)": (".3f", lambda figure: figure["seconds"]),
        }
    else:
        columns |= {
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
    return f"{_title(figures[0])}\n{where}\n\n{table_of(figures, columns)}"


def _title(figure):
    title = "{model} on {text}" if "cosine" in figure else "{model} on {text}, needles in {other}"
    return title.format(**figure["settings"])


def draw(figures, path):
    """Draws the loss, or the cosine similarity, against the number of keys that a query sees.

    Each kind has a line, and each length a plot. Kinds that see every key are horizontal lines.

    Args:
        figures: list of dictionaries, see `main`.
        path: string or `Path`, the file to write. Its suffix (`.png`, `.svg` or `.pdf`) sets the
            format.
    """
    lengths = list(dict.fromkeys(figure["length"] for figure in figures))
    name, label = "book", "loss, nats per token"
    if "cosine" in figures[0]:
        name, label = "cosine", "cosine with full attention's embeddings"
    with drawing(path, figsize=(7 * len(lengths), 5)) as picture:
        (axes,) = picture.subplots(1, len(lengths), squeeze=False)
        for axis, length in zip(axes, lengths):
            lines = {}
            for figure in figures:
                if figure["length"] == length:
                    point = figure["keys"], figure[name]
                    lines.setdefault(line_of(figure["kind"]), []).append(point)
            for number, (kind, points) in enumerate(lines.items()):
                style = {"label": options.words(kind)}
                if kind in EVERY_KEY:
                    style |= {"color": "black", "linestyle": EVERY_KEY[kind]}
                    axis.axhline(points[0][1], **style)
                else:
                    axis.plot(*zip(*sorted(points)), f"{'os^vDPX*'[number % 8]}-", **style)
            axis.set(title=f"{length:,} tokens", xlabel="keys that a query sees, on average")
            axis.set_ylabel(label)
            axis.grid(True, alpha=0.3)
            axis.legend(fontsize=8)
        picture.suptitle(_title(figures[0]), fontsize=10)
