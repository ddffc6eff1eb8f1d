"""The models whose steps and generation `rt-keras benchmark speed` measures, built as a user would.

All of them have GEGLU of four times the width, and a vocabulary of `VOCABULARY`.
"""

import keras
import keras_hub
import tensorflow as tf

from rt_keras.callbacks.centroid_ema import CentroidEMA
from rt_keras.layers.centroids import centroids_inside
from rt_keras.layers.kinds import FullHeads, LocalHeads, LocalRoutingHeads, RoutingHeads
from rt_keras.models.causal_lm.causal_lm import RoutingTransformerCausalLM
from rt_keras.models.causal_lm.causal_lm_backbone import RoutingTransformerBackbone

VOCABULARY = 256

# Options of the two routing heads; the other two heads are local.
ROUTING = {
    "balanced_shared": {"assignment": "balanced", "share_qk": True},
    "balanced_separate": {"assignment": "balanced"},
    "nearest_shared": {"share_qk": True},
    "nearest_separate": {},
}


def head_groups(kind, heads, length, window):
    """Returns the head groups of one block.

    Args:
        kind: string, one of
            - a key of `ROUTING`: local and routing heads, half of each;
            - "full": full heads;
            - "local": local heads with blocks of the window, so a query sees up to two windows;
            - "local_routing": heads that see up to three quarters of a window around them and as
              many keys of their cluster, as many keys as the kinds of `ROUTING` see on average.
        heads: int, the number of heads.
        length: int, the number of positions; there are length / window clusters.
        window: int, the cluster size and the block size of local attention.

    Returns:
        A list of `rt_keras.layers.HeadGroup`s.

    >>> [group.num_heads for group in head_groups("nearest_shared", 4, length=64, window=16)]
    [2, 2]
    """
    if kind == "full":
        return [FullHeads(heads)]
    if kind == "local":
        return [LocalHeads(heads, window)]
    if kind == "local_routing":
        part = 3 * window // 4
        return [LocalRoutingHeads(heads, part // 2, length // window, part)]
    half = heads // 2
    routing = RoutingHeads(half, length // window, window, **ROUTING[kind])
    return [LocalHeads(heads - half, window), routing]


def build(kind, length, heads, depth, window, layers):
    """Builds a language model with new weights.

    Args:
        kind, heads, length, window: see `head_groups`.
        depth: int, the depth of a head; the width of the model is that of all heads.
        layers: int, the number of blocks.

    Returns:
        A `RoutingTransformerCausalLM` without a preprocessor.
    """
    keras.utils.set_random_seed(0)
    backbone = RoutingTransformerBackbone(
        vocabulary_size=VOCABULARY,
        num_layers=layers,
        hidden_dim=heads * depth,
        intermediate_dim=4 * heads * depth,
        head_groups=head_groups(kind, heads, length, window),
        activation="geglu",
        tie_embeddings=False,
    )
    return RoutingTransformerCausalLM(backbone)


def prepare_step(kind, length, batch, **sizes):
    """Makes a model and a function that trains it for one step, as `fit` does.

    The step is Keras's training function with Adam, compiled with XLA, followed by `CentroidEMA`.

    Args:
        kind, length: see `build`.
        batch: int, the number of sequences in a batch.
        **sizes: the other arguments of `build`.

    Returns:
        A function without arguments that returns the loss once the step is done.

    >>> sizes = {"heads": 2, "depth": 4, "window": 4, "layers": 1}
    >>> step = prepare_step("local", length=8, batch=1, **sizes)
    >>> step() > step()
    True
    """
    model = build(kind, length, **sizes)
    model.compile(
        optimizer=keras.optimizers.Adam(),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=True,
    )
    tokens = tf.random.stateless_uniform([batch, length + 1], [0, 0], 0, VOCABULARY, tf.int32)
    inputs = {"token_ids": tokens[:, :-1], "padding_mask": tf.ones([batch, length], tf.bool)}
    batches = tf.data.Dataset.from_tensors((inputs, tokens[:, 1:])).repeat()
    callbacks = [CentroidEMA()] if centroids_inside(model) else []
    model.fit(batches, steps_per_epoch=1, callbacks=callbacks, shuffle=False, verbose=0)
    iterator = iter(batches)

    def step():
        logs = model.train_function(iterator)
        for callback in callbacks:
            callback.on_train_batch_end(0)
        return float(logs["loss"])

    return step


def prepare_generation(kind, length, tokens, **sizes):
    """Makes a model and a function that greedily generates the last tokens of a sequence.

    The function does what `generate` does after the prompt, compiled with XLA. If the model has a
    cache, it starts empty, which costs as much as a full one. Otherwise, each token needs a pass
    over all positions.

    Args:
        kind, length: see `build`.
        tokens: int, the number of tokens to generate, at the end of `length` positions.
        **sizes: the other arguments of `build`.

    Returns:
        A function without arguments that returns all tokens, `[1, length]`.

    >>> sizes = {"heads": 2, "depth": 4, "window": 4, "layers": 1}
    >>> prepare_generation("full", length=16, tokens=2, **sizes)().shape
    (1, 16)
    """
    model = build(kind, length, **sizes)
    sampler = keras_hub.samplers.GreedySampler()

    @tf.function(jit_compile=True)
    def generate(prompt):
        return sampler(
            next=model.next_logits,
            prompt=prompt,
            cache=model.new_cache(1, length) if model.cached_decoding else (),
            index=tf.constant(length - tokens),
            mask=tf.zeros_like(prompt, tf.bool),
            stop_token_ids=None,
            model=model,
        )

    prompt = tf.zeros([1, length], tf.int32)
    return lambda: generate(prompt).numpy()
