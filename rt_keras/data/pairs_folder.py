"""Parallel files, and folders of parallel documents, as TensorFlow datasets of pairs."""

import itertools
import os
from pathlib import Path

from rt_keras.data.file_reading import (
    check_folder,
    list_files,
    read_lines,
    read_utf8,
    wrong_folder,
)
from rt_keras.data.text_folder import SPLITS, TEXT, TextFolder, group_by_split, split_of

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

    def _generate_examples(self, split):
        source, target = (self.directory / name for name in self.files[split])
        count = 0
        for texts in itertools.zip_longest(read_lines(source), read_lines(target)):
            if None in texts:
                shorter, longer = (source, target) if texts[0] is None else (target, source)
                raise ValueError(
                    f"{shorter} has {count:,} lines and {longer} has more: line i of one must "
                    "correspond to line i of the other"
                )
            yield count, dict(zip(SIDES, texts))
            count += 1
        if count == 0:
            raise ValueError(f"{source} and {target} are empty")


class ParallelDocuments(PairsFolder):
    """Builder of a dataset with one pair of texts per document that two folders share.

    The source folder and the target folder have UTF-8 files with the same names, in the same
    subfolders, such as `english/ls.1` and `german/ls.1`. `split_of` assigns each pair to a split by
    its name. Documents without a partner, and pairs with an empty document, are left out.

    Features: "source" and "target", the texts, which are also the `info.supervised_keys`.

    Args:
        directory: path of a folder with exactly two subfolders, of which the first by name is the
            source; or the paths of the source folder and the target folder, separated by
            `os.pathsep`, which is ":" except on Windows.
        data_dir: path of the folder for prepared data sets. Defaults to that of TensorFlow
            Datasets.
        **kwargs: other keyword arguments of `tfds.core.GeneratorBasedBuilder`.

    Attributes:
        files: dictionary from each split to the names of its documents.
        split_note: string, one line on the split and on what is left out.

    Raises:
        FileNotFoundError: if a folder does not exist or has no files.
        ValueError: if there are not two folders, or no documents in both; during preparation, if a
            document is not UTF-8.

    Example:

    >>> import tempfile
    >>> import tensorflow_datasets as tfds
    >>> folder = Path(tempfile.mkdtemp(), "tales")
    >>> for language, text in (("english", "Once upon a time"), ("german", "Es war einmal")):
    ...     (folder / language).mkdir(parents=True)
    ...     _ = (folder / language / "tale.txt").write_text(text)
    >>> builder = ParallelDocuments(folder, data_dir=tempfile.mkdtemp())
    >>> builder.download_and_prepare()
    >>> for pair in tfds.as_numpy(builder.as_dataset(split="train")):
    ...     print(pair)
    {'source': b'Once upon a time', 'target': b'Es war einmal'}
    """

    split_files = "documents whose names belong to {split} by their hash; add documents"

    def __init__(self, directory, **kwargs):
        self.sides = _two_folders(directory)
        super().__init__(os.path.commonpath(self.sides), **kwargs)

    def _files_by_split(self):
        sources, targets = (set(list_files(side, "")) for side in self.sides)
        both = sorted(sources & targets)
        filled = [x for x in both if all((side / x).read_bytes().strip() for side in self.sides)]
        if not filled:
            raise ValueError(
                f"directory must hold documents of the same names in {self.sides[0]} and "
                f"{self.sides[1]}. None are in both"
            )
        self.split_note = (
            f"{len(filled):,} pairs of documents, split by the hashes of their names: 90% for "
            f"training, 5% for validation, 5% for testing; {len(sources ^ targets):,} documents "
            f"without a partner and {len(both) - len(filled):,} empty pairs are left out"
        )
        return group_by_split(filled, split_of)

    def size_and_time(self, name):
        files = [(side / name).stat() for side in self.sides]
        return sum(x.st_size for x in files), " ".join(str(x.st_mtime_ns) for x in files)

    def _generate_examples(self, split):
        for name in self.files[split]:
            yield name, {side: read_utf8(x / name) for side, x in zip(SIDES, self.sides)}


def _two_folders(directory):
    """Returns the source folder and the target folder."""
    parts = os.fspath(directory).split(os.pathsep)
    if len(parts) == 1:
        check_folder(directory)
        parts = [x for x in sorted(Path(directory).iterdir()) if x.is_dir() and x.name[0] != "."]
    if len(parts) != 2:
        names = ", ".join(os.path.basename(part) for part in parts) or "none"
        raise ValueError(
            "directory must have exactly two subfolders, the source and the target. Received: "
            f"directory={os.fspath(directory)!r} with {names}"
        )
    return tuple(Path(part).resolve() for part in parts)
