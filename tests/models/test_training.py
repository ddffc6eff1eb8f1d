import keras
import keras_hub
import numpy as np
import pytest
import tensorflow as tf

from rt_keras import models
from rt_keras.callbacks import CentroidEMA
from rt_keras.layers import FullHeads, LocalHeads, RoutingHeads
from rt_keras.layers.centroids import centroids_inside
from rt_keras.models.adapted.tasks import TASKS
from rt_keras.models.training import Training
from tests.models import checks

pytestmark = pytest.mark.filterwarnings("ignore:.*nothing updates its centroids")

TOKENS, LABELS = checks.random_tokens(4, 8), checks.random_tokens(4, 8, seed=1)
# Parts of a batch, and replicas, have unequal numbers of tokens and weights.
LENGTHS = [8, 3, 5, 1]
WEIGHTS = np.float32(np.arange(8) < np.array(LENGTHS)[:, None]) * [[1.0], [2.0], [0.5], [3.0]]
NORM = 0.5


def make_model(jit_compile=False, **options):
    """A model whose gradients are clipped at every step."""
    model = checks.make_lm(num_layers=1)
    model.compile(
        keras.optimizers.SGD(1.0, global_clipnorm=NORM),
        keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, reduction="mean_with_sample_weight"
        ),
        weighted_metrics=[keras.metrics.SparseCategoricalCrossentropy("nats", from_logits=True)],
        jit_compile=jit_compile,
        **options,
    )
    return model


def trained(model):
    return logs_of(model, checks.inputs(TOKENS, LENGTHS), LABELS, WEIGHTS)


def logs_of(model, x, labels, weights):
    """The logs of three steps and their evaluations, the last norm, and the weights."""
    history = model.fit(
        x,
        labels,
        batch_size=4,
        sample_weight=weights,
        validation_data=(x, labels, weights),
        epochs=3,
        callbacks=[CentroidEMA(load_bias_step=0.03)],
        shuffle=False,
        verbose=0,
    ).history
    # Without random members of the last part of the batch, to which centroids can be reset.
    weights = [np.asarray(x).tolist() for x in model.weights if x.name != "member_samples"]
    return {"history": history, "norm": model.gradient_norm, "weights": weights}


def test_every_task_trains_by_the_same_steps():
    tasks = [getattr(models, name) for name in models.__all__]
    tasks = [x for x in tasks if isinstance(x, type) and issubclass(x, keras_hub.models.Task)]
    assert len(tasks) == 6
    for task in [*tasks, *TASKS.values()]:
        ours = [cls for cls in task.__mro__ if cls.__module__.startswith("rt_keras")]
        for name in ("compile", "fit", "train_step", "test_step"):
            assert {cls for cls in ours if name in vars(cls)} <= {Training}
        assert task not in tasks or Training in ours


def assert_equal(found, expected):
    assert set(found["history"]) == set(expected["history"])
    for name, values in found["history"].items():
        np.testing.assert_allclose(values, expected["history"][name], rtol=1e-4, err_msg=name)
    np.testing.assert_allclose(found["norm"], expected["norm"], rtol=1e-4)
    for a, b in zip(found["weights"], expected["weights"], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_the_norm_is_that_of_all_gradients_before_they_are_clipped():
    model = make_model(run_eagerly=True)
    before = [np.asarray(weight) for weight in model.trainable_weights]
    assert model.gradient_norm == 0
    model.train_on_batch(checks.inputs(TOKENS), LABELS, WEIGHTS)
    moved = [b - np.asarray(a) for a, b in zip(model.trainable_weights, before)]
    assert model.gradient_norm > NORM
    length = np.sqrt(sum((x.astype("float64") ** 2).sum() for x in moved))
    np.testing.assert_allclose(length, NORM, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"reduction": "sum"},
        {"reduction": "sum_over_batch_size"},
        {"reduction": "mean_with_sample_weight", "ignore_class": 1},
        {"ignore_class": 1},
    ],
)
def test_parts_of_a_batch_make_its_step_for_each_reduction(options):
    def make():
        model = make_model(run_eagerly=True)
        for heads in centroids_inside(model):
            heads.commitment_weight = 1.0
        return model

    labels = np.where(LABELS % 3, LABELS, 1)
    steps_in_parts_agree(make, checks.inputs(TOKENS, LENGTHS), labels, WEIGHTS, **options)


@pytest.mark.slow
def test_parts_of_an_encoder_count_by_its_own_tokens():
    def make():
        keras.utils.set_random_seed(0)
        heads = [RoutingHeads(2, 2, 4, commitment_weight=1.0)]
        sizes = checks.VOCABULARY, 1, 1, 8, 16
        backbone = models.RoutingTransformerSeq2SeqBackbone(*sizes, heads, heads, [FullHeads(2)])
        return models.RoutingTransformerSeq2SeqLM(backbone)

    inputs = {
        f"{side}_{name}": x
        for side, lengths in (("encoder", LENGTHS[::-1]), ("decoder", LENGTHS))
        for name, x in checks.inputs(TOKENS, lengths).items()
    }
    steps_in_parts_agree(make, inputs, LABELS)


def steps_in_parts_agree(make, inputs, labels, weights=None, **options):
    """The loss and the weights after a step of a whole batch, and after one of its four parts."""
    found = []
    for parts in (1, 4):
        model = make()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, **options)
        model.compile(keras.optimizers.SGD(0.1), loss, gradient_accumulation_steps=parts)
        logs = model.train_on_batch(inputs, labels, weights)
        found.append([logs[0], *(np.asarray(x) for x in model.trainable_weights)])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_a_loss_that_is_no_mean_of_entries_has_no_parts():
    class Whole(keras.losses.Loss):
        def __call__(self, y_true, y_pred, sample_weight=None):
            return tf.reduce_logsumexp(y_pred)

    for loss in (Whole(), lambda y_true, y_pred: tf.reduce_logsumexp(y_pred)):
        model = make_model(run_eagerly=True)
        model.compile("sgd", loss, weighted_metrics=None, gradient_accumulation_steps=2)
        with pytest.raises(ValueError, match="a sum or a mean of the losses of single entries"):
            model.train_on_batch(checks.inputs(TOKENS), LABELS)


@pytest.mark.slow
def test_parts_must_divide_the_batch():
    with pytest.raises(ValueError, match="gradient_accumulation_steps"):
        make_model(gradient_accumulation_steps=0)
    model = make_model(gradient_accumulation_steps=3)
    message = "gradient_accumulation_steps must divide .* Received: 3"
    with pytest.raises(ValueError, match=f"{message}, for 4 examples"):
        model.train_on_batch(checks.inputs(TOKENS), LABELS, WEIGHTS)
    # The size of these batches is known only at run time.
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        trained(model)


def test_every_dtype_fits_also_beside_the_float32_of_lora():
    weights, norms = None, []
    for dtype in ("float32", "bfloat16", "float16", "float64"):
        model = checks.make_lm(num_layers=1, dtype=dtype, head_groups=[LocalHeads(2, 4)])
        embedding = model.backbone.token_embedding
        embedding.enable_lora(2, b_initializer=keras.initializers.Ones())
        weights = weights or model.get_weights()
        model.set_weights(weights)
        model.compile("sgd", run_eagerly=True)
        model.train_on_batch(checks.inputs(TOKENS), LABELS)
        norms.append(model.gradient_norm)
    np.testing.assert_allclose(norms, norms[0], rtol=0.05)
