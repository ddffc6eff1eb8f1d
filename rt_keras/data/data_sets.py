"""Which data sets a kind of examples has, and where each of them comes from."""

import dataclasses
import importlib
import re


@dataclasses.dataclass(frozen=True)
class DataSets:
    """The data sets of a kind of examples.

    Args:
        words: string, the names of all, for errors: "it must be {words}".
        downloaded: regular expression, the names of those that TensorFlow Datasets downloads.
        folders: dictionary from the names of those that are read from a folder or a file, which are
            those of their modules too, to the names of their builders. Defaults to none.
        installed: the same for those that are there already. Defaults to none.
        renamed: dictionary from names of those that TensorFlow Datasets calls otherwise to the
            names there. Defaults to none.

    >>> sets = DataSets("mnist or cifar10", "mnist|cifar10")
    >>> "mnist" in sets, "mnist2" in sets
    (True, False)
    """

    words: str
    downloaded: str
    folders: dict = dataclasses.field(default_factory=dict)
    installed: dict = dataclasses.field(default_factory=dict)
    renamed: dict = dataclasses.field(default_factory=dict)

    def __contains__(self, name):
        own = name in self.folders or name in self.installed
        return own or re.fullmatch(self.downloaded, name) is not None

    def builder(self, name, directory=None, data_dir=None):
        """The builder of a set, whose files need not be ready.

        Args:
            name: the name of the set.
            directory: path of the folder or file to read. Defaults to None, for the other sets.
            data_dir: path of the folder for prepared data sets. Defaults to that of TensorFlow
                Datasets.

        Returns:
            A `tfds.core.DatasetBuilder`.

        Raises:
            ValueError: if there is no such set, or if the folder is missing, or is given to a set
                that takes none.
        """
        if name not in self:
            raise ValueError(f"name must be {self.words}. Received: name={name!r}")
        if name in self.folders and directory is None:
            raise ValueError(f"directory must be the path to read for {name}. Received: None")
        if name not in self.folders and directory is not None:
            others = ", ".join(self.folders) or "other data"
            raise ValueError(
                f"directory must be None for {name}; it is for {others}. Received: "
                f"directory={str(directory)!r}"
            )
        own = self.folders | self.installed
        if name not in own:
            from rt_keras.data import tfds_sets

            return tfds_sets.named(self.renamed.get(name, name), data_dir)
        builder = getattr(importlib.import_module(f"rt_keras.data.{name}"), own[name])
        given = {} if directory is None else {"directory": directory}
        return builder(**given, data_dir=data_dir)
