"""Models of the authors' code in configurations."""

import json

import keras
import pytest

from rt_keras import models
from rt_keras.convert import T2TSubwordTokenizer, new_t2t_model
from rt_keras.convert.t2t import hparams as t2t_hparams
from rt_keras.convert.t2t.heads import T2THashedHeads, T2TLocalHeads
from rt_keras.convert.t2t.model import make_backbone
from rt_keras.training.config import load_config, make_config
from rt_keras.training.experiment import Experiment, load_model
from rt_keras.training.run import train
from rt_keras.training.tasks import task_of_kind
from tests.processes import printed

TINY = {
    "num_decoder_layers": 1,
    "hidden_size": 16,
    "filter_size": 16,
    "embedding_dims": 8,
    "local_num_heads": 1,
    "sparsity_cluster_num_heads": 1,
    "sparsity_cluster_size": 2,
    "sparsity_cluster_attention_window": 8,
    "query_shape": [8],
    "memory_query_shape": [8],
    "memory_flange": [8],
    "max_relative_position": 3,
    "hash_items": True,
}


@pytest.fixture
def values(tmp_path):
    """A configuration whose model is that of tiny hyperparameters."""
    path = tmp_path / "hparams.json"
    path.write_text(json.dumps(TINY))
    return {
        "model.hparams": str(path),
        "model.loss_chunk_size": 4,
        "data.sequence_length": 16,
        "trainer.steps": 2,
        "trainer.validation_every": 2,
        "schedule.warmup_steps": 0,
    }


@pytest.mark.parametrize("kind, cls", [("causal_lm", "CausalLM"), ("reader", "Reader")])
def test_of_a_configuration(values, kind, cls):
    data = {"name": "kilt"} if kind == "reader" else {}
    named = {f"data.{key}": value for key, value in data.items()}
    if kind == "reader":
        del values["data.sequence_length"]
    experiment = Experiment(make_config({**values, **named, "model.kind": kind}))
    model = experiment.make_model()
    assert type(model) is getattr(models, f"RoutingTransformer{cls}")
    groups = model.backbone.transformer_blocks[0].attention.head_groups
    assert [type(group) for group in groups] == [T2THashedHeads, T2TLocalHeads]
    assert model.loss_chunk_size == 4 and not experiment.is_strictly_causal


@pytest.mark.slow
def test_trained_saved_and_loaded(values, tiny_settings, tmp_path):
    others = {name: x for name, x in tiny_settings.items() if not name.startswith("model.")}
    values = {**others, **values}
    train(make_config(values), tmp_path / "run", verbose=0)
    model = load_model(tmp_path / "run")
    assert isinstance(model.backbone.transformer_blocks[0].attention.head_groups[0], T2THashedHeads)
    # Another run starts from it.
    values["model.preset"] = str(tmp_path / "run")
    assert train(make_config(values), tmp_path / "again", verbose=0)["steps"] == 2


def test_every_published_set_is_a_configuration():
    for name in t2t_hparams.published():
        model = load_config(name).model
        assert model.hparams == name
        h = {**task_of_kind(model.kind).hparams(model), "num_decoder_layers": 1}
        if model.kind == "seq_2_seq_lm":
            h["num_encoder_layers"] = 1
        shape = model.image.shape if model.kind == "image_lm" else None
        # Variables without values: some of these models are large.
        with keras.StatelessScope(initialize_variables=False):
            backbone = make_backbone(h, 32, shape)
        # Otherwise, Keras would initialize them when it next leaves such a scope.
        keras.utils.clear_session()
        assert (backbone.kind, backbone.hidden_dim) == (model.kind, h["hidden_size"])


@pytest.mark.slow
def test_a_preset_is_loaded_where_only_the_models_are_imported(values, tmp_path):
    vocabulary = ["<pad>_", "<EOS>_", *sorted({*"<pad>_<EOS>_\\u;0123456789"})]
    preprocessor = models.RoutingTransformerCausalLMPreprocessor(T2TSubwordTokenizer(vocabulary))
    model = new_t2t_model(values["model.hparams"], vocabulary_size=len(vocabulary))
    model.preprocessor = preprocessor
    model.save_to_preset(tmp_path / "preset")
    code = (
        "from rt_keras.models import RoutingTransformerCausalLM as Model\n"
        f"print(Model.from_preset({str(tmp_path / 'preset')!r}).count_params())"
    )
    assert printed(code).split() == [str(model.count_params())]
