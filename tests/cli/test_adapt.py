import json

import keras_hub
import pytest

from rt_keras import cli
from rt_keras.training import experiment
from tests.cli.checks import assert_one_line
from tests.models.adapted.checks import make_backbone
from tests.models.adapted.llama_folder import write_llama

LOCAL = ["{class: LocalHeads, num_heads: 4, block_size: 8}"]


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    """Returns the folder of a pretrained model."""
    return write_llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def preset(llama, tmp_path_factory):
    """Returns the folder of the preset that `rt-keras adapt` writes for it."""
    folder = tmp_path_factory.mktemp("adapted") / "preset"
    command = ["adapt", "--model", str(llama), "--output", str(folder), "--heads", *LOCAL]
    assert cli.main(command) == 0
    return folder


def adapt(run, model, output, *options):
    return run("adapt", "--model", model, "--output", output, *options)


def test_other_heads_and_what_is_said_of_them(run, llama, tmp_path):
    output, figures = tmp_path / "preset", tmp_path / "figures.json"
    heads = ["{class: LocalHeads, num_heads: 2, block_size: 8}", "{class: FullHeads, num_heads: 2}"]
    options = ["--heads", *heads, "--layers", 1, "--json", figures, "--dtype", "mixed_bfloat16"]
    status, shown, _ = adapt(run, llama, output, *options)
    assert status == 0
    found = json.loads(figures.read_text())
    groups = "2 heads of Window(block_size=8), 2 heads of Everything()"
    assert found["layers"] == ["4 heads of Everything()", groups]
    assert found["model"] == "AdaptedLlama3CausalLM" and found["trained_length"] == 48
    left_alone = [layer["left_alone"] for layer in found["attention"]]
    assert left_alone == ["not among the chosen layers", ""]
    assert found["bytes"] == sum(x.stat().st_size for x in output.rglob("*") if x.is_file())
    assert "1 2 heads of Window(block_size=8) 16 0 0" in " ".join(shown.split())
    assert "trained on sequences of 48 tokens" in shown
    loaded = experiment.load_model(output)
    assert loaded.count_params() == found["parameters"]
    assert loaded.backbone.dtype_policy.name == "mixed_bfloat16"
    assert not list(tmp_path.glob(".*"))


def test_presets_longer_sequences_and_global_layers(run, tmp_path):
    make_backbone("Llama").save_to_preset(tmp_path / "keras")
    lengths = ["--max-length", 96, "--trained-length", 48]
    options = ["--heads", *LOCAL, "--layers", "global", *lengths]
    status, shown, _ = adapt(run, tmp_path / "keras", tmp_path / "preset", *options)
    assert status == 0 and "0 to 1 4 heads of Window(block_size=8)" in " ".join(shown.split())
    backbone = keras_hub.models.Backbone.from_preset(str(tmp_path / "preset"))
    assert backbone.rotary_scale == 2


def test_a_budget_of_keys_in_the_place_of_heads(run, llama, tmp_path):
    figures = tmp_path / "figures.json"
    status, _, _ = adapt(run, llama, tmp_path / "preset", "--keys", 64, "--json", figures)
    assert status == 0
    (layer, _) = json.loads(figures.read_text())["layers"]
    assert "FirstTokens(num_first_tokens=4) + SelectedBlocks(block_size=4, num_blocks=16" in layer


def test_bad_folders_give_one_line(run, llama, preset, tmp_path, monkeypatch):
    status, _, error = adapt(run, preset, tmp_path / "preset", "--heads", *LOCAL)
    assert_one_line(status, error, "is already adapted")
    status, _, error = adapt(run, llama, preset)
    assert_one_line(status, error, "already exists; name a new")

    def fail(*_, **__):
        raise OSError("the disk is full")

    # A preset that cannot be written leaves nothing.
    monkeypatch.setattr("rt_keras.models.adapted.tasks.AdaptedTask.save_to_preset", fail)
    status, _, error = adapt(run, llama, tmp_path / "preset")
    assert_one_line(status, error, "the disk is full")
    assert list(tmp_path.iterdir()) == []


def test_encoders_are_adapted_and_generate_nothing(run, tmp_path):
    backbone = keras_hub.models.BertBackbone(20, 1, 2, 8, 8, max_sequence_length=12)
    backbone.save_to_preset(tmp_path / "bert")
    heads = "{class: ClusteredHeads, num_heads: 2}"
    assert adapt(run, tmp_path / "bert", tmp_path / "preset", "--heads", heads)[0] == 0
    keras_hub.models.BertTextClassifier(backbone, 3).save_to_preset(tmp_path / "classifier")
    for folder, problem in (
        ("preset", "holds only a AdaptedBertBackbone"),
        ("classifier", "BertTextClassifier, which is not a model"),
    ):
        status, _, error = run("generate", "--model", tmp_path / folder, "--prompt", "a")
        assert_one_line(status, error, problem)


@pytest.mark.slow
def test_adapted_models_generate_and_are_scored_and_analyzed(run, preset, books, tmp_path):
    figures = tmp_path / "figures.json"
    command = ["generate", "--model", preset, "--max-length", 16, "--json", figures]
    command += ["--prompt", "the cat", "--stop", "<|endoftext|>", "<|im_end|>"]
    assert run(*command)[0] == 0
    text = json.loads(figures.read_text())["text"]
    assert text.startswith("the cat") and run(*command, "--stream")[0] == 0
    assert json.loads(figures.read_text())["text"] == text
    options = ["--model", preset, "--data", books, "--json", figures]
    drawn = ["--context", "stateful", "--plot", tmp_path / "context.png"]
    status, shown, _ = run("evaluate", *options, *drawn)
    stateful = json.loads(figures.read_text())
    assert status == 0 and f"bits per byte {stateful['bits_per_byte']:.4f}" in " ".join(
        shown.split()
    )
    assert (tmp_path / "context.png").read_bytes().startswith(b"\x89PNG")
    assert stateful["bytes"] == sum(x.stat().st_size for x in (books / "test").iterdir())
    assert run("evaluate", *options, "--sequence-length", 1000)[0] == 0
    whole = json.loads(figures.read_text())["nats_per_token"]
    assert whole == pytest.approx(stateful["nats_per_token"], rel=0.02)
    few = ["--sequences", 1, "--sequence-length", 24]
    status, _, error = run("analyze", "clusters", *options, *few)
    assert_one_line(status, error, "must have heads with clusters")
