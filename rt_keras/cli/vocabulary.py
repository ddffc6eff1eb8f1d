"""`rt-keras vocabulary`: trains a vocabulary of subwords on the texts of a configuration."""

from rt_keras import files, options, progress

# Strings of examples that are not texts.
LEFT_OUT = ("id", "sound")


def add_arguments(parser):
    """Adds the command's arguments to an `argparse` parser."""
    parser.description = (
        "Trains a SentencePiece vocabulary on the training split, for --set "
        "tokenizer.name=sentence_piece --set tokenizer.vocabulary=FILE. It gives back every text "
        "unchanged."
    )
    parser.epilog = (
        "example: rt-keras vocabulary --config books --data my/books --size 4096 --output books.spm"
    )
    options.add_config(parser, required=True)
    options.add_data(parser, default="those of the configuration")
    options.add_integers(parser, {"size": (4096, "maximum number of tokens")})
    parser.add_argument(
        "--characters", action="store_true", help="make each token a single character"
    )
    options.add_options(parser, {"--output FILE": "the file to write"}, required=True)


def main(args):
    """Writes the vocabulary."""
    from rt_keras.data import compute_sentence_piece_proto
    from rt_keras.training.config import load_config
    from rt_keras.training.experiment import Experiment

    options.check_at_least_one(args, "size")
    files.check_writable("--output", args.output)
    # The tokenizer that the vocabulary is for cannot be made yet.
    overrides = [*args.set, "tokenizer.name=bytes", "tokenizer.vocabulary=null"]
    experiment = Experiment(options.with_data(load_config(args.config, overrides), args))
    if experiment.task.generates == "image":
        raise ValueError(f"--config {args.config} is for images, which have no vocabulary")
    with progress.bar(f"training {args.size:,} tokens"):
        texts = _texts(experiment.load_split("train"))
        proto = compute_sentence_piece_proto(texts, args.size, characters=args.characters)
    with files.whole_file(args.output) as part:
        part.write_bytes(proto)
    print(f"wrote the vocabulary {args.output}")
    return {"vocabulary": args.output}


def _texts(examples):
    """Yields all texts of examples."""
    import numpy as np

    for example in examples.as_numpy_iterator():
        values = example if isinstance(example, dict) else {"text": example}
        for name, x in values.items():
            if name not in LEFT_OUT:
                yield from (text for text in np.ravel(x).tolist() if isinstance(text, bytes))
