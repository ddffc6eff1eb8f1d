"""`rt-keras index`: makes an index of documents for retrieval.

Cuts documents into passages of whole words and embeds them with a retriever, a copy of which is
kept with the index. An interrupted command continues where it stopped.

example: rt-keras index --documents questions/documents.jsonl --retriever runs/retriever --output
index
"""

from pathlib import Path

from rt_keras.cli import options


def add_arguments(parser):
    """Adds the command's arguments to an `argparse` parser."""
    needed = {
        "--documents PATH": "a folder of .txt files; or a .jsonl file with an id, a text and a "
        "title per line, or of KILT's knowledge source",
        "--retriever DIR": "the folder of a run or of a preset of a retriever",
        "--output DIR": "the folder of the index, new or interrupted",
    }
    options.add_options(parser, needed, required=True)
    lengths = {
        "--passage-length N": "maximum number of tokens in a passage (default: as many as the "
        "retriever sees)",
        "--overlap N": "maximum number of tokens that a passage repeats of the previous one "
        "(default: 0)",
    }
    options.add_options(parser, lengths, type=int)


def main(args):
    """Builds an index."""
    from rt_keras.data import shards
    from rt_keras.retrieval.index_folder import build_index

    if not Path(args.documents).exists():
        raise FileNotFoundError(f"--documents is {args.documents}, which does not exist")
    retriever = options.load_that("--retriever", args.retriever, "embedding", "a retriever")
    folder = build_index(
        args.documents, retriever, args.output, args.passage_length, args.overlap or 0
    )
    found = shards.read_manifest(folder)["shards"]
    count = sum(shard["items"] for shard in found)
    size = sum(shard["bytes"] for shard in found)
    print(f"the index {folder} has {count:,} passages: {size / 1e6:,.1f} MB")
    return {"index": str(folder), "passages": count, "bytes": size}
