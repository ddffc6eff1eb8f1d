import numpy as np
import pytest
import tensorflow as tf

from rt_keras import cli
from rt_keras.layers import LocalHeads, RoutingHeads
from rt_keras.models import RoutingTransformerImageBackbone, RoutingTransformerImageLM
from rt_keras.serving import completing_function, export_saved_model
from tests.serving.server import serving

pytestmark = pytest.mark.end_to_end

SHAPE = (4, 4, 3)


def make_model(jit_compile=True, **changes):
    settings = {
        "vocabulary_size": 256,
        "image_shape": SHAPE,
        "num_layers": 1,
        "hidden_dim": 8,
        "intermediate_dim": 16,
        "head_groups": [LocalHeads(1, 12, grid=(2, 2)), RoutingHeads(1, 3, 12)],
        "block_shape": (2, 6),
    }
    model = RoutingTransformerImageLM(RoutingTransformerImageBackbone(**settings | changes))
    rng = np.random.default_rng(0)
    for weight in model.trainable_variables:
        weight.assign(weight + 0.3 * rng.normal(size=weight.shape))
    model.compile(jit_compile=jit_compile)
    return model


@pytest.fixture(scope="module")
def model():
    return make_model()


def random_images(count=3):
    return np.random.default_rng(1).integers(0, 256, [count, *SHAPE], dtype="uint8")


def files_of(images):
    return tf.stack([tf.io.encode_png(image) for image in images])


def images_of(answer):
    return np.stack([tf.io.decode_png(file) for file in answer["image_bytes"]])


@pytest.mark.parametrize("jit_compile", [False, True])
def test_each_row_is_that_of_the_model_alone(jit_compile):
    model, images = make_model(jit_compile, num_classes=5), random_images()
    given = {"known_rows": [1, 2, 4], "temperature": [0.7, 0.0, 1.0], "labels": [3, 0, 1]}
    answer = completing_function(model)(
        files_of(images),
        **{name: tf.constant(values) for name, values in given.items()},
        seed=tf.constant([3, 4, 5], tf.int64),
    )
    expected = [
        model.generate({"images": image[None], "labels": [label]}, rows, temperature, seed)[0]
        for image, rows, temperature, label, seed in zip(images, *given.values(), [3, 4, 5])
    ]
    np.testing.assert_array_equal(images_of(answer), expected)


def test_half_of_an_image_is_known_by_default(model):
    images = random_images()
    answer = completing_function(model)(files_of(images[:, :2]))
    np.testing.assert_array_equal(images_of(answer)[:, :2], images[:, :2])
    np.testing.assert_array_equal(
        images_of(answer)[0], model.generate({"images": images[:1]}, known_rows=2, seed=0)[0]
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"known_rows": 5}, "known_rows: it must be from 0 to 4"),
        ({"known_rows": [1, 2]}, "known_rows: it must be a scalar or one for each row"),
        ({"temperature": -1.0}, "temperature: it must be finite"),
        ({"image_bytes": [b"words"]}, "image_bytes_must_be_png_jpeg_or_bmp"),
        ({"image_bytes": files_of(np.zeros([1, 4, 3, 3], "uint8"))}, "image_bytes: .* 4 wide"),
        ({"image_bytes": files_of(np.zeros([1, 1, 4, 3], "uint8"))}, "known_rows to 4 high"),
    ],
)
def test_wrong_requests_are_refused(model, given, message):
    given = {"image_bytes": files_of(random_images(1)), **given}
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        completing_function(model)(**{name: tf.constant(x) for name, x in given.items()})


def test_models_of_other_images_are_refused():
    with pytest.raises(ValueError, match="Received: 3 channels of 300 values"):
        completing_function(make_model(vocabulary_size=300))
    with pytest.raises(ValueError, match="apply to a RoutingTransformerImageLM"):
        export_saved_model(make_model(), "nowhere", max_length=64)


@pytest.fixture(scope="module")
def version(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    model.save_to_preset(folder / "model")
    words = ["export", "--model", str(folder / "model"), "--output", str(folder / "served")]
    assert cli.main(words) == 0
    return folder / "served" / "1"


def test_the_saved_model_gives_the_same(model, version):
    served, files = tf.saved_model.load(str(version)), files_of(random_images())
    found, expected = (
        images_of(make(files)) for make in (served.complete, completing_function(model))
    )
    np.testing.assert_array_equal(found, expected)
    assert served.complete(tf.constant([], tf.string))["image_bytes"].shape == [0]
    assert (version / "assets.extra" / "tf_serving_warmup_requests").stat().st_size > 0


@pytest.mark.parametrize("number", [0, 1])
def test_the_clients_write_the_image(model, version, clients, tmp_path, capsys, number):
    image = random_images(1)
    (tmp_path / "top.png").write_bytes(files_of(image)[0].numpy())
    with serving(version) as addresses:
        words = ["--server", addresses[number], "complete", str(tmp_path / "top.png")]
        words += ["--output", str(tmp_path / "whole.png"), "--seed", "3"]
        assert clients[number].main([*words, "--known-rows", "1"]) == 0
        assert clients[number].main([*words, "--known-rows", "9"]) == 1
        missing = ["--server", addresses[number], "complete", "none.png", "--output", "x.png"]
        assert clients[number].main(missing) == 1
    errors = capsys.readouterr().err.splitlines()
    assert "known_rows" in errors[0] and "none.png" in errors[1] and len(errors) == 2
    found = tf.io.decode_png((tmp_path / "whole.png").read_bytes())
    np.testing.assert_array_equal(found, model.generate({"images": image}, 1, seed=3)[0])
