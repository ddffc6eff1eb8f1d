"""Layers of Keras, of KerasHub and of one's own in the blocks of models."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops
from keras_hub.src.models.llama.llama_layernorm import LlamaLayerNorm

from rt_keras.layers import LocalHeads, TransformerBlock
from rt_keras.models import RoutingTransformerCausalLM
from tests.layers.checks import close, random
from tests.models import checks
from tests.models.causal_lm.test_causal_lm import decoded
from tests.models.image import test_image_backbone
from tests.models.seq_2_seq import test_seq_2_seq_backbone
from tests.models.speech import test_speech_backbone

pytestmark = pytest.mark.filterwarnings("ignore:.*nothing updates its centroids")

WIDTH = 8
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def heads():
    return [LocalHeads(2, 4, max_relative_distance=3)]


@keras.saving.register_keras_serializable(package="tests")
class Experts(layers.Layer):
    """Two networks, weighted by a router, with dropout and a loss that leaves padding out."""

    def __init__(self, inner_dim, rate=0.1, **kwargs):
        super().__init__(**kwargs)
        self.inner_dim, self.rate = inner_dim, rate
        self.router = layers.Dense(2, activation="softmax", name="router")
        self.experts = [layers.Dense(inner_dim, activation="gelu") for _ in range(2)]
        self.dropout = layers.Dropout(rate, seed=1)
        self.output_dense = layers.Dense(WIDTH)

    def call(self, x, mask=None, training=None):
        shares = self.router(x)
        if training:
            weight = ops.ones_like(shares) if mask is None else ops.cast(mask, x.dtype)[..., None]
            self.add_loss(ops.mean(weight * shares**2))
        y = sum(shares[..., i, None] * expert(x) for i, expert in enumerate(self.experts))
        # Without `training`, which Keras passes on.
        return self.output_dense(self.dropout(y))

    def get_config(self):
        return {**super().get_config(), "inner_dim": self.inner_dim, "rate": self.rate}


@keras.saving.register_keras_serializable(package="tests")
class Scale(layers.Layer):
    """Keras derives its configuration, and it has no `build`."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.scale = self.add_weight(name="scale", shape=(), initializer="ones")

    def call(self, x):
        return self.scale * ops.normalize(x, axis=-1)


def network(*inside):
    return keras.Sequential([layers.Dense(12), *inside, layers.Dense(WIDTH)])


LAYERS = {
    "keras": {
        "feed_forward": network(layers.Dropout(0.1)),
        "intermediate_dim": None,
        "normalization": layers.LayerNormalization(epsilon=0.1),
    },
    "keras, post-norm": {
        "feed_forward": layers.Dense(WIDTH, activation="tanh"),
        "intermediate_dim": None,
        "normalization": layers.BatchNormalization(),
        "normalize_first": False,
        "shift_tokens": True,
    },
    "keras_hub": {"normalization": LlamaLayerNorm(epsilon=1e-3)},
    "own": {"feed_forward": lambda i: Experts(6) if i else None, "normalization": Scale()},
    "own, recomputed": {
        "feed_forward": Experts(6),
        "intermediate_dim": None,
        "normalization": lambda: Scale(),
        "remat": True,
    },
}


@pytest.mark.parametrize(
    "name", [x if x == "own" else pytest.param(x, marks=pytest.mark.slow) for x in LAYERS]
)
def test_a_language_model_trains_decodes_and_is_saved(name, tmp_path):
    model = checks.make_lm(head_groups=heads(), **LAYERS[name])
    model.compile(keras.optimizers.Adam(1e-2), LOSS, run_eagerly=True)
    tokens = checks.random_tokens(2, 9)
    x = checks.inputs(tokens, lengths=[9, 6])
    checks.check_fit(model, x, checks.random_tokens(2, 9, seed=1), sample_weight=x["padding_mask"])
    close(decoded(model, tokens, 5), model(checks.inputs(tokens))[:, 5:], 1e-5)
    checks.check_files(model, lambda model: model(x), tmp_path)
    model.save_weights(tmp_path / "model.weights.h5")
    other = RoutingTransformerCausalLM.from_config(model.get_config())
    assert checks.largest_difference(other(x), model(x)) > 1e-3
    other.load_weights(tmp_path / "model.weights.h5")
    checks.same(other(x), model(x))


def test_a_layer_gets_the_padding_mask():
    block = TransformerBlock(heads(), feed_forward=Experts(6))
    for mask, expected in ((np.zeros([2, 9], bool), 0), (np.ones([2, 9], int), 0.25)):
        block(random(2, 9, WIDTH), padding_mask=mask, training=True)
        (loss,) = block.losses
        assert float(loss) >= expected and (expected or not float(loss))


def test_layers_of_float32_in_a_model_of_bfloat16():
    changes = {**LAYERS["keras, post-norm"], "dtype": "mixed_bfloat16", "head_groups": heads()}
    for normalize_first in (True, False):
        model = checks.make_lm(**{**changes, "normalize_first": normalize_first})
        tokens = checks.random_tokens(2, 9)
        output = model.backbone(checks.inputs(tokens))
        assert output.dtype == tf.bfloat16 == model.backbone.output.dtype
        found = decoded(model, tokens, 5)
        assert checks.largest_difference(found, model(checks.inputs(tokens))[:, 5:]) < 0.2


def test_each_block_and_residual_has_a_layer_of_its_own():
    indices = []

    def feed_forward(i):
        indices.append(i)
        return Experts(6) if i else None

    backbone = checks.make_backbone(feed_forward=feed_forward, normalization=Scale())
    first, second = backbone.transformer_blocks
    assert indices == [0, 1] and first.feed_forward.intermediate_dim == 16
    norms = [block.attention_norm for block in (first, second)]
    norms += [first.feed_forward_norm, second.feed_forward_norm, backbone.layer_norm]
    assert len({id(norm.scale) for norm in norms}) == 5
    paths = [x.path for x in second.feed_forward.weights]
    assert all(path.startswith("transformer_block_1/experts") for path in paths), paths


def test_every_backbone(tmp_path):
    options = {"feed_forward": network(), "intermediate_dim": None, "normalization": Scale()}
    seq_2_seq = test_seq_2_seq_backbone
    images = test_image_backbone
    speech = test_speech_backbone
    for backbone, x in (
        (seq_2_seq.make_backbone(num_layers=1, **options), seq_2_seq.make_inputs()),
        (images.make_backbone(num_layers=1, **options), images.random_inputs()),
        (speech.make_backbone(num_layers=1, **options), speech.inputs(16)),
    ):
        backbone.save(tmp_path / "backbone.keras")
        checks.same(keras.saving.load_model(tmp_path / "backbone.keras")(x), backbone(x))


def built():
    layer = layers.Dense(WIDTH)
    layer.build([None, WIDTH])
    return layer


shared = layers.Dense(WIDTH)
OWN = {"feed_forward": layers.Dense(WIDTH), "intermediate_dim": None}


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"feed_forward": built()}, "feed_forward must be a layer that is not built"),
        ({"normalization": Scale}, "normalization must be a layer or a function.*class.*Scale"),
        ({"normalization": "batch_norm"}, "must be one of .*a layer or a function.*'batch_norm'"),
        ({"feed_forward": lambda i: 3}, "feed_forward must return a layer or None. Received: 3"),
        ({"normalization": lambda: None}, "normalization must return a layer. Received: None"),
        ({**OWN, "feed_forward": lambda i: shared}, "Received the same layer twice: <Dense"),
        ({"feed_forward": layers.Dense(WIDTH)}, "intermediate_dim has no effect.*dim=16 and feed"),
        ({**OWN, "activation": "relu"}, "activation has no effect on the layers of feed_forward"),
        ({"normalization": Scale(), "layer_norm_epsilon": 0.1}, "layer_norm_epsilon has no effect"),
        ({**OWN, "feed_forward": layers.Dense(7)}, r"feed_forward must return.*\(None, None, 7\)"),
        ({"feed_forward": lambda i: None, "intermediate_dim": None}, "intermediate_dim must be a"),
    ],
)
def test_bad_arguments(changes, message):
    with pytest.raises(ValueError, match=message):
        checks.make_backbone(**changes)
