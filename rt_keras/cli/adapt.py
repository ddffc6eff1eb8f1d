"""`rt-keras adapt`: replaces the heads of a pretrained model.

Writes a preset with the model's weights and tokenizer, which other commands accept as --model.
Without --heads, full attention is unchanged, and attention in a sliding window is computed in
blocks, with the same results.

example: rt-keras adapt --model SmolLM2-135M --output models/smollm2 --heads "{class: LocalHeads,
num_heads: 9, block_size: 256}". Two kinds of heads in each layer: --heads "{class: LocalHeads,
num_heads: 6, block_size: 256}" "{class: FullHeads, num_heads: 3}". Only the layers of Gemma 3
without a window: --heads "{class: LocalHeads, num_heads: 4, block_size: 512}" --layers global.
"""

import dataclasses
import time
from pathlib import Path

from rt_keras import files
from rt_keras.cli.options import add_options


def add_arguments(parser):
    """Adds the command's arguments to an `argparse` parser."""
    needed = {
        "--model DIR|PRESET": "the folder of a pretrained model in the format of Hugging Face or "
        "of a KerasHub preset; or the name of a KerasHub preset",
        "--output DIR": "a new or empty folder for the preset",
    }
    add_options(parser, needed, required=True)
    lists = {
        "--heads HEADS": "the heads of each layer, as in the list model.heads of a configuration, "
        'such as "{class: LocalHeads, num_heads: 9, block_size: 256}". All together must have as '
        "many heads as the model (default: the model's own heads)",
        "--layers N": "the layers that get these heads, from 0; or global, the layers without a "
        "sliding window (default: all)",
    }
    add_options(parser, lists, nargs="+")
    meaning = (
        "instead of --heads: the default heads of rt_keras.adapt, in the layers without a sliding "
        "window. In decoders, each query sees a window, the first tokens, and its best blocks of "
        "keys, at most N keys; in encoders, N keys with its own weights and the others with those "
        "of its group"
    )
    add_options(parser, {"--keys N": meaning}, type=int)
    meaning = "the dtype policy of the model, such as bfloat16 (default: float32)"
    add_options(parser, {"--dtype POLICY": meaning})
    lengths = {
        "--max-length N": "maximum sequence length; learned positions are repeated; with --keys, "
        "rotary embeddings place keys outside the window at half of the trained length, otherwise "
        "their positions are scaled (default: the model's length)",
        "--trained-length N": "with --max-length, the sequence length in the training of rotary "
        "positions, if the files do not contain it",
    }
    add_options(parser, lengths, type=int)


def main(args):
    """Adapts a model, writes it as a preset, and prints the heads of its layers."""
    from rt_keras.models.adapted.architectures import backbone_of
    from rt_keras.training.saved_tasks import write_task

    layers = _layers(args)
    files.check_new_folder(args.output)
    start = time.perf_counter()
    model = _adapted(args, layers)
    write_task(model, args.output)
    seconds = time.perf_counter() - start
    size = sum(x.stat().st_size for x in Path(args.output).rglob("*") if x.is_file())
    backbone, adaptation = backbone_of(model), model.adaptation
    trained = backbone.trained_length or getattr(backbone, "max_sequence_length", None)
    length = "" if trained is None else f", trained on sequences of {trained:,} tokens"
    print(
        f"{adaptation}\nwrote an {type(model).__name__} of {model.count_params():,} weights"
        f"{length}, to {args.output}: {size / 1e6:,.1f} MB in {seconds:.0f} s"
    )
    return {
        "preset": args.output,
        "model": type(model).__name__,
        "layers": [", ".join(x.heads for x in layer.head_groups) for layer in adaptation.layers],
        "attention": [dataclasses.asdict(layer) for layer in adaptation.layers],
        "parameters": model.count_params(),
        "trained_length": trained,
        "bytes": size,
        "seconds": seconds,
    }


def _layers(args):
    """Returns the value of `layers` for `rt_keras.adapt`."""
    if args.heads is None:
        if args.layers is not None:
            raise ValueError("--layers needs --heads, the heads that these layers get")
        return [] if args.keys is None else None
    if args.keys is not None:
        raise ValueError("--keys and --heads are mutually exclusive")
    if args.layers is None:
        return None
    if args.layers == ["global"]:
        return "global"
    if not all(number.isdecimal() for number in args.layers):
        given = " ".join(args.layers)
        raise ValueError(f"--layers must be numbers from 0, or global. Received: {given}")
    return list(map(int, args.layers))


def _adapted(args, layers):
    from rt_keras.layers.kinds import FullHeads
    from rt_keras.models.adapted.adapt import adapt
    from rt_keras.training.config_files import parse
    from rt_keras.training.config_heads import make_heads

    if args.heads is None:
        # `layers=[]` replaces the heads of no layer.
        head_groups = [FullHeads(1)] if args.keys is None else None
    else:
        head_groups = make_heads([parse(text, "--heads") for text in args.heads], "--heads")
    lengths = {"max_sequence_length": args.max_length, "trained_length": args.trained_length}
    return adapt(args.model, head_groups, layers, keys=args.keys, dtype=args.dtype, **lengths)
