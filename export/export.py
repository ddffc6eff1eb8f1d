"""Exports a model for the setup in this folder:

    python export/export.py --model runs/books
    docker compose --file export/docker-compose.yaml up

The model is written to `export/models/rt_keras` as a new version, which a running server loads.
"""

import argparse
import sys
from pathlib import Path

MODELS = Path(__file__).resolve().parent / "models" / "rt_keras"


def main(argv=None):
    """Exports the model named on the command line; returns the exit status."""
    parser = argparse.ArgumentParser(description="Exports a model for TensorFlow Serving.")
    parser.add_argument("--model", required=True, metavar="DIR", help="folder of a run or a preset")
    parser.add_argument(
        "--output",
        default=MODELS,
        metavar="DIR",
        help="folder of the versions; by default models/rt_keras next to this file",
    )
    parser.add_argument("--max-length", type=int, metavar="N", help="maximum tokens of a sequence")
    parser.add_argument("--index", metavar="DIR", help="the index that a reader answers from")
    arguments = parser.parse_args(argv)

    try:
        from rt_keras.retrieval import read_index
        from rt_keras.serving import export_saved_model
        from rt_keras.training import experiment

        model = experiment.load_model(arguments.model)
        index = None if arguments.index is None else read_index(arguments.index)
        path = export_saved_model(model, arguments.output, arguments.max_length, index)
    except (ValueError, OSError, ModuleNotFoundError) as error:
        print(f"export: error: {error}", file=sys.stderr)
        return 1
    print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
