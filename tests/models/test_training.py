import keras
import keras_hub
import numpy as np
import pytest
import tensorflow as tf

from rt_keras import models
from rt_keras.callbacks import CentroidEMA
from rt_keras.models import RoutingTransformerCausalLM
from rt_keras.models.adapted.tasks import TASKS
from rt_keras.models.training import Training
from tests.models import checks
from tests.replicas import found_on_two_replicas

pytestmark = pytest.mark.filterwarnings("ignore:.*nothing updates its centroids")

TOKENS, LABELS = checks.random_tokens(4, 8), checks.random_tokens(4, 8, seed=1)
WEIGHTS = np.ones([4, 8], "float32")
NORM = 0.5


def make_model(jit_compile=False, **options):
    """A model whose gradients are clipped at every step."""
    model = RoutingTransformerCausalLM(checks.make_backbone(num_layers=1))
    model.compile(
        keras.optimizers.SGD(1.0, global_clipnorm=NORM),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        weighted_metrics=[keras.metrics.SparseCategoricalCrossentropy("nats", from_logits=True)],
        jit_compile=jit_compile,
        **options,
    )
    return model


def trained(model):
    """The logs of three steps and their evaluations, the last norm, and the weights."""
    x = checks.inputs(TOKENS)
    history = model.fit(
        x,
        LABELS,
        batch_size=4,
        sample_weight=WEIGHTS,
        validation_data=(x, LABELS, WEIGHTS),
        epochs=3,
        callbacks=[CentroidEMA(load_bias_step=0.03)],
        shuffle=False,
        verbose=0,
    ).history
    # Without random members of the last part of the batch, to which centroids can be reset.
    weights = [x for x in model.weights if x.name != "member_samples"]
    weights = [np.asarray(weight).tolist() for weight in weights]
    return {"history": history, "norm": model.gradient_norm, "weights": weights}


def test_every_task_trains_by_the_same_steps():
    tasks = [getattr(models, name) for name in models.__all__]
    tasks = [x for x in tasks if isinstance(x, type) and issubclass(x, keras_hub.models.Task)]
    assert len(tasks) == 10
    for task in [*tasks, *TASKS.values()]:
        ours = [cls for cls in task.__mro__ if cls.__module__.startswith("rt_keras")]
        for name in ("compile", "fit", "train_step", "test_step"):
            assert {cls for cls in ours if name in vars(cls)} <= {Training}
        assert task not in tasks or Training in ours


@pytest.fixture(scope="module")
def whole():
    """The results of one device with the whole batch at once."""
    return trained(make_model())


def assert_equal(found, expected):
    assert set(found["history"]) == set(expected["history"])
    for name, values in found["history"].items():
        np.testing.assert_allclose(values, expected["history"][name], rtol=1e-4, err_msg=name)
    np.testing.assert_allclose(found["norm"], expected["norm"], rtol=1e-4)
    for a, b in zip(found["weights"], expected["weights"], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)


def test_the_norm_is_that_of_all_gradients_before_they_are_clipped(whole):
    model = make_model(run_eagerly=True)
    before = [np.asarray(weight) for weight in model.trainable_weights]
    assert model.gradient_norm == 0
    model.train_on_batch(checks.inputs(TOKENS), LABELS, WEIGHTS)
    moved = [b - np.asarray(a) for a, b in zip(model.trainable_weights, before)]
    assert model.gradient_norm > NORM
    length = np.sqrt(sum((x.astype("float64") ** 2).sum() for x in moved))
    np.testing.assert_allclose(length, NORM, rtol=1e-4)
    # Without clipping, a step equals the gradient.
    model = make_model(run_eagerly=True)
    model.optimizer.global_clipnorm = None
    model.train_on_batch(checks.inputs(TOKENS), LABELS, WEIGHTS)
    moved = [b - np.asarray(a) for a, b in zip(model.trainable_weights, before)]
    length = np.sqrt(sum((x.astype("float64") ** 2).sum() for x in moved))
    np.testing.assert_allclose(model.gradient_norm, length, rtol=1e-4)


@pytest.mark.end_to_end
def test_a_step_of_parts_equals_that_of_the_whole_batch(whole):
    assert_equal(trained(make_model(gradient_accumulation_steps=2)), whole)


@pytest.mark.end_to_end
def test_weights_without_a_gradient_stay(whole):
    model = make_model(gradient_accumulation_steps=2)
    for layer in model.backbone.layers:
        layer.trainable = layer.name == "embedding"
    model.compile(model.optimizer, model.loss, gradient_accumulation_steps=4)
    assert np.isfinite(trained(model)["history"]["loss"]).all()


@pytest.mark.end_to_end
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


REPLICAS = """
import keras
from rt_keras.layers.dropout import draw_seed
from tests.models.test_training import make_model, trained

for name, options in {
    "eager": {},
    "jit": {"jit_compile": True},
    "parts": {"gradient_accumulation_steps": 2},
    "steps": {"steps_per_execution": 2},
}.items():
    with strategy.scope():
        model = make_model(**options)
    found[name] = trained(model)
with strategy.scope():
    generator = keras.random.SeedGenerator(5)
seeds = strategy.run(tf.function(lambda: draw_seed(generator)))
found["seeds"] = [x.numpy().tolist() for x in strategy.experimental_local_results(seeds)]

def failure(strategy, **options):
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile("sgd", "mse", **{"jit_compile": False, **options})
    batches = strategy.distribute_datasets_from_function(
        lambda _: tf.data.Dataset.from_tensors(({"x": tf.ones([2, 1])}, tf.ones([2, 1]))).repeat()
    )
    try:
        model.fit(batches, steps_per_epoch=2, verbose=0)
    except Exception as error:
        return type(error).__name__

found["jit on replicas"] = failure(strategy, jit_compile=True)
found["steps on replicas"] = failure(strategy, steps_per_execution=2)
found["several workers"] = failure(tf.distribute.MultiWorkerMirroredStrategy())
"""


@pytest.fixture(scope="module")
def replicas():
    """The results of two replicas."""
    return found_on_two_replicas(REPLICAS)


@pytest.mark.end_to_end
@pytest.mark.parametrize("name", ["eager", "jit", "parts", "steps"])
def test_replicas_equal_one_device(replicas, whole, name):
    assert_equal(replicas[name], whole)


@pytest.mark.end_to_end
def test_replicas_draw_different_seeds(replicas):
    first, second = replicas["seeds"]
    assert first == [5, 0] and second != first


@pytest.mark.end_to_end
@pytest.mark.parametrize("case", ["jit on replicas", "steps on replicas", "several workers"])
def test_keras_still_needs_the_workarounds(replicas, case):
    # If this fails, a workaround in `rt_keras/models/training.py` can be removed.
    assert replicas[case] is not None
