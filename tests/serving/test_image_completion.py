import numpy as np
import pytest
import tensorflow as tf

from rt_keras.serving import completing_function, export_saved_model
from tests.models.image import test_image_lm
from tests.models.image.test_image_lm import SHAPE
from tests.serving.served import by_command, check_refused
from tests.serving.server import serving

pytestmark = pytest.mark.slow


def make_model(jit_compile=True, vocabulary_size=256, **changes):
    options = {"vocabulary_size": vocabulary_size, "dtype": "float32", **changes}
    model = test_image_lm.make_model(**options)
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


@pytest.fixture(scope="module")
def exported(model, tmp_path_factory):
    return by_command(model, tmp_path_factory.mktemp("images"))


def check_rows(complete, model, **labels):
    """Asserts that each image is completed as the model completes it alone."""
    images = random_images()
    given = {"known_rows": [1, 2, 4], "temperature": [0.7, 0.0, 1.0], "seed": [3, 4, 5]}
    inputs = {name: tf.constant(values) for name, values in (given | labels).items()}
    inputs["seed"] = tf.cast(inputs["seed"], tf.int64)
    found = images_of(complete(files_of(images), **inputs))
    for row, options in enumerate(zip(*given.values())):
        one = {name: x[row : row + 1] for name, x in {"images": images, **labels}.items()}
        np.testing.assert_array_equal(found[row], model.generate(one, *options)[0])


def test_each_row_is_that_of_the_model_alone_with_xla_or_classes(model, exported):
    check_rows(exported.loaded.complete, model)
    labeled = make_model(jit_compile=False, num_classes=5)
    check_rows(completing_function(labeled), labeled, labels=[3, 0, 1])


def test_half_of_an_image_is_known_by_default_and_all_images_may_be_none(model, exported):
    images, complete = random_images(), exported.loaded.complete
    found = images_of(complete(files_of(images[:, :2])))
    np.testing.assert_array_equal(found[:, :2], images[:, :2])
    drawn = model.generate({"images": images[:1]}, known_rows=2, seed=0)[0]
    np.testing.assert_array_equal(found[0], drawn)
    assert complete(tf.constant([], tf.string))["image_bytes"].shape == [0]
    assert (exported.folder / "assets.extra" / "tf_serving_warmup_requests").stat().st_size > 0


def test_wrong_requests_are_refused(exported):
    cases = [
        ({"known_rows": 5}, "known_rows: it must be from 0 to 4"),
        ({"temperature": -1.0}, "temperature: it must be finite"),
        ({"image_bytes": [b"words"]}, "image_bytes_must_be_png_jpeg_or_bmp"),
        ({"image_bytes": files_of(np.zeros([1, 4, 3, 3], "uint8"))}, "image_bytes: .* 4 wide"),
        ({"image_bytes": files_of(np.zeros([1, 1, 4, 3], "uint8"))}, "known_rows to 4 high"),
    ]
    check_refused(exported.loaded.complete, cases, image_bytes=files_of(random_images(1)))


def test_models_of_other_images_are_refused(model):
    with pytest.raises(ValueError, match="Received: 3 channels of 300 values"):
        completing_function(make_model(vocabulary_size=300))
    with pytest.raises(ValueError, match="apply to a RoutingTransformerImageLM"):
        export_saved_model(model, "nowhere", max_length=64)


@pytest.mark.weekly
def test_the_clients_write_the_image(exported, clients, tmp_path, capsys):
    file, name = files_of(random_images(1)), str(tmp_path / "top.png")
    (tmp_path / "top.png").write_bytes(file[0].numpy())
    expected = exported.loaded.complete(file, tf.constant(1), seed=tf.constant(3, tf.int64))
    with serving(exported.folder) as addresses:
        for client, address in zip(clients, addresses):
            words = ["--server", address, "complete", name, "--output", str(tmp_path / "whole.png")]
            assert client.main([*words, "--seed", "3", "--known-rows", "1"]) == 0
            found = tf.io.decode_png((tmp_path / "whole.png").read_bytes())
            np.testing.assert_array_equal(found, images_of(expected)[0])
            (tmp_path / "whole.png").unlink()
            assert client.main([*words[:3], "none.png", *words[4:]]) == 1
            assert "none.png" in capsys.readouterr().err
