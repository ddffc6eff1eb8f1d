"""Equal blocks call one function in graphs, and compute what they compute without sharing it."""

import collections

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import rt_keras
from rt_keras.callbacks import CentroidEMA
from rt_keras.keras_internals import global_seed_state
from rt_keras.layers import LocalHeads, RoutingHeads
from rt_keras.models import RoutingTransformerCausalLM
from rt_keras.models.transformer_blocks import BlockOptions, make_blocks
from tests.models import checks
from tests.models.adapted import checks as adapted

KINDS = [[LocalHeads(1, 4), RoutingHeads(1, 3, 4)], [LocalHeads(2, 4)]]
X = checks.inputs(checks.random_tokens(4, 9), [9, 5, 7, 9])

# Calls outside `fit`.
pytestmark = pytest.mark.filterwarnings("ignore:.*nothing updates its centroids")


@keras.saving.register_keras_serializable(package="tests")
class Noise(layers.Layer):
    """Has a statistic, a loss, noise without a seed, and weights of float32 under any policy."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dense = layers.Dense(8, dtype="float32")
        self.norm = layers.BatchNormalization()

    def call(self, x, training=None):
        self.add_loss(0.1 * keras.ops.mean(keras.ops.cast(x, "float32") ** 2))
        noise = keras.random.uniform(keras.ops.shape(x)[1:], dtype=x.dtype) if training else 0
        return keras.ops.cast(self.dense(x) + self.norm(x), x.dtype) + noise


def routing(frozen=(), own=None, dtype="float32"):
    options = {"dropout": 0.2, "dtype": dtype}
    options |= {"feed_forward": own, "intermediate_dim": None} if own else {}
    backbone = checks.make_backbone(num_layers=4, head_groups=KINDS * 2, **options)
    for number in frozen:
        backbone.transformer_blocks[number].trainable = False
    return RoutingTransformerCausalLM(backbone)


def noisy(dtype="float32"):
    return routing(own=lambda _: Noise(dtype=dtype), dtype=dtype)


def llama():
    model = rt_keras.adapt(adapted.make_backbone("Llama", num_layers=3), [LocalHeads(4, 4)])
    model.enable_lora(2)
    return model


def blocks_of(model):
    blocks = "transformer_layers" if hasattr(model, "transformer_layers") else "transformer_blocks"
    return getattr(getattr(model, "backbone", model), blocks)


def trained(make, share):
    """Returns losses of training and of an evaluation, predictions, and all variables."""
    keras.random.uniform([])
    global_seed_state()[0].assign([0, 1])
    keras.utils.set_random_seed(0)
    model = make()
    if not share:
        for block in blocks_of(model):
            # The method of the class remains.
            del block.call
    x = X if make is not llama else adapted.make_inputs(model)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss, jit_compile=False)
    callbacks, options = [] if make is llama else [CentroidEMA()], {"batch_size": 2, "verbose": 0}
    y = x["token_ids"] % 16
    fit = model.fit(x, y, shuffle=False, callbacks=callbacks, **options)
    found = fit.history["loss"], model.evaluate(x, y, **options), model.predict(x, **options)
    return [*found, *(variable.numpy() for variable in model.variables)]


def half():
    return routing(dtype="mixed_bfloat16")


@pytest.mark.slow
@pytest.mark.parametrize("make", [noisy, half, llama])
def test_training_has_the_losses_weights_statistics_and_seeds_of_blocks_that_share_nothing(make):
    expected, found = trained(make, share=False), trained(make, share=True)
    checks.same(found, expected, 2e-2 if make is half else 1e-4)


def calls(model, x):
    """Returns how often the graph of a model's call calls each function."""
    call = tf.function(model, autograph=False).get_concrete_function(x, training=True)
    nodes = (x for x in call.graph.as_graph_def().node if x.op.endswith("PartitionedCall"))
    return sorted(collections.Counter(node.attr["f"].func.name for node in nodes).values())


@pytest.mark.slow
def test_blocks_share_a_function_unless_an_option_differs():
    model = llama()
    assert calls(model, adapted.make_inputs(model)) == [3]
    assert calls(routing(), X) == calls(noisy(), X) == [2, 2]
    assert calls(routing(frozen=[2]), X) == [1, 1, 2]
    kinds = ["gelu", "gelu", "relu", "gelu"]
    own = routing(own=lambda number: layers.Dense(8, kinds[number]))
    assert calls(own, X) == [1, 1, 2]


def test_masks_that_keras_attaches_reach_blocks():
    keras.utils.set_random_seed(0)
    blocks = make_blocks(BlockOptions(12), [KINDS[1]] * 2, "float32", "block")
    model = keras.Sequential([layers.Embedding(20, 8, mask_zero=True), *blocks])
    expected = np.asarray(model(X["token_ids"]))
    assert calls(model, X["token_ids"]) == [2]
    checks.same(tf.function(model, autograph=False)(X["token_ids"]), expected, 1e-5)
    unmasked = model.layers[2](model.layers[1](np.asarray(model.layers[0](X["token_ids"]))))
    assert checks.largest_difference(unmasked, expected) > 1e-2
