import json
from operator import attrgetter

import keras
import keras_hub
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file

import rt_keras
from rt_keras.layers import FullHeads, LocalHeads
from rt_keras.models.adapted.architectures import ARCHITECTURES
from rt_keras.models.adapted.folders import MODEL_TYPES
from rt_keras.models.streaming import stream
from tests.models.adapted.checks import make_backbone, make_inputs, outputs_of
from tests.models.adapted.llama_folder import MISTRAL, QWEN3, SMOLLM3, SPECIAL, write_llama
from tests.processes import printed

TEXT = f"the cat and the dog{SPECIAL[2]} the end"
HEADS = [FullHeads(4)]


def logits(task, text=TEXT):
    return np.asarray(task(task.preprocessor.generate_preprocess([text], sequence_length=32)))


# KerasHub rounds Mistral to float16, and has another epsilon for queries and keys of Qwen 3.
@pytest.mark.parametrize(
    ("family", "config"),
    [
        ("Llama3", {"shards": 3, "rms_norm_eps": 1e-6}),
        pytest.param("Qwen3", QWEN3, marks=pytest.mark.slow),
        pytest.param("SmolLM3", SMOLLM3, marks=pytest.mark.slow),
        pytest.param("Mistral", MISTRAL, marks=pytest.mark.slow),
    ],
)
def test_folders_give_what_kerashub_gives(family, config, tmp_path):
    write_llama(tmp_path / "model", dtype="float16", **config)
    original = keras_hub.models.CausalLM.from_preset(str(tmp_path / "model"))
    adapted = rt_keras.adapt(tmp_path / "model", HEADS)
    assert type(adapted).__name__ == f"Adapted{family}CausalLM"
    np.testing.assert_allclose(logits(adapted), logits(original), atol=1e-5)
    # The length in the folder's configuration.
    assert adapted.backbone.trained_length == adapted.preprocessor.sequence_length == 48
    restored = rt_keras.restore(adapted)
    for part in ("preprocessor", "preprocessor.tokenizer"):
        assert type(attrgetter(part)(restored)) is type(attrgetter(part)(original))
    np.testing.assert_array_equal(logits(restored), logits(original))
    adapted.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(logits(loaded), logits(original), atol=1e-5)


def test_models_without_a_start_token_read_all_tokens(tmp_path):
    qwen = rt_keras.adapt(write_llama(tmp_path, **QWEN3), HEADS)
    qwen.compile(sampler="greedy")
    state = qwen.read("the", verbose=0)
    assert state["count"] == [len(qwen.preprocessor.tokenizer("the"))]
    whole = qwen.generate("the cat", max_new_tokens=4)
    assert "the" + qwen.generate(" cat", max_new_tokens=4, state=state) == whole
    length = len(qwen.preprocessor.tokenizer("the cat")) + 4
    assert "".join(stream(qwen, "the cat", max_length=length)) == whole


@pytest.mark.slow
def test_mistral_with_the_tokenizer_of_tekken_files(tmp_path):
    vocabulary = {
        name: number for number, name in enumerate(["<unk>", "<s>", "</s>", *"thcaĠ", "th"])
    }
    tokenizer = keras_hub.tokenizers.MistralTekkenTokenizer(vocabulary, ["t h"], r"\s?\S+")
    preprocessor = keras_hub.models.MistralCausalLMPreprocessor(tokenizer, sequence_length=16)
    backbone = make_backbone("Mistral", sliding_window=None, head_dim=8)
    original = keras_hub.models.MistralCausalLM(backbone=backbone, preprocessor=preprocessor)
    adapted = rt_keras.adapt(original, HEADS)
    adapted.save_to_preset(tmp_path / "adapted")
    loaded = keras_hub.models.CausalLM.from_preset(str(tmp_path / "adapted"))
    expected = logits(original, "that cat")
    for task in (adapted, loaded, rt_keras.restore(adapted)):
        np.testing.assert_allclose(logits(task, "that cat"), expected, atol=1e-5)
    with pytest.raises(ValueError, match="MistralTekkenTokenizer, which calls Python"):
        rt_keras.serving.export_saved_model(adapted, tmp_path / "served")


def test_dtypes_of_files_and_models(tmp_path):
    write_llama(tmp_path, dtype=ml_dtypes.bfloat16)
    half = rt_keras.adapt(tmp_path, HEADS, dtype="bfloat16")
    assert {weight.dtype for weight in half.weights} == {"bfloat16"}
    whole = rt_keras.adapt(tmp_path, HEADS, dtype="mixed_bfloat16")
    assert {weight.dtype for weight in whole.weights} == {"float32"}
    for ours, theirs in zip(half.weights, whole.weights):
        np.testing.assert_array_equal(ours, np.asarray(theirs).astype(ml_dtypes.bfloat16))


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
YARN |= {"beta_fast": 16, "beta_slow": 2, "truncate": False}


@pytest.mark.parametrize(
    "config",
    [{"rms_norm_eps": 0.1, "rope_scaling": YARN}, {**MISTRAL, "sliding_window": 5}],
    ids=["llama", "mistral"],
)
def test_what_is_read_from_folders_is_written_to_others(config, tmp_path):
    read, written = tmp_path / "read", tmp_path / "written"
    adapted = rt_keras.adapt(write_llama(read, **config), HEADS, layers=[])
    adapted.export_to_transformers(written)
    expected, found = (load_file(folder / "model.safetensors") for folder in (read, written))
    assert all(np.array_equal(found[name], tensor) for name, tensor in expected.items())
    expected, found = (json.loads((x / "config.json").read_text()) for x in (read, written))
    assert expected.items() <= found.items()
    loaded = rt_keras.adapt(written, HEADS, layers=[])
    np.testing.assert_array_equal(logits(loaded), logits(adapted))


@pytest.mark.parametrize("family", ["GPT2", "Gemma3", "Llama3"])
def test_exported_weights_are_read_with_what_lora_added(family, tmp_path):
    backbone = make_backbone(family, intermediate_dim=64)
    backbone.adapted_options = {"norm_epsilon": 0.1}
    original = getattr(keras_hub.models, f"{family}CausalLM")(backbone=backbone, preprocessor=None)
    adapted = rt_keras.adapt(original, HEADS, layers=[])
    adapted.backbone.enable_lora(2)
    for weight in adapted.trainable_weights:
        weight.assign(weight + 0.1)
    adapted.export_to_transformers(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    # A model without a head needs no tokenizer.
    (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": ["Model"]}))
    loaded, inputs = rt_keras.adapt(tmp_path, HEADS, layers=[]), make_inputs(adapted)
    outputs = [outputs_of(model, inputs) for model in (loaded, adapted.backbone)]
    np.testing.assert_allclose(*outputs, atol=1e-5)
    assert config.get("final_logit_softcapping") == (30 if family == "Gemma3" else None)
    adapted.backbone.token_embedding.quantize("int8")
    with pytest.raises(ValueError, match="token_embedding is quantized. Export a model before"):
        adapted.export_to_transformers(tmp_path)


@pytest.mark.parametrize(
    ("family", "options", "message"),
    [
        ("Qwen3", {}, "Qwen3Backbone cannot be exported.*only Gemma3Backbone"),
        ("Gemma3", {"use_post_ffw_norm": False}, "has only use_post_ffw_norm=True.*=False"),
    ],
)
def test_what_transformers_or_kerashub_lack_is_not_exported(family, options, message, tmp_path):
    backbone = make_backbone(family, num_layers=1, **options)
    original = getattr(keras_hub.models, f"{family}CausalLM")(backbone=backbone, preprocessor=None)
    with pytest.raises(ValueError, match=message):
        rt_keras.adapt(original, HEADS).export_to_transformers(tmp_path)


@pytest.mark.slow
def test_presets_of_kerashub_are_loaded(tmp_path):
    backbone = keras_hub.models.BertBackbone(20, 1, 2, 8, 8, max_sequence_length=12)
    task = keras_hub.models.BertTextClassifier(backbone, num_classes=3)
    task.save_to_preset(tmp_path / "task")
    inputs = {name: np.ones([1, 5], "int32") for name in backbone.input}
    loaded = rt_keras.adapt(tmp_path / "task", [FullHeads(2)])
    np.testing.assert_allclose(loaded(inputs), task(inputs), atol=1e-6)
    backbone.save_to_preset(tmp_path / "backbone")
    loaded = rt_keras.adapt(tmp_path / "backbone", [FullHeads(2)], dtype="bfloat16")
    assert loaded.dtype_policy.name == "bfloat16"
    rt_keras.adapt(task, [FullHeads(2)]).save_to_preset(tmp_path / "adapted")
    with pytest.raises(ValueError, match="is already adapted. Load it with from_preset"):
        rt_keras.adapt(tmp_path / "adapted", [FullHeads(2)])


def test_types_of_models_have_known_attention():
    from keras_hub.src.utils.transformers.preset_loader import TransformersPresetLoader

    for name in MODEL_TYPES.split(", "):
        loader = TransformersPresetLoader("", {"model_type": name})
        assert loader.check_backbone_class() in ARCHITECTURES


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model_type": "rwkv"}, "Models of type 'rwkv' are not supported. Supported: bart, bert"),
        ({"model_type": "qwen2"}, "attention of QwenBackbone cannot be replaced: biases"),
        ({"model_type": None}, "does not describe a model: it has no model_type"),
        ({"rope_theta": None}, "is incomplete: its JSON files lack 'rope_theta'"),
    ],
)
def test_configurations_that_do_not_fit_are_refused(tmp_path, options, message):
    write_llama(tmp_path, **options)
    check_refused(tmp_path, message)


def check_refused(folder, message):
    with pytest.raises(ValueError, match=message) as found:
        rt_keras.adapt(folder, HEADS)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("model-1.safetensors", lambda file: file[:-4], "model-1.safetensors is truncated, "),
        ("model-1.safetensors", None, "has no weights: model-1.safetensors is missing"),
        ("config.json", None, "is not the folder of a model: it has no config.json"),
        ("config.json", lambda file: file[:9], "is damaged: it holds no JSON object"),
        ("tokenizer_config.json", None, "has no readable tokenizer"),
        (
            "config.json",
            lambda file: file.replace(b'"intermediate_size": 24', b'"intermediate_size": 20'),
            r"mlp.gate_proj.weight has shape \(24, 16\), which does not match config.json",
        ),
    ],
)
def test_missing_or_damaged_files_are_refused(tmp_path, name, change, message):
    write_llama(tmp_path, shards=2)
    file = (tmp_path / name).read_bytes()
    (tmp_path / name).unlink()
    if change is not None:
        (tmp_path / name).write_bytes(change(file))
    check_refused(tmp_path, message)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "float3"}, "dtype must be a dtype policy, .*'float3'"),
        ({"head_groups": [LocalHeads(3, 4)]}, "as many heads as .*, 4. Received: 3"),
    ],
)
def test_wrong_arguments_are_refused_before_weights_are_read(
    tmp_path, monkeypatch, options, message
):
    write_llama(tmp_path)
    monkeypatch.setattr("rt_keras.models.adapted.folders.TensorFiles.read", None)
    with pytest.raises(ValueError, match=message):
        rt_keras.adapt(tmp_path, **{"head_groups": HEADS, **options})


def test_presets_that_cannot_be_downloaded_are_refused(monkeypatch):
    def offline(*_):
        raise ConnectionError("no route\nto host")

    monkeypatch.setattr("rt_keras.models.adapted.folders.preset_loader", offline)
    with pytest.raises(ValueError, match="'bert_tiny_en_uncased' cannot be downloaded") as found:
        rt_keras.adapt("bert_tiny_en_uncased", [FullHeads(2)])
    assert "\n" not in str(found.value)


PEAK = """
import sys, keras_hub, rt_keras
import keras_hub.src.utils.transformers.preset_loader
from rt_keras.layers import FullHeads

def memory(name):
    lines = dict(line.split(":") for line in open("/proc/self/status"))
    return int(lines[name].split()[0]) * 1024

rt_keras.adapt(sys.argv[1], [FullHeads(4)])
before = memory("VmRSS")
adapted = rt_keras.adapt(sys.argv[2], [FullHeads(4)], dtype="bfloat16")
peak = memory("VmHWM")
size = sum(weight.value.numpy().nbytes for weight in adapted.weights)
print((peak - before) / size)
"""


@pytest.mark.weekly
def test_loading_takes_the_memory_of_the_weights_once(tmp_path):
    write_llama(tmp_path / "small")
    write_llama(tmp_path / "large", vocab_size=60000, hidden_size=1024, intermediate_size=8192)
    assert float(printed(PEAK, tmp_path / "small", tmp_path / "large").split()[-1]) < 1.3
