"""`rt-keras analyze attention`: measures which share of a model's attention sets of keys cover.

For each head, it reports the number of keys that hold 90% of the weight, the entropy of the
weights, and the share of the weight on a window, on the first tokens before it, and on a number of
other keys before it: the best blocks of neighbors, the best blocks of similar keys, and the best
keys.

example: rt-keras analyze attention --model SmolLM2-135M --text book.txt --plot mass.png
"""

from pathlib import Path

from rt_keras import options

BLOCK_SIZE = 8


def add_arguments(parser):
    """Adds the command's arguments to an `argparse` parser."""
    needed = {
        "--model DIR|PRESET": "the folder of a pretrained language model, as for rt-keras adapt, "
        "or the name of a preset",
        "--text FILE": "the text that the model reads",
    }
    options.add_options(parser, needed, required=True)
    integers = {
        "length": (2048, "number of tokens that the model reads"),
        "queries": (64, "number of queries to measure, in the second half"),
        "keys": (128, f"number of keys in the best blocks, a multiple of {BLOCK_SIZE}"),
    }
    options.add_integers(parser, integers)
    options.add_plot(parser, "all figures of all heads")


def main(args):
    """Measures which share of a pretrained model's attention sets of keys cover."""
    options.check_range(args, "length", 2)
    options.check_at_least_one(args, "queries", "keys")
    if args.keys % BLOCK_SIZE:
        raise ValueError(f"--keys must be a multiple of {BLOCK_SIZE}. Received: {args.keys}")
    options.check_picture(args)
    if not Path(args.text).is_file():
        raise ValueError(f"--text must be a text file. Received: {args.text}")
    from rt_keras.analysis import attention_mass
    from rt_keras.layers import FullHeads
    from rt_keras.models import adapt
    from rt_keras.models.adapted.text_tokens import first_tokens_of

    # `layers=[]` replaces the heads of no layer.
    model = adapt(args.model, [FullHeads(1)], layers=[])
    if not hasattr(model, "hidden_states"):
        raise ValueError(f"--model {args.model} must be a causal language model")
    tokens = first_tokens_of(args.text, model.preprocessor.tokenizer, args.length)
    figures = attention_mass.measure(model, tokens, args.queries, args.keys)
    print(f"{args.length:,} tokens of {args.text}\n{attention_mass.report(figures)}")
    if args.plot:
        attention_mass.draw(figures, args.plot)
        print(f"wrote {args.plot}")
    return figures
