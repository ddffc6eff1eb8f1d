"""The command line and the messages of both Python clients."""

import argparse
import sys
from pathlib import Path

# The dtypes of the signatures' inputs; the tensors of a state are returned unchanged.
SAMPLING = {
    "max_new_tokens": "int32",
    "temperature": "float32",
    "top_p": "float32",
    "top_k": "int32",
    "seed": "int64",
}
INPUT_TYPES = {
    "score": {"ids": "int32"},
    "score_text": {"texts": "string"},
    "generate": {"prompts": "string", **SAMPLING},
    "translate": {"texts": "string", **SAMPLING},
    "complete": {
        "image_bytes": "string",
        "labels": "int32",
        "known_rows": "int32",
        "temperature": "float32",
        "seed": "int64",
    },
    "transcribe": {"sound_bytes": "string"},
    "transcribe_samples": {"samples": "float32", "sampling_rate": "int32"},
    "embed": {"texts": "string"},
    "answer": {"questions": "string", **SAMPLING},
    "new_state": {"rows": "int32"},
    "score_next": {"ids": "int32"},
    "generate_next": {"prompts": "string", **SAMPLING},
}
# The name of a signature's only output, which a REST server leaves out.
ONLY_OUTPUT = {
    "score": "log_probabilities",
    "translate": "translations",
    "complete": "image_bytes",
    "embed": "embeddings",
}


def parse(description, server, argv=None):
    """Reads the command line.

    Args:
        description: string, the description for `--help`.
        server: string, the default HOST:PORT.
        argv: list of arguments. Defaults to those of the process.

    Returns:
        HOST:PORT, the name of a signature, a dict of its inputs, and the image file to write or
        None.

    Raises:
        OSError: if the image or a sound cannot be read.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--server", default=server, metavar="HOST:PORT")
    signatures = parser.add_subparsers(dest="signature", required=True, metavar="SIGNATURE")
    score = signatures.add_parser("score", help="log-probabilities of token ids")
    score.add_argument("ids", nargs="+", type=int)
    text = signatures.add_parser("score-text", help="log-probability and bits per byte of texts")
    text.add_argument("texts", nargs="+")
    generate = signatures.add_parser("generate", help="continue prompts")
    generate.add_argument("prompts", nargs="+")
    translate = signatures.add_parser("translate", help="translate texts")
    translate.add_argument("texts", nargs="+")
    answer = signatures.add_parser("answer", help="answer questions from an index of passages")
    answer.add_argument("questions", nargs="+")
    for sampled in (generate, translate, answer):
        sampled.add_argument("--max-new-tokens", type=int, default=64)
        sampled.add_argument("--temperature", type=float, default=1.0)
        sampled.add_argument("--top-p", type=float, default=1.0)
        sampled.add_argument("--top-k", type=int, default=0)
        sampled.add_argument("--seed", type=int, default=0)
    embed = signatures.add_parser("embed", help="embeddings of texts")
    embed.add_argument("texts", nargs="+")
    complete = signatures.add_parser("complete", help="complete an image from its first rows")
    complete.add_argument("image", help="image file, of the width of the model's images")
    complete.add_argument("--output", required=True, metavar="FILE", help="PNG file to write")
    complete.add_argument("--known-rows", type=int, help="rows to keep (default: half of them)")
    meaning = "the class, for models with classes"
    complete.add_argument("--label", type=int, dest="labels", metavar="LABEL", help=meaning)
    complete.add_argument("--temperature", type=float, default=1.0)
    complete.add_argument("--seed", type=int, default=0)
    transcribe = signatures.add_parser("transcribe", help="write down what is said")
    transcribe.add_argument("sounds", nargs="+", metavar="FILE", help="WAV file of 16 bits")
    inputs = vars(parser.parse_args(argv))
    server, signature = inputs.pop("server"), inputs.pop("signature").replace("-", "_")
    output = inputs.pop("output", None)
    if signature == "score":
        inputs["ids"] = [inputs["ids"]]
    elif "seed" in INPUT_TYPES[signature] and signature != "complete":
        # One value per text, so that a server can join requests to batches.
        (count,) = [len(values) for name, values in inputs.items() if name not in SAMPLING]
        inputs = {
            name: [value] * count if name in SAMPLING else value for name, value in inputs.items()
        }
    elif signature == "complete":
        image = Path(inputs.pop("image")).read_bytes()
        given = {"image_bytes": image, **inputs}
        inputs = {name: [value] for name, value in given.items() if value is not None}
    elif signature == "transcribe":
        inputs = {"sound_bytes": [Path(name).read_bytes() for name in inputs["sounds"]]}
    return server, signature, inputs, output


def show(outputs, output=None):
    """Prints the outputs of a signature, or writes the image among them to the file `output`."""
    if output is not None:
        Path(output).write_bytes(outputs["image_bytes"][0])
        print(f"wrote the image {output}")
        return
    for name, values in sorted(outputs.items()):
        for value in values:
            print(f"{name}: {_in_words(value)}")


def _in_words(value):
    if isinstance(value, bytes):
        return value.decode()
    if hasattr(value, "__len__") and len(value) and isinstance(value[0], (bytes, str)):
        return value if isinstance(value, str) else " ".join(map(_in_words, value))
    return str(value)


def fail(message):
    """Prints an error in one line on standard error; returns the exit status."""
    print(f"client: error: {' '.join(str(message).split())}", file=sys.stderr)
    return 1
