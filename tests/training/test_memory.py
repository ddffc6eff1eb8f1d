import pytest

from rt_keras.training import memory
from rt_keras.training.config import load_config, make_config
from rt_keras.training.experiment import Experiment
from rt_keras.training.run import train

SEQ_2_SEQ = {
    "model.kind": "seq_2_seq_lm",
    "model.num_encoder_layers": 2,
    "data.name": "wmt14_translate/de-en",
}
IMAGES = {"model.kind": "image_lm", "data.name": "cifar10"}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"model.key_dim": 16, "model.activation": "relu", "model.tie_embeddings": False},
        {"model.max_sequence_length": 2048, "model.embedding_dim": 64},
        SEQ_2_SEQ,
    ],
    ids=str,
)
def test_weights_are_those_of_the_model(settings):
    experiment = Experiment(make_config(settings))
    found = memory.count_parameters(experiment)
    assert found == pytest.approx(experiment.make_model().count_params(), rel=0.05)


def test_the_estimate_is_near_what_the_compiler_plans():
    # `rt-keras tpu-check --config quickstart`: 0.068 GiB of temporaries, gradients among them.
    found = memory.activation_bytes(Experiment(load_config("quickstart"))) / 2**30
    assert 0.04 < found < 0.068


def test_less_is_kept_with_the_options_that_save_memory():
    sizes = [
        memory.activation_bytes(Experiment(make_config({"model.num_layers": 8, key: value})))
        for key, value in (
            ("model.dropout", 0.0),
            ("model.loss_chunk_size", 64),
            ("trainer.mixed_bfloat16", True),
            ("model.remat", True),
            ("model.reversible", True),
        )
    ]
    assert sizes == sorted(sizes, reverse=True) and len(set(sizes)) == 5


@pytest.mark.parametrize(
    "settings, message",
    [
        (
            {"data.batch_size": 10**11},
            r"data.batch_size is 100,000,000,000, data.sequence_length 2,048: training needs at "
            r"least [\d,]+ GB of memory and this machine has 8 GB. "
            r"At this size, a data.batch_size of at most \d\d can fit",
        ),
        (
            {"data.sequence_length": 10**12},
            r"data.batch_size is 2, data.sequence_length 1,000,000,000,000: .* "
            r"Not even .* 1 can fit; with it, at most data.sequence_length \d\d\d,\d\d\d could",
        ),
        (
            {**SEQ_2_SEQ, "data.sequence_length": 10**12},
            r"Not even .* 1 can fit; with it, at most data.sequence_length \d\d,\d\d\d could",
        ),
        (
            {**IMAGES, "model.image.height": 10**9},
            "Not even a data.batch_size of 1 can fit: make the image or model smaller",
        ),
        (
            {"model.hidden_dim": 10**6},
            r"The weights and the optimizer alone take [\d,]+ GB: make model smaller",
        ),
    ],
    ids=str,
)
def test_what_cannot_fit_is_refused_at_once(settings, message, tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "machine_memory", lambda: 8e9)
    with pytest.raises(ValueError, match=message):
        train(make_config(settings), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_with_an_accelerator_only_batches_count(monkeypatch):
    monkeypatch.setattr(memory, "machine_memory", lambda: 8e9)
    tpu = {"model.hidden_dim": 10**6, "trainer.strategy": "tpu", "trainer.tpu_address": ""}
    memory.check_memory(Experiment(make_config(tpu)))
    large = Experiment(make_config({**tpu, "data.batch_size": 10**6}))
    with pytest.raises(ValueError, match="a data.batch_size of at most 150,240 can fit"):
        memory.check_memory(large)
