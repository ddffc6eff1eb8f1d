"""WikiText-103 as a TensorFlow dataset, from its token files."""

import hashlib
import itertools
import re
import zipfile

from rt_keras.data.file_reading import wrong_folder
from rt_keras.data.text_folder import TextFolder

ARCHIVE = "wikitext-103-v1.zip"
NAMES = {
    "train": "wiki.train.tokens",
    "validation": "wiki.valid.tokens",
    "test": "wiki.test.tokens",
}
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
        if all((self.directory / name).is_file() for name in NAMES.values()):
            return {split: [name] for split, name in NAMES.items()}
        if (self.directory / ARCHIVE).is_file():
            return dict.fromkeys(NAMES, [ARCHIVE])
        problem = f"directory must hold {', '.join(NAMES.values())}, or {ARCHIVE}"
        raise wrong_folder(problem, self.directory)

    def _generate_examples(self, split):
        text = self._read(split)
        # The empty line before the first title belongs to the first article.
        starts = [0, *[title.start() for title in TITLE.finditer(text)][1:], len(text)]
        for number, (start, end) in enumerate(itertools.pairwise(starts)):
            name = f"{split}/{number}"
            yield name, {"text": text[start:end], "id": name}

    def _read(self, split):
        """Returns the text of a split after checking it."""
        path = self.directory / self.files[split][0]
        text = path.read_bytes()
        if path.name == ARCHIVE:
            md5 = hashlib.md5(text).hexdigest()
            if md5 != self.MD5:
                raise ValueError(f"{path} is not WikiText-103: its MD5 sum is {md5}")
            text = zipfile.ZipFile(path).read(f"wikitext-103/{NAMES[split]}")
        lines, needed = text.count(b"\n"), self.LINES[split]
        if lines != needed:
            problem = f"{split} has {lines:,} lines, not {needed:,}"
            raise ValueError(f"{path} is not WikiText-103: {problem}")
        return text
