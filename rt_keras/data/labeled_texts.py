"""Labeled texts and pairs of texts, for classifiers."""

import tensorflow as tf

from rt_keras.data.batches import filled_batches, prepared
from rt_keras.data.data_sets import DataSets
from rt_keras.data.examples import shuffled_batches

# The sets of GLUE whose labels are classes.
SETS = DataSets(
    "csv_folder or a set of GLUE with classes, such as glue/sst2",
    "glue/(cola|sst2|mrpc|qqp|mnli|qnli|rte|wnli)",
    folders={"csv_folder": "CsvFolder"},
)


def load_labeled_texts(name, split, directory=None, data_dir=None):
    """Loads the labeled texts of one split.

    Args:
        name: "csv_folder" (the CSV files of `directory`; see `CsvFolder`), or a set of GLUE,
            downloaded by TensorFlow Datasets if needed: "glue/cola", "glue/sst2", "glue/mrpc",
            "glue/qqp", "glue/mnli", "glue/qnli", "glue/rte" or "glue/wnli".
        split: "train", "validation" or "test". For MNLI, the last two are the matched sets. GLUE
            does not publish the labels of "test"; they are -1.
        directory: path of the folder for "csv_folder".
        data_dir: path of the folder for prepared data sets. Defaults to that of TensorFlow
            Datasets.

    Returns:
        `tf.data.Dataset` of dictionaries, in a fixed order: "text", a scalar string; "text_pair",
        another one, if the set consists of pairs; and "label", an int32 scalar.

    Raises:
        FileNotFoundError: if the folder or its files do not exist.
        ValueError: if there is no such set or split, if `directory` is missing or given to a set
            that does not take one, or if a file lacks a column or a record lacks a label.
        OSError: if the set cannot be downloaded and prepared.

    Source: Wang et al. 2019, GLUE.

    Example:

    >>> import tempfile
    >>> from pathlib import Path
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "test.csv").write_text("text,label\\nnot bad,1\\n")
    >>> texts = load_labeled_texts("csv_folder", "test", folder, data_dir=folder / "prepared")
    >>> list(texts.as_numpy_iterator())
    [{'text': b'not bad', 'label': np.int32(1)}]
    """
    from rt_keras.data import tfds_sets

    builder = tfds_sets.prepare(SETS.builder(name, directory, data_dir))
    columns = builder.texts if name in SETS.folders else builder.builder_config.text_features
    matched = f"{split}_matched"
    if split not in builder.info.splits and matched in builder.info.splits:
        split = matched

    def rename(example):
        texts = {new: example[column] for new, column in zip(("text", "text_pair"), columns)}
        return {**texts, "label": tf.cast(example["label"], tf.int32)}

    return tfds_sets.read(builder, split).map(rename)


def check_labels(texts, num_classes):
    """Raises a ValueError if a label is not a class number.

    Args:
        texts: `tf.data.Dataset`, as from `load_labeled_texts`.
        num_classes: int, number of classes.

    >>> check_labels(tf.data.Dataset.from_tensors({"text": "a", "label": 2}), num_classes=2)
    Traceback (most recent call last):
    ...
    ValueError: labels must be from 0 to 1, as model.num_classes is 2. Received: a label 2
    """

    def extend(bounds, example):
        label = tf.cast(example["label"], tf.int64)
        return tf.stack([tf.minimum(bounds[0], label), tf.maximum(bounds[1], label)])

    lowest, highest = texts.reduce(tf.zeros([2], tf.int64), extend).numpy().tolist()
    wrong = lowest if lowest < 0 else highest
    if not 0 <= wrong < num_classes:
        unknown = ", which stands for an unpublished label" if wrong == -1 else ""
        raise ValueError(
            f"labels must be from 0 to {num_classes - 1}, as model.num_classes is {num_classes}. "
            f"Received: a label {wrong}{unknown}"
        )


def training_labeled_texts(packed, preprocessor, batch_size, seed=0, first_batch=0, share=(0, 1)):
    """Returns endless batches to `fit` a `RoutingTransformerTextClassifier`.

    Use them with `steps_per_epoch`. Batch b depends only on the texts, the seed and b: each pass
    uses a new random order, computed one index at a time. Training can therefore start at any batch
    without delay, and each of several workers can read its part of every batch.

    Args:
        packed: path of a folder of labeled texts packed by `pack_examples`.
        preprocessor: a `RoutingTransformerTextClassifierPreprocessor`. The model itself must have
            none, or it is applied twice.
        batch_size: int, number of texts in a batch, over all workers.
        seed: int, seed of the order. Defaults to 0.
        first_batch: int, index of the first batch. Defaults to 0.
        share: pair of ints `(worker, workers)`. Each batch is split into `workers` equal parts, and
            only part `worker` is read. Defaults to `(0, 1)`, the whole batch.

    Returns:
        `tf.data.Dataset` of ({"token_ids": int32, "padding_mask": bool}, `[batch_size / workers,
        sequence_length]`; labels int32 and weights float32, `[batch_size / workers]`).

    Raises:
        FileNotFoundError: if the folder holds no packed texts, or a file is missing.
        ValueError: if a number is out of range, if `batch_size` is not a multiple of the number of
            workers, if packing is incomplete, or if a file is damaged.

    Example:

    >>> import tempfile
    >>> from rt_keras.data import ByteTokenizer, pack_examples
    >>> from rt_keras.models import RoutingTransformerTextClassifierPreprocessor
    >>> preprocessor = RoutingTransformerTextClassifierPreprocessor(ByteTokenizer(), 6)
    >>> texts = tf.data.Dataset.from_tensors({"text": "bad", "label": 0})
    >>> packed = pack_examples(texts, tempfile.mkdtemp())
    >>> inputs, labels, weights = next(iter(training_labeled_texts(packed, preprocessor, 2)))
    >>> inputs["token_ids"].shape, labels.numpy(), weights.numpy()
    (TensorShape([2, 6]), array([0, 0], dtype=int32), array([1., 1.], dtype=float32))
    """
    batches = shuffled_batches(packed, batch_size, seed, first_batch, share)
    return prepared(batches, _prepare(preprocessor))


def evaluation_labeled_texts(texts, preprocessor, batch_size):
    """Returns batches that contain each text once, in order.

    Args:
        texts: `tf.data.Dataset`, as from `load_labeled_texts`.
        preprocessor: a `RoutingTransformerTextClassifierPreprocessor`.
        batch_size: int, number of texts in a batch.

    Returns:
        `tf.data.Dataset` of (inputs, labels, weights), as from `training_labeled_texts`. The
        weights are 0 for the empty texts that pad the last batch.

    Raises:
        ValueError: if `batch_size` is less than 1.

    Example:

    >>> from rt_keras.data import ByteTokenizer
    >>> from rt_keras.models import RoutingTransformerTextClassifierPreprocessor
    >>> preprocessor = RoutingTransformerTextClassifierPreprocessor(ByteTokenizer(), 6)
    >>> texts = tf.data.Dataset.from_tensors({"text": "good", "label": 1})
    >>> for _, labels, weights in evaluation_labeled_texts(texts, preprocessor, batch_size=2):
    ...     print(labels.numpy(), weights.numpy())
    [1 0] [1. 0.]
    """
    return prepared(filled_batches(texts, batch_size), _prepare(preprocessor))


def _prepare(preprocessor):
    """Returns a function that preprocesses a batch and gives every label weight 1."""

    def prepare(batch):
        texts = tuple(batch[name] for name in ("text", "text_pair") if name in batch)
        inputs, labels = preprocessor(texts, batch["label"])
        return inputs, tf.cast(labels, tf.int32), tf.ones_like(labels)

    return prepare
