"""The models that `rt-keras benchmark model` and `decode` measure, built as a user would.

All of them have `HEADS` heads, GEGLU of four times the width, and a vocabulary of `VOCABULARY`.
"""

import keras
import keras_hub
import tensorflow as tf

from rt_keras.benchmarks.operations import BLOCKS, SPARSE_BLOCK
from rt_keras.callbacks import CentroidEMA
from rt_keras.callbacks.centroid_ema import routing_heads
from rt_keras.layers import (
    FullHeads,
    GatedDeltaHeads,
    Heads,
    LocalHeads,
    LocalRoutingHeads,
    RoutingHeads,
)
from rt_keras.layers.key_sets import SelectedBlocks, Window
from rt_keras.models import RoutingTransformerBackbone, RoutingTransformerCausalLM

VOCABULARY = 256
HEADS = 4

# Options of the two routing heads; the other two heads are local.
ROUTING = {
    "balanced_shared": {"assignment": "balanced", "share_qk": True},
    "balanced_separate": {"assignment": "balanced"},
    "nearest_shared": {"share_qk": True},
    "nearest_separate": {},
}


def head_groups(kind, length, window, relative_positions=False):
    """Returns the head groups of one block.

    Args:
        kind: string, one of
            - a key of `ROUTING`: two local and two routing heads;
            - "full": full heads;
            - "gated_delta": heads of Gated DeltaNet, which have no relative positions;
            - "moba": heads of MoBA, which see their own block of 64 positions and the best 8 before
              it;
            - "local": local heads with blocks of the window, so a query sees up to two windows;
            - "local_same_keys": two of these local heads, and two with blocks of half the window,
              in which a query sees as many keys as in a cluster;
            - "local_routing": heads that see up to three quarters of a window around them and as
              many keys of their cluster, as many keys as the kinds of `ROUTING` see on average.
        length: int, the number of positions; there are length / window clusters.
        window: int, the cluster size and the block size of local attention.
        relative_positions: bool, whether all heads have relative positions up to the window.
            Defaults to False.

    Returns:
        A list of `rt_keras.layers.HeadGroup`s.

    >>> [(group.num_heads, group.block_size) for group in head_groups("local_same_keys", 64, 16)]
    [(2, 16), (2, 8)]
    """
    options = {"max_relative_distance": window if relative_positions else None}
    if kind == "full":
        return [FullHeads(HEADS, **options)]
    if kind == "gated_delta":
        return [GatedDeltaHeads(HEADS)]
    if kind == "moba":
        window = Window(SPARSE_BLOCK, look_back=0)
        sizes = {"block_size": SPARSE_BLOCK, "segment_size": SPARSE_BLOCK, "num_blocks": BLOCKS}
        blocks = SelectedBlocks(**sizes, by_content=False, deviation_weight=0.0)
        return [Heads(HEADS, [window, blocks])]
    if kind == "local":
        return [LocalHeads(HEADS, window, **options)]
    half = HEADS // 2
    if kind == "local_routing":
        part = 3 * window // 4
        return [LocalRoutingHeads(HEADS, part // 2, length // window, part, **options)]
    local = LocalHeads(half, window, **options)
    if kind == "local_same_keys":
        return [local, LocalHeads(half, window // 2, **options)]
    return [local, RoutingHeads(half, length // window, window, **ROUTING[kind], **options)]


def build(kind, length, window, layers, width, relative_positions=False):
    """Builds a language model with new weights.

    Args:
        kind, length, window, relative_positions: see `head_groups`.
        layers: int, the number of blocks.
        width: int, the width of the blocks.

    Returns:
        A `RoutingTransformerCausalLM` without a preprocessor.
    """
    keras.utils.set_random_seed(0)
    backbone = RoutingTransformerBackbone(
        vocabulary_size=VOCABULARY,
        num_layers=layers,
        hidden_dim=width,
        intermediate_dim=4 * width,
        head_groups=head_groups(kind, length, window, relative_positions),
        activation="geglu",
        tie_embeddings=False,
    )
    return RoutingTransformerCausalLM(backbone)


def prepare_step(kind, length, batch, window, layers, width, relative_positions=False):
    """Makes a model and a function that trains it for one step, as `fit` does.

    The step is Keras's training function with Adam, compiled with XLA, followed by `CentroidEMA`.

    Args:
        kind, length, window, layers, width, relative_positions: see `build`.
        batch: int, the number of sequences in a batch.

    Returns:
        A function without arguments that returns the loss once the step is done.

    >>> sizes = {"length": 8, "batch": 1, "window": 4, "layers": 1, "width": 8}
    >>> step = prepare_step("local", **sizes)
    >>> step() > step()
    True
    """
    model = build(kind, length, window, layers, width, relative_positions)
    model.compile(
        optimizer=keras.optimizers.Adam(),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=True,
    )
    tokens = tf.random.stateless_uniform([batch, length + 1], [0, 0], 0, VOCABULARY, tf.int32)
    inputs = {"token_ids": tokens[:, :-1], "padding_mask": tf.ones([batch, length], tf.bool)}
    batches = tf.data.Dataset.from_tensors((inputs, tokens[:, 1:])).repeat()
    callbacks = [CentroidEMA()] if routing_heads(model) else []
    model.fit(batches, steps_per_epoch=1, callbacks=callbacks, shuffle=False, verbose=0)
    iterator = iter(batches)

    def step():
        logs = model.train_function(iterator)
        for callback in callbacks:
            callback.on_train_batch_end(0)
        return float(logs["loss"])

    return step


def prepare_generation(kind, length, tokens, window, layers, width):
    """Makes a model and a function that greedily generates the last tokens of a sequence.

    The function does what `generate` does after the prompt, compiled with XLA. If the model has a
    cache, it starts empty, which costs as much as a full one. Otherwise, each token needs a pass
    over all positions.

    Args:
        kind, length, window, layers, width: see `build`.
        tokens: int, the number of tokens to generate, at the end of `length` positions.

    Returns:
        A function without arguments that returns all tokens, `[1, length]`.

    >>> sizes = {"length": 16, "tokens": 2, "window": 4, "layers": 1, "width": 8}
    >>> prepare_generation("full", **sizes)().shape
    (1, 16)
    """
    model = build(kind, length, window, layers, width)
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
