import json

import keras
import keras_hub
import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import load_file, save_file

import rt_keras
from rt_keras.keras_internals import all_layers_of
from rt_keras.layers import FullHeads
from rt_keras.models.adapted.architectures import attention_layers
from rt_keras.models.adapted.folder_config import FolderConfig
from tests.models.adapted.checks import make_backbone
from tests.models.adapted.llama_folder import QWEN3, write_llama
from tests.models.adapted.sentence_folder import write_embedder

X = {"token_ids": tf.range(1, 41)[None], "padding_mask": tf.ones([1, 40])}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
UNROUNDED = {
    **YARN,
    "original_max_position_embeddings": 512,
    "beta_fast": 16,
    "beta_slow": 2,
    "truncate": False,
}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3["original_max_position_embeddings"] = 16


def adapted(folder, heads=4, **options):
    return rt_keras.adapt(folder, [FullHeads(heads)], **{"layers": [], **options})


def backbone(tmp_path, **config):
    return adapted(write_llama(tmp_path / "m", **config | {"architectures": ["LlamaModel"]}))


# The frequencies are those of Transformers.
@pytest.mark.parametrize("as_parameters", [False, True])
@pytest.mark.parametrize(
    ("scaling", "frequencies", "gain"),
    [
        ({"rope_type": "linear", "factor": 2.0}, [0.5, 0.15811388, 0.05, 0.01581139], 1.0),
        (YARN, [1.0, 0.31622776, 0.08125000, 0.01976424], 1.13862944),
        (UNROUNDED, [1.0, 0.31622776, 0.07566440, 0.01079611], 1.13862944),
        (LLAMA3, [0.57605636, 0.03952847, 0.0125, 0.00395285], 1.0),
    ],
)
def test_rotary_embeddings_are_scaled(tmp_path, scaling, frequencies, gain, as_parameters):
    base = {"rope_theta": 100.0}
    rope = {**base, "rope_scaling": scaling}
    if as_parameters:
        rope = {"rope_theta": None, "rope_parameters": {**base, **scaling}}
    loaded = backbone(tmp_path, hidden_size=32, **rope)
    again = type(loaded).from_config(loaded.get_config())
    for layer in attention_layers(loaded) + attention_layers(again):
        # Rotation turns (1, 0) into (cos, sin).
        ones = tf.constant([[[[1.0] * 4 + [0.0] * 4]]])
        cos, sin = np.split(np.ravel(layer._rotate(ones, tf.constant([[1]]))), 2)
        np.testing.assert_allclose(np.arctan2(sin, cos), frequencies, rtol=1e-4)
        np.testing.assert_allclose(np.hypot(cos, sin), gain, rtol=1e-5)
        # Keys at one distance keep their lengths.
        x = keras.random.normal([1, 2, 6, 8])
        turned = layer.rotated_at(x, 3, 9)
        np.testing.assert_allclose(*(tf.norm(y, axis=3) for y in (x, turned)), rtol=1e-5)
    if scaling is not LLAMA3:
        with pytest.raises(ValueError, match="cannot compute the rotary embeddings"):
            rt_keras.restore(loaded)


def test_epsilons_are_heeded(tmp_path):
    loaded = backbone(tmp_path / "llama", rms_norm_eps=0.5)
    original = keras_hub.models.Backbone.from_preset(
        str(tmp_path / "llama/m"), layer_norm_epsilon=0.5
    )
    for model in (loaded, rt_keras.restore(loaded)):
        np.testing.assert_allclose(model(X), original(X), atol=1e-5)
    # KerasHub leaves the norms of queries and keys at 1e-5.
    qwen3 = backbone(tmp_path / "qwen3", **QWEN3 | {"rms_norm_eps": 0.5})
    found = [layer.epsilon for layer in all_layers_of(qwen3) if hasattr(layer, "epsilon")]
    assert found == [0.5] * 9


BERT = {"model_type": "bert", "num_hidden_layers": 1}
GEMMA3 = {"model_type": "gemma3_text", "num_hidden_layers": 2, "head_dim": 8}
GEMMA3 |= {"query_pre_attn_scalar": 8, "hidden_size": 8, "num_attention_heads": 1}
GPT2 = {"model_type": "gpt2", "n_embd": 8}
LLAMA = {"model_type": "llama", "hidden_size": 8, "num_attention_heads": 2}
WINDOW = {"use_sliding_window": True, "sliding_window": 8, "num_hidden_layers": 2}


@pytest.mark.parametrize(
    ("config", "entry"),
    [
        (LLAMA, {"hidden_act": "gelu"}),
        (LLAMA, {"attention_bias": True}),
        (LLAMA, {"head_dim": 8}),
        (LLAMA, {"embedding_multiplier": 12.0}),
        (LLAMA, {"quantization_config": {"bits": 4}}),
        (LLAMA, {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}),
        (LLAMA, {"rope_parameters": {"partial_rotary_factor": 0.5}}),
        (LLAMA, {"rope_scaling": {**YARN, "mscale": 2.0}}),
        (LLAMA, {"rope_scaling": {"type": "linear"}}),
        (LLAMA, {"rope_scaling": {"type": "linear", "factor": 0}}),
        (QWEN3 | WINDOW, {"layer_types": ["full_attention", "sliding_attention"]}),
        (QWEN3 | WINDOW, {"max_window_layers": 1}),
        (GEMMA3, {"rope_theta": 1e4}),
        (GEMMA3, {"rope_parameters": {"sliding_attention": {"rope_theta": 1e5}}}),
        (GEMMA3, {"query_pre_attn_scalar": 4}),
        (GEMMA3, {"layer_types": ["full_attention", "sliding_attention"]}),
        (GPT2, {"n_inner": 24}),
        (GPT2, {"scale_attn_by_inverse_layer_idx": True}),
        (BERT, {"position_embedding_type": "relative_key"}),
        (BERT, {"is_decoder": True}),
        ({"model_type": "roberta"}, {"pad_token_id": 0}),
    ],
)
def test_entries_that_kerashub_drops_are_refused(config, entry):
    harmless = {"torch_dtype": "float16", "attention_dropout": 0.1, "bos_token_id": 1}
    names = "|".join([*entry, "rope_type", "rope_local_base_freq", "layer_types"])
    with pytest.raises(ValueError, match=f"config.json: ({names})"):
        found = FolderConfig({**config, **harmless, **entry})
        for name in config:
            found.get(name)
        found.check_known()


def test_tensors_without_a_place_are_refused(tmp_path):
    file = write_llama(tmp_path) / "model.safetensors"
    weights = load_file(file)
    copy, bias = weights["model.embed_tokens.weight"], "model.layers.0.self_attn.q_proj.bias"
    save_file({**weights, "lm_head.weight": copy, "model.rotary_emb.inv_freq": copy}, file)
    adapted(tmp_path)
    for name in ("lm_head.weight", bias):
        save_file({**weights, name: np.ones([16], "float32")}, file)
        with pytest.raises(ValueError, match=f"no place for the tensors {name}"):
            adapted(tmp_path)
    write_llama(tmp_path, architectures=["LlamaForSequenceClassification"])
    save_file({**weights, "score.weight": copy}, file)
    with pytest.warns(UserWarning, match="loaded without its head: score.weight"):
        adapted(tmp_path)


def test_a_roberta_computes_what_transformers_computes(tmp_path):
    config = json.loads((write_embedder(tmp_path) / "config.json").read_text())
    (tmp_path / "modules.json").unlink()
    config |= {"model_type": "roberta", "layer_norm_eps": 1e-5}
    (tmp_path / "config.json").write_text(json.dumps(config))
    weights = load_file(tmp_path / "model.safetensors")
    weights = {f"roberta.{name}": x for name, x in weights.items() if "pooler" not in name}
    save_file(weights, tmp_path / "model.safetensors")
    original = keras_hub.models.Backbone.from_preset(str(tmp_path))
    for layer in all_layers_of(original):
        if hasattr(layer, "epsilon"):
            layer.epsilon = 1e-5
    table = original.embeddings.position_embedding.position_embeddings
    table.assign(table + weights["roberta.embeddings.token_type_embeddings.weight"][0])
    x = {"token_ids": np.arange(15)[None], "padding_mask": np.ones([1, 15])}
    np.testing.assert_allclose(adapted(tmp_path, 2)(x), original(x), atol=1e-5)


@pytest.mark.parametrize("change", ["Dense", "pooling_mode_lasttoken"])
def test_text_embedders_with_other_modules_are_refused(tmp_path, change):
    write_embedder(tmp_path)
    for name, old in (("modules.json", "Normalize"), ("1_Pooling/config.json", "mean_tokens")):
        path, new = tmp_path / name, {"Dense": "Dense"}.get(change, "lasttoken")
        if (old == "Normalize") == (change == "Dense"):
            path.write_text(path.read_text().replace(old, new))
    with pytest.raises(ValueError, match=f"must have the modules.*{change}"):
        adapted(tmp_path, 2)


def test_gemma_with_another_scale_of_queries_is_refused():
    gemma = make_backbone("Gemma3", query_head_dim_normalize=False, head_dim=2)
    with pytest.raises(ValueError, match="with query_head_dim_normalize=False is not supported"):
        rt_keras.adapt(gemma, [FullHeads(4)])
