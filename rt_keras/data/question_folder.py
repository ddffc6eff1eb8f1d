"""A folder of questions with long answers and passages as a TensorFlow dataset."""

from rt_keras.data.folder_files import wrong_folder
from rt_keras.data.json_lines import check_list, check_text, read_json_lines
from rt_keras.data.text_folder import SPLITS, TEXT, TEXTS, TextFolder

LISTS = ("answers", "passages", "negatives", "documents")


class QuestionFolder(TextFolder):
    """Builder of a dataset with one question per line of a file of JSON lines.

    Each split has a UTF-8 file, `train.jsonl`, `validation.jsonl` or `test.jsonl`. A split without
    a file does not exist. Each line is a JSON object with these keys, of which only "question" is
    required; the others are lists of strings, and empty if they are missing. Blank lines are
    skipped.

    - "question".
    - "answers": the reference answers.
    - "passages": texts that hold the answer, or that were retrieved, best first.
    - "negatives": texts that do not hold the answer.
    - "documents": the documents that the answer is in, by their ids, as in `read_documents`. Each
      alone is enough; join ids with tabs where an answer needs several documents.

    Features: these five.

    Args:
        directory: path of the folder.
        data_dir: path of the folder for prepared data sets. Defaults to that of TensorFlow
            Datasets.
        **kwargs: other keyword arguments of `tfds.core.GeneratorBasedBuilder`.

    Raises:
        FileNotFoundError: if the folder does not exist or has no such file.
        ValueError: during preparation, if a file has no questions, or if a line is not UTF-8, not
            a JSON object, has an unknown key or a value of a wrong type, or has no question.

    Example:

    >>> import tempfile
    >>> from pathlib import Path
    >>> import tensorflow_datasets as tfds
    >>> folder = Path(tempfile.mkdtemp(), "questions")
    >>> folder.mkdir()
    >>> line = '{"question": "why?", "answers": ["so", "because"]}'
    >>> _ = (folder / "train.jsonl").write_text(line)
    >>> builder = QuestionFolder(folder, data_dir=tempfile.mkdtemp())
    >>> builder.download_and_prepare()
    >>> for question in tfds.as_numpy(builder.as_dataset(split="train")):
    ...     print(question["question"], question["answers"].tolist(), question["passages"].tolist())
    b'why?' [b'so', b'because'] []
    """

    split_files = "the file {split}.jsonl"
    features = {"question": TEXT, **dict.fromkeys(LISTS, TEXTS)}

    def _files_by_split(self):
        names = {split: f"{split}.jsonl" for split in SPLITS}
        files = {x: [name] for x, name in names.items() if (self.directory / name).is_file()}
        if not files:
            raise wrong_folder(f"directory must hold {' or '.join(names.values())}", self.directory)
        return files

    def _check(self, split):
        if not sum(1 for _ in self._generate_examples(split)):
            raise ValueError(f"{self.directory / self.files[split][0]} has no questions")

    def _generate_examples(self, split):
        (name,) = self.files[split]
        return read_json_lines(self.directory / name, self._question)

    def _question(self, values):
        """Returns the features of the JSON object of a line."""
        unknown = sorted(values.keys() - {"question", *LISTS})
        if unknown:
            raise ValueError(
                f"its keys must be question, {', '.join(LISTS)}. Received: {', '.join(unknown)}"
            )
        question = {"question": values.get("question")}
        check_text("question", question["question"])
        for name in LISTS:
            question[name] = values.get(name, [])
            check_list(name, question[name], str, "texts")
        return question
