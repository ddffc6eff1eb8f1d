"""A folder of TensorFlow's checkpoints."""

import json
from pathlib import Path

import tensorflow as tf

from rt_keras import files


class Checkpoints:
    """A folder of checkpoints. Each has a step, arrays and JSON values.

    The checkpoint of step 120 consists of the files `120.data-...` and `120.index` in the format of
    `tf.train.Checkpoint`, which has a checksum of each array. TensorFlow writes both under other
    names first and renames the index last, so an interruption leaves no half of a checkpoint.

    Args:
        folder: string or path. It need not exist.
        max_to_keep: int, the number of checkpoints to keep. The oldest is deleted after a new one
            is written. Defaults to 3.

    >>> import tempfile
    >>> checkpoints = Checkpoints(tempfile.mkdtemp())
    >>> checkpoints.write(120, {"a": tf.constant([1.0, 2.0])}, {"best": 3})
    >>> step, _, damaged = checkpoints.newest()
    >>> arrays, values = checkpoints.read(step)
    >>> step, values, arrays["a"].tolist()
    (120, {'best': 3}, [1.0, 2.0])
    """

    def __init__(self, folder, max_to_keep=3):
        self.folder = Path(folder)
        self.max_to_keep = max_to_keep

    def write(self, step, arrays, values):
        """Writes a checkpoint, and deletes those of later steps and those beyond `max_to_keep`.

        Args:
            step: int.
            arrays: dictionary of tensors or arrays, none of which is named "values".
            values: dictionary of JSON values.

        Raises:
            OSError: if it cannot be written, for example because the disk is full. The other
                checkpoints are unchanged.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        arrays = {**arrays, "values": json.dumps(values)}
        try:
            with tf.device("CPU:0"):
                tf.raw_ops.SaveV2(
                    prefix=str(self.folder / str(step)),
                    tensor_names=[*arrays],
                    shape_and_slices=[""] * len(arrays),
                    tensors=[tf.convert_to_tensor(x) for x in arrays.values()],
                )
        except tf.errors.OpError as error:
            # After the name of the operation.
            reason = error.message.rpartition("}} ")[2]
            problem = f"the checkpoint of step {step:,} was not written to {self.folder}"
            raise OSError(f"{problem}: {reason}") from None
        newest = [str(x) for x in self.steps() if x <= step][-self.max_to_keep :]
        for path in self.folder.iterdir():
            if path.name.split(".")[0] not in newest:
                files.delete(path)

    def newest(self):
        """Finds the newest intact checkpoint.

        Returns:
            Its step and its values, or None and None if there is none; and a list of strings, the
            problems of newer ones.
        """
        damaged = []
        for step in reversed(self.steps()):
            try:
                return step, self.read(step)[1], damaged
            except ValueError as error:
                damaged.append(str(error))
        return None, None, damaged

    def read(self, step):
        """Reads the arrays and values of a checkpoint.

        Args:
            step: int.

        Returns:
            A dictionary of NumPy arrays and a dictionary of JSON values.

        Raises:
            ValueError: if the checkpoint is damaged.
        """
        prefix = self.folder / str(step)
        try:
            reader = tf.train.load_checkpoint(str(prefix))
            arrays = {name: reader.get_tensor(name) for name in reader.get_variable_to_dtype_map()}
        # TensorFlow raises the second if a file is too short.
        except (tf.errors.OpError, IndexError) as error:
            raise ValueError(f"the checkpoint {prefix} is damaged: {error}") from None
        return arrays, json.loads(arrays.pop("values"))

    def steps(self):
        """Returns the steps of all checkpoints, damaged ones included, in order."""
        names = (path.stem for path in self.folder.glob("*.index"))
        return sorted(int(name) for name in names if name.isdecimal())
