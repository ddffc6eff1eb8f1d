"""A folder of checkpoints with checksums."""

from pathlib import Path

import tensorflow as tf

from rt_keras import files


class Checkpoints:
    """A folder of checkpoints. Each has a step, arrays and JSON values.

    The checkpoint of step 120 consists of the files `120.index` and `120.data-...` of
    `tf.train.Checkpoint` and of `120.json`, which is written last. `120.json` holds the sizes and
    SHA-256 sums of the other files, its own sum, the values, and the names and shapes of the
    arrays. A checkpoint without this file is ignored, and one with a changed byte is rejected.
    `tf.train.CheckpointManager` detects neither, and loses all checkpoints if its own list is
    damaged.

    Args:
        folder: string or path. It need not exist.
        max_to_keep: int, the number of checkpoints to keep. The oldest is deleted after a new one
            is written. Defaults to 3.

    >>> import tempfile
    >>> checkpoints = Checkpoints(tempfile.mkdtemp())
    >>> checkpoints.write(120, {"a": tf.constant([1.0, 2.0])}, {"best": 3})
    >>> step, damaged = checkpoints.newest()
    >>> arrays, values = checkpoints.read(step)
    >>> step, values, arrays["a"].tolist()
    (120, {'best': 3}, [1.0, 2.0])
    """

    def __init__(self, folder, max_to_keep=3):
        self.folder = Path(folder)
        self.max_to_keep = max_to_keep

    def write(self, step, arrays, values):
        """Writes a checkpoint, and deletes those beyond `max_to_keep`.

        Args:
            step: int.
            arrays: dictionary of tensors or arrays.
            values: dictionary of JSON values.

        Raises:
            OSError: if it cannot be written, for example because the disk is full. Its files are
                deleted, and the other checkpoints are unchanged.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            self._write_arrays(step, arrays)
            manifest = {
                "step": step,
                "values": values,
                "arrays": {name: [x.dtype.name, list(x.shape)] for name, x in arrays.items()},
                "files": {path.name: _size_and_sum(path) for path in self._files(step)},
            }
            files.write_sealed_json(self._manifest(step), manifest)
        except (OSError, tf.errors.OpError) as error:
            self._delete(step)
            raise OSError(
                f"the checkpoint of step {step:,} was not written to {self.folder}: "
                f"{getattr(error, 'message', error)}"
            ) from None
        self.sweep(self.steps()[-self.max_to_keep :])

    def _write_arrays(self, step, arrays):
        with tf.device("CPU:0"):
            variables = {name: tf.Variable(x, trainable=False) for name, x in arrays.items()}
        tf.train.Checkpoint(arrays=variables).write(str(self.folder / str(step)))

    def newest(self):
        """Finds the newest intact checkpoint.

        Returns:
            Its step, or None if there is none, and a list of strings, the problems of newer ones.
        """
        damaged = []
        for step in reversed(self.steps()):
            try:
                self._checked_manifest(step)
                return step, damaged
            except ValueError as error:
                damaged.append(str(error))
        return None, damaged

    def values(self, step):
        """Reads the values of a checkpoint, without its arrays.

        Args:
            step: int.

        Returns:
            A dictionary of JSON values.

        Raises:
            ValueError: if the file of the values is damaged.
        """
        return files.read_sealed_json(self._manifest(step))["values"]

    def read(self, step):
        """Reads the arrays and values of a checkpoint.

        Args:
            step: int.

        Returns:
            A dictionary of NumPy arrays and a dictionary of JSON values.

        Raises:
            ValueError: if the checkpoint is damaged.
        """
        manifest = self._checked_manifest(step)
        reader = tf.train.load_checkpoint(str(self.folder / str(step)))
        arrays = {name: reader.get_tensor(_key(name)) for name in manifest["arrays"]}
        return arrays, manifest["values"]

    def sweep(self, keep):
        """Deletes all files except the checkpoints of some steps.

        Args:
            keep: list of ints, the steps to keep.
        """
        kept = {path.name for step in keep for path in [self._manifest(step), *self._files(step)]}
        for path in self.folder.glob("*"):
            if path.name not in kept:
                files.delete(path)

    def _delete(self, step):
        # The manifest goes first: without it, the other files are ignored.
        self._manifest(step).unlink(missing_ok=True)
        for path in self._files(step):
            files.delete(path)

    def steps(self):
        names = (path.stem for path in self.folder.glob("*.json"))
        return sorted(int(name) for name in names if name.isdecimal())

    def _manifest(self, step):
        return self.folder / f"{step}.json"

    def _files(self, step):
        return sorted([*self.folder.glob(f"{step}.index"), *self.folder.glob(f"{step}.data-*")])

    def _checked_manifest(self, step):
        """Reads a manifest and verifies the files that it lists."""
        manifest = files.read_sealed_json(self._manifest(step))
        for name, expected in manifest["files"].items():
            part = self.folder / name
            if not part.is_file():
                raise ValueError(f"{part} is missing")
            if _size_and_sum(part) != expected:
                raise ValueError(f"{part} is damaged: its contents have changed")
        return manifest


def _key(name):
    """Returns the key of an array in `tf.train.Checkpoint(arrays={name: ...})`."""
    return f"arrays/{name.replace('.', '..').replace('/', '.S')}/.ATTRIBUTES/VARIABLE_VALUE"


def _size_and_sum(path):
    return [path.stat().st_size, files.sum_of_file(path)]
