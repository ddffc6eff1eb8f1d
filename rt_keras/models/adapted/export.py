"""Adapted language models as folders that Transformers loads."""

import json
from pathlib import Path

import keras_hub

from rt_keras.data.extras import needed
from rt_keras.keras_internals import all_layers_of
from rt_keras.models.adapted.architectures import original_class
from rt_keras.models.adapted.folder_config import EPSILONS
from rt_keras.models.adapted.tokenizers import restored_preprocessor
from rt_keras.models.adapted.weights import layer_pairs, original_backbone

# Those whose tensors KerasHub writes.
EXPORTED = [
    getattr(keras_hub.models, f"{x}Backbone") for x in ("Gemma3", "GPT2", "Llama3", "Mistral")
]
# Options of KerasHub's backbones that Transformers lacks, and what it computes with.
FIXED_OPTIONS = dict.fromkeys(["use_post_ffw_norm", "use_post_attention_norm"], True)
FIXED_OPTIONS |= {"use_query_key_norm": True, "rope_scaling_factor": 1}


def write_transformers_files(task, path):
    """Writes an adapted language model; see `AdaptedCausalLM.export_to_transformers`."""
    backbone, tokenizer = task.backbone, getattr(task.preprocessor, "tokenizer", None)
    _check_exported(backbone)
    if any(getattr(layer, "lora_enabled", False) for layer in all_layers_of(backbone)):
        backbone = _with_merged_lora(backbone)
    original = original_class(task)(backbone=original_backbone(backbone), preprocessor=None)
    with needed("pretrained", "Writing Hugging Face's files"):
        original.export_to_transformers(path)
    # KerasHub's has the ids of Gemma's own tokens. Without it, config.json counts.
    Path(path, "generation_config.json").unlink(missing_ok=True)
    _change(Path(path, "config.json"), _correct_config, backbone, tokenizer)
    if tokenizer is not None:
        restored_preprocessor(task.preprocessor).tokenizer.export_to_transformers(path)
        if getattr(tokenizer, "in_python", None) is not None:
            tokenizer.in_python.save(str(Path(path, "tokenizer.json")))
        _change(Path(path, "tokenizer_config.json"), _correct_tokenizer, tokenizer)


def _check_exported(backbone):
    family = original_class(backbone)
    if family not in EXPORTED:
        known = ", ".join(cls.__name__ for cls in EXPORTED)
        raise ValueError(f"{family.__name__} cannot be exported to Transformers, only {known}")
    for name, value in FIXED_OPTIONS.items():
        option = getattr(backbone, name, value)
        if option != value:
            raise ValueError(f"Transformers has only {name}={value}. Received: {name}={option!r}")
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


def _change(file, correct, *models):
    """Corrects what KerasHub's exporter sets to its own values, or leaves out, in a file."""
    entries = json.loads(file.read_text(encoding="utf-8"))
    correct(entries, *models)
    file.write_text(json.dumps(entries, indent=2), encoding="utf-8")


def _correct_config(config, backbone, tokenizer):
    config.setdefault("architectures", ["GPT2LMHeadModel"])
    config["torch_dtype"] = backbone.dtype_policy.variable_dtype
    known = {
        "max_position_embeddings": backbone.trained_length,
        next(name for name in EPSILONS if name in config): backbone.norm_epsilon,
        "head_dim": getattr(backbone, "head_dim", None),
        "final_logit_softcapping": getattr(backbone, "final_logit_soft_cap", None),
    }
    if backbone.rotary_options:
        options = dict(backbone.rotary_options)
        known["rope_scaling"] = {"factor": options.pop("scaling_factor"), **options}
    config |= {name: value for name, value in known.items() if value is not None}
    rope = config.get("rope_parameters")
    if rope and rope["sliding_attention"]["factor"] == 1:
        # Older versions of Transformers read this alone.
        config["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        factor = config.pop("rope_parameters")["full_attention"]["factor"]
        config["rope_scaling"] = None if factor == 1 else {"rope_type": "linear", "factor": factor}
    for name, role in (("bos", "start"), ("eos", "end"), ("pad", "pad")):
        token = getattr(tokenizer, f"{role}_token", None)
        config[f"{name}_token_id"] = token and tokenizer.token_to_id(token)


def _correct_tokenizer(config, tokenizer):
    unknown = ["clean_up_tokenization_spaces", "model_max_length"]
    if json.loads(getattr(tokenizer, "rules", None) or "{}"):
        # The post-processor of tokenizer.json adds tokens, or none does.
        unknown += ["add_bos_token", "add_eos_token"]
    for name in unknown:
        config.pop(name, None)
