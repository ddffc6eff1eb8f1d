"""The config.json of Hugging Face's folders: what is heeded, known to be harmless, or refused.

KerasHub's converters drop entries that they do not know, such as another activation.
"""

import math
import re
from operator import itemgetter

# Entries that change no output: training, generation, names, and sizes that tensors have anyway.
HARMLESS = re.compile(
    "_.*|architectures|model_type|model_name|name|language|unsloth.*|transformers.*|tokenizer_class"
    "|(torch_)?dtype|torchscript|use_bfloat16|.*drop.*|init(ializer)?_.*|gradient_checkpointing"
    "|(use_)?cache.*|output_.*|return_dict.*|id2label|label2id|num_labels|problem_type|prefix"
    "|finetuning_task|task_specific_params|summary_.*|classifier_.*|pooler_.*|directionality"
    "|.*_token_i(ds?|ndex)|max_(sequence_)?length|min_length|do_sample|early_stopping|num_beam.*|temperature"
    "|top_[kp]|typical_p|.*_penalty|.*no_repeat_ngram_size|bad_words_ids|num_return_sequences"
    "|.*suppress_tokens|force_bos_token_to_be_generated|predict_special_tokens|n_(ctx|special)"
    "|max_position_embeddings|extra_pos_embeddings|sinusoidal_pos_embds|type_vocab_size"
    "|sliding_window|max_window_layers|no_rope_layer_interval|pretraining_tp|is_llama_config"
    "|chunk_size_feed_forward|reorder_and_upcast_attn|is_encoder_decoder|do_lower_case|tie_w.*"
)
EPSILONS = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon")


def _layers(config, is_sliding):
    """Returns `layer_types`, given a function from the number of a layer to a bool."""
    kinds = "full_attention", "sliding_attention"
    return [kinds[bool(is_sliding(number))] for number in range(config["num_hidden_layers"])]


def _all_full(config):
    return _layers(config, lambda number: False)


def _qwen3_layers(config, first=0):
    has_window = config["use_sliding_window"] and config["sliding_window"]
    return _layers(config, lambda number: has_window and number >= first)


def _head_dim(config):
    return config["hidden_size"] // config["num_attention_heads"]


# What absent entries mean in Transformers, where KerasHub takes them for something else. Functions
# compute values from the configuration.
DEFAULTS = {
    "bart": {
        **dict.fromkeys(["encoder_layers", "decoder_layers"], 12),
        **{"decoder_attention_heads": 16, "decoder_ffn_dim": 4096},
        "num_hidden_layers": itemgetter("encoder_layers"),
    },
    "gemma3_text": {"sliding_window": 4096, "query_pre_attn_scalar": 256},
    "mistral": {"sliding_window": 4096},
    "qwen3": {
        **{"max_window_layers": 28, "sliding_window": 4096},
        "layer_types": lambda config: _qwen3_layers(config, config["max_window_layers"]),
    },
    **dict.fromkeys(["roberta", "xlm-roberta"], {"layer_norm_eps": 1e-12}),
}
_SILU, _TANH = ("silu", "swish"), ("gelu_pytorch_tanh", "gelu_new")
_DECODER = {"hidden_act": _SILU, "attention_bias": [False], "mlp_bias": [False]}
_ENCODER = {"hidden_act": ["gelu"], "position_embedding_type": ["absolute"]}
# The values that KerasHub's classes compute with, by Hugging Face's names of model types.
FIXED = {
    "bart": {
        **{"activation_function": ["gelu"], "normalize_embedding": [True]},
        **dict.fromkeys(["encoder_layers", "decoder_layers"], [itemgetter("num_hidden_layers")]),
        "decoder_attention_heads": [itemgetter("encoder_attention_heads")],
        "decoder_ffn_dim": [itemgetter("encoder_ffn_dim")],
        "tie_word_embeddings": [True],
    },
    "bert": _ENCODER,
    "distilbert": {"activation": ["gelu"]},
    "gemma3_text": {
        **{"hidden_activation": _TANH, "rope_theta": [1e6], "rope_local_base_freq": [1e4]},
        "query_pre_attn_scalar": [itemgetter("head_dim")],
        "layer_types": [lambda config: _layers(config, lambda n: n % 6 < 5), _all_full],
        **dict.fromkeys(["sliding_window_pattern", "_sliding_window_pattern"], [6]),
        "tie_word_embeddings": [True],
    },
    "gpt2": {
        "activation_function": _TANH,
        "n_inner": [lambda config: 4 * config["n_embd"]],
        **{"scale_attn_weights": [True], "tie_word_embeddings": [True]},
    },
    "llama": {**_DECODER, "head_dim": [_head_dim]},
    "mistral": {**_DECODER, "tie_word_embeddings": [False]},
    "qwen3": {**_DECODER, "layer_types": [_qwen3_layers]},
    "smollm3": {
        **{**_DECODER, "head_dim": [_head_dim], "layer_types": [_all_full]},
        "tie_word_embeddings": [True],
    },
    # Positions start after the number of the padding.
    **dict.fromkeys(["roberta", "xlm-roberta"], {**_ENCODER, "pad_token_id": [1]}),
}
_LENGTH = "original_max_position_embeddings"
# Types of rotary embeddings with their entries and the defaults of these, or None.
_LINEAR = {"default": {}, "linear": {"factor": None}}
_YARN = {"factor": None, _LENGTH: None, "beta_fast": 32, "beta_slow": 1, "truncate": True}
_LLAMA3 = dict.fromkeys(["factor", "low_freq_factor", "high_freq_factor", _LENGTH])
ROPE_TYPES = {
    "gemma3_text": _LINEAR,
    "llama": {**_LINEAR, "yarn": _YARN, "llama3": _LLAMA3},
    **dict.fromkeys(["mistral", "qwen3", "smollm3"], {**_LINEAR, "yarn": _YARN}),
}


class FolderConfig(dict):
    """The entries of config.json as KerasHub's converters need them, which notes what they read.

    Args:
        config: dictionary, the content of config.json.

    Raises:
        ValueError: if rotary embeddings are scaled in an unsupported way.
    """

    def __init__(self, config):
        # For Mistral, no entry means a window, and null none.
        is_set = {name: x is not None or name == "sliding_window" for name, x in config.items()}
        super().__init__({name: x for name, x in config.items() if is_set[name]})
        self.family, self._read, self._rotary_options = config["model_type"], set(), None
        for name, value in DEFAULTS.get(self.family, {}).items():
            if name not in self:
                self[name] = value(self) if callable(value) else value
        if self.family in ROPE_TYPES:
            self._normalize_rope()

    def __getitem__(self, name):
        self._read.add(name)
        return super().__getitem__(name)

    def get(self, name, default=None):
        self._read.add(name)
        return super().get(name, default)

    @property
    def backbone_options(self):
        """Arguments of the backbone that KerasHub's converter leaves out."""
        if self.family != "llama" or "rms_norm_eps" not in self:
            return {}
        return {"layer_norm_epsilon": self["rms_norm_eps"]}

    @property
    def adapted_options(self):
        """Arguments of `AdaptedBackbone` for what KerasHub's backbone computes otherwise."""
        return {
            "rotary_options": self._rotary_options,
            "norm_epsilon": next((self[name] for name in EPSILONS if name in self), None),
            # KerasHub approximates it.
            "exact_gelu": self.family == "bert",
        }

    def check_known(self):
        """Checks all entries after a converter has read those that it knows.

        Unknown entries are refused unless they are off: they may change what a model computes.

        Raises:
            ValueError: if an entry has a value that the model would not compute with.
        """
        for name, value in self.items():
            if name in FIXED.get(self.family, {}):
                allowed = [x(self) if callable(x) else x for x in FIXED[self.family][name]]
                if not any(_equal(value, x) for x in allowed):
                    needed = " or ".join(map(repr, allowed))
                    raise ValueError(f"config.json: {name} must be {needed}. Received: {value!r}")
            elif value and name not in self._read and not HARMLESS.fullmatch(name):
                raise ValueError(
                    f"config.json: {name}={value!r} is not supported for models of type "
                    f"{self.family!r}. Remove it only if it does not change what the model computes"
                )

    def _normalize_rope(self):
        """Replaces both of Transformers' formats of rotary embeddings by what KerasHub reads."""
        scaling, both = self.pop("rope_scaling", {}), self.pop("rope_parameters", {})
        if self.family != "gemma3_text":
            self._read_rope({**both, **scaling}, "rope_theta")
            return
        parts = {**both, "full_attention": {**both.get("full_attention", {}), **scaling}}
        local = self._read_rope(parts.pop("sliding_attention", {}), "rope_local_base_freq")
        full = self._read_rope(parts.pop("full_attention"), "rope_theta")
        self._read_rope(parts, "rope_theta")
        self["rope_parameters"] = {"full_attention": full, "sliding_attention": local}

    def _read_rope(self, entries, theta):
        """Reads the base and the scaling of rotary embeddings; returns the options of the latter.

        Args:
            entries: dictionary, the entries of rotary embeddings.
            theta: string, the entry of this configuration for their base.
        """
        entries = {name: value for name, value in entries.items() if value is not None}
        kind = entries.pop("rope_type", entries.pop("type", "default"))
        if "rope_theta" in entries:
            self[theta] = entries.pop("rope_theta")
        if entries.get("partial_rotary_factor") == 1:
            del entries["partial_rotary_factor"]
        types = ROPE_TYPES[self.family]
        if kind not in types:
            raise ValueError(f"config.json: rope_type must be one of {list(types)}, not {kind!r}")
        options = {**types[kind], **entries}
        if _LENGTH in types[kind]:
            options[_LENGTH] = options[_LENGTH] or self["max_position_embeddings"]
        for name, value in options.items():
            is_number = isinstance(value, (int, float))
            if name not in types[kind] or not is_number or value < (name == "factor"):
                needed = f"rope_type={kind!r} takes numbers, factor >= 1, for {list(types[kind])}"
                raise ValueError(f"config.json: {needed}. Received: {name}={value!r}")
        if kind == "llama3":
            self["rope_scaling"] = {"rope_type": kind, **options}
        elif options and self.family != "gemma3_text":
            factor = options.pop("factor")
            self._rotary_options = {"rope_type": kind, "scaling_factor": factor, **options}
        return options


def _equal(value, other):
    numbers = all(isinstance(x, (int, float)) for x in (value, other))
    # Some files hold numbers that were rounded to float32.
    return math.isclose(value, other, rel_tol=1e-6) if numbers else value == other
