"""WikiText-103 as a TensorFlow dataset, from its token files."""

import hashlib
import re
import zipfile

from rt_keras.data.folder_files import wrong_folder
from rt_keras.data.text_folder import TextFolder

ARCHIVE = "wikitext-103-v1.zip"
# The first line of an article: its title between single equals signs.
TITLE = re.compile(rb"^ = (?!= ).*(?<! =) = ?\n", re.MULTILINE)


class WikiText103(TextFolder):
    """Builder of word-level WikiText-103 with one document per article.

    It reads `wiki.train.tokens`, `wiki.valid.tokens` and `wiki.test.tokens`, or their archive
    `wikitext-103-v1.zip`, from a folder. An article starts at its title; concatenated, the articles
    are the original files byte for byte.

    Features: "text", the bytes of the article; "id", its split and number.

    Args:
        directory: path of the folder that holds the files or the archive.
        data_dir: path of the folder for prepared data sets. Defaults to that of TensorFlow
            Datasets.
        **kwargs: other keyword arguments of `tfds.core.GeneratorBasedBuilder`.

    Raises:
        FileNotFoundError: if the folder holds neither.
        ValueError: if the MD5 sum of the archive or the number of lines of a file is wrong.

    Source: Merity et al. 2017, Pointer Sentinel Mixture Models, section 4.3.
    """

    MD5 = "9ddaacaf6af0710eda8c456decff7832"
    LINES = {"train": 1_801_350, "validation": 3_760, "test": 4_358}

    def _files_by_split(self):
        names = {split: _file_name(split) for split in self.LINES}
        if all((self.directory / name).is_file() for name in names.values()):
            return {split: [name] for split, name in names.items()}
        if (self.directory / ARCHIVE).is_file():
            return dict.fromkeys(names, [ARCHIVE])
        problem = f"directory must hold {', '.join(names.values())}, or {ARCHIVE}"
        raise wrong_folder(problem, self.directory)

    def _generate_examples(self, split):
        text = self._read(split)
        starts = [found.start() for found in TITLE.finditer(text)]
        # The empty line before the first title belongs to the first article.
        starts = [0, *starts[1:]]
        for number, (start, end) in enumerate(zip(starts, [*starts[1:], len(text)])):
            name = f"{split}/{number}"
            yield name, {"text": text[start:end], "id": name}

    def _read(self, split):
        """Returns the text of a split after checking it."""
        name = self.files[split][0]
        path = self.directory / name
        zipped = name == ARCHIVE
        text = self._read_from_archive(path, split) if zipped else path.read_bytes()
        lines = text.count(b"\n")
        if lines != self.LINES[split]:
            raise ValueError(
                f"{path} is not WikiText-103: {split} has {lines:,} lines, not "
                f"{self.LINES[split]:,}"
            )
        return text

    def _read_from_archive(self, path, split):
        md5 = hashlib.md5(path.read_bytes()).hexdigest()
        if md5 != self.MD5:
            raise ValueError(f"{path} is not WikiText-103: its MD5 sum is {md5}, not {self.MD5}")
        return zipfile.ZipFile(path).read(f"wikitext-103/{_file_name(split)}")


def _file_name(split):
    return f"wiki.{'valid' if split == 'validation' else split}.tokens"
