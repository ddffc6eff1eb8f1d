"""Text files as TensorFlow datasets: those of a folder, a single one, and Python's own source."""

import contextlib
import hashlib
import io
import os
import re
import sysconfig
from pathlib import Path

from rt_keras.data import extras
from rt_keras.data.file_reading import check_folder, is_utf8, list_files, wrong_folder

with extras.needed("train", "Reading data sets"):
    import tensorflow_datasets as tfds

SPLITS = ("train", "validation", "test")
# Features: a text, and any number of texts.
TEXT, TEXTS = tfds.features.Text(), tfds.features.Sequence(tfds.features.Text())
# Start and end of each part, in percent of the bytes.
SHARES = {"train": (0, 90), "validation": (90, 95), "test": (95, 100)}
# A shorter text is not cut, because parts could be empty: all of it is for training.
LEAST_BYTES = 100
# Maximum distance from a cut to the end of its line.
LINE_BYTES = 2**16
# Folders of Python's library that are not read. Some distributions lack the tests, which are more
# than half of the text.
LEFT_OUT = ("site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test")


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
        if self.has_split_folders():
            files = group_by_split(names, top_folder)
            if not files:
                problem = "directory has subfolders named like splits, but no .txt files in them"
                raise wrong_folder(problem, self.directory)
            return files
        files = group_by_split(names, split_of)
        if len(files) == len(SPLITS):
            return files
        return self._cut(names, f"each file of {self.directory.name}")

    def has_split_folders(self):
        """Returns whether the folder has subfolders that are its splits."""
        return any((self.directory / split).is_dir() for split in SPLITS)

    def _cut(self, names, what):
        """Returns the files of each split if every file is cut: all files."""
        most = max(self.size_and_time(name)[0] for name in names)
        if most < LEAST_BYTES:
            raise ValueError(
                f"directory must hold a text of at least {LEAST_BYTES} bytes, to be "
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
        return {split: self._generate_examples(split) for split in self.files}

    def _generate_examples(self, split):
        not_utf8 = self.info.metadata["not_utf8"]
        for name in self.files[split]:
            path = self.directory / name
            text = read_part(path, split) if self.split_note else path.read_bytes()
            if name not in not_utf8 and not is_utf8(text):
                not_utf8.append(name)
            yield name, {"text": text, "id": name}


class TextFile(TextFolder):
    """Builder of a dataset with one document per split, cut from one file.

    The first 90% of the file are for training, the next 5% for validation and the last 5% for
    testing, cut at line ends; see `rt_keras.data.text_folder.read_part`. The bytes are not decoded,
    and the file may have any name. A file that has changed is read again.

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


class PythonSource(TextFolder):
    """Builder of a dataset with one document per `.py` file of the standard library.

    It reads the library of the running Python, about 12 MB, without installed packages and tests.
    `split_of` assigns each file to a split, so the same version of Python gives the same text on
    every machine.

    Features: "text", the bytes of the file; "id", its path relative to the library.

    Args:
        data_dir: path of the folder for prepared data sets. Defaults to that of TensorFlow
            Datasets.
        **kwargs: other keyword arguments of `tfds.core.GeneratorBasedBuilder`.

    Example:

    >>> builder = PythonSource()
    >>> sorted(builder.files)
    ['test', 'train', 'validation']
    >>> "textwrap.py" in builder.files["train"]
    True
    """

    def __init__(self, **kwargs):
        super().__init__(sysconfig.get_path("stdlib"), **kwargs)

    def _files_by_split(self):
        return group_by_split(list_files(self.directory, ".py", LEFT_OUT), split_of)


def top_folder(name):
    """Returns the first folder of a relative path, or the name of a file in no folder."""
    return name.split("/")[0]


def group_by_split(names, split_of_name):
    """Returns the names of each split that has any; names that are of no split are dropped."""
    files = {split: [name for name in names if split_of_name(name) == split] for split in SPLITS}
    return {split: names for split, names in files.items() if names}


def read_part(path, split):
    """Reads the part of a file that belongs to a split: the first 90%, next 5% or last 5%.

    A cut moves to the start of the next line if there is one within 5% of the file and 64 KiB, or
    else to the next character in UTF-8.

    Args:
        path: `Path` of the file.
        split: "train", "validation" or "test".

    Returns:
        Bytes. Concatenated, the parts of the three splits are the file.

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp(), "text.txt")
    >>> _ = path.write_text("".join(f"line {number:2}\\n" for number in range(20)))
    >>> read_part(path, "validation"), read_part(path, "test")
    (b'line 18\\n', b'line 19\\n')
    """
    with path.open("rb") as file:
        size = file.seek(0, 2)
        start, end = (_cut(file, size, percent) for percent in SHARES[split])
        file.seek(start)
        return file.read(end - start)


def _cut(file, size, percent):
    """Returns the position of a cut in an open file."""
    place = size * percent // 100
    if percent and size < LEAST_BYTES:
        return size
    if place in (0, size):
        return place
    # Start one byte earlier, since a line may start exactly at the cut.
    file.seek(place - 1)
    after = file.read(min(LINE_BYTES, size // 20))
    line = after.find(b"\n")
    if line >= 0:
        return place + line
    # In UTF-8, all bytes of a character after its first are 0b10xxxxxx.
    whole = (skip for skip, byte in enumerate(after[1:4]) if byte & 0xC0 != 0x80)
    return place + next(whole, 0)
