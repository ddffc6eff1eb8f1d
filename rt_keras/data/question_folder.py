"""Questions with long answers and passages in a folder as TensorFlow datasets."""

import re

from rt_keras.data.file_reading import (
    check_list,
    check_text,
    one_file_each,
    read_json_lines,
    wrong_folder,
)
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

    def _generate_examples(self, split):
        path = self.directory / self.files[split][0]
        number = 0
        for number, question in read_json_lines(path, self._question):
            yield number, question
        if number == 0:
            raise ValueError(f"{path} has no questions")

    def _question(self, values):
        """Returns the features of the JSON object of a line."""
        unknown = sorted(values.keys() - {"question", *LISTS})
        if unknown:
            raise ValueError(
                f"its keys must be question, {', '.join(LISTS)}. Received: {', '.join(unknown)}"
            )
        question = {"question": None, **dict.fromkeys(LISTS, []), **values}
        check_text("question", question["question"])
        for name in LISTS:
            check_list(name, question[name], str, "texts")
        return question


# KILT's names of the splits.
NAMES = {"train": "train", "dev": "validation", "test_without_answers": "test", "test": "test"}
FILE = re.compile(rf"(?P<set>.+)-(?P<split>{'|'.join(NAMES)})-kilt\.jsonl")


class Kilt(QuestionFolder):
    """Builder of a dataset with the questions of a data set of KILT.

    The folder has the files of one data set under the names of KILT, such as
    `eli5-train-kilt.jsonl`, `eli5-dev-kilt.jsonl` and `eli5-test_without_answers-kilt.jsonl`. Other
    files are ignored, and a split without a file does not exist. "dev" is the split "validation".

    Features, as of `QuestionFolder`: "question", the input; "answers", the distinct answers;
    "documents", the distinct sets of ids of pages of Wikipedia, each set joined with tabs;
    "passages" and "negatives", which are empty.

    Args:
        directory: path of the folder.
        data_dir: path of the folder for prepared data sets. Defaults to that of TensorFlow
            Datasets.
        **kwargs: other keyword arguments of `tfds.core.GeneratorBasedBuilder`.

    Raises:
        FileNotFoundError: if the folder does not exist or has no such file.
        ValueError: if the folder has files of two data sets, or two files for a split; during
            preparation, if a file has no questions, or if a line is not in the format of KILT.

    Source: Petroni et al. 2021, KILT: a Benchmark for Knowledge Intensive Language Tasks.

    Example:

    >>> import json
    >>> import tempfile
    >>> from pathlib import Path
    >>> import tensorflow_datasets as tfds
    >>> folder = Path(tempfile.mkdtemp(), "eli5")
    >>> folder.mkdir()
    >>> pages = [{"wikipedia_id": "12", "title": "Sky"}]
    >>> line = {"id": "a", "input": "why blue?", "output": [{"answer": "so", "provenance": pages}]}
    >>> _ = (folder / "eli5-dev-kilt.jsonl").write_text(json.dumps(line))
    >>> builder = Kilt(folder, data_dir=tempfile.mkdtemp())
    >>> builder.download_and_prepare()
    >>> for question in tfds.as_numpy(builder.as_dataset(split="validation")):
    ...     print(question["question"], question["answers"], question["documents"])
    b'why blue?' [b'so'] [b'12']
    """

    split_files = "the file NAME-{split}-kilt.jsonl of KILT, where validation is dev"

    def _files_by_split(self):
        names = one_file_each(self.directory, FILE, lambda x: (x["set"], NAMES[x["split"]]))
        if not names:
            problem = "directory must hold files of KILT, such as eli5-train-kilt.jsonl"
            raise wrong_folder(problem, self.directory)
        sets = sorted({name for name, _ in names})
        if len(sets) > 1:
            problem = f"directory must hold one data set of KILT, not {', '.join(sets)}"
            raise wrong_folder(problem, self.directory, ValueError)
        files = {split: name for (_, split), name in names.items()}
        return {split: [files[split]] for split in SPLITS if split in files}

    def _question(self, values):
        check_text("input", values.get("input"))
        outputs = values.get("output", [])
        check_list("output", outputs, dict, "objects")
        answers = [_answer(output) for output in outputs]
        documents = [_pages(output["provenance"]) for output in outputs if "provenance" in output]
        return {
            **dict.fromkeys(LISTS, []),
            "question": values["input"],
            "answers": list(dict.fromkeys(filter(None, answers))),
            "documents": list(dict.fromkeys(documents)),
        }


def _answer(output):
    """Returns the answer of an output, or an empty text."""
    answer = output.get("answer") or ""
    check_text("answer", answer, may_be_empty=True)
    return answer.strip()


def _pages(provenance):
    """Returns the distinct ids of the pages of an output, joined.

    There may be none: KILT counts an output with an empty list as one that is never found.
    """
    check_list("provenance", provenance, dict, "objects")
    if not all(page.get("wikipedia_id") for page in provenance):
        raise ValueError("each page of provenance must have a wikipedia_id")
    return "\t".join(dict.fromkeys(str(page["wikipedia_id"]).strip() for page in provenance))
