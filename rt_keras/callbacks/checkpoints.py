"""Checkpoints in a folder: arrays and values, checked, the last few kept."""

from pathlib import Path

import tensorflow as tf

from rt_keras import files


class Checkpoints:
    """The checkpoints in a folder, each of them a step, arrays and JSON values.

    A checkpoint of step 120 is the files `120.index` and `120.data-...` of `tf.train.Checkpoint`
    and, written after them, `120.json`. This has the sizes and SHA-256 sums of the two, its own
    sum, the values, and the names and shapes of the arrays. A checkpoint without it does not count,
    and one of which a byte has changed is refused. `tf.train.CheckpointManager` would not notice
    either, and forgets all checkpoints if its own list is damaged.

    Args:
        folder: string or path. It need not exist.
        max_to_keep: int, how many checkpoints are kept; the oldest is deleted once another is
            written. Defaults to 3.

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
        """Writes a checkpoint, and deletes what is no longer kept.

        Args:
            step: int.
            arrays: dictionary of tensors or arrays.
            values: dictionary of JSON values.

        Raises:
            OSError: if it cannot be written, as when the disk is full. Nothing of it is left, and
                the other checkpoints are as they were.
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
        """The newest checkpoint that is whole.

        Returns:
            Its step, or None if there is none, and strings that say what is wrong with newer ones.
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
        """The values of a checkpoint, without its arrays.

        Args:
            step: int.

        Returns:
            A dictionary of JSON values.

        Raises:
            ValueError: if their file is damaged.
        """
        return files.read_sealed_json(self._manifest(step))["values"]

    def read(self, step):
        """The arrays and values of a checkpoint.

        Args:
            step: int.

        Returns:
            A dictionary of NumPy arrays, and one of JSON values.

        Raises:
            ValueError: if it is damaged.
        """
        manifest = self._checked_manifest(step)
        reader = tf.train.load_checkpoint(str(self.folder / str(step)))
        arrays = {name: reader.get_tensor(_key(name)) for name in manifest["arrays"]}
        return arrays, manifest["values"]

    def sweep(self, keep):
        """Deletes everything but the checkpoints of some steps: older ones, and unfinished files.

        Args:
            keep: list of ints.
        """
        kept = {path.name for step in keep for path in [self._manifest(step), *self._files(step)]}
        for path in self.folder.glob("*"):
            if path.name not in kept:
                files.delete(path)

    def _delete(self, step):
        # The list of what it consists of goes first: without it the rest does not count.
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
        """What a manifest holds, after a check of all that it lists."""
        manifest = files.read_sealed_json(self._manifest(step))
        for name, expected in manifest["files"].items():
            part = self.folder / name
            if not part.is_file():
                raise ValueError(f"{part} is missing")
            if _size_and_sum(part) != expected:
                raise ValueError(f"{part} is damaged: its contents have changed")
        return manifest


def _key(name):
    """The key under which `tf.train.Checkpoint(arrays={name: ...})` keeps an array."""
    return f"arrays/{name.replace('.', '..').replace('/', '.S')}/.ATTRIBUTES/VARIABLE_VALUE"


def _size_and_sum(path):
    return [path.stat().st_size, files.sum_of_file(path)]
