"""Import of checkpoints of the authors' TensorFlow 1 code of the Routing Transformer."""

import tensorflow as tf

from rt_keras import files, models
from rt_keras.convert.t2t.hparams import read_hparams
from rt_keras.convert.t2t.model import T2TModel, new_t2t_model
from rt_keras.convert.t2t.subword_tokenizer import T2TSubwordTokenizer
from rt_keras.convert.t2t.variables import assign_variables


def load_t2t_checkpoint(
    checkpoint, hparams, *, vocabulary_size, image_shape=None, num_classes=None, strict=True
):
    """Loads a checkpoint of the authors' code into a model with the same outputs.

    That code is google-research's `routing_transformer`, built on Tensor2Tensor. It differs in
    places from the paper and from new models of `rt_keras`. The heads of the returned model
    reproduce that code.

    Args:
        checkpoint: path of a checkpoint without its suffix, such as ".../model.ckpt-1".
        hparams: dictionary of hyperparameters with the names of that code, the path of an
            `hparams.json`, or the name of a set that the authors published.
        vocabulary_size: int, number of token ids, or of values of an image channel.
        image_shape: tuple `(height, width, channels)` for an image model; None for text.
        num_classes: int, number of classes of a class-conditional image model, or None.
        strict: bool, whether to raise an error for weights without a variable in the checkpoint,
            and for variables without a weight. Defaults to True.

    Returns:
        A `T2TModel`. Its attribute `task` is a `RoutingTransformerCausalLM`,
        `RoutingTransformerSeq2SeqLM` or `RoutingTransformerImageLM`.

    Raises:
        FileNotFoundError: if the checkpoint does not exist.
        ValueError: if the checkpoint cannot be read, the hyperparameters are invalid, or the two do
            not match. The message names every variable concerned, with its shape.

    >>> load_t2t_checkpoint("missing/model.ckpt-1", {}, vocabulary_size=97)
    Traceback (most recent call last):
        ...
    FileNotFoundError: there is no checkpoint missing/model.ckpt-1, with an .index file
    """
    reader = _open(str(checkpoint))
    h = read_hparams(hparams, image=image_shape is not None)
    token_bias = any("token_bias_weight" in name for name in reader.get_variable_to_shape_map())
    options = {"image_shape": image_shape, "num_classes": num_classes, "token_bias": token_bias}
    task = new_t2t_model(hparams, vocabulary_size=vocabulary_size, **options)
    assign_variables(task, h, reader, strict)
    return T2TModel(task, max_target_length=h.get("max_target_length"))


def convert_t2t_checkpoint(
    checkpoint, hparams, output, *, vocabulary=None, image_shape=None, num_classes=None, strict=True
):
    """Converts a checkpoint of the authors' code to a preset folder.

    Args:
        checkpoint: path of a checkpoint without its suffix, such as ".../model.ckpt-1".
        hparams: dictionary of hyperparameters with the names of that code, the path of an
            `hparams.json`, or the name of a set that the authors published.
        output: path of a new or empty folder, which is written atomically.
        vocabulary: path of the subword file. Required for text models; None for image models.
        image_shape: tuple `(height, width, channels)` for an image model; None for text.
        num_classes: int, number of classes of a class-conditional image model, or None.
        strict: bool, whether to raise an error for weights without a variable in the checkpoint,
            and for variables without a weight. Defaults to True.

    Returns:
        The model, with its preprocessor if it is a text model.

    Raises:
        FileExistsError: if `output` is not empty.
        ValueError: if a text model has no vocabulary, or as in `load_t2t_checkpoint`.

    >>> convert_t2t_checkpoint("pg19/model.ckpt-1", "pg19/hparams.json", "models/pg19")
    Traceback (most recent call last):
        ...
    ValueError: vocabulary must be the path of the subword file for a text model
    """
    files.check_new_folder(output)
    tokenizer = None
    if image_shape is None:
        if vocabulary is None:
            raise ValueError("vocabulary must be the path of the subword file for a text model")
        tokenizer = T2TSubwordTokenizer(vocabulary)
    size = 256 if tokenizer is None else tokenizer.vocabulary_size()
    options = {"image_shape": image_shape, "num_classes": num_classes, "strict": strict}
    model = load_t2t_checkpoint(checkpoint, hparams, vocabulary_size=size, **options)
    task, lengths = model.task, [model.max_target_length]
    if isinstance(task, models.RoutingTransformerSeq2SeqLM):
        lengths.insert(0, read_hparams(hparams)["max_length"])
    if tokenizer is not None:
        task.preprocessor = task.preprocessor_cls(tokenizer, *lengths)
    with files.whole_folder(output) as part:
        task.save_to_preset(str(part))
    return task


def _open(checkpoint):
    if not tf.io.gfile.exists(f"{checkpoint}.index"):
        raise FileNotFoundError(f"there is no checkpoint {checkpoint}, with an .index file")
    try:
        return tf.train.load_checkpoint(checkpoint)
    except (ValueError, tf.errors.OpError) as error:
        raise ValueError(f"the checkpoint {checkpoint} cannot be read: {error}") from None
