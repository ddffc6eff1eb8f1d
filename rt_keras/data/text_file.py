"""One text file as a TensorFlow dataset."""

from pathlib import Path

from rt_keras.data.folder_files import wrong_folder
from rt_keras.data.text_folder import TextFolder


class TextFile(TextFolder):
    """Builder of a dataset with one document per split, cut from one file.

    The first 90% of the file are for training, the next 5% for validation and the last 5% for
    testing, cut at line ends; see `rt_keras.data.text_parts`. The bytes are not decoded, and the
    file may have any name. A file that has changed is read again.

    Features: "text", the bytes of the part; "id", the name of the file.

    Args:
        directory: path of the file.
        data_dir: path of the folder for prepared data sets. Defaults to that of TensorFlow
            Datasets.
        **kwargs: other keyword arguments of `tfds.core.GeneratorBasedBuilder`.

    Raises:
        FileNotFoundError: if the file does not exist.
        IsADirectoryError: if it is a folder.
        ValueError: if the file has fewer than 100 bytes.

    Example:

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "book.txt")
    >>> _ = path.write_text("".join(f"line {number:2}\\n" for number in range(20)))
    >>> builder = TextFile(path, data_dir=tempfile.mkdtemp())
    >>> builder.download_and_prepare()
    >>> [part["text"] for part in builder.as_dataset(split="test").as_numpy_iterator()]
    [b'line 19\\n']
    """

    def __init__(self, directory, **kwargs):
        path = Path(directory).resolve()
        if not path.exists():
            raise wrong_folder("directory must be a file that exists", path)
        if path.is_dir():
            raise wrong_folder("directory must be a file, not a folder", path, IsADirectoryError)
        self._name = path.name
        super().__init__(path.parent, **kwargs)

    def _files_by_split(self):
        return self._cut([self._name], self._name)
