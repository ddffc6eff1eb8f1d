"""The source of Python's standard library as a TensorFlow dataset: text that is always there."""

import sysconfig

from rt_keras.data.text_folder import TextFolder, group_by_split, list_files, split_of

# Some distributions of Python come without the tests, which are more text than all the rest.
LEFT_OUT = ("site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test")


class PythonSource(TextFolder):
    """Builder of a dataset with one document for each `.py` file of the standard library.

    It reads the library of the running Python, about 12 MB, and needs no download. Installed
    packages are left out, and so are the folders of tests. `split_of` gives the split of each
    file, so two machines with the same version of Python see the same text.

    Features: "text", the bytes of the file; "id", its path relative to the library.

    Args:
        data_dir: where TensorFlow Datasets keeps what it prepared; by default its own folder.
        **kwargs: those of `tfds.core.GeneratorBasedBuilder`.

    Example:

    >>> builder = PythonSource()
    >>> sorted(builder.files)
    ['test', 'train', 'validation']
    >>> "textwrap.py" in builder.files["train"]
    True
    """

    VERSION = TextFolder.VERSION

    def __init__(self, **kwargs):
        super().__init__(sysconfig.get_path("stdlib"), **kwargs)

    def _files_by_split(self):
        return group_by_split(list_files(self.directory, ".py", LEFT_OUT), split_of)
