"""A folder of CSV files of labeled texts as a TensorFlow dataset."""

import csv

import numpy as np

from rt_keras import extras
from rt_keras.data.folder_files import wrong_folder
from rt_keras.data.text_folder import SPLITS, TextFolder

with extras.needed("train", "Reading data sets"):
    import tensorflow_datasets as tfds

TEXTS = ("text", "text_pair")
LABEL = "label"


class CsvFolder(TextFolder):
    """Builder of a dataset with one labeled text or pair of texts per record of a CSV file.

    Each split has a UTF-8 file, `train.csv`, `validation.csv` or `test.csv`, whose first record
    names the columns: "text", "label" and, for pairs, "text_pair"; others are not read. A label is
    the number of a class, from 0. A split without a file does not exist.

    Features: "text", "text_pair" if there is such a column, and "label".

    Args:
        directory: path of the folder.
        data_dir: path of the folder for prepared data sets. Defaults to that of TensorFlow
            Datasets.
        **kwargs: other keyword arguments of `tfds.core.GeneratorBasedBuilder`.

    Raises:
        FileNotFoundError: if the folder does not exist or has no such file.
        ValueError: if a file is empty, lacks a column, or differs from the others in its columns;
            during preparation, if a file has no records or is not UTF-8, or if a record has the
            wrong number of values or a label that is not a class number.

    Example:

    >>> import tempfile
    >>> from pathlib import Path
    >>> folder = Path(tempfile.mkdtemp(), "reviews")
    >>> folder.mkdir()
    >>> _ = (folder / "train.csv").write_text('text,label\\n"Good, and short.",1\\n')
    >>> builder = CsvFolder(folder, data_dir=tempfile.mkdtemp())
    >>> builder.download_and_prepare()
    >>> for example in tfds.as_numpy(builder.as_dataset(split="train")):
    ...     print(example)
    {'label': np.int64(1), 'text': b'Good, and short.'}
    """

    split_files = "the file {split}.csv"

    def _files_by_split(self):
        if not self.directory.is_dir():
            raise wrong_folder("directory must be a folder", self.directory)
        names = {split: f"{split}.csv" for split in SPLITS}
        files = {x: [name] for x, name in names.items() if (self.directory / name).is_file()}
        if not files:
            raise wrong_folder(f"directory must hold {', '.join(names.values())}", self.directory)
        self.texts = self._check_columns([name for (name,) in files.values()])
        return files

    def _check_columns(self, names):
        """Returns the text columns, which must be the same in all files."""
        found = [self._columns(name) for name in names]
        for name, columns in zip(names, found):
            missing = [column for column in ("text", LABEL) if column not in columns]
            if missing:
                raise ValueError(
                    f"{self.directory / name} has no column {missing[0]}; its first line must name "
                    f"the columns text, label and, for pairs, text_pair. It names "
                    f"{', '.join(columns) or 'none'}"
                )
        texts = [[column for column in TEXTS if column in columns] for columns in found]
        for name, columns in zip(names, texts):
            if columns != texts[0]:
                raise ValueError(
                    f"{self.directory / names[0]} and {self.directory / name} must both have the "
                    "column text_pair, or neither"
                )
        return texts[0]

    def _columns(self, name):
        return next(self._records(name), (1, []))[1]

    def _info(self):
        features = {name: tfds.features.Text() for name in self.texts}
        return tfds.core.DatasetInfo(
            builder=self,
            description=f"The labeled texts of {self.directory}.",
            features=tfds.features.FeaturesDict({**features, LABEL: np.int64}),
        )

    def _split_generators(self, dl_manager):
        # Check everything before the first example is written.
        for (name,) in self.files.values():
            if not sum(1 for _ in self._generate_examples([name])):
                raise ValueError(f"{self.directory / name} has no records after its first line")
        return super()._split_generators(dl_manager)

    def _generate_examples(self, names):
        (name,) = names
        records = self._records(name)
        _, columns = next(records)
        places = {column: columns.index(column) for column in (*self.texts, LABEL)}
        for line, record in records:
            if len(record) != len(columns):
                raise ValueError(
                    f"{self.directory / name}, line {line:,}: it must have {len(columns)} values, "
                    f"one for each column. Received: {len(record)}"
                )
            example = {column: record[place] for column, place in places.items()}
            if not (example[LABEL].isascii() and example[LABEL].isdigit()):
                raise ValueError(
                    f"{self.directory / name}, line {line:,}: label must be the number of a class, "
                    f"from 0. Received: {example[LABEL]!r}"
                )
            yield line, {**example, LABEL: int(example[LABEL])}

    def _records(self, name):
        """Yields (number of its last line, record) for each record, the column names first.

        Empty lines are skipped.
        """
        path = self.directory / name
        with path.open(encoding="utf-8-sig", newline="") as file:
            records = csv.reader(file)
            try:
                yield from ((records.line_num, record) for record in records if record)
            except UnicodeDecodeError:
                raise ValueError(f"{path} is not UTF-8 text") from None
            except csv.Error as error:
                raise ValueError(f"{path}, line {records.line_num:,}: {error}") from None
