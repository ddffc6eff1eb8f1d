"""`rt-keras retrieve`: finds the passages of questions in an index."""

from pathlib import Path

from rt_keras import options


def add_arguments(parser):
    """Adds the command's arguments to an `argparse` parser."""
    parser.description += (
        " Writes a folder of questions for the training of a reader, with the passages that it "
        "will read; or, with --negatives, for the training of a retriever."
    )
    parser.epilog = (
        "example: rt-keras retrieve --index index --data questions --passages 7 --output found"
    )
    needed = {
        "--index DIR": "the folder of an index, as rt-keras index writes",
        "--data DIR": "a folder of questions: JSON lines, or KILT's files",
        "--output DIR": "a new or empty folder",
    }
    options.add_options(parser, needed, required=True)
    sets = ("question_folder", "kilt")
    meaning = "the format of the questions (default: question_folder)"
    options.add_options(parser, {"--format": meaning}, choices=sets, default="question_folder")
    numbers = {
        "passages": (0, "number of passages of a question, 0 to keep its own"),
        "negatives": (0, "number of passages of documents that do not answer a question"),
    }
    options.add_integers(parser, numbers)


def main(args):
    """Writes the questions with their passages."""
    from rt_keras import files
    from rt_keras.retrieval import read_index, retrieve

    if args.passages < 0 or args.negatives < 0 or not args.passages + args.negatives:
        raise ValueError("--passages or --negatives must be above 0")
    if not Path(args.data).is_dir():
        raise FileNotFoundError(f"--data is {args.data}; there is no such folder")
    files.check_new_folder(args.output)
    index = read_index(args.index)
    counts = retrieve(index, args.format, args.data, args.output, args.passages, args.negatives)
    told = ", ".join(f"{count:,} for {split}" for split, count in counts.items())
    print(f"wrote {args.output}: {told}")
    return {"questions": counts}
