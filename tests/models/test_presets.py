import keras
import pytest

from rt_keras import models

NAMES = {
    models.RoutingTransformerCausalLM: "enwik8_local8k",
    models.RoutingTransformerSeq2SeqLM: "translate_local_cluster512",
    models.RoutingTransformerImageLM: "mnist_cluster_local",
}
CLASSES = [*NAMES, *(task.backbone_cls for task in NAMES)]


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_presets_are_the_published_configurations_of_the_kind(cls):
    name = NAMES.get(cls) or next(x for task, x in NAMES.items() if task.backbone_cls is cls)
    assert name in cls.presets and "quickstart" not in cls.presets
    assert "attention" in cls.presets[name]["metadata"]["description"]
    assert sum(len(task.presets) for task in NAMES) == 57


def test_an_image_model_from_a_preset_has_its_sizes_and_dtype():
    backbone = models.RoutingTransformerImageBackbone.from_preset(
        "sparse_imagetransformer_base", load_weights=False, dtype="mixed_bfloat16"
    )
    assert backbone.compute_dtype == "bfloat16"
    assert (backbone.num_layers, backbone.hidden_dim, backbone.image_shape) == (
        12,
        256,
        (32, 32, 3),
    )
    model = models.RoutingTransformerImageLM(backbone)
    assert model({"images": keras.ops.zeros([1, 32, 32, 3], "int32")}).shape == (1, 32, 32, 3, 256)


def test_a_task_from_a_preset_stands_on_such_a_backbone():
    model = models.RoutingTransformerImageLM.from_preset(
        "sparse_imagetransformer_base", load_weights=False
    )
    assert isinstance(model, models.RoutingTransformerImageLM)
    assert model.backbone.vocabulary_size == 256 and model.preprocessor is None


def test_a_configuration_has_no_weights_to_load():
    with pytest.raises(ValueError, match="'enwik8_local8k' is a configuration.*load_weights=False"):
        models.RoutingTransformerCausalLM.from_preset("enwik8_local8k")


def test_a_configuration_of_another_kind_is_refused():
    with pytest.raises(ValueError, match="is of kind image_lm, not of RoutingTransformerCausalLM"):
        models.RoutingTransformerCausalLM.from_preset("mnist_full", load_weights=False)
