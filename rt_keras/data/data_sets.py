"""The data sets of each kind of examples, and the builders that read them."""

import dataclasses
import importlib
import re

from rt_keras.keys import wrong_value


@dataclasses.dataclass(frozen=True)
class DataSets:
    """The data sets of one kind of examples, by name.

    Args:
        words: string, all names in words, for error messages: "it must be {words}".
        downloaded: regular expression that matches the names of sets downloaded by TensorFlow
            Datasets.
        folders: dictionary from the name of each set read from a folder or a file, which is also
            the name of its module, to the name of its builder. Defaults to none.
        installed: the same for sets that are already on the machine. Defaults to none.
        renamed: dictionary from a name to the name in TensorFlow Datasets where the two differ.
            Defaults to none.

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
        """Returns the builder of a set, which may not be prepared yet.

        Args:
            name: the name of the set.
            directory: path of the folder or file to read, or None for sets that need none. Defaults
                to None.
            data_dir: path of the folder for prepared data sets. Defaults to that of TensorFlow
                Datasets.

        Returns:
            A `tfds.core.DatasetBuilder`.

        Raises:
            ValueError: if there is no such set, or if `directory` is missing or given to a set that
                does not take one.
        """
        if name not in self:
            raise wrong_value("name", self.words, name)
        if name in self.folders and directory is None:
            raise wrong_value("directory (data.directory)", f"the path to read for {name}", None)
        if name not in self.folders and directory is not None:
            others = ", ".join(self.folders) or "other data"
            raise wrong_value("directory", f"None for {name}; it is for {others}", str(directory))
        own = self.folders | self.installed
        if name not in own:
            from rt_keras.data import tfds_sets

            return tfds_sets.named(self.renamed.get(name, name), data_dir)
        builder = getattr(importlib.import_module(f"rt_keras.data.{name}"), own[name])
        given = {} if directory is None else {"directory": directory}
        return builder(**given, data_dir=data_dir)
