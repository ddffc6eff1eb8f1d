"""Import of checkpoints of the authors' TensorFlow 1 code of the Routing Transformer."""

import keras
import tensorflow as tf

from rt_keras import files
from rt_keras.convert import t2t_hparams
from rt_keras.convert.t2t_variables import assign_variables
from rt_keras.t2t.token_bias import token_bias_of


def load_t2t_checkpoint(
    checkpoint, hparams, *, vocabulary_size, image_shape=None, num_classes=None, strict=True
):
    """Loads a checkpoint of the authors' code into a model with the same outputs.

    That code is google-research's `routing_transformer`, built on Tensor2Tensor. It differs in
    places from the paper and from new models of `rt_keras`. The heads of the returned model come
    from `rt_keras.t2t` and reproduce that code.

    Args:
        checkpoint: path of a checkpoint without its suffix, such as ".../model.ckpt-1".
        hparams: dictionary of hyperparameters with the names of that code, or the path of an
            `hparams.json`.
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
    from rt_keras.training.tasks import TASKS

    reader = _open(str(checkpoint))
    h = t2t_hparams.read_hparams(hparams, image=image_shape is not None)
    token_bias = any("token_bias_weight" in name for name in reader.get_variable_to_shape_map())
    backbone = make_backbone(h, vocabulary_size, image_shape, num_classes, token_bias)
    task = TASKS[backbone.kind].model_class(backbone)
    assign_variables(task, h, reader, strict)
    return T2TModel(task, max_target_length=h.get("max_target_length"))


def convert_t2t_checkpoint(
    checkpoint, hparams, output, *, vocabulary=None, image_shape=None, num_classes=None, strict=True
):
    """Converts a checkpoint of the authors' code to a preset folder.

    Args:
        checkpoint: path of a checkpoint without its suffix, such as ".../model.ckpt-1".
        hparams: dictionary of hyperparameters with the names of that code, or the path of an
            `hparams.json`.
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
    from rt_keras import data, models

    files.check_new_folder(output)
    tokenizer = None
    if image_shape is None:
        if vocabulary is None:
            raise ValueError("vocabulary must be the path of the subword file for a text model")
        tokenizer = data.T2TSubwordTokenizer(vocabulary)
    model = load_t2t_checkpoint(
        checkpoint,
        hparams,
        vocabulary_size=256 if tokenizer is None else tokenizer.vocabulary_size(),
        image_shape=image_shape,
        num_classes=num_classes,
        strict=strict,
    )
    task, lengths = model.task, [model.max_target_length]
    if isinstance(task, models.RoutingTransformerSeq2SeqLM):
        lengths.insert(0, t2t_hparams.read_hparams(hparams)["max_length"])
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


def make_backbone(h, vocabulary_size, image_shape=None, num_classes=None, token_bias=False):
    """Builds the backbone that the hyperparameters describe, with new weights.

    Args:
        h: dictionary of hyperparameters from `t2t_hparams.read_hparams`.
        vocabulary_size: int, number of token ids, or of values of an image channel.
        image_shape: tuple `(height, width, channels)` for an image model; None for text.
        num_classes: int, number of classes of a class-conditional image model, or None.
        token_bias: bool, whether the heads have a token bias. Defaults to False.
    """
    from rt_keras import models

    options = {
        "vocabulary_size": vocabulary_size,
        "num_layers": h["num_decoder_layers"],
        "hidden_dim": h["hidden_size"],
        **t2t_hparams.block_options(h),
    }

    def groups(kind, count):
        return [
            t2t_hparams.head_groups(h, layer, kind, image_shape, token_bias)
            for layer in range(count)
        ]

    options["head_groups"] = groups("decoder", h["num_decoder_layers"])
    if image_shape is not None:
        conditional = num_classes is not None and not h["unconditional"]
        return models.RoutingTransformerImageBackbone(
            image_shape=image_shape,
            block_shape=h["query_shape"],
            num_classes=num_classes if conditional else None,
            position_embedding=h["add_positional_emb"],
            **options,
        )
    options |= {
        "embedding_dim": h["embedding_dims"],
        "tie_embeddings": False,
        "embedding_dropout": h["dropout"],
        "token_dropout": h["target_dropout"],
        "sinusoidal_positions": h["add_timing_signal"],
    }
    if not h["num_encoder_layers"]:
        return models.RoutingTransformerBackbone(**options)
    return models.RoutingTransformerSeq2SeqBackbone(
        num_encoder_layers=h["num_encoder_layers"],
        encoder_head_groups=groups("encoder", h["num_encoder_layers"]),
        cross_head_groups=groups("cross", h["num_decoder_layers"]),
        encoder_input_dropout=h["input_dropout"],
        **options,
    )


@keras.saving.register_keras_serializable(package="rt_keras")
class T2TModel(keras.Model):
    """Model with the interface of the authors' code, from targets to logits of these targets.

    That code shifts the targets by one and starts with id 0: the logits at t predict `targets[t]`.
    In the models of `rt_keras`, the logits at t predict the token after input t.

    Args:
        task: a `RoutingTransformerCausalLM`, `RoutingTransformerSeq2SeqLM` or
            `RoutingTransformerImageLM`.
        max_target_length: int or None, length to which targets are truncated. Defaults to None, for
            no limit.
        **kwargs: keyword arguments of `keras.Model`, such as `name`.

    Call arguments:
        inputs: dictionary of "targets", int `[batch, length]`, or
            `[batch, height, width, channels]` for images; with an encoder, "inputs", float
            embeddings `[batch, length, 1, hidden_dim]` that are all zero for padding; for a
            class-conditional image model, "inputs", int `[batch, 1, 1, 1]`; and optionally
            "token_bias_targets" and "token_bias_inputs", float `[batch, length]`, if the checkpoint
            has token biases.

    Returns:
        Logits, `[*targets.shape, vocabulary_size]`.

    Raises:
        ValueError: if a token bias is given and the backbone has `remat`.
    """

    def __init__(self, task, max_target_length=None, **kwargs):
        super().__init__(**kwargs)
        self.task = task
        self.max_target_length = max_target_length
        # All weights belong to the task, which is already built.
        self.built = True

    def call(self, inputs, training=None):
        inputs = {name: tf.convert_to_tensor(x) for name, x in inputs.items()}
        targets = tf.cast(inputs["targets"], tf.int32)
        if targets.shape.rank == 4 and self.max_target_length is None:
            return self._image_logits(targets, inputs, training)
        targets = tf.reshape(targets, [targets.shape[0] or -1, targets.shape[1]])
        targets = targets[:, : self.max_target_length]
        tokens = tf.pad(targets[:, :-1], [[0, 0], [1, 0]])
        biases = [inputs.get(f"token_bias_{name}") for name in ("inputs", "targets")]
        if any(bias is not None for bias in biases):
            _check_computed_once(self.task.backbone)
        with token_bias_of(*biases):
            if "inputs" in inputs:
                return self._seq_2_seq_logits(tokens, inputs["inputs"], training)
            features = {"token_ids": tokens, "padding_mask": tf.ones_like(tokens)}
            return self.task(features, training=training)

    def _seq_2_seq_logits(self, tokens, embedded, training):
        backbone = self.task.backbone
        embedded = tf.reshape(embedded, [-1, embedded.shape[1], embedded.shape[-1]])
        mask = tf.cast(tf.reduce_any(embedded != 0, axis=-1), tf.int32)
        encoder_outputs = backbone.encode(embedded, mask, training)
        hidden = backbone.decode(tokens, tf.ones_like(tokens), encoder_outputs, mask, training)
        return self.task.token_logits(hidden)

    def _image_logits(self, images, inputs, training):
        features = {"images": images}
        if self.task.backbone.num_classes is not None:
            features["labels"] = tf.reshape(tf.cast(inputs["inputs"], tf.int32), [-1])
        return self.task(features, training=training)

    def get_config(self):
        return {
            **super().get_config(),
            "task": keras.saving.serialize_keras_object(self.task),
            "max_target_length": self.max_target_length,
        }

    @classmethod
    def from_config(cls, config):
        task = keras.saving.deserialize_keras_object(config["task"])
        return cls(**{**config, "task": task})


def _check_computed_once(backbone):
    """Raises a ValueError if the gradient would recompute blocks without the token bias."""
    if backbone.block_options["remat"]:
        raise ValueError(
            "A token bias cannot be combined with remat=True: the gradient would recompute blocks "
            "without it. Received: a token bias and a backbone with remat=True"
        )
