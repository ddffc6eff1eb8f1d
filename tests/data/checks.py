"""Small data sets in the format of TensorFlow Datasets."""

import pytest
import tensorflow_datasets as tfds


def write_set(name, data_dir, splits):
    """Writes a few examples with the set's builder, as if they were the whole download.

    Args:
        name: name in TensorFlow Datasets.
        data_dir: folder of the builder's prepared data.
        splits: dictionary from each split to the list of its examples.
    """
    builder = tfds.builder(name, data_dir=data_dir)
    here = tfds.download.DownloadConfig(try_download_gcs=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            type(builder),
            "_split_generators",
            lambda self, _: {split: enumerate(examples) for split, examples in splits.items()},
        )
        builder.download_and_prepare(download_config=here)


def write_questions(data_dir, **counts):
    """Writes questions in the format of SQuAD.

    Args:
        data_dir: folder of the builder's prepared data.
        **counts: number of questions of each split.
    """

    def question(number):
        # One letter before the answer has two bytes.
        context = f"é: {number} is Ann."
        return {
            "id": str(number),
            "title": "names",
            "context": context,
            "question": f"who is {number}?",
            "answers": {"text": ["Ann", "Ann."], "answer_start": [context.index("Ann")] * 2},
        }

    write_set("squad", data_dir, {x: list(map(question, range(n))) for x, n in counts.items()})
