import io

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from rt_keras.benchmarks.images.training import codec_bits, shape_of, train
from tests.data.test_idx_images import write_folder, write_idx

SETTINGS = {
    "seed": 0,
    "data": "idx_images",
    "steps": 20,
    "layers": 1,
    "width": 16,
    "keys": 10,
    "batch": 2,
    "test_images": 3,
    "learning_rate": 1e-2,
}


@pytest.fixture
def settings(tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "prepared"))
    write_folder(tmp_path / "idx")
    for name in ("train", "t10k"):
        write_idx(tmp_path / "idx" / f"{name}-images-idx3-ubyte", np.full([20, 4, 5], 7))
        write_idx(tmp_path / "idx" / f"{name}-labels-idx1-ubyte", np.zeros([20]))
    return {**SETTINGS, "directory": str(tmp_path / "idx")}


@pytest.mark.parametrize("codec", ["png", "webp"])
def test_bits_of_codecs_are_those_of_files_that_can_be_read_back(codec, monkeypatch):
    images = np.random.default_rng(0).integers(256, size=[3, 6, 5, 3]).astype("uint8")
    written = []
    save = Image.Image.save

    def kept(image, file, *args, **options):
        save(image, file, *args, **options)
        written.append(file.getvalue())

    monkeypatch.setattr(Image.Image, "save", kept)
    data = tf.data.Dataset.from_tensor_slices({"images": images})
    found = codec_bits(data, codec)
    assert 8 < found < 40
    if codec == "webp":
        assert found == 8 * sum(map(len, written)) / images.size
        for image, file in zip(images, written):
            np.testing.assert_array_equal(Image.open(io.BytesIO(file)), image)


def test_images_have_the_shape_of_their_files(settings):
    assert shape_of(settings) == (4, 5, 1)
    assert shape_of({**settings, "data": "cifar10"}) == (32, 32, 3)


@pytest.mark.end_to_end
@pytest.mark.parametrize("kind", ["nearest", "pixel_cnn"])
def test_models_learn(kind, settings):
    reports = []
    found = train({**settings, "kind": kind}, lambda *report: reports.append(report))
    assert [x for kind, x in reports if kind == "step"] == list(range(1, 21))
    assert found["steps"] == list(range(1, 21))
    assert found["test_bits"] < found["bits"][0] - 1
    kinds = {tuple(pair["kinds"]) for pair in found["divergences"]}
    assert bool(kinds) == (kind == "nearest")
