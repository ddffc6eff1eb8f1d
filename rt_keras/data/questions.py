"""Questions with the texts that contain their answers, as in SQuAD."""

from rt_keras.data.batches import filled_batches, prepared
from rt_keras.data.data_sets import DataSets
from rt_keras.data.examples import shuffled_batches

# The sets in which every question has an answer; "squad" means "squad/v1.1".
SETS = DataSets("squad or squad/v1.1", "squad(/v1.1)?")


def load_questions(name, split, data_dir=None):
    """Loads the questions of one split.

    Args:
        name: "squad" or "squad/v1.1", the same set, downloaded by TensorFlow Datasets if needed.
        split: "train" or "validation".
        data_dir: path of the folder for prepared data sets. Defaults to that of TensorFlow
            Datasets.

    Returns:
        `tf.data.Dataset` of dictionaries, in a fixed order: "question" and "context", scalar
        strings; "answers", strings `[answers]`; and "answer_starts", int32 `[answers]`, the number
        of characters of the context before each answer.

    Raises:
        ValueError: if there is no such set or split.
        OSError: if the set cannot be downloaded and prepared.

    Source: Rajpurkar et al. 2016, SQuAD: 100,000+ Questions for Machine Comprehension of Text.

    Example with a prepared set of one question instead of a download:

    >>> import tempfile
    >>> import tensorflow as tf
    >>> import tensorflow_datasets as tfds
    >>> folder = tempfile.mkdtemp()
    >>> info = tfds.builder("squad", data_dir=folder).info
    >>> question = {"id": "1", "title": "names", "question": "who?", "context": "it was Ann"}
    >>> question["answers"] = {"text": ["Ann"], "answer_start": [7]}
    >>> questions = {"train": tf.data.Dataset.from_tensors(question)}
    >>> store = tfds.dataset_builders.store_as_tfds_dataset
    >>> _ = store("squad", info.version, info.features, questions, data_dir=folder, config="v1.1")
    Downloading and preparing dataset ...
    >>> for example in load_questions("squad", "train", folder):
    ...     print(example["answers"].numpy(), example["answer_starts"].numpy())
    [b'Ann'] [7]
    """
    from rt_keras.data import tfds_sets

    def rename(example):
        return {
            "question": example["question"],
            "context": example["context"],
            "answers": example["answers"]["text"],
            "answer_starts": example["answers"]["answer_start"],
        }

    builder = tfds_sets.prepare(SETS.builder(name, data_dir=data_dir))
    return tfds_sets.read(builder, split).map(rename)


def with_first_answer(questions):
    """Keeps only the first answer of each question.

    Args:
        questions: `tf.data.Dataset`, as from `load_questions`.

    Returns:
        `tf.data.Dataset` of {"question", "context", "answer", "answer_start"}, the inputs of
        `RoutingTransformerSpanPredictorPreprocessor`.
    """

    def choose(example):
        return {
            "question": example["question"],
            "context": example["context"],
            "answer": example["answers"][0],
            "answer_start": example["answer_starts"][0],
        }

    return questions.map(choose)


def training_questions(packed, preprocessor, batch_size, seed=0, first_batch=0, share=(0, 1)):
    """Returns endless batches to `fit` a `RoutingTransformerSpanPredictor`.

    Use them with `steps_per_epoch`. Batch b depends only on the questions, the seed and b: each
    pass uses a new random order, computed one index at a time. Training can therefore start at any
    batch without delay, and each of several workers can read its part of every batch.

    Args:
        packed: path of a folder of questions `with_first_answer`, packed by `pack_examples`.
        preprocessor: a `RoutingTransformerSpanPredictorPreprocessor`. The model itself must have
            none, or it is applied twice.
        batch_size: int, number of questions in a batch, over all workers.
        seed: int, seed of the order. Defaults to 0.
        first_batch: int, index of the first batch. Defaults to 0.
        share: pair of ints `(worker, workers)`. Each batch is split into `workers` equal parts, and
            only part `worker` is read. Defaults to `(0, 1)`, the whole batch.

    Returns:
        `tf.data.Dataset` of (inputs, labels, weights), as the preprocessor returns them. The inputs
        are a dictionary of "token_ids", int32, "padding_mask" and "context_mask", bool, all
        `[batch_size / workers, sequence_length]`. The labels, int32, and the weights, float32, are
        `[batch_size / workers, 2]`.

    Raises:
        FileNotFoundError: if the folder holds no packed questions, or a file is missing.
        ValueError: if a number is out of range, if `batch_size` is not a multiple of the number of
            workers, if packing is incomplete, or if a file is damaged.

    Example:

    >>> import tempfile
    >>> import tensorflow as tf
    >>> from rt_keras.data import ByteTokenizer, pack_examples
    >>> from rt_keras.models import RoutingTransformerSpanPredictorPreprocessor
    >>> preprocessor = RoutingTransformerSpanPredictorPreprocessor(ByteTokenizer(), 24)
    >>> question = {"question": "who?", "context": "it was Ann"}
    >>> questions = tf.data.Dataset.from_tensors({**question, "answer": "Ann", "answer_start": 7})
    >>> packed = pack_examples(questions, tempfile.mkdtemp())
    >>> inputs, labels, weights = next(iter(training_questions(packed, preprocessor, 1)))
    >>> labels.numpy(), weights.numpy()
    (array([[13, 15]], dtype=int32), array([[1., 1.]], dtype=float32))
    """
    batches = shuffled_batches(packed, batch_size, seed, first_batch, share)
    return prepared(batches, preprocessor)


def evaluation_questions(questions, preprocessor, batch_size):
    """Returns batches that contain each question once, in order.

    Args:
        questions: `tf.data.Dataset` of questions `with_first_answer`.
        preprocessor: a `RoutingTransformerSpanPredictorPreprocessor`.
        batch_size: int, number of questions in a batch.

    Returns:
        `tf.data.Dataset` of (inputs, labels, weights), as from `training_questions`. The weights
        are 0 for the empty questions that pad the last batch.

    Raises:
        ValueError: if `batch_size` is less than 1.

    Example:

    >>> import tensorflow as tf
    >>> from rt_keras.data import ByteTokenizer
    >>> from rt_keras.models import RoutingTransformerSpanPredictorPreprocessor
    >>> preprocessor = RoutingTransformerSpanPredictorPreprocessor(ByteTokenizer(), 24)
    >>> question = {"question": "who?", "context": "it was Ann"}
    >>> questions = tf.data.Dataset.from_tensors({**question, "answer": "Ann", "answer_start": 7})
    >>> for _, _, weights in evaluation_questions(questions, preprocessor, batch_size=2):
    ...     print(weights.numpy().tolist())
    [[1.0, 1.0], [0.0, 0.0]]
    """
    return prepared(filled_batches(questions, batch_size), preprocessor)
