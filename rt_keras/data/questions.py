"""Questions with the texts that answer them, as in SQuAD."""

from rt_keras.data.batches import filled_batches, prepared
from rt_keras.data.data_sets import DataSets
from rt_keras.data.examples import shuffled_batches

# Those in which every question has an answer; the first is the second.
SETS = DataSets("squad or squad/v1.1", "squad(/v1.1)?")


def load_questions(name, split, data_dir=None):
    """The questions of one split.

    Args:
        name: "squad" or "squad/v1.1", which TensorFlow Datasets downloads if needed.
        split: "train" or "validation".
        data_dir: path of the folder for prepared data sets. Defaults to that of TensorFlow
            Datasets.

    Returns:
        `tf.data.Dataset` of {"question", "context", scalar strings; "answers", strings
        `[answers]`; "answer_starts", int32 `[answers]`, the number of characters of the context
        before each}, in a fixed order.

    Raises:
        ValueError: if there is no such set or split.
        OSError: if the set cannot be downloaded and prepared.

    Source: Rajpurkar et al. 2016, SQuAD: 100,000+ Questions for Machine Comprehension of Text.
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
    """Questions with one answer each, their first.

    Args:
        questions: `tf.data.Dataset`, as from `load_questions`.

    Returns:
        `tf.data.Dataset` of {"question", "context", "answer", "answer_start"}, as
        `RoutingTransformerSpanPredictorPreprocessor` takes them.
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
    """Endless batches to `fit` a `RoutingTransformerSpanPredictor` with `steps_per_epoch`.

    Batch b depends on the questions, the seed and b alone: each pass over them has an order of its
    own, which is computed place by place. So a training may start at any batch, at once, and
    several workers may each read a part of every batch.

    Args:
        packed: folder that `pack_examples` filled with questions `with_first_answer`.
        preprocessor: a `RoutingTransformerSpanPredictorPreprocessor`. The model must have no
            preprocessor of its own, or it would be applied twice.
        batch_size: int, number of questions in a batch, those of all workers together.
        seed: int, for the order. Defaults to 0.
        first_batch: int, the number of the batch to start with. Defaults to 0.
        share: pair of ints (worker, workers), to read only one of `workers` equal parts of each
            batch. Defaults to (0, 1), all of it.

    Returns:
        `tf.data.Dataset` of (inputs, labels, weights), as the preprocessor makes them: the inputs
        are "token_ids", int32, "padding_mask" and "context_mask", bool, all
        `[batch_size / workers, sequence_length]`; the labels, int32, and the weights, float32, are
        `[batch_size / workers, 2]`.

    Raises:
        FileNotFoundError: if the folder holds no packed questions, or lacks a file.
        ValueError: if a number is out of range, if the workers do not divide `batch_size`, or if
            questions were not packed to the end or a file is damaged.

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
    """Batches in which each question occurs once, in order.

    Args:
        questions: `tf.data.Dataset` of questions `with_first_answer`.
        preprocessor: a `RoutingTransformerSpanPredictorPreprocessor`.
        batch_size: int, number of questions in a batch.

    Returns:
        `tf.data.Dataset` of (inputs, labels, weights), as from `training_questions`. The weights
        are 0 for the empty questions that fill up the last batch.

    Raises:
        ValueError: if `batch_size` is less than 1.
    """
    return prepared(filled_batches(questions, batch_size), preprocessor)
