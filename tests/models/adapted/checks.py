"""Small KerasHub models with random weights, and inputs for them."""

import keras_hub
import numpy as np

VOCABULARY, LENGTH = 30, 16
SIZES = {"vocabulary_size": VOCABULARY, "num_layers": 2, "hidden_dim": 16, "intermediate_dim": 16}
LEARNED = {**SIZES, "num_heads": 4, "max_sequence_length": 24, "dropout": 0.0}
GROUPED = {**SIZES, "num_query_heads": 4, "num_key_value_heads": 2}
# Arguments of each supported backbone.
FAMILIES = {
    **dict.fromkeys(("Bert", "Roberta", "XLMRoberta", "DistilBert"), LEARNED),
    **dict.fromkeys(("GPT2", "OPT", "Bart"), LEARNED),
    "Llama": GROUPED,
    # As in Llama 3.2, whose rotary embeddings are scaled by frequency.
    "Llama3": {
        **GROUPED,
        "tie_word_embeddings": True,
        "rope_max_wavelength": 500000.0,
        "rope_frequency_adjustment_factor": 32.0,
        "rope_low_freq_factor": 1.0,
        "rope_high_freq_factor": 4.0,
        "rope_pretraining_sequence_length": 8,
    },
    "Mistral": {**GROUPED, "sliding_window": 5},
    "Qwen3": {**GROUPED, "head_dim": 8, "sliding_window_size": None},
    "SmolLM3": {
        **SIZES,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "rope_layer_enabled_list": [True, False],
        "layer_types": ["full_attention"] * 2,
        "mlp_bias": False,
        "layer_norm_epsilon": 1e-6,
        "max_position_embeddings": 64,
        "rope_theta": 5000000.0,
        "partial_rotary_factor": 1.0,
    },
    "Gemma3": {
        **GROUPED,
        "num_layers": 7,
        "image_size": 16,
        "head_dim": 8,
        "use_post_ffw_norm": True,
        "use_post_attention_norm": True,
        "final_logit_soft_cap": 30.0,
        "use_sliding_window_attention": True,
        "sliding_window_size": 5,
        "local_rope_scaling_factor": 1.0,
        "global_rope_scaling_factor": 8.0,
        "layer_norm_epsilon": 1e-6,
    },
}


def make_backbone(family, **options):
    """Returns a backbone with random weights, large enough for attention to matter."""
    backbone = getattr(keras_hub.models, f"{family}Backbone")(**{**FAMILIES[family], **options})
    rng = np.random.default_rng(0)
    for weight in backbone.weights:
        # The frequencies of SmolLM3 are a weight.
        if weight.name == "inv_freq":
            continue
        weight.assign(rng.normal(size=weight.shape) * 0.3)
    return backbone


def make_inputs(model, length=LENGTH, padded=3):
    """Returns a batch of two sequences. The second one ends in padding."""
    rng = np.random.default_rng(1)
    inputs = {}
    for name in model.input:
        shape = [2, length]
        if name.endswith("token_ids"):
            inputs[name] = rng.integers(VOCABULARY, size=shape).astype("int32")
        else:
            inputs[name] = np.zeros(shape, "int32")
        if name.endswith("padding_mask"):
            inputs[name][0] = inputs[name][1, : length - padded] = 1
    return inputs


def outputs_of(model, inputs):
    """Returns the states of the last block at positions without padding."""
    outputs = model(inputs)
    if isinstance(outputs, dict):
        name = "decoder_sequence_output" if "decoder_sequence_output" in outputs else None
        outputs = outputs[name or "sequence_output"]
    mask = [x for name, x in inputs.items() if name.endswith("padding_mask")][0]
    return np.asarray(outputs)[mask.astype(bool)]
