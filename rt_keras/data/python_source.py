"""The source of Python's standard library as a TensorFlow dataset, available on every machine."""

import sysconfig

from rt_keras.data.folder_files import list_files
from rt_keras.data.text_folder import TextFolder, group_by_split, split_of

# Some distributions of Python lack the tests, which are more than half of the text.
LEFT_OUT = ("site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test")


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
