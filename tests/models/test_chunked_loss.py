import functools

import keras
import keras_hub
import numpy as np
import pytest
import tensorflow as tf

import rt_keras
from rt_keras.layers import FullHeads
from rt_keras.models.chunked_loss import losses_of_layer
from tests.models import checks

pytestmark = pytest.mark.filterwarnings("ignore:.*nothing updates its centroids")

TOKENS, LABELS = checks.random_tokens(4, 9), checks.random_tokens(4, 9, seed=1)
WEIGHTS = np.random.default_rng(2).uniform(size=[4, 9]).astype("float32")


def steps(model, metrics=None, loss=None):
    """Losses, metrics and weights of training steps, and an evaluation."""
    metrics = metrics or [keras.metrics.SparseCategoricalCrossentropy("nats", from_logits=True)]
    model.compile(
        keras.optimizers.SGD(0.1, global_clipnorm=1.0),
        loss or keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        weighted_metrics=[*metrics, "accuracy"],
        run_eagerly=True,
    )
    found = []
    for _ in range(2):
        batch = checks.inputs(TOKENS, [9, 5, 9, 0]), LABELS, WEIGHTS
        found.append(model.train_on_batch(*batch, return_dict=True))
    found.append(model.test_on_batch(*batch, return_dict=True))
    return found, [np.asarray(weight) for weight in model.trainable_variables]


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [{"tie_embeddings": False, "embedding_dim": 4}, {"dtype": "mixed_bfloat16"}],
    ids=["separate embeddings", "mixed precision"],
)
def test_steps_equal_those_with_all_logits(changes):
    (expected, weights), (found, found_weights) = (
        steps(checks.make_lm(None, size, num_layers=1, **changes)) for size in (None, 7)
    )
    tolerance = 3e-2 if "dtype" in changes else 1e-5
    for a, b in zip(found, expected):
        assert set(a) == set(b) == {"loss", "nats", "accuracy"}
        for name in a:
            np.testing.assert_allclose(a[name], b[name], rtol=tolerance, atol=tolerance)
    for a, b in zip(found_weights, weights, strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("mode", [None, "int8", "int4"])
@pytest.mark.parametrize("with_lora", [False, True])
@pytest.mark.parametrize("tied", [None, True, False])
def test_losses_are_those_of_the_layer_that_computes_the_logits(tied, with_lora, mode):
    hidden, labels = tf.random.stateless_normal([4, 9, 8], [0, 1]), tf.constant(LABELS % 9)
    layer, reverse = keras.layers.Dense(9, bias_initializer="normal"), tied is not None
    if reverse:
        layer = keras.layers.ReversibleEmbedding(9, 8, tied, "normal", logit_soft_cap=1.5)
    layer.build([None, None, 8])

    def gradients(losses):
        with tf.GradientTape() as tape:
            tape.watch(hidden)
            found = losses(layer(hidden, **{"reverse": True} if reverse else {}))
        return found, tape.gradient(found, [hidden, *layer.trainable_variables])

    of_logits = functools.partial(tf.nn.sparse_softmax_cross_entropy_with_logits, labels)
    _, unrounded = gradients(of_logits)
    if mode:
        layer.quantize(mode)
    if with_lora:
        layer.enable_lora(2, b_initializer="normal")
    expected, of_layer = gradients(of_logits)
    found, of_losses = gradients(lambda _: losses_of_layer(layer, hidden, labels, 7)[0])
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    # Keras's quantized embeddings give the states no gradient.
    of_layer, atol = (unrounded[:1], 0.05) if mode and reverse else (of_layer, 2e-5)
    for x, y in zip(of_losses, of_layer):
        if y is not None:
            np.testing.assert_allclose(x, y, rtol=1e-4, atol=atol)


def test_float8_is_trained_with_all_logits():
    model = checks.make_lm(loss_chunk_size=7, num_layers=1, tie_embeddings=False)
    model.output_dense.quantize("float8")
    model.compile(run_eagerly=True)
    assert np.isfinite(model.test_on_batch(checks.inputs(TOKENS), LABELS)[0])
    with pytest.raises(ValueError, match="output_dense is float8, which needs loss_chunk_size"):
        model.train_on_batch(checks.inputs(TOKENS), LABELS)


def adapted():
    sizes = {"vocabulary_size": 30, "hidden_dim": 8, "intermediate_dim": 8}
    backbone = keras_hub.models.GPT2Backbone(num_layers=1, num_heads=2, **sizes)
    return rt_keras.adapt(keras_hub.models.GPT2CausalLM(backbone), [FullHeads(2)])


@pytest.mark.parametrize("make", [checks.make_lm, lambda: checks.make_lm(None, 7), adapted])
def test_labels_that_there_are_not_raise_as_in_keras(make):
    model, inputs, wrong = make(), checks.inputs(TOKENS, [9, 5, 9, 9]), LABELS.copy()
    wrong[1, 2] = -100
    model.compile("sgd", run_eagerly=True)
    for read in (
        lambda: model.train_on_batch(inputs, wrong),
        lambda: model.test_on_batch(inputs, wrong),
        lambda: model.score(**inputs, scoring_mode="loss", target_ids=wrong),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match="label value of -100"):
            read()
    if model.loss_chunk_size is None or make is adapted:
        ignoring = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-100)
        model.compile("sgd", ignoring, run_eagerly=True, weighted_metrics=None)
        assert np.isfinite(model.test_on_batch(inputs, wrong, return_dict=True)["loss"])


def test_a_wrong_size_is_refused():
    with pytest.raises(ValueError, match="loss_chunk_size must be a positive integer"):
        checks.make_lm(loss_chunk_size=0)


@pytest.mark.parametrize(
    "options, word",
    [
        ({"loss": "mse"}, "loss must be 'auto'"),
        ({"loss": keras.losses.SparseCategoricalCrossentropy()}, "from_logits=True"),
        ({"metrics": [keras.metrics.SparseCategoricalCrossentropy()]}, "a metric must be a Sparse"),
    ],
)
def test_losses_and_metrics_that_need_logits_are_refused(options, word):
    with pytest.raises(ValueError, match=word):
        checks.make_lm(loss_chunk_size=7).compile("sgd", **options)
