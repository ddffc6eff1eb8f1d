"""A folder of parallel text files as a TensorFlow dataset of pairs."""

from rt_keras.data.folder_files import wrong_folder
from rt_keras.data.text_folder import SPLITS, TEXT, TextFolder

SIDES = ("source", "target")


class PairsFolder(TextFolder):
    """Builder of a dataset with one pair of texts per line of two parallel files.

    Each split has two UTF-8 files, such as `train.source` and `train.target`, with one sentence or
    document per line. Line i of one corresponds to line i of the other; empty lines count. Lines
    end with "\\n" or "\\r\\n". A split without files does not exist.

    Features: "source" and "target", the texts, which are also the `info.supervised_keys`.

    Args:
        directory: path of the folder.
        data_dir: path of the folder for prepared data sets. Defaults to that of TensorFlow
            Datasets.
        **kwargs: other keyword arguments of `tfds.core.GeneratorBasedBuilder`.

    Raises:
        FileNotFoundError: if the folder does not exist, has no such files, or has only one file of
            a split.
        ValueError: during preparation, if two files differ in their number of lines or are empty,
            or if a line is not UTF-8.

    Example:

    >>> import tempfile
    >>> from pathlib import Path
    >>> import tensorflow_datasets as tfds
    >>> folder = Path(tempfile.mkdtemp(), "pairs")
    >>> folder.mkdir()
    >>> _ = (folder / "train.source").write_text("guten Tag\\n")
    >>> _ = (folder / "train.target").write_text("good day\\n")
    >>> builder = PairsFolder(folder, data_dir=tempfile.mkdtemp())
    >>> builder.download_and_prepare()
    >>> for pair in tfds.as_numpy(builder.as_dataset(split="train")):
    ...     print(pair)
    {'source': b'guten Tag', 'target': b'good day'}
    """

    split_files = "the files {split}.source and {split}.target"
    features = dict.fromkeys(SIDES, TEXT)
    supervised_keys = SIDES

    def _files_by_split(self):
        files = {}
        for split in SPLITS:
            names = [f"{split}.{side}" for side in SIDES]
            missing = [name for name in names if not (self.directory / name).is_file()]
            if not missing:
                files[split] = names
            elif len(missing) == 1:
                problem = f"directory must hold both {' and '.join(names)}, or neither"
                raise wrong_folder(f"{problem}; {missing[0]} is missing", self.directory)
        if not files:
            problem = "train.source and train.target, or such files for validation or test"
            raise wrong_folder(f"directory must hold {problem}", self.directory)
        return files

    def _check(self, split):
        names = self.files[split]
        counts = [sum(1 for _ in self._lines(name)) for name in names]
        source, target = (self.directory / name for name in names)
        if counts[0] != counts[1]:
            raise ValueError(
                f"{source} has {counts[0]:,} lines and {target} {counts[1]:,}: line i of one must "
                "correspond to line i of the other"
            )
        if counts[0] == 0:
            raise ValueError(f"{source} and {target} are empty")

    def _generate_examples(self, split):
        for number, texts in enumerate(zip(*map(self._lines, self.files[split]))):
            yield number, dict(zip(SIDES, texts))

    def _lines(self, name):
        path = self.directory / name
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                try:
                    yield line.decode("utf-8").removesuffix("\n").removesuffix("\r")
                except UnicodeDecodeError:
                    raise ValueError(f"{path} is not UTF-8 text: see line {number:,}") from None
