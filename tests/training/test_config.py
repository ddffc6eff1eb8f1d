import pytest

from rt_keras import files
from rt_keras.layers import Heads, LocalRoutingHeads
from rt_keras.models.transformer_blocks import BlockOptions
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
    overrides += ["model.heads[0].block_size=32", "model.image={}"]
    config = config_lib.load_config("books", [*overrides, "trainer.jit_compile=false"])
    assert config.optimizer.learning_rate == 5e-4
    assert config.schedule.final_fraction == 0.0
    assert isinstance(config.schedule.final_fraction, float)
    assert config.data.directory == "gs://bucket/books=1"
    assert config.optimizer.global_clipnorm is None
    assert config.trainer.jit_compile is False
    assert config.model.heads[0]["block_size"] == 32
    # Defaults and given lists are never changed, only copies of them.
    default = config_lib.make_config({"model.heads[0].num_heads": 2}).model.heads
    assert (default[0]["num_heads"], config_lib.ModelConfig().heads[0]["num_heads"]) == (2, 4)
    given = [{"class": "FullHeads", "num_heads": 4}]
    config_lib.make_config({"model.heads": given, "model.heads[0].num_heads": 2})
    assert given[0]["num_heads"] == 4


SMALL = {"model.hidden_dim": 16, "model.intermediate_dim": 16, "model.vocabulary_size": 9}
PAIRS = {"data.name": "pairs_folder"}
SEQ_2_SEQ = {**PAIRS, "model.kind": "seq_2_seq_lm", "model.num_encoder_layers": 1}
QUESTIONS = {"data.name": "question_folder"}
RETRIEVER = {**QUESTIONS, "model.kind": "retriever"}
READER = {**QUESTIONS, "model.kind": "reader"}
SPEECH = {"model.kind": "ctc", "data.name": "speech_folder"}
STATEFUL = {"trainer.stateful": True}
FULL = {"class": "FullHeads", "num_heads": 2}


WINDOW, ALL = "Window", "Everything"


def kinds(blocks, attention="attention"):
    """The set of keys, or the class, of the head groups of each block."""
    groups = [getattr(block, attention).head_groups for block in blocks]
    sets = [[getattr(heads, "key_sets", [heads])[0] for heads in block] for block in groups]
    return [[type(first).__name__ for first in block] for block in sets]


def test_heads_are_those_of_all_blocks_those_below_and_those_of_each_block():
    local = {"class": "LocalHeads", "num_heads": 2, "block_size": 8}
    values = {**SMALL, "model.heads": [local, FULL], "model.num_lower_layers": 1}
    values |= {"model.lower_heads": [{"class": "GatedDeltaHeads", "num_heads": 4}]}
    decoder = Experiment(config_lib.make_config({**values, "model.num_layers": 3})).make_model()
    both = [WINDOW, ALL]
    assert kinds(decoder.backbone.transformer_blocks) == [["GatedDeltaHeads"], both, both]
    values |= {**SEQ_2_SEQ, "model.encoder_heads": [[local, local]]}
    values |= {"model.cross_heads": [[FULL], [{**local, "key_block_size": 8}]]}
    backbone = Experiment(config_lib.make_config(values)).make_model().backbone
    assert kinds(backbone.encoder_blocks) == [[WINDOW, WINDOW]]
    cross = kinds(backbone.transformer_blocks, "cross_attention")
    assert cross == [[ALL], [WINDOW]]
    # Without its own, the encoder has the heads of the decoder.
    values |= {"model.encoder_heads": None, "model.num_encoder_layers": 2}
    values |= {"model.lower_heads": [local]}
    backbone = Experiment(config_lib.make_config(values)).make_model().backbone
    assert kinds(backbone.encoder_blocks) == [[WINDOW], both]


def test_every_option_of_a_model_reaches_it():
    values = {"dropout": 0.1, "shift_tokens": True, "conv_kernel_size": [4, None]}
    values |= {"tie_embeddings": False, "loss_chunk_size": 4, "initializer_scale": 0.2}
    values = {f"model.{name}": value for name, value in values.items()}
    model = Experiment(config_lib.make_config({**SMALL, **values})).make_model()
    options = model.backbone.block_options
    assert (options.dropout, options.shift_tokens, model.loss_chunk_size) == (0.1, True, 4)
    assert options.conv_kernel_size == [4, None] and not model.backbone.tie_embeddings
    assert options.kernel_initializer.scale == 0.2
    speech = Experiment(config_lib.make_config({**SMALL, **SPEECH, "model.speech.time_masks": 5}))
    assert speech.make_model().backbone.get_config()["time_masks"] == 5
    # An encoder.
    assert not speech.is_strictly_causal


def test_defaults_are_those_of_the_blocks():
    keys = {key.name.removeprefix("model."): key.default for key in config_lib.config_keys()}
    defaults = vars(BlockOptions(keys["intermediate_dim"]))
    # No keys.
    del defaults["feed_forward"], defaults["kernel_initializer"]
    assert {name: keys[name] for name in defaults} == defaults


@pytest.mark.parametrize(
    "override, message",
    [
        ("optimizer.learning_rat=1", "learning_rat;.*nearest known key is optimizer.learning_rate"),
        ("learning_rate=1", "--set .* nearest known key is optimizer.learning_rate"),
        ("model=3", "model is a section; set its keys: model.kind"),
        ("model.image=null", "model.image is a section; set its keys: model.image.height"),
        ("optimizer.name=sdg", r"optimizer.name is 'sdg' \(str\); it must be one of adam"),
        ("data.name=null", r"data.name is None \(NoneType\); it must be text"),
        ("model.remat=1", r"model.remat is 1 \(int\); it must be true or false"),
        ("optimizer.learning_rate=true", r"_rate is True \(bool\); it must be a number above 0"),
        ("trainer.steps={more: 1}", "unknown key trainer.steps.more"),
        ("model.image.height.x=3", "unknown key model.image.height.x"),
        (
            "model.heads[3].num_heads=3",
            "unknown key model.heads.3..num_heads; an entry of a",
        ),
        ("trainer.steps", "section.key=value"),
        ("=3", "override '=3' must have the form section.key=value"),
        ("trainer.steps=[1", "'trainer.steps=\\[1' is not valid YAML"),
        ("trainer.steps=1300", r"line 30: trainer.validation_every is 400; it must divide"),
        ("trainer.steps=1.5", r"--set trainer.steps=1.5: trainer.steps is 1.5 \(float\); it must"),
        (
            "model.local_routing.num_heads=3",
            "model.local_routing is no section; heads are a list .*class: LocalRoutingHeads,",
        ),
        ("model.union={num_heads: 3, window: {block_size: 8}}", "{class: Heads, num_heads: 4}"),
    ],
)
def test_a_wrong_key_or_value_is_named(override, message):
    with pytest.raises(ValueError, match=message):
        config_lib.load_config("quickstart", [override])


FILE = """\
model:
  hidden_dim: 16
  heads:
    - {class: FullHeads, num_heads: 2}
    - class: Heads
      num_heads: 2
      key_sets:
        - {class: Window, block_size: 8}
        - {class: FirstTokens, num_first_tokens: 4}
"""


@pytest.mark.parametrize(
    "before, after, message",
    [
        ("dim: 16", "dim: 1.5", r"mine.yaml, line 2: model.hidden_dim is 1.5 \(float\); it must"),
        ("hidden_dim", "hiden_dim", "line 2: unknown key model.hiden_dim; .* model.hidden_dim"),
        ("dim: 16", "dim: 15", "mine.yaml, line 1: model: The 4 heads must divide the 15"),
        ("dim: 16", "dim: 16\n  normalization: norm", "line 3: model: normalization must be one "),
        ("FullHeads", "FulHeads", r"line 4: model.heads\[0\]: unknown class FulHeads; .* FullH"),
        ("Full", "my_package.", "line 4: .* class my_package.Heads cannot be imported: No module"),
        ("{class: FullHeads, n", "{n", r"line 4: model.heads\[0\]: heads need a class, as in"),
        ("num_heads: 2}", "num_head: 2}", "line 4: .* num_head is unknown; .* is num_heads"),
        (", num_heads: 2}", "}", "line 4: .*num_heads"),
        ("num_heads: 2}", "num_heads: 0}", r"line 4: model.heads\[0\]: .*num_heads must be a pos"),
        (
            "_size: 8",
            "_size: a",
            r"^\S+, line 8: model.heads\[1\].key_sets\[0\]: block_size must be",
        ),
        ("key_sets:", "share_qk: 3\n      key_set:", "line 8: .* key_set is unknown; "),
    ],
)
def test_an_error_names_the_line_and_what_the_constructor_says(before, after, message, tmp_path):
    assert before in FILE
    (tmp_path / "mine.yaml").write_text(FILE.replace(before, after, 1))
    with pytest.raises(ValueError, match=message):
        Experiment(config_lib.load_config(tmp_path / "mine.yaml")).make_model()
    (tmp_path / "mine.yaml").write_text(FILE)
    model = Experiment(config_lib.load_config(tmp_path / "mine.yaml")).make_model()
    (_, heads) = model.backbone.transformer_blocks[0].attention.head_groups
    assert type(heads) is Heads and [type(x).__name__ for x in heads.key_sets] == [
        "Window",
        "FirstTokens",
    ]


def test_heads_may_be_of_a_class_of_ones_own():
    name = f"{LocalRoutingHeads.__module__}.LocalRoutingHeads"
    sizes = {"num_heads": 2, "block_size": 8, "num_clusters": 2, "window_size": 4}
    registered = {"class": "rt_keras>Heads", "num_heads": 2, "key_sets": [{"class": ALL}]}
    values = {**SMALL, "model.heads": [[{"class": name, **sizes}], [registered]]}
    blocks = Experiment(config_lib.make_config(values)).make_model().backbone.transformer_blocks
    assert kinds(blocks) == [[WINDOW], [ALL]]


TEXTS = {"data.name": "text_folder"}


@pytest.mark.parametrize(
    "values, message",
    [
        ({"model.max_sequence_length": 1024}, "at least data.sequence_length, 2048"),
        ({"model.hparams": "meena_local2k"}, "num_encoder_layers 6, which does not fit model.kind"),
        ({"model.hparams": "pg19_local8k", "model.heads": [FULL]}, "heads is .*but model.hparams"),
        ({"model.num_encoder_layers": 2}, "num_encoder_layers is 2, but .* causal_lm does not use"),
        ({"data.name": "cifar10"}, "data.name is 'cifar10'; for kind causal_lm"),
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
        ({"model.heads[0].block_size": 0}, r"model.heads\[0\]: .*block_size must be"),
    ],
)
def test_what_training_needs_is_asked_for_before_it_starts(values, message, tmp_path):
    config = config_lib.make_config(values)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run" / "config.yaml").exists()
