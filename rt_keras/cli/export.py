"""`rt-keras export`: writes a model as a SavedModel for TensorFlow Serving.

example: rt-keras export --model runs/books --output exported/books
"""

from rt_keras.cli import options


def add_arguments(parser):
    """Adds the command's arguments to an `argparse` parser."""
    options.add_model(parser)
    meaning = (
        "folder of the model's versions, to which the next version is written; or the folder of "
        "one version, if its name is a number"
    )
    options.add_options(parser, {"--output DIR": meaning}, required=True)
    meaning = (
        "maximum number of tokens in a sequence (default: the model's number of positions, or "
        "65,536 if it has no limit), or of positions of 40 ms in a sound; not for images"
    )
    options.add_options(parser, {"--max-length N": meaning}, type=int)
    meaning = "the folder of the index that a reader answers from, written into the SavedModel"
    options.add_options(parser, {"--index DIR": meaning})


def main(args):
    """Writes a model as a SavedModel and lists its non-standard operations."""
    from rt_keras.retrieval.index_folder import read_index
    from rt_keras.serving.foreign_ops import foreign_ops
    from rt_keras.serving.saved_model import export_saved_model

    model, task = options.load_model(args.model)
    index = None
    if (args.index is None) == (task.generates == "answer"):
        raise ValueError("--index is required for a reader, and for no other model")
    if args.index is not None:
        index = read_index(args.index)
    path = export_saved_model(model, args.output, args.max_length, index)
    print(f"wrote the SavedModel {path}: {', '.join(_signatures(path))}")
    foreign = foreign_ops(path)
    for name, reason in foreign.items():
        print(f"its operation {name} is {reason}")
    return {"saved_model": str(path), "foreign_ops": foreign}


def _signatures(path):
    """Returns the names of a SavedModel's signatures, without those of TensorFlow."""
    from tensorflow.core.protobuf import saved_model_pb2

    content = (path / "saved_model.pb").read_bytes()
    (graph,) = saved_model_pb2.SavedModel.FromString(content).meta_graphs
    return sorted(name for name in graph.signature_def if not name.startswith("__"))
