"""Encoder-decoders and image models, from a configuration to a score and to what they generate."""

import math

import keras
import numpy as np
import pytest

from rt_keras.cli import main
from rt_keras.training import datasets, experiment
from rt_keras.training.config import make_config
from rt_keras.training.evaluation import evaluate
from rt_keras.training.run import train
from tests.data.checks import write_set

TINY = {
    "model.hidden_dim": 16,
    "model.num_layers": 1,
    "model.intermediate_dim": 16,
    "model.local.num_heads": 1,
    "model.local.block_size": 8,
    "model.routing.num_heads": 1,
    "model.routing.num_clusters": 2,
    "model.routing.window_size": 8,
    "data.batch_size": 2,
    "optimizer.learning_rate": 1e-2,
    "schedule.name": "constant",
    "schedule.warmup_steps": 0,
    "trainer.steps": 6,
    "trainer.validation_every": 3,
    "trainer.validation_batches": 2,
    "trainer.jit_compile": False,
}


@pytest.fixture(scope="module")
def of_pairs(tmp_path_factory):
    """A configuration of an encoder-decoder, and the folder of its run."""
    folder = tmp_path_factory.mktemp("pairs")
    for split, count in (("train", 8), ("validation", 3), ("test", 3)):
        lines = [f"{split} {number}" for number in range(count)]
        (folder / f"{split}.source").write_text("\n".join(lines) + "\n")
        (folder / f"{split}.target").write_text("\n".join(lines).upper() + "\n")
    config = make_config(
        {
            **TINY,
            "model.kind": "seq_2_seq_lm",
            "model.num_encoder_layers": 1,
            "model.local.cross_block_size": 12,
            "data.name": "pairs_folder",
            "data.directory": str(folder),
            "data.data_dir": str(folder / "prepared"),
            "data.sequence_length": 16,
            "data.encoder_sequence_length": 24,
        }
    )
    train(config, folder / "run", verbose=0)
    return config, folder / "run"


@pytest.fixture(scope="module")
def of_images(tmp_path_factory):
    """A configuration of a class-conditional image model, and the folder of its run."""
    folder = tmp_path_factory.mktemp("images")
    images = [{"image": np.full([28, 28, 1], 25 * n, "uint8"), "label": n} for n in range(10)]
    write_set("mnist", folder, {"train": images, "test": images[:3]})
    config = make_config(
        {
            **TINY,
            "model.kind": "image_lm",
            "model.local.block_size": 28,
            "model.routing.window_size": 28,
            "model.image.height": 28,
            "model.image.width": 28,
            "model.image.channels": 1,
            "model.image.block_height": 4,
            "model.image.num_classes": 10,
            "data.name": "mnist",
            "data.data_dir": str(folder),
        }
    )
    train(config, folder / "run", verbose=0)
    return config, folder / "run"


def test_an_encoder_decoder_is_scored_by_its_second_text(of_pairs):
    config, run = of_pairs
    model = experiment.load_model(run)
    pairs = datasets.load_split("seq_2_seq_lm", config.data, "test", model.preprocessor)
    scores = evaluate(model, pairs, batch_size=2)
    texts = [pair["decoder_text"] for pair in pairs.as_numpy_iterator()]
    assert scores["documents"] == 3 and scores["tokens"] == sum(len(text) + 1 for text in texts)
    assert scores["perplexity_per_token"] == pytest.approx(math.exp(scores["nats_per_token"]))
    batch = {name: keras.ops.stack([pair[name] for pair in pairs]) for name in pairs.element_spec}
    inputs, labels, weights = model.preprocessor(batch)
    log_p = keras.ops.convert_to_numpy(keras.ops.log_softmax(model(inputs)))
    taken = np.take_along_axis(log_p, np.asarray(labels)[..., None], -1)[..., 0]
    nats = -np.mean(taken[np.asarray(weights).astype(bool)])
    assert scores["nats_per_token"] == pytest.approx(nats, rel=1e-4)


def test_an_image_model_is_scored_by_its_values(of_images):
    config, run = of_images
    model = experiment.load_model(run)
    images = datasets.load_split("image_lm", config.data, "test")
    scores = evaluate(model, images, batch_size=2)
    assert (scores["images"], scores["tokens"]) == (3, 3 * 28 * 28)
    assert scores["bits_per_dimension"] == pytest.approx(scores["nats_per_token"] / math.log(2))
    inputs = {
        name: keras.ops.stack([example[name] for example in images])
        for name in ("images", "labels")
    }
    log_p = keras.ops.convert_to_numpy(keras.ops.log_softmax(model(inputs)))
    taken = np.take_along_axis(log_p, np.asarray(inputs["images"])[..., None].astype("int64"), -1)
    assert scores["nats_per_token"] == pytest.approx(-taken.mean(), rel=1e-4)


def test_nothing_to_score_is_an_error(of_images):
    config, run = of_images
    images = datasets.load_split("image_lm", config.data, "test")
    with pytest.raises(ValueError, match="there are no images to evaluate"):
        evaluate(experiment.load_model(run), images.take(0))


def test_the_command_line_scores_and_writes_texts(of_pairs, capsys):
    _, run = of_pairs
    assert main(["evaluate", "--model", str(run)]) == 0
    assert "perplexity per token" in capsys.readouterr().out
    command = ["generate", "--model", str(run), "--prompt", "test 1", "--max-length", "9"]
    assert main(command) == 0


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
    "arguments, message",
    [
        (["--label", "3"], "--output is missing"),
        (["--output", "x.png"], "--label is None; it must be from 0 to 9"),
        (["--output", "x.png", "--label", "10"], "--label is 10; it must be from 0 to 9"),
        (["--output", "x.png", "--label", "1", "--known-rows", "2"], "no --image has them"),
        (["--output", "x.png", "--label", "1", "--image", "no.png"], "No such file"),
    ],
)
def test_what_an_image_needs_is_asked_for(arguments, message, of_images, capsys, monkeypatch):
    _, run = of_images
    monkeypatch.chdir(run)
    assert main(["generate", "--model", str(run), *arguments]) == 1
    assert message in capsys.readouterr().err
    assert not (run / "x.png").exists()


def test_l2_is_of_all_weights_but_biases(of_pairs):
    config, _ = of_pairs
    model = experiment.make_model(config, experiment.make_tokenizer(config.tokenizer))
    for variable in model.trainable_variables:
        variable.assign(keras.ops.ones(variable.shape))
    experiment.add_l2(model, 0.5)
    inputs = {name: keras.ops.ones([1, 16], "int32") for name in model.backbone.input}
    model(inputs)
    counted = [v for v in model.trainable_variables if not v.path.endswith("bias")]
    assert len(counted) < len(model.trainable_variables)
    expected = 0.25 * sum(np.prod(v.shape) for v in counted)
    assert float(sum(model.losses)) == pytest.approx(expected, rel=1e-5)
