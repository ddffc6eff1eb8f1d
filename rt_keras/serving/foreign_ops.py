"""Operations of a SavedModel that are not TensorFlow's own, and their origins."""

from pathlib import Path

import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

TEXT = (
    "from TensorFlow Text, which TensorFlow Serving links: tensorflow_text:ops_lib is among the "
    "SUPPORTED_TENSORFLOW_OPS of its model server; elsewhere `import tensorflow_text` loads it"
)
XLA = "from XLA's bridge, which TensorFlow Serving links: it depends on compiler/jit:xla_cpu_jit"
UNKNOWN = "from an unknown library: the server must link it"


def foreign_ops(path):
    """Finds the operations of a SavedModel that TensorFlow itself does not define.

    Args:
        path: path of the folder of the SavedModel.

    Returns:
        Dictionary from the name of each operation to its origin and the reason why TensorFlow
        Serving supports it. It is empty if TensorFlow alone can run the model.
    """
    saved = saved_model_pb2.SavedModel.FromString((Path(path) / "saved_model.pb").read_bytes())
    names = set()
    for meta in saved.meta_graphs:
        functions = {function.signature.name for function in meta.graph_def.library.function}
        names |= {node.op for node in meta.graph_def.node}
        for function in meta.graph_def.library.function:
            names |= {node.op for node in function.node_def}
        names -= functions
    return {name: _reason(name) for name in sorted(names) if not hasattr(tf.raw_ops, name)}


def _reason(name):
    """Returns the origin of an operation."""
    if name.startswith("Xla"):
        return XLA
    import tensorflow_text

    libraries = sorted((Path(tensorflow_text.__file__).parent / "python" / "ops").glob("_*.so"))
    # Python names have an underscore after the namespace of an operation.
    name = name.replace(">", "_")
    is_of_text = any(hasattr(tf.load_op_library(str(library)), name) for library in libraries)
    return TEXT if is_of_text else UNKNOWN
