import keras
import numpy as np
import pytest

from rt_keras import data, models
from rt_keras.data import ByteTokenizer
from rt_keras.layers import FullHeads, LocalHeads, RoutingHeads

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


@pytest.mark.end_to_end
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


def test_a_task_from_a_preset_has_the_backbone_of_the_preset():
    model = models.RoutingTransformerImageLM.from_preset(
        "sparse_imagetransformer_base", load_weights=False
    )
    assert isinstance(model, models.RoutingTransformerImageLM)
    assert model.backbone.vocabulary_size == 256 and model.preprocessor is None


def test_a_configuration_has_no_weights_to_load():
    with pytest.raises(ValueError, match="'enwik8_local8k' is a configuration.*load_weights=False"):
        models.RoutingTransformerCausalLM.from_preset("enwik8_local8k")


def test_a_configuration_of_another_kind_is_refused():
    with pytest.raises(
        ValueError, match="RoutingTransformerCausalLM cannot load .* of kind image_lm"
    ):
        models.RoutingTransformerCausalLM.from_preset("mnist_full", load_weights=False)


def causal_lm():
    groups = [LocalHeads(1, block_size=4), RoutingHeads(1, num_clusters=2, window_size=4)]
    backbone = models.RoutingTransformerBackbone(258, 1, 16, 16, groups)
    preprocessor = models.RoutingTransformerCausalLMPreprocessor(ByteTokenizer())
    return models.RoutingTransformerCausalLM(backbone, preprocessor)


def seq_2_seq_lm():
    groups = [[LocalHeads(1, block_size=4)], [LocalHeads(1, block_size=4)], [FullHeads(1)]]
    backbone = models.RoutingTransformerSeq2SeqBackbone(258, 1, 1, 16, 16, *groups)
    return models.RoutingTransformerSeq2SeqLM(backbone)


def image_lm():
    groups = [LocalHeads(1, block_size=4)]
    return models.RoutingTransformerImageLM(
        models.RoutingTransformerImageBackbone(256, (4, 4, 1), 1, 16, 16, groups, (2, 2))
    )


@pytest.mark.end_to_end
@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method")
@pytest.mark.filterwarnings("ignore:.compile.*was not called as part of model loading")
@pytest.mark.parametrize(
    "make",
    [
        causal_lm,
        pytest.param(seq_2_seq_lm, marks=pytest.mark.end_to_end),
        pytest.param(image_lm, marks=pytest.mark.end_to_end),
    ],
)
def test_a_quantized_model_loads_back(make, tmp_path):
    model = make()
    inputs = {
        tensor.name: np.ones([1, *(size or 8 for size in tensor.shape[1:])], "int32")
        for tensor in model.inputs
    }
    model.quantize("int8")
    expected = np.asarray(model(inputs))
    model.save_to_preset(str(tmp_path / "preset"))
    loaded = type(model).from_preset(str(tmp_path / "preset"))
    np.testing.assert_array_equal(loaded(inputs), expected)
    model.save(tmp_path / "model.keras")
    np.testing.assert_array_equal(
        keras.saving.load_model(tmp_path / "model.keras")(inputs), expected
    )


@pytest.mark.parametrize("kind", ["TextClassifier", "MaskedLM", "SpanPredictor", "TextEmbedder"])
def test_encoders_of_subwords_come_back(tmp_path, kind):
    # KerasHub makes the model before it reads the vocabulary.
    tokenizer = data.SentencePieceTokenizer(data.compute_sentence_piece_proto([b"la do"] * 9, 300))
    make = getattr(models, f"RoutingTransformer{kind}")
    preprocessor = getattr(models, f"RoutingTransformer{kind}Preprocessor")(tokenizer, 16)
    size = tokenizer.vocabulary_size() + 1
    backbone = models.RoutingTransformerEncoderBackbone(size, 1, 8, 16, [LocalHeads(2, 4)])
    given = {"num_classes": 2} if kind == "TextClassifier" else {}
    model = make(backbone, preprocessor=preprocessor, **given)
    model.save_to_preset(tmp_path)
    loaded = make.from_preset(str(tmp_path))
    assert loaded.preprocessor.tokenizer.vocabulary_size() == tokenizer.vocabulary_size()
