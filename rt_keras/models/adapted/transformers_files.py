"""Adapted language models as folders that Transformers loads."""

import json
from pathlib import Path

import keras_hub

from rt_keras.extras import needed
from rt_keras.keras_internals import all_layers_of
from rt_keras.models.adapted.folder_config import EPSILONS
from rt_keras.models.adapted.settings import layer_pairs
from rt_keras.models.adapted.tokenizers import restored_preprocessor
from rt_keras.models.adapted.weights import original_backbone

# Those whose tensors KerasHub writes, and the classes of Transformers.
EXPORTED = {
    keras_hub.models.Gemma3Backbone: "Gemma3ForCausalLM",
    keras_hub.models.GPT2Backbone: "GPT2LMHeadModel",
    keras_hub.models.Llama3Backbone: "LlamaForCausalLM",
    keras_hub.models.MistralBackbone: "MistralForCausalLM",
}
# Options of KerasHub's backbones that Transformers lacks, and what it computes with.
FIXED_OPTIONS = dict.fromkeys(["use_post_ffw_norm", "use_post_attention_norm"], True)
FIXED_OPTIONS |= {"use_query_key_norm": True, "rope_scaling_factor": 1}


def write_folder(model, path):
    """Writes a language model, with its original attention, in Hugging Face's layout.

    Args:
        model: `AdaptedCausalLM`.
        path: string or path, the folder.

    Raises:
        ValueError: if the model is quantized, KerasHub cannot write models of its family, or
            Transformers lacks one of its options.
    """
    backbone, family = model.backbone, type(model.backbone).__bases__[-1]
    _check_exported(backbone, family)
    if any(getattr(layer, "lora_enabled", False) for layer in all_layers_of(backbone)):
        backbone = _with_merged_lora(backbone)
    with needed("pretrained", "Writing Hugging Face's files"):
        original = type(model).__bases__[-1](
            backbone=original_backbone(backbone), preprocessor=None
        )
        original.export_to_transformers(path)
    if family is keras_hub.models.Gemma3Backbone:
        # It has the ids of Gemma's own tokens. Without it, Transformers reads those of config.json.
        Path(path, "generation_config.json").unlink()
    tokenizer = getattr(model.preprocessor, "tokenizer", None)
    _change(Path(path, "config.json"), _correct_config, backbone, tokenizer)
    if tokenizer is not None:
        restored_preprocessor(model.preprocessor).tokenizer.export_to_transformers(path)
        if getattr(tokenizer, "in_python", None) is not None:
            tokenizer.in_python.save(str(Path(path, "tokenizer.json")))
        _change(Path(path, "tokenizer_config.json"), _correct_tokenizer, backbone, tokenizer)


def _check_exported(backbone, family):
    if family not in EXPORTED:
        known = ", ".join(cls.__name__ for cls in EXPORTED)
        raise ValueError(f"{family.__name__} cannot be exported to Transformers, only {known}")
    for name, value in FIXED_OPTIONS.items():
        if getattr(backbone, name, value) != value:
            given = f"Received: {name}={getattr(backbone, name)!r}"
            raise ValueError(f"{name} must be {value} in a model of Transformers. {given}")
    for layer in all_layers_of(backbone):
        if getattr(layer, "quantization_mode", None) is not None:
            raise ValueError(f"{layer.path} is quantized. Export a model before you quantize it")


def _with_merged_lora(backbone):
    """Returns a copy of a backbone whose kernels include LoRA's weights, as Keras saves them."""
    merged = type(backbone).from_config(backbone.get_config())
    for old, new in layer_pairs(backbone, merged):
        store = {}
        old.save_own_variables(store)
        new.load_own_variables(store)
    return merged


def _change(file, correct, backbone, tokenizer):
    """Corrects what KerasHub's exporter sets to its own values, or leaves out, in a file."""
    entries = json.loads(file.read_text(encoding="utf-8"))
    correct(entries, backbone, tokenizer)
    file.write_text(json.dumps(entries, indent=2), encoding="utf-8")


def _correct_config(config, backbone, tokenizer):
    config["architectures"] = [EXPORTED[type(backbone).__bases__[-1]]]
    config["torch_dtype"] = backbone.dtype_policy.variable_dtype
    if backbone.trained_length is not None:
        config["max_position_embeddings"] = backbone.trained_length
    if backbone.norm_epsilon is not None:
        config[next(name for name in EPSILONS if name in config)] = backbone.norm_epsilon
    if getattr(backbone, "head_dim", None) is not None:
        config["head_dim"] = backbone.head_dim
    if backbone.rotary_options:
        options = dict(backbone.rotary_options)
        config["rope_scaling"] = {"factor": options.pop("scaling_factor"), **options}
    if config["model_type"] == "gemma3_text":
        config["final_logit_softcapping"] = backbone.final_logit_soft_cap
        _correct_rope_of_gemma(config)
    for name, role in (("bos", "start"), ("eos", "end"), ("pad", "pad")):
        token = getattr(tokenizer, f"{role}_token", None)
        config[f"{name}_token_id"] = token and tokenizer.token_to_id(token)


def _correct_rope_of_gemma(config):
    """Writes rotary embeddings as all versions of Transformers read them, if there is a way."""
    local, full = (config["rope_parameters"][f"{x}_attention"] for x in ("sliding", "full"))
    config["rope_local_base_freq"] = local["rope_theta"]
    if local["factor"] == 1:
        del config["rope_parameters"]
        if full["factor"] != 1:
            config["rope_scaling"] = {"rope_type": "linear", "factor": full["factor"]}


def _correct_tokenizer(config, backbone, tokenizer):
    config["clean_up_tokenization_spaces"] = False
    length = backbone.trained_length or backbone.longest
    if length is not None:
        config["model_max_length"] = length
    if json.loads(getattr(tokenizer, "rules", None) or "{}"):
        # The post-processor of tokenizer.json adds tokens, or none does.
        config.pop("add_bos_token", None)
        config.pop("add_eos_token", None)
