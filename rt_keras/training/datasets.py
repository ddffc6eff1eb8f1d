"""The examples of a data set, and batches of them, for models of every kind.

Examples are documents for a `causal_lm`, pairs of texts for a `seq_2_seq_lm`, and images for an
`image_lm`, the kinds of `ModelConfig`.
"""

from rt_keras import data


def load_split(kind, config, split, preprocessor=None):
    """The examples of one split of the data that a `DataConfig` names.

    Args:
        kind: of the model that they are for.
        config: a `DataConfig`.
        split: "train", "validation" or "test".
        preprocessor: that of the model; None for images.

    Returns:
        A `tf.data.Dataset`, as `rt_keras.data.load_documents`, `load_pairs` or `load_images` has
        it.
    """
    if kind == "image_lm":
        return data.load_images(config.name, split, data_dir=config.data_dir)
    folders = {"directory": config.directory, "data_dir": config.data_dir}
    if kind == "seq_2_seq_lm":
        return data.load_pairs(config.name, split, **folders, reverse=config.reverse)
    utf8 = preprocessor.tokenizer.needs_utf8
    return data.load_documents(config.name, split, **folders, require_utf8=utf8)


def training_batches(config, preprocessor=None):
    """Batches without end of the training split of an `ExperimentConfig`, for `fit`."""
    examples = load_split(config.model.kind, config.data, "train", preprocessor)
    options = {
        "batch_size": config.data.batch_size,
        "seed": config.trainer.seed,
        "shuffle_buffer": config.data.shuffle_buffer,
    }
    if config.model.kind == "image_lm":
        labelled = config.model.image.num_classes is not None
        return data.training_images(examples, class_conditional=labelled, **options)
    if config.model.kind == "seq_2_seq_lm":
        return data.training_pairs(examples, preprocessor, **options)
    length = config.data.sequence_length
    return data.training_dataset(examples, preprocessor.tokenizer, length, **options)


def evaluation_batches(kind, examples, batch_size, preprocessor=None, class_conditional=False):
    """Batches in which everything that a model of a kind predicts has weight 1 once, in order.

    Args:
        kind: of the model.
        examples: a data set as from `load_split`.
        batch_size: examples, or sequences of documents, in a batch.
        preprocessor: that of the model; None for images.
        class_conditional: whether an image model takes labels.

    Returns:
        A `tf.data.Dataset` of (inputs, labels, weights).
    """
    if kind == "image_lm":
        return data.evaluation_images(examples, batch_size, class_conditional=class_conditional)
    if kind == "seq_2_seq_lm":
        return data.evaluation_pairs(examples, preprocessor, batch_size)
    length = preprocessor.sequence_length
    return data.evaluation_dataset(examples, preprocessor.tokenizer, length, batch_size)
