"""Image models, from a configuration to scores and generated images."""

import keras
import numpy as np
import pytest

from rt_keras.cli import main
from rt_keras.training import experiment
from rt_keras.training.config import make_config
from rt_keras.training.evaluation import evaluate
from rt_keras.training.run import train
from rt_keras.training.tasks import task_of_kind
from tests.data.checks import write_set
from tests.training.tasks.checks import TINY, assert_batches_are_as_specified

pytestmark = pytest.mark.slow

TASK = task_of_kind("image_lm")


@pytest.fixture(scope="module")
def of_images(tmp_path_factory):
    """A configuration of a class-conditional image model, and the folder of its run."""
    folder = tmp_path_factory.mktemp("images")
    images = [{"image": np.full([28, 28, 1], 25 * n, "uint8"), "label": n} for n in range(10)]
    write_set("mnist", folder, {"train": images, "test": images[:3]})
    config = make_config(
        {
            **TINY,
            "trainer.steps": 2,
            "trainer.validation_every": 2,
            "model.kind": "image_lm",
            "model.heads[0].window_size": 28,
            "model.heads[1].block_size": 28,
            "model.heads[1].grid": [7, 4],
            "model.image.height": 28,
            "model.image.width": 28,
            "model.image.channels": 1,
            "model.image.block_shape": [4, 7],
            "model.image.num_classes": 10,
            "data.name": "mnist",
            "data.data_dir": str(folder),
        }
    )
    train(config, folder / "run", verbose=0)
    return config, folder / "run"


def test_batches_are_as_specified(of_images):
    assert_batches_are_as_specified(of_images[0])


def test_an_image_model_is_scored_by_its_values(of_images):
    config, run = of_images
    model = experiment.load_model(run)
    images = TASK.load_split(config.data, "test")
    scores = evaluate(model, images, batch_size=2)
    assert (scores["images"], scores["tokens"]) == (3, 3 * 28 * 28)
    inputs = {
        name: keras.ops.stack([example[name] for example in images])
        for name in ("images", "labels")
    }
    log_p = keras.ops.convert_to_numpy(keras.ops.log_softmax(model(inputs)))
    taken = np.take_along_axis(log_p, np.asarray(inputs["images"])[..., None].astype("int64"), -1)
    assert scores["nats_per_token"] == pytest.approx(-taken.mean(), rel=1e-4)
    with pytest.raises(ValueError, match="there are no images to evaluate"):
        evaluate(model, images.take(0))


def test_the_command_line_completes_an_image(of_images, tmp_path, capsys):
    _, run = of_images
    given = np.random.default_rng(0).integers(0, 256, [28, 28, 1])
    keras.utils.save_img(tmp_path / "given.png", given, scale=False)
    command = ["generate", "--model", str(run), "--label", "3"]
    command += ["--image", str(tmp_path / "given.png"), "--known-rows", "24"]
    output = tmp_path / "made.png"
    assert main([*command, "--output", str(output)]) == 0
    made = keras.utils.img_to_array(keras.utils.load_img(output, color_mode="grayscale"))
    np.testing.assert_array_equal(made[:24], given[:24])


@pytest.mark.parametrize(
    "words, message",
    [
        ("--label 3", "--output is missing"),
        ("--output x.png", "--label is missing: a class from 0 to 9"),
        ("--output x.png --label 10", "--label must be from 0 to 9. Received: 10"),
        ("--output x.png --label 1 --image config.yaml", "--image must be an image file. Rec"),
        ("--output x.png --prompt a", "--prompt does not apply to --model"),
    ],
)
def test_what_an_image_needs_is_asked_for(words, message, of_images, capsys, monkeypatch):
    monkeypatch.chdir(of_images[1])
    assert main(["generate", "--model", ".", *words.split()]) == 1
    assert message in capsys.readouterr().err
    assert not (of_images[1] / "x.png").exists()
