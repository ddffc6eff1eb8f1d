import pytest

from rt_keras import files
from rt_keras.layers import ClusteredHeads
from rt_keras.training import config as config_lib
from rt_keras.training.experiment import Experiment
from rt_keras.training.run import train


@pytest.mark.slow
def test_every_published_configuration_loads_and_comes_back_from_its_yaml(tmp_path):
    for path in files.config_folder().glob("*.yaml"):
        config = config_lib.load_config(path.stem)
        (tmp_path / "config.yaml").write_text(config_lib.to_yaml(config))
        assert config_lib.load_config(tmp_path / "config.yaml") == config, path


def test_overrides_win_over_the_file_and_take_yaml_values():
    overrides = ["optimizer.learning_rate=5e-4", "schedule.final_fraction=0"]
    overrides += ["data.directory=gs://bucket/books=1", "optimizer.global_clipnorm=null"]
    config = config_lib.load_config("books", [*overrides, "trainer.jit_compile=false"])
    assert config.optimizer.learning_rate == 5e-4
    assert config.schedule.final_fraction == 0.0
    assert isinstance(config.schedule.final_fraction, float)
    assert config.data.directory == "gs://bucket/books=1"
    assert config.optimizer.global_clipnorm is None
    assert config.trainer.jit_compile is False


PAIRS = {"data.name": "pairs_folder"}
SEQ_2_SEQ = {**PAIRS, "model.kind": "seq_2_seq_lm", "model.num_encoder_layers": 1}
IMAGES = {"model.kind": "image_lm", "data.name": "cifar10"}
QUESTIONS = {"data.name": "question_folder"}
RETRIEVER = {**QUESTIONS, "model.kind": "retriever"}
READER = {**QUESTIONS, "model.kind": "reader"}
SPEECH = {"model.kind": "ctc", "data.name": "speech_folder"}
STATEFUL = {"trainer.stateful": True}


@pytest.mark.parametrize(
    "override, message",
    [
        ("optimizer.learning_rat=1", "learning_rat;.*nearest known key is optimizer.learning_rate"),
        ("learning_rate=1", "nearest known key is optimizer.learning_rate"),
        ("model.num_clusters=4", "there are model.routing.num_clusters, model.local_routing"),
        ("trainer.steps", "section.key=value"),
        ("=3", "override '=3' must have the form section.key=value"),
        ("trainer.steps=[1", "'trainer.steps=\\[1' is not valid YAML"),
    ],
)
def test_a_wrong_key_or_value_is_named(override, message):
    with pytest.raises(ValueError, match=message):
        config_lib.load_config("quickstart", [override])


def test_a_model_without_a_decoder_has_clustered_heads():
    sizes = {"hidden_dim": 8, "intermediate_dim": 8, "kind": "retriever", "num_layers": 1}
    model = {f"model.{name}": value for name, value in sizes.items()}
    model["data.name"] = "question_folder"
    clustered = {"model.clustered.num_heads": 2, "model.clustered.num_clusters": 10}
    made = Experiment(config_lib.make_config({**model, **clustered})).make_model()
    (group,) = made.backbone.transformer_blocks[0].attention.head_groups
    assert (type(group), group.num_clusters) == (ClusteredHeads, 10)
    # Heads of the causal kind become such heads and must keep their options.
    causal = {"model.causal_clustered.num_heads": 2, "model.clustered.num_clusters": 10}
    assert config_lib.make_config({**model, **causal}).model.clustered.num_clusters == 10
    with pytest.raises(ValueError, match="model.causal_clustered has values but an encoder uses"):
        config_lib.make_config({**model, **causal, "model.causal_clustered.block_size": 8})


TEXTS = {"data.name": "text_folder"}
LOCAL, ROUTING = {"model.local.num_heads": 4}, {"model.routing.num_heads": 4}


@pytest.mark.parametrize(
    "values, message",
    [
        (
            {"model.routing.window_size": 4096, **ROUTING},
            "window_size is 4096.*sequence_length is only 2048",
        ),
        ({"model.max_sequence_length": 1024}, "at least data.sequence_length, 2048"),
        ({"model.hparams": "meena_local2k"}, "num_encoder_layers 6, which does not fit model.kind"),
        ({"model.hparams": "pg19_local8k", **LOCAL}, "local.num_heads is 4, but model.hparams"),
        ({"model.kind": "seq_2_seq_lm", **PAIRS}, "num_encoder_layers is 0.*at least 1"),
        ({"model.num_encoder_layers": 2}, "num_encoder_layers is 2, but .* causal_lm does not use"),
        ({"data.name": "cifar10"}, "data.name is 'cifar10'; for kind causal_lm"),
        ({**IMAGES, "model.image.height": 30, "model.image.block_height": 8}, "do not divide"),
        ({**IMAGES, "model.local.block_size": 100}, "do not divide an image of 3072 values"),
        (
            {**SEQ_2_SEQ, "data.encoder_sequence_length": 8192, **LOCAL},
            "cross_block_size is None.*8192 positions must form 16 blocks.* use 512",
        ),
        ({**RETRIEVER, "trainer.gradient_accumulation_steps": 2}, "steps is 2; .* it must be 1"),
        ({**READER, "data.sequence_length": 99}, "sequence_length is 99, .* kind reader does not"),
        ({**READER, "model.max_sequence_length": 37}, "max_sequence_length is 37.*at least"),
        ({**SPEECH, "model.image.height": 3}, "image.height is 3, but .* kind ctc does not use"),
        ({**STATEFUL, "model.remat": True}, "remat is True; with trainer.stateful .* be False"),
        ({**STATEFUL, "trainer.gradient_accumulation_steps": 2}, "is 2; with trainer.stateful"),
        ({"trainer.steps": 150}, "validation_every is 100; it must divide trainer.steps, 150"),
        ({"trainer.steps_per_execution": 7}, "must divide trainer.validation_every"),
        ({"schedule.warmup_steps": 2000}, "warmup_steps is 2000.*trainer.steps, 1500"),
    ],
)
def test_values_that_do_not_go_together_are_named(values, message):
    with pytest.raises(ValueError, match=message):
        config_lib.make_config(values)


@pytest.mark.parametrize(
    "values, message",
    [
        ({"tokenizer.name": "word_piece"}, "tokenizer.vocabulary must name a file"),
        ({"tokenizer.name": "words", "tokenizer.vocabulary": "no/such"}, "no/such'?, not a file"),
        (TEXTS, "data.directory. must be the path to read for text_folder"),
        ({"trainer.strategy": "tpu"}, "trainer.tpu_address must be set"),
        ({**TEXTS, "data.directory": "no/such"}, "directory must exist. Received: .*no/such"),
        ({"data.name": "pg19", "data.directory": "x"}, "it is for text_folder, .*, wikitext103"),
    ],
)
def test_what_training_needs_is_asked_for_before_it_starts(values, message, tmp_path):
    config = config_lib.make_config(values)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
