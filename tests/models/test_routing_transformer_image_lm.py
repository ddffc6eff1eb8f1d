import keras
import numpy as np
import pytest
import tensorflow as tf

from rt_keras.callbacks import CentroidEMA
from rt_keras.layers import LocalHeads, RoutingHeads
from rt_keras.models import RoutingTransformerImageBackbone, RoutingTransformerImageLM

SHAPE = (4, 4, 3)
# Orders of the values, with matching local heads.
ORDERS = {
    "raster": ((12,), LocalHeads(1, 12)),
    "blocks": ((2, 6), LocalHeads(1, 12, grid=(2, 2))),
}


def make_model(order="blocks", **changes):
    """One block; weights are as random as those of a trained model."""
    keras.utils.set_random_seed(0)
    block_shape, local = ORDERS[order]
    settings = {
        "vocabulary_size": 8,
        "image_shape": SHAPE,
        "num_layers": 1,
        "hidden_dim": 8,
        "intermediate_dim": 16,
        "head_groups": [local, RoutingHeads(1, 3, 12)],
        "block_shape": block_shape,
        "dtype": "float64",
    }
    backbone = RoutingTransformerImageBackbone(**{**settings, **changes})
    model = RoutingTransformerImageLM(backbone)
    rng = np.random.default_rng(0)
    for weight in model.trainable_variables:
        weight.assign(weight + 0.3 * rng.normal(size=weight.shape))
    return model


def random_images(batch=2, seed=0):
    return np.random.default_rng(seed).integers(0, 8, [batch, *SHAPE], dtype="int32")


def places(order):
    """The values of an image in their order, each as (row, column, channel)."""
    if order == "raster":
        return list(np.ndindex(SHAPE))
    inside = [(r, c) for r in range(2) for c in range(6)]
    blocks = [(r, c) for r in (0, 2) for c in (0, 6)]
    flat = [(r0 + r, c0 + c) for r0, c0 in blocks for r, c in inside]
    return [(row, column // 3, column % 3) for row, column in flat]


@pytest.mark.parametrize("order", ORDERS)
def test_logits_depend_only_on_preceding_values(order):
    model, images = make_model(order), random_images()
    expected = np.asarray(model({"images": images}))
    for t in (0, 1, 17, 46):
        changed = images.copy()
        changed[:, *places(order)[t]] = (changed[:, *places(order)[t]] + 3) % 8
        found = np.asarray(model({"images": changed}))
        for u, place in enumerate(places(order)):
            difference = np.abs(found[:, *place] - expected[:, *place]).max()
            assert difference < 1e-12 if u <= t else u > t + 1 or difference > 1e-4


def test_classes_and_positions_tell():
    model = make_model(num_classes=5)
    images = np.zeros([2, *SHAPE], "int32")
    logits = np.asarray(model({"images": images, "labels": np.array([1, 4])}))
    assert np.abs(logits[0] - logits[1]).max() > 1e-2
    assert np.abs(logits[0, 1, 1] - logits[0, 2, 2]).max() > 1e-3
    assert make_model(position_embedding=False).backbone.embedding.position_embeddings == []


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.end_to_end
def test_generation_follows_the_scores_of_the_model(order):
    model, images = make_model(order), random_images()
    found = model.generate({"images": images}, known_rows=1, temperature=0.0)
    assert found.dtype == "int32"
    np.testing.assert_array_equal(found[:, :1], images[:, :1])
    likeliest = np.argmax(model({"images": found}), axis=-1)
    np.testing.assert_array_equal(found[:, 1:], likeliest[:, 1:])


@pytest.mark.end_to_end
def test_samples_follow_their_seed():
    model, images = make_model(), random_images()
    first, again, other = (
        model.generate({"images": images}, known_rows=2, seed=seed) for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    np.testing.assert_array_equal(model.generate({"images": images}, known_rows=4), images)


@pytest.mark.end_to_end
@pytest.mark.parametrize("order", [pytest.param("raster", marks=pytest.mark.end_to_end), "blocks"])
def test_a_cache_gives_the_same_as_recomputation(order, monkeypatch):
    model, inputs = make_model(order, num_classes=5), {"images": random_images()}
    inputs["labels"] = np.array([1, 4])

    def generate():
        model.compile(jit_compile=False)
        options = {"temperature": 0.7, "seed": 3}
        return [model.generate(inputs, known_rows=count, **options) for count in (0, 1, 2)]

    assert model.backbone.cached_decoding
    found = generate()
    monkeypatch.setattr(RoutingTransformerImageBackbone, "cached_decoding", False)
    np.testing.assert_array_equal(found, generate())


def test_balanced_heads_recompute():
    model = make_model(head_groups=[RoutingHeads(1, 3, 12, assignment="balanced")])
    assert not model.backbone.cached_decoding
    model.compile(jit_compile=False)
    images = model.generate({"images": random_images()}, known_rows=3, seed=0)
    assert images.shape == (2, *SHAPE)


@pytest.mark.end_to_end
def test_another_number_of_known_rows_or_temperature_is_not_traced_again(monkeypatch):
    model, traces = make_model(), []
    prefill = model.backbone.prefill
    monkeypatch.setattr(model.backbone, "prefill", lambda *x: traces.append(1) or prefill(*x))
    model.compile(jit_compile=False)
    for known_rows, temperature in ((0, 1.0), (2, 0.5), (4, 0.0)):
        model.generate({"images": random_images()}, known_rows, temperature, seed=0)
    assert traces == [1]


@pytest.mark.end_to_end
def test_training_lowers_the_loss():
    model = make_model(dtype="float32")
    model.compile(
        keras.optimizers.Adam(1e-2),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=False,
    )
    images = random_images()
    history = model.fit(
        {"images": images}, images, epochs=5, verbose=0, callbacks=[CentroidEMA()]
    ).history
    assert history["loss"][-1] < history["loss"][0]


def test_saved_and_loaded(tmp_path):
    model, inputs = make_model(num_classes=5), {"images": random_images()}
    inputs["labels"] = np.array([1, 4])
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(inputs), model(inputs))


def test_as_a_preset(tmp_path):
    model, inputs = make_model(dtype="float32"), {"images": random_images()}
    model.save_to_preset(str(tmp_path / "preset"))
    loaded = RoutingTransformerImageLM.from_preset(str(tmp_path / "preset"))
    np.testing.assert_allclose(loaded(inputs), model(inputs), rtol=0, atol=1e-5)


def test_compiled_by_xla():
    model, images = make_model(dtype="float32"), tf.constant(random_images())
    compiled = tf.function(lambda x: model({"images": x}), jit_compile=True)
    np.testing.assert_allclose(compiled(images), model({"images": images}), rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"image_shape": (4, 4)}, r"image_shape must have 3 dimensions. .*image_shape=\(4, 4\)"),
        ({"block_shape": (2, 6, 1)}, "block_shape must have 1 or 2 dimensions"),
        ({"block_shape": (2, 5)}, r"block_shape must divide the image of \(4, 12\) values"),
        ({"block_shape": (0,)}, "block_shape must be a positive integer"),
        ({"num_layers": 0}, "num_layers must be a positive integer"),
    ],
)
def test_bad_sizes(changes, message):
    with pytest.raises(ValueError, match=message):
        make_model(**changes)


def test_bad_options_of_generation():
    model, inputs = make_model(), {"images": random_images()}
    with pytest.raises(ValueError, match="known_rows must be from 0 to the height, 4. Received: 5"):
        model.generate(inputs, known_rows=5)
    for temperature in (-1, 1e-300, float("inf"), float("nan")):
        with pytest.raises(ValueError, match=f"temperature must be 0, or .*={temperature}"):
            model.generate(inputs, temperature=temperature)


@pytest.mark.end_to_end
def test_no_images():
    model, images = make_model(), np.zeros([0, *SHAPE], "int32")
    assert model({"images": images}).shape == (0, *SHAPE, model.backbone.vocabulary_size)
    assert model.generate({"images": images}).shape == (0, *SHAPE)
