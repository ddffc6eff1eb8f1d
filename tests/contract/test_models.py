"""Every option, in models: compiled, in lower precision, saved, adapted, rotary.

All kinds without options are in one model, which is trained and exported; each kind with its
options is for every week.
"""

import gc

import keras
import numpy as np
import pytest
import tensorflow as tf

import rt_keras
from rt_keras.callbacks import CentroidEMA
from rt_keras.layers.centroids import centroids_inside
from tests.contract.kinds import BATCH, DEPTH, HEADS, LENGTH, layers, required
from tests.contract.models import FEATURES, forms, inputs, model_of, model_of_all
from tests.contract.ways import agree

pytestmark = pytest.mark.filterwarnings("ignore:With use_causal_mask", "ignore:.*nothing updates")
# The others are slow.
ALWAYS = ("FullHeads",)
KINDS = [
    pytest.param(name, marks=[] if name in ALWAYS else [pytest.mark.slow]) for name in layers()
]


# The tests of one kind run consecutively; their compiled functions are dropped before the next.
@pytest.fixture(scope="module", params=KINDS)
def name(request):
    yield request.param
    keras.backend.clear_session()
    gc.collect()


@pytest.fixture(scope="module")
def model_in_float64(name):
    """A model, and its outputs."""
    model = model_of(name, "float64")
    return model, {form: np.asarray(output) for form, output in model(inputs()).items()}


def outputs_agree(found, expected):
    assert found.keys() == expected.keys()
    for form, output in found.items():
        agree(output, expected[form], form)


@pytest.mark.slow
def test_compiled(model_in_float64):
    model, expected = model_in_float64
    compiled = tf.function(lambda x: model(x, training=False), jit_compile=True)
    outputs_agree(compiled(inputs()), expected)


def test_saved_and_loaded(model_in_float64, tmp_path):
    model, expected = model_in_float64
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    outputs_agree(loaded(inputs()), expected)


@pytest.mark.parametrize(
    "dtype", ["mixed_bfloat16", pytest.param("mixed_float16", marks=pytest.mark.weekly)]
)
def test_trains_in_any_precision(name, dtype):
    model = model_of(name, dtype)
    compute = keras.DTypePolicy(dtype).compute_dtype
    assert {keras.backend.standardize_dtype(x.dtype) for x in model.outputs} == {compute}
    for layer in model.layers:
        for group in getattr(layer, "head_groups", ()):
            states = [x for x in group.weights if not x.trainable]
            assert {x.dtype for x in states if "seed" not in x.path} <= {"float32"}
    given = inputs(dtype="float32")
    with tf.GradientTape() as tape:
        outputs = model(given, training=True)
        loss = tf.add_n([tf.reduce_sum(tf.sin(tf.cast(x, "float32"))) for x in outputs.values()])
        loss += tf.add_n([tf.cast(x, "float32") for x in model.losses] or [0.0])
    variables = [x.value for x in model.trainable_variables]
    for variable, gradient in zip(model.trainable_variables, tape.gradient(loss, variables)):
        assert gradient is not None, variable.path
        assert np.all(np.isfinite(gradient)), variable.path


def left_alone_by_fit(model):
    """The paths of the variables that a step of training does not change, without biases of keys.

    Those add the same to all logits of a query, which softmax ignores.
    """
    before = [np.array(x) for x in model.trainable_variables]
    # With one output there are no metrics of each, which Keras would make while it traces the step
    # and then trace it again.
    trained = keras.Model(model.input, keras.layers.Concatenate(dtype="float64")(model.outputs))
    trained.compile("sgd", "mse", jit_compile=False)
    targets = np.zeros([BATCH, *trained.output.shape[1:]])
    callbacks = [CentroidEMA()] if centroids_inside(model) else []
    trained.fit(inputs(), targets, verbose=0, callbacks=callbacks)
    assert all(np.all(np.isfinite(x)) for x in trained.get_weights())
    after = zip(before, model.trainable_variables)
    same = {variable.path for old, variable in after if np.all(old == variable)}
    return {path for path in same if not path.endswith("key/bias")}


def test_adapted(name):
    """Replaces Keras's attention, with the same weights, and restores it."""
    for form, chosen in forms(name).items():
        if "num_key_value_heads" in chosen:
            # Keras's own attention has none.
            continue
        x = keras.Input([LENGTH, FEATURES], dtype="float64")
        of_keras = keras.layers.MultiHeadAttention(HEADS, DEPTH, dtype="float64")
        layer = layers()[name]
        heads = layer(**{**required(layer), **chosen})
        causal = heads.abilities.causal
        model = keras.Model(x, of_keras(x, x, use_causal_mask=causal))
        adapted = rt_keras.adapt(model, [heads])
        found = adapted(inputs()["x"])
        assert found.shape == (BATCH, LENGTH, FEATURES) and np.all(np.isfinite(found)), form
        restored = rt_keras.restore(adapted)
        if not heads.share_qk:
            agree(restored(inputs()["x"]), model(inputs()["x"]), form)


@pytest.mark.slow
def test_one_model_of_all_kinds_is_trained_and_exported_and_its_weights_are_saved_alone(tmp_path):
    model = model_of_all("float64")
    expected = {kind: np.asarray(output) for kind, output in model(inputs()).items()}
    model.save_weights(tmp_path / "model.weights.h5")
    fresh = keras.Model.from_config(model.get_config())
    fresh.load_weights(tmp_path / "model.weights.h5")
    outputs_agree(fresh(inputs()), expected)
    model.export(tmp_path / "model", verbose=False)
    loaded = tf.saved_model.load(tmp_path / "model")
    outputs_agree(loaded.serve({key: tf.constant(x) for key, x in inputs().items()}), expected)
    assert left_alone_by_fit(model) == set()
