"""Models of the authors' code with new weights, and with the interface of that code."""

import keras
import tensorflow as tf

from rt_keras import models
from rt_keras.convert.t2t.hparams import block_options, head_groups, read_hparams
from rt_keras.convert.t2t.token_bias import token_bias_of

TASKS = (
    models.RoutingTransformerCausalLM,
    models.RoutingTransformerSeq2SeqLM,
    models.RoutingTransformerImageLM,
)


def new_t2t_model(hparams, *, vocabulary_size, image_shape=None, num_classes=None, **options):
    """Creates a model of the authors' code with new weights.

    Args:
        hparams: dictionary of hyperparameters with the names of that code, the path of an
            `hparams.json`, or the name of a published set, such as "pg19_local_cluster8k".
        vocabulary_size: int, number of token ids, or of values of an image channel.
        image_shape: tuple `(height, width, channels)` for an image model; None for text.
        num_classes: int, number of classes of a class-conditional image model, or None.
        **options: `token_bias`, bool, whether the heads have a token bias; and other arguments of
            the backbone, such as `dtype` and `remat`.

    Returns:
        A `RoutingTransformerCausalLM`, `RoutingTransformerSeq2SeqLM` or
        `RoutingTransformerImageLM`.

    Raises:
        ValueError: if the hyperparameters are invalid.

    >>> hparams = {"num_decoder_layers": 1, "hidden_size": 8, "local_num_heads": 2}
    >>> model = new_t2t_model(hparams, vocabulary_size=97)
    >>> attention = model.backbone.transformer_blocks[0].attention
    >>> type(model).__name__, type(attention.head_groups[0]).__name__
    ('RoutingTransformerCausalLM', 'T2TLocalHeads')
    """
    h = read_hparams(hparams, image=image_shape is not None)
    backbone = make_backbone(h, vocabulary_size, image_shape, num_classes, **options)
    return next(cls for cls in TASKS if cls.kind == backbone.kind)(backbone)


def make_backbone(
    h, vocabulary_size, image_shape=None, num_classes=None, token_bias=False, **options
):
    """Builds the backbone that the hyperparameters describe, with new weights.

    Args:
        h: dictionary of hyperparameters from `read_hparams`.
        vocabulary_size: int, number of token ids, or of values of an image channel.
        image_shape: tuple `(height, width, channels)` for an image model; None for text.
        num_classes: int, number of classes of a class-conditional image model, or None.
        token_bias: bool, whether the heads have a token bias. Defaults to False.
        **options: other arguments of the backbone, such as `dtype` and `remat`.
    """
    options |= {
        "vocabulary_size": vocabulary_size,
        "num_layers": h["num_decoder_layers"],
        "hidden_dim": h["hidden_size"],
        **block_options(h),
    }

    def groups(kind, count):
        return [head_groups(h, layer, kind, image_shape, token_bias) for layer in range(count)]

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
        recomputes = self.task.backbone.block_options.remat
        if recomputes and any(bias is not None for bias in biases):
            raise ValueError(
                "A token bias cannot be combined with remat=True: the gradient would recompute "
                "blocks without it. Received: a token bias and a backbone with remat=True"
            )
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
        return cls(**{**config, "task": keras.saving.deserialize_keras_object(config["task"])})
