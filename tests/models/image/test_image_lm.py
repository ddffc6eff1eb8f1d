import keras
import numpy as np
import pytest

from rt_keras.layers import LocalHeads, RoutingHeads
from rt_keras.models import RoutingTransformerImageBackbone, RoutingTransformerImageLM
from tests.models import checks
from tests.models.image import test_image_backbone
from tests.models.image.test_image_embedding import places_in

SHAPE = (4, 4, 3)
# Orders of the values, with matching local heads.
ORDERS = {"raster": ((12,), LocalHeads(1, 12)), "blocks": ((2, 6), LocalHeads(1, 12, grid=(2, 2)))}


def make_model(order="blocks", **changes):
    """One block; weights are as random as those of a trained model."""
    block_shape, local = ORDERS[order]
    settings = {
        "vocabulary_size": 8,
        "image_shape": SHAPE,
        "num_layers": 1,
        "head_groups": [local, RoutingHeads(1, 3, 12)],
        "block_shape": block_shape,
        "dtype": "float64",
    }
    backbone = test_image_backbone.make_backbone(**settings | changes)
    return checks.as_if_trained(RoutingTransformerImageLM(backbone))


def random_images(batch=2, seed=0):
    return np.random.default_rng(seed).integers(0, 8, [batch, *SHAPE], dtype="int32")


@pytest.mark.parametrize("order", ORDERS)
def test_logits_depend_only_on_preceding_values(order):
    model, images = make_model(order), random_images()
    expected = np.asarray(model({"images": images}))
    places = places_in(SHAPE, ORDERS[order][0])
    for t in (0, 1, 17, 46):
        changed = images.copy()
        changed[:, *places[t]] = (changed[:, *places[t]] + 3) % 8
        found = np.asarray(model({"images": changed}))
        for u, place in enumerate(places):
            difference = np.abs(found[:, *place] - expected[:, *place]).max()
            assert difference < 1e-12 if u <= t else u > t + 1 or difference > 1e-4


def test_bad_options_of_generation():
    model, inputs = make_model(), {"images": random_images()}
    with pytest.raises(ValueError, match="known_rows must be from 0 to the height, 4. Received: 5"):
        model.generate(inputs, known_rows=5)
    for temperature in (-1, 1e-300, float("inf"), float("nan")):
        with pytest.raises(ValueError, match=f"temperature must be 0, or .*={temperature}"):
            model.generate(inputs, temperature=temperature)


@pytest.mark.parametrize(
    ("order", "cached", "jit_compile"),
    [
        ("blocks", True, False),
        ("blocks", False, False),
        pytest.param("raster", True, True, marks=pytest.mark.slow),
    ],
    ids=["cache", "recomputation", "raster order, XLA"],
)
def test_generation_follows_the_scores_of_the_model(order, cached, jit_compile, monkeypatch):
    model, inputs = make_model(order, num_classes=5), {"images": random_images()}
    inputs["labels"] = np.array([1, 4])
    assert model.backbone.cached_decoding
    monkeypatch.setattr(RoutingTransformerImageBackbone, "cached_decoding", cached)
    model.compile(jit_compile=jit_compile)
    found = model.generate(inputs, known_rows=1, temperature=0.0)
    assert found.dtype == "int32"
    np.testing.assert_array_equal(found[:, :1], inputs["images"][:, :1])
    likeliest = np.argmax(model({**inputs, "images": found}), axis=-1)
    np.testing.assert_array_equal(found[:, 1:], likeliest[:, 1:])


@pytest.mark.slow
def test_samples_follow_their_seed_in_one_trace(monkeypatch):
    model, images, traces = make_model(), random_images(), []
    prefill = model.backbone.prefill
    monkeypatch.setattr(model.backbone, "prefill", lambda *x: traces.append(1) or prefill(*x))
    model.compile(jit_compile=False)

    def generate(known_rows, **options):
        return model.generate({"images": images}, known_rows, **options)

    first, again, other = (generate(2, seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    np.testing.assert_array_equal(generate(4), images)
    assert generate(0, temperature=0.7, seed=0).shape == images.shape
    assert traces == [1]
    none = np.zeros([0, *SHAPE], "int32")
    assert model({"images": none}).shape == (0, *SHAPE, 8)
    assert model.generate({"images": none}).shape == (0, *SHAPE)


@pytest.mark.slow
def test_training_lowers_the_loss_and_files_keep_the_model(tmp_path):
    model, images = make_model(dtype="float32", num_classes=5), random_images()
    inputs = {"images": images, "labels": np.array([1, 4])}
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-2), loss, run_eagerly=True)
    checks.check_fit(model, inputs, images)
    checks.check_files(model, lambda copy: copy(inputs), tmp_path)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"image_shape": (4, 0, 3)}, "image_shape must be a positive integer"),
        ({"image_shape": (4, 4)}, r"image_shape must have 3 dimensions. .*image_shape=\(4, 4\)"),
        ({"block_shape": (2, 6, 1)}, "block_shape must have 1 or 2 dimensions"),
        ({"block_shape": (2, 5)}, r"block_shape must divide the image of \(4, 12\) values"),
    ],
)
def test_bad_sizes(changes, message):
    with pytest.raises(ValueError, match=message):
        make_model(**changes)
