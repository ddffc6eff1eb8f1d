"""Two folders of documents with the same names as a TensorFlow dataset of pairs."""

import os
from pathlib import Path

from rt_keras.data.folder_files import check_folder, list_files, read_utf8
from rt_keras.data.pairs_folder import SIDES, PairsFolder
from rt_keras.data.text_folder import TextFolder, group_by_split, split_of


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
        names = [set(list_files(side, "")) for side in self.sides]
        both = sorted(names[0] & names[1])
        filled = [x for x in both if all((side / x).read_bytes().strip() for side in self.sides)]
        if not filled:
            raise ValueError(
                f"directory must hold documents of the same names in {self.sides[0]} and "
                f"{self.sides[1]}. None are in both"
            )
        self.split_note = (
            f"{len(filled):,} pairs of documents, split by the hashes of their names: 90% for "
            f"training, 5% for validation, 5% for testing; {len(names[0] ^ names[1]):,} documents "
            f"without a partner and {len(both) - len(filled):,} empty pairs are left out"
        )
        return group_by_split(filled, split_of)

    def size_and_time(self, name):
        both = [TextFolder.size_and_time(self, side / name) for side in self.sides]
        sizes, times = zip(*both)
        return sum(sizes), " ".join(map(str, times))

    def _check(self, split):
        for name in self.files[split]:
            self._pair(name)

    def _generate_examples(self, split):
        for name in self.files[split]:
            yield name, self._pair(name)

    def _pair(self, name):
        return dict(zip(SIDES, (read_utf8(side / name) for side in self.sides)))


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
