"""`distill`: trains an adapted model to match the original one."""

import keras
import tensorflow as tf

from rt_keras import progress
from rt_keras.callbacks import CentroidEMA
from rt_keras.layers import FullHeads
from rt_keras.layers.attention_calls import observe_attention
from rt_keras.layers.centroids import heads_with_centroids
from rt_keras.models.adapted.adapt import adapt
from rt_keras.models.adapted.attention_layers import DENSE
from rt_keras.models.adapted.backbones import (
    AdaptedBackbone,
    attention_blocks,
    attention_layers,
    backbone_of,
)
from rt_keras.models.adapted.batches import batches_of
from rt_keras.ops.blocks import repeat_heads


def distill(
    model,
    teacher,
    data,
    steps=200,
    learning_rate=1e-3,
    lora_rank=None,
    num_queries=16,
    seed=None,
    verbose=1,
):
    """Trains the attention of an adapted model to reproduce the outputs of the original.

    ```
    loss = mean over blocks of  mean ‖h_l - t_l‖² / mean ‖t_l‖²  +  mean KL(p_l ‖ q_l)
    ```

    h_l and t_l are the outputs of block l of the model and of the teacher. q_l and p_l are the full
    attention weights computed from their queries and keys, for some queries that are drawn at
    random in each step. Only the projections of attention and the weights of its heads are trained.
    Centroids are updated with the queries and keys. Dropout is off.

    Args:
        model: backbone or task returned by `adapt`.
        teacher: the original model.
        data: a batch of inputs, or an iterable of batches, for the model. They are used in
            turn, repeatedly.
        steps: int, number of batches to train on. Defaults to 200.
        learning_rate: float, learning rate of Adam. Defaults to 1e-3.
        lora_rank: int, rank of the low-rank updates that are trained instead of the projections;
            see `enable_lora`. Defaults to None, to train the projections themselves.
        num_queries: int, number of queries of a sequence whose attention weights are compared.
            Defaults to 16.
        seed: int or None, seed of the choice of queries. Defaults to None.
        verbose: 0 for no output, 1 for a progress bar. Defaults to 1.

    Returns:
        Dictionary of "before" and "after": the relative error of each block on the first batch,
        ‖h_l - t_l‖ / ‖t_l‖, as a list of floats.

    Raises:
        ValueError: if `model` is not adapted, `teacher` is not a model of the original class, or a
            number is out of range.

    Source: DeepSeek-AI 2025, DeepSeek-V3.2, section 2.1, the warm-up of its indexer, for the loss
    on attention weights.

    >>> import keras_hub, rt_keras
    >>> from rt_keras.layers import LocalHeads
    >>> gpt = keras_hub.models.GPT2Backbone(20, 1, 2, 8, 8, max_sequence_length=12)
    >>> local = rt_keras.adapt(gpt, [LocalHeads(2, block_size=2)])
    >>> ids = keras.ops.ones([1, 12], dtype="int32")
    >>> data = {"token_ids": ids, "padding_mask": ids}
    >>> off = rt_keras.distill(local, gpt, data, steps=1, verbose=0)
    >>> len(off["before"]), len(off["after"])
    (1, 1)
    """
    student, original = (backbone_of(x) for x in (model, teacher))
    _check(student, original, steps, num_queries)
    batches = batches_of(model, data)
    if not isinstance(original, AdaptedBackbone):
        # The teacher keeps its heads, but in layers whose calls can be observed.
        original = adapt(original, [FullHeads(attention_layers(student)[0].num_heads)], layers=[])
    for layer in attention_layers(student) if lora_rank else ():
        for dense in filter(None, (getattr(layer, name) for name in DENSE)):
            dense.enable_lora(lora_rank)
    both = _Pair(student, original, num_queries, seed)
    optimizer = keras.optimizers.Adam(learning_rate)
    optimizer.build(both.trained)
    mover = None
    if heads_with_centroids(student):
        mover = CentroidEMA()
        mover.set_model(student)

    @tf.function(reduce_retracing=True, autograph=False)
    def step(inputs):
        with tf.GradientTape() as tape:
            loss = both.loss(inputs)
        optimizer.apply(tape.gradient(loss, both.trained), both.trained)
        if mover is not None:
            mover.update_centroids()
        return loss

    before = both.distances(batches[0])
    with progress.bar("distilling", steps, "steps", verbose=verbose) as update:
        for number in range(steps):
            loss = step(batches[number % len(batches)])
            update(advance=1, note=f"loss {float(loss):.4f}")
    return {"before": before, "after": both.distances(batches[0])}


class _Pair:
    """A model and its teacher, with the outputs of all blocks."""

    def __init__(self, student, teacher, num_queries, seed):
        self.models = [
            keras.Model(x.input, [block.output for block, _ in attention_blocks(x)])
            for x in (student, teacher)
        ]
        self.trained = [
            weight for layer in attention_layers(student) for weight in layer.trainable_variables
        ]
        self.num_queries = num_queries
        self.seed_generator = keras.random.SeedGenerator(seed)

    def loss(self, inputs):
        """Computes the loss. Heads with centroids collect their members."""
        (states, calls), (targets, of_teacher) = (_run(model, inputs) for model in self.models)
        mask = _mask(inputs)
        errors = [_relative_square(*pair, mask) for pair in zip(states, targets)]
        for heads, arguments, options in (group for call in calls for group in call.groups):
            if heads.has_centroids:
                collect(heads, arguments, options)
        divergences = [self._divergence(*pair, mask) for pair in zip(calls, of_teacher)]
        return tf.reduce_mean(errors) + tf.reduce_mean(divergences)

    def distances(self, inputs):
        """Returns the relative error of each block."""
        states = [_run(model, inputs)[0] for model in self.models]
        squares = [_relative_square(*pair, _mask(inputs)) for pair in zip(*states)]
        return [float(square) ** 0.5 for square in squares]

    def _divergence(self, call, of_teacher, mask):
        """Computes the KL divergence of the full attention weights of some queries."""
        length = tf.shape(call.groups[0][1][0])[2]
        chosen = keras.random.randint([self.num_queries], 0, length, seed=self.seed_generator)
        causal = call.layer.causal
        log_q, log_p = (_log_weights(x, chosen, causal, mask) for x in (call, of_teacher))
        return tf.reduce_mean(tf.reduce_sum(tf.exp(log_p) * (log_p - log_q), axis=-1))


def collect(heads, arguments, options):
    """Adds the queries and keys of a call to the statistics that update the centroids."""
    query, _, key = arguments
    masks = {name: options[name] for name in ("query_mask", "key_mask")}
    heads.collect(query=query, key=key, **masks)


def _run(model, inputs):
    """Returns the list of a model's outputs, and the calls of its attention layers."""
    with observe_attention(model) as calls:
        outputs = model(inputs, training=False)
    return tf.nest.flatten(outputs), calls


def _check(student, original, steps, num_queries):
    if not isinstance(student, AdaptedBackbone):
        raise ValueError(f"{student.name} was not made by adapt()")
    if not issubclass(type(student), type(original)) and type(student) is not type(original):
        raise ValueError(
            f"The teacher must be the model that was adapted. Received: {type(original).__name__} "
            f"for {type(student).__name__}"
        )
    for name, value in (("steps", steps), ("num_queries", num_queries)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1. Received: {value}")


def _mask(inputs):
    """Returns the padding mask, float `[batch, length]`, or None if all positions count.

    All positions count in encoder-decoders, whose encoders and decoders have different masks.
    """
    masks = [x for name, x in inputs.items() if name.endswith("padding_mask")]
    return tf.cast(masks[0], tf.float32) if len(masks) == 1 else None


def _relative_square(x, target, mask):
    """Computes mean ‖x - target‖² / mean ‖target‖² over the positions that count."""
    x, target = (tf.cast(tensor, tf.float32) for tensor in (x, target))
    weight = 1.0 if mask is None else mask[..., None]
    return tf.reduce_sum(weight * (x - target) ** 2) / tf.reduce_sum(weight * target**2)


def _log_weights(call, chosen, causal, mask):
    """Computes the log of the full attention weights of queries, `[batch, heads, q, keys]`."""
    parts = [parts for _, parts, _ in call.groups]
    query = tf.concat([tf.gather(query, chosen, axis=2) for query, _, _ in parts], axis=1)
    key = tf.concat(
        [query if key is None else repeat_heads(key, query.shape[1]) for query, _, key in parts],
        axis=1,
    )
    logits = tf.cast(tf.matmul(query, key, transpose_b=True), tf.float32)
    logits *= query.shape[-1] ** -0.5
    places = tf.range(tf.shape(key)[2])
    if causal:
        logits = tf.where(places <= chosen[:, None], logits, -1e9)
    if mask is not None:
        logits = tf.where(mask[:, None, None] > 0, logits, -1e9)
    return tf.nn.log_softmax(logits)
