"""A folder of text files as a TensorFlow dataset."""

import contextlib
import hashlib
import io
import os
import re
from pathlib import Path

from rt_keras import extras
from rt_keras.data import text_parts
from rt_keras.data.folder_files import check_folder, list_files, wrong_folder
from rt_keras.data.json_lines import is_utf8

with extras.needed("train", "Reading data sets"):
    import tensorflow_datasets as tfds

SPLITS = ("train", "validation", "test")
# Features: a text, and any number of texts.
TEXT, TEXTS = tfds.features.Text(), tfds.features.Sequence(tfds.features.Text())


def split_of(name):
    """Returns the split of a file from its name alone: 90% train, 5% validation, 5% test.

    With h = SHA-256(name) mod 100: train if h < 90, else validation if h < 95, else test. The split
    is the same on every machine and independent of other files.

    Args:
        name: path of the file relative to the folder, with forward slashes.

    Returns:
        "train", "validation" or "test".

    >>> split_of("os.py"), split_of("textwrap.py"), split_of("email/policy.py")
    ('train', 'train', 'train')
    """
    share = int(hashlib.sha256(os.fsencode(name)).hexdigest(), 16) % 100
    return "train" if share < 90 else "validation" if share < 95 else "test"


class TextFolder(tfds.core.GeneratorBasedBuilder):
    """Builder of a dataset with one document per `.txt` file of a folder.

    If the folder has any of the subfolders `train`, `validation` and `test`, like PG-19, they are
    the splits, and files next to them are ignored; a split without files does not exist. Otherwise
    `split_of` assigns each file to a split by its relative path, including files in subfolders. If
    this leaves a split without files, as with a single file, every file is cut instead: its first
    90% are for training, the next 5% for validation and the last 5% for testing. The bytes are not
    decoded and need not be valid UTF-8.

    The name of the prepared copy depends on the paths, sizes and modification times of the files,
    so a folder that has changed is read again.

    Features: "text", the bytes of the file or its part; "id", its path relative to the folder.

    Args:
        directory: path of the folder.
        data_dir: path of the folder for prepared data sets. Defaults to that of TensorFlow
            Datasets.
        **kwargs: other keyword arguments of `tfds.core.GeneratorBasedBuilder`.

    Attributes:
        files: dictionary from each split to the names of its files.
        split_note: string, one line on how files were cut, or None if they were not.

    Raises:
        FileNotFoundError: if the folder does not exist or holds no `.txt` file.
        ValueError: if files must be cut and none has at least 100 bytes.

    Example:

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp(), "books")
    >>> for split in ("train", "test"):
    ...     (folder / split).mkdir(parents=True)
    ...     _ = (folder / split / "1.txt").write_text(f"A book to {split} with.")
    >>> builder = TextFolder(folder, data_dir=tempfile.mkdtemp())
    >>> builder.files
    {'train': ['train/1.txt'], 'test': ['test/1.txt']}
    >>> builder.download_and_prepare()
    >>> for document in tfds.as_numpy(builder.as_dataset(split="test")):
    ...     print(document)
    {'id': b'test/1.txt', 'text': b'A book to test with.'}
    """

    VERSION = tfds.core.Version("1.0.0")
    # The files that a missing split needs, for the error.
    split_files = "a folder {split} of .txt files"
    split_note = None
    features = {"text": TEXT, "id": TEXT}
    supervised_keys = None

    def __init__(self, directory, **kwargs):
        self.directory = Path(directory).resolve()
        check_folder(self.directory)
        self.files = self._files_by_split()
        self._folder_config = tfds.core.BuilderConfig(name=self._config_name())
        super().__init__(config=self._folder_config, **kwargs)

    def get_builder_config(self, name, version=None):
        """Returns the config of this folder, without which TFDS would print a warning."""
        return self._folder_config if name == self._folder_config.name else None

    def download_and_prepare(self, **kwargs):
        """Copies the texts into TFDS's own files unless they exist."""
        # Nothing is downloaded, so TFDS should neither print that nor search its bucket.
        here = tfds.download.DownloadConfig(try_download_gcs=False)
        with contextlib.redirect_stdout(io.StringIO()):
            super().download_and_prepare(download_config=here, **kwargs)

    def size_and_time(self, name):
        """Returns the size of a file in bytes and its modification time in nanoseconds."""
        status = (self.directory / name).stat()
        return status.st_size, status.st_mtime_ns

    def _files_by_split(self):
        names = list_files(self.directory, ".txt")
        if not any((self.directory / split).is_dir() for split in SPLITS):
            files = group_by_split(names, split_of)
            whole = len(files) == len(SPLITS)
            return files if whole else self._cut(names, f"each file of {self.directory.name}")
        files = group_by_split(names, lambda name: name.split("/")[0])
        if not files:
            problem = "directory has subfolders named like splits, but no .txt files in them"
            raise wrong_folder(problem, self.directory)
        return files

    def _cut(self, names, what):
        """Returns the files of each split if every file is cut: all files."""
        most = max(self.size_and_time(name)[0] for name in names)
        if most < text_parts.LEAST_BYTES:
            raise ValueError(
                f"directory must hold a text of at least {text_parts.LEAST_BYTES} bytes, to be "
                f"split in three. Received: {self.directory / names[0]} of {most} bytes"
            )
        self.split_note = (
            f"split by position: first 90% of {what} for training, next 5% for validation, last 5% "
            "for testing; to choose, give a folder with train/, validation/ and test/"
        )
        return dict.fromkeys(SPLITS, names)

    def _config_name(self):
        listing = hashlib.sha256(os.fsencode(self.directory))
        for names in self.files.values():
            for name in names:
                size, time = self.size_and_time(name)
                listing.update(os.fsencode(f"{name}\0{size}\0{time}\0"))
        label = re.sub(r"[^A-Za-z0-9]+", "_", self.directory.name)
        return f"{label}-{listing.hexdigest()[:16]}"

    def _info(self):
        return tfds.core.DatasetInfo(
            builder=self,
            description=f"The examples of {self.directory}.",
            features=tfds.features.FeaturesDict(self.features),
            supervised_keys=self.supervised_keys,
            metadata=tfds.core.MetadataDict(not_utf8=[], left_out=[]),
        )

    def _split_generators(self, dl_manager):
        # Before the first example is written.
        for split in self.files:
            self._check(split)
        return {split: self._generate_examples(split) for split in self.files}

    def _check(self, split):
        """Raises a ValueError if the files of a split are wrong."""

    def _generate_examples(self, split):
        not_utf8 = self.info.metadata["not_utf8"]
        for name in self.files[split]:
            path = self.directory / name
            is_cut = self.split_note is not None
            text = text_parts.read_part(path, split) if is_cut else path.read_bytes()
            if name not in not_utf8 and not is_utf8(text):
                not_utf8.append(name)
            yield name, {"text": text, "id": name}


def group_by_split(names, split_of_name):
    """Groups names of files by split.

    Args:
        names: list of strings.
        split_of_name: function that maps a name to its split. Names that it maps to anything else
            are dropped.

    Returns:
        Dictionary from each split with files to the list of their names.
    """
    files = {split: [name for name in names if split_of_name(name) == split] for split in SPLITS}
    return {split: names for split, names in files.items() if names}
