"""A folder of recordings with their texts as a TensorFlow dataset."""

import posixpath

from rt_keras.data import progress
from rt_keras.data.file_reading import list_files, read_utf8
from rt_keras.data.sound_file import SUFFIXES, read_sound
from rt_keras.data.text_folder import SPLITS, TEXT, TextFolder, group_by_split, split_of, top_folder
from rt_keras.data.wav import SAMPLING_RATE, encode_wav

LIST = "transcripts.tsv"


class SpeechFolder(TextFolder):
    """Builder of a dataset with one recording and its text per sound file of a folder.

    The sounds are WAV, FLAC, OGG or MP3 files of any sampling rate, which are mixed to one channel
    and resampled to 16 kHz. Their texts are in the file `transcripts.tsv` of the folder, with the
    relative path of a sound, a tab and its text in each line; without such a list, in a `.txt` file
    next to each sound. Both are UTF-8, and any white space in a text becomes one space. Sounds
    without a text or with an empty one are left out, and so are, during preparation, files that
    `read_sound` refuses.

    If the folder has any of the subfolders `train`, `validation` and `test`, they are the splits.
    Otherwise `split_of` assigns each sound to a split: by the path of its subfolder, so that the
    recordings of one speaker or scene stay together, or by its name if it is in no subfolder.

    Features: "sound", the bytes of a WAV file of 16 bits; "text"; "id", the path of the sound. The
    metadata "left_out" lists files that cannot be read, with the reasons.

    Args:
        directory: path of the folder.
        data_dir: path of the folder for prepared data sets. Defaults to that of TensorFlow
            Datasets.
        **kwargs: other keyword arguments of `tfds.core.GeneratorBasedBuilder`.

    Attributes:
        files: dictionary from each split to the names of its sounds.
        split_note: string, one line on the split and on what is left out.

    Raises:
        FileNotFoundError: if the folder does not exist or has no sounds, or if the list names a
            file that does not exist.
        ValueError: if a list is damaged or no sound has a text; during preparation, if no file of a
            split can be read.

    Example:

    >>> import tempfile
    >>> from pathlib import Path
    >>> import tensorflow_datasets as tfds
    >>> folder = Path(tempfile.mkdtemp(), "words")
    >>> folder.mkdir()
    >>> _ = (folder / "yes.wav").write_bytes(encode_wav([0.0] * 8, 16_000))
    >>> _ = (folder / "yes.txt").write_text("yes")
    >>> builder = SpeechFolder(folder, data_dir=tempfile.mkdtemp())
    >>> builder.download_and_prepare()
    >>> for example in tfds.as_numpy(builder.as_dataset(split=list(builder.files)[0])):
    ...     print(example["id"], example["text"], len(example["sound"]))
    b'yes.wav' b'yes' 60
    """

    split_files = "sounds whose folders belong to {split} by their hash; add a folder {split}"
    features = dict.fromkeys(("id", "sound", "text"), TEXT)

    def _files_by_split(self):
        sounds = list_files(self.directory, SUFFIXES)
        self.texts = self._texts(sounds)
        if not self.texts:
            raise ValueError(
                f"directory must hold {LIST} or a .txt file next to each sound. Received: "
                f"directory={str(self.directory)!r}, which has {len(sounds):,} sounds and no text"
            )
        if self.has_split_folders():
            split, how = top_folder, "in folders of their own"
        else:
            split, how = _split_of_folder, "split by the hashes of their folders"
        files = group_by_split([name for name in sounds if name in self.texts], split)
        count = sum(map(len, files.values()))
        left_out = sum(split(name) in SPLITS for name in sounds) - count
        self.split_note = (
            f"{count:,} recordings, {how}; {left_out:,} sounds without a text are left out"
        )
        return files

    def _texts(self, sounds):
        """Returns the text of each sound that has one, by name."""
        path = self.directory / LIST
        if path.is_file():
            texts = _read_list(path)
            if missing := sorted(texts.keys() - set(sounds)):
                raise FileNotFoundError(
                    f"{path} names {missing[0]!r}, which does not exist or does not end in "
                    f"{' or '.join(SUFFIXES)} (such lines: {len(missing):,})"
                )
        else:
            paths = {name: (self.directory / name).with_suffix(".txt") for name in sounds}
            texts = {name: read_utf8(path) for name, path in paths.items() if path.is_file()}
        return {name: " ".join(text.split()) for name, text in texts.items() if text.strip()}

    def size_and_time(self, name):
        size, time = super().size_and_time(name)
        # The prepared copy also depends on the text.
        return size, f"{time} {self.texts[name]}"

    def _generate_examples(self, split):
        names, problems = self.files[split], []
        for name in progress.track(names, "reading sounds", len(names)):
            path = self.directory / name
            try:
                sound = encode_wav(read_sound(path), SAMPLING_RATE)
            except ValueError as error:
                problems.append(f"{name} ({str(error).removeprefix(f'{path} ')})")
                continue
            yield name, {"sound": sound, "text": self.texts[name], "id": name}
        if len(problems) == len(names):
            message = f"none of {len(names):,} recordings can be read, such as {problems[0]}"
            raise ValueError(message)
        self.info.metadata["left_out"] += problems


def _read_list(path):
    """Returns the texts of a list, by the names of the sounds."""
    texts = {}
    for number, line in enumerate(read_utf8(path).split("\n"), start=1):
        row = line.removesuffix("\r").split("\t")
        if row == [""]:
            continue
        if len(row) != 2:
            problem = "there must be the path of a sound, a tab and its text"
            raise ValueError(f"{path}, line {number}: {problem}")
        name = posixpath.normpath(row[0])
        if name in texts:
            raise ValueError(f"{path}, line {number}: {name!r} is in the list twice")
        texts[name] = row[1]
    return texts


def _split_of_folder(name):
    return split_of(name.rpartition("/")[0] or name)
