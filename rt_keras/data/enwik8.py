"""The first 10^8 bytes of a Wikipedia dump from 2006 as a TensorFlow dataset."""

import hashlib
import zipfile

from rt_keras.data.file_reading import wrong_folder
from rt_keras.data.text_folder import TextFolder


class Enwik8(TextFolder):
    """Builder of enwik8 with its usual splits of 90, 5 and 5 million bytes.

    It reads `enwik8` or `enwik8.zip` (http://mattmahoney.net/dc/enwik8.zip) from a folder. Each
    split is one document.

    Features: "text", the bytes; "id", the name of the split.

    Args:
        directory: path of the folder that holds either file.
        data_dir: path of the folder for prepared data sets. Defaults to that of TensorFlow
            Datasets.
        **kwargs: other keyword arguments of `tfds.core.GeneratorBasedBuilder`.

    Raises:
        FileNotFoundError: if the folder has neither file.
        ValueError: if the MD5 sum of the file differs from that of enwik8.

    Source: Hutter 2006, the prize for compressing human knowledge; splits: Al-Rfou et al. 2019,
    Character-Level Language Modeling with Deeper Self-Attention.
    """

    MD5 = "a1fa5ffddb56f4953e226637dabbb36a"
    # Start and end of each split, in bytes.
    PARTS = {
        "train": (0, 90_000_000),
        "validation": (90_000_000, 95_000_000),
        "test": (95_000_000, 100_000_000),
    }

    def _files_by_split(self):
        for name in ("enwik8", "enwik8.zip"):
            if (self.directory / name).is_file():
                return dict.fromkeys(self.PARTS, [name])
        raise wrong_folder("directory must hold enwik8 or enwik8.zip", self.directory)

    def _generate_examples(self, split):
        start, end = self.PARTS[split]
        yield split, {"text": self._read()[start:end], "id": split}

    def _read(self):
        """Returns the whole text after checking its MD5 sum."""
        path = self.directory / self.files["train"][0]
        if path.suffix == ".zip":
            try:
                text = zipfile.ZipFile(path).read("enwik8")
            except (zipfile.BadZipFile, KeyError) as error:
                raise ValueError(f"{path} is not the archive of enwik8: {error}") from None
        else:
            text = path.read_bytes()
        md5 = hashlib.md5(text).hexdigest()
        if md5 != self.MD5:
            raise ValueError(
                f"{path} is not enwik8, of 100,000,000 bytes and MD5 sum {self.MD5}: it has "
                f"{len(text):,} bytes and {md5}"
            )
        return text
