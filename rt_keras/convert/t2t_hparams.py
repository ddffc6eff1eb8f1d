"""The hyperparameters of the Routing Transformer's own code, and the models they describe.

That code is a Tensor2Tensor model, `sparse_transformer` for text and `sparse_imagetransformer` for
images. Names and defaults of the hyperparameters are its own.
"""

import math

import keras

from rt_keras import files, t2t
from rt_keras.models.routing_transformer_image_embedding import sides

COMMON = {
    "num_decoder_layers": 24,
    "hidden_size": 512,
    "filter_size": 2048,
    "ffn_layer": "geglu",
    "local_num_heads": 8,
    "sparsity_cluster_num_heads": 0,
    "sparsity_strided_num_heads": 0,
    "sparsity_cluster_strided_num_heads": 0,
    "sparsity_cluster_size": 0,
    "sparsity_cluster_attention_window": 0,
    "sparsity_skip_first": 0,
    "query_shape": [512],
    "memory_query_shape": [512],
    "memory_flange": [512],
    "share_qk": True,
    "local_relative": True,
    "sparsity_cluster_relative": True,
    "sparsity_cluster_strided_relative": True,
    "sparsity_strided_relative": False,
    "max_relative_position": 1024,
    "hash_items": False,
    "beta": 1e-4,
    "decay": 0.999,
    "layer_preprocess_sequence": "none",
    "layer_postprocess_sequence": "dan",
    "layer_prepostprocess_dropout": 0.1,
    "norm_epsilon": 1e-6,
    "attention_key_channels": 0,
    "attention_value_channels": 0,
    "attention_dropout": 0.0,
    "relu_dropout": 0.0,
    "token_bias_wt_trainable": False,
    "initializer_gain": 0.2,
}
TEXT = {
    **COMMON,
    "num_encoder_layers": 0,
    "embedding_dims": 512,
    "max_length": 4096,
    "max_target_length": 4096,
    "add_timing_signal": False,
    "dropout": 0.0,
    "input_dropout": 0.0,
    "target_dropout": 0.0,
}
IMAGE = {
    **COMMON,
    "num_decoder_layers": 12,
    "hidden_size": 256,
    "filter_size": 256,
    "ffn_layer": "conv_hidden_relu",
    "query_shape": [128],
    "memory_query_shape": [128],
    "memory_flange": [128],
    "local_relative": False,
    "sparsity_cluster_relative": False,
    "sparsity_cluster_strided_relative": False,
    "max_relative_position": 0,
    "layer_prepostprocess_dropout": 0.0,
    "add_positional_emb": True,
    "unconditional": True,
}
# Hyperparameters that Tensor2Tensor and the two models know besides: training, and unused ones.
_OTHERS = """
activation_dtype batch_shuffle_size batch_size bottom cache_padding_bias clip_grad_norm
compress_steps daisy_chain_variables dropout ema eval_drop_long_sequences eval_run_autoregressive
factored_logits fast_decode force_full_predict frame_height frame_width grad_noise_scale heads
initializer input_modalities kernel_height kernel_width kv_filter_width label_smoothing
layer_prepostprocess_dropout_broadcast_dims learning_rate learning_rate_constant
learning_rate_cosine_cycle_steps learning_rate_decay_rate learning_rate_decay_scheme
learning_rate_decay_staircase learning_rate_decay_steps learning_rate_minimum learning_rate_schedule
learning_rate_warmup_steps length_bucket_step loss max_input_seq_length max_length
max_target_seq_length min_length min_length_bucket mlperf_mode modality mode moe_hidden_sizes moe_k
moe_loss_coef moe_num_experts multiply_embedding_mode multiproblem_fixed_train_length
multiproblem_label_weight multiproblem_max_input_length multiproblem_max_target_length
multiproblem_mixing_schedule multiproblem_per_task_threshold multiproblem_reweight_label_loss
multiproblem_schedule_max_examples multiproblem_schedule_threshold multiproblem_target_eval_only
multiproblem_vocab_size name no_data_parallelism norm_type nucleus_sampling num_decode_cores
num_hidden_layers optimizer optimizer_adafactor_beta1 optimizer_adafactor_beta2
optimizer_adafactor_clipping_threshold optimizer_adafactor_decay_type optimizer_adafactor_factored
optimizer_adafactor_memory_exponent optimizer_adafactor_multiply_by_parameter_scale
optimizer_adam_beta1 optimizer_adam_beta2 optimizer_adam_epsilon optimizer_momentum_momentum
optimizer_momentum_nesterov optimizer_multistep_accumulate_steps optimizer_zero_grads pack_dataset
pad_batch prepend_mode pretrained_model_dir problem q_filter_width sampling_keep_top_k
sampling_method sampling_temp scheduled_sampling_gold_mixin_prob scheduled_sampling_method
scheduled_sampling_num_passes scheduled_sampling_prob scheduled_sampling_warmup_schedule
scheduled_sampling_warmup_steps shared_embedding shared_embedding_and_softmax_weights shared_softmax
split_targets_chunk_length split_targets_max_chunks split_targets_strided_training split_to_length
summarize_grads summarize_vars symbol_dropout symbol_modality_num_shards symbol_modality_skip_top
target_modality top tpu_enable_host_call use_fixed_batch_size use_target_space_embedding use_tpu
video_num_input_frames video_num_target_frames vocab_divisor vocab_size warm_start_from_second
weight_decay weight_dtype weight_noise
"""
OTHERS = frozenset(_OTHERS.split())
# The numbers of heads, each with what says whether these have relative positions.
RELATIVE = {
    "local_num_heads": "local_relative",
    "sparsity_cluster_num_heads": "sparsity_cluster_relative",
    "sparsity_cluster_strided_num_heads": "sparsity_cluster_strided_relative",
    "sparsity_strided_num_heads": "sparsity_strided_relative",
}


def read_hparams(hparams, image=False):
    """Checked hyperparameters, with defaults for those that are not given.

    Args:
        hparams: a dictionary, or the path of an `hparams.json`.
        image: bool, whether they describe an image model. Defaults to False.

    Returns:
        A dictionary of all hyperparameters that determine what the model computes.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file holds no JSON object, a name is unknown, a value is of another type
            than the default, or values contradict one another.
    """
    if not isinstance(hparams, dict):
        hparams = files.read_json(hparams)
    defaults = IMAGE if image else TEXT
    unknown = sorted(set(hparams) - set(TEXT) - set(IMAGE) - OTHERS)
    if unknown:
        raise ValueError(f"unknown hyperparameters: {', '.join(unknown)}")
    known = {name: value for name, value in hparams.items() if name in defaults}
    for name, value in known.items():
        known[name] = _checked(name, value, defaults[name])
    known = {**defaults, **known}
    _check_together(known)
    return known


def _is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _are_integers(value):
    return isinstance(value, (list, tuple)) and all(isinstance(x, int) for x in value)


# For each type of a default, what a value must be, and whether it is.
ALLOWED = {
    list: ("a list of integers", _are_integers),
    bool: ("true or false", lambda value: isinstance(value, bool)),
    str: ("text", lambda value: isinstance(value, str)),
    int: ("an integer of at least 0", lambda x: _is_number(x) and x == int(x) and x >= 0),
    float: ("a number", _is_number),
}


def _checked(name, value, default):
    """The value, if it is of the default's type."""
    allowed, is_good = ALLOWED[type(default)]
    if not is_good(value):
        raise ValueError(f"hyperparameter {name} is {value!r}; it must be {allowed}")
    return type(default)(value)


def _check_together(h):
    heads = num_heads(h)
    if heads == 0:
        raise ValueError("the numbers of heads are all 0")
    for name in ("attention_key_channels", "attention_value_channels", "hidden_size"):
        if h[name] % heads:
            raise ValueError(f"{name} is {h[name]}, which the {heads} heads do not divide")
    if not len(h["query_shape"]) == len(h["memory_query_shape"]) == len(h["memory_flange"]):
        raise ValueError(
            "query_shape, memory_query_shape and memory_flange must have one number for each "
            f"dimension; they are {h['query_shape']}, {h['memory_query_shape']} and "
            f"{h['memory_flange']}"
        )
    if min(h["query_shape"] + h["memory_query_shape"]) < 1:
        raise ValueError("query_shape and memory_query_shape must be positive")
    if any(f % q for f, q in zip(h["memory_flange"], h["query_shape"])):
        raise ValueError(
            f"memory_flange, {h['memory_flange']}, must be a multiple of query_shape, "
            f"{h['query_shape']}"
        )
    if h["ffn_layer"] == "none":
        raise ValueError(
            'ffn_layer "none", blocks without a feed-forward network, has no model here'
        )
    _check_routing(h)
    normalize_first(h)


def _check_routing(h):
    strided = h["sparsity_cluster_strided_num_heads"]
    if strided > h["sparsity_cluster_num_heads"] or strided and h["sparsity_skip_first"]:
        raise ValueError(
            "each layer needs at least as many cluster heads as cluster-strided ones: "
            f"sparsity_cluster_strided_num_heads is {strided}, sparsity_cluster_num_heads "
            f"{h['sparsity_cluster_num_heads']}, sparsity_skip_first {h['sparsity_skip_first']}"
        )
    if h["sparsity_cluster_num_heads"] and not (
        h["sparsity_cluster_size"] and h["sparsity_cluster_attention_window"]
    ):
        raise ValueError(
            "cluster heads need sparsity_cluster_size and sparsity_cluster_attention_window above 0"
        )
    for count, name in RELATIVE.items():
        if h[name] and h[count] and not h["max_relative_position"]:
            raise ValueError(f"{name} needs max_relative_position above 0")


def num_heads(h):
    """Heads of a layer, of all kinds."""
    return sum(h[count] for count in RELATIVE)


def normalize_first(h):
    """Whether blocks are pre-norm.

    Tensor2Tensor writes what precedes and follows each function of a block as letters: n for layer
    normalisation, d for dropout, a for adding the input.
    """
    names = ("layer_preprocess_sequence", "layer_postprocess_sequence")
    given = tuple("" if h[name] == "none" else h[name] for name in names)
    known = {("n", "da"): True, ("", "dan"): False}
    if not h["layer_prepostprocess_dropout"]:
        # Then d does nothing, wherever it stands.
        given = tuple(letters.replace("d", "") for letters in given)
        known = {("n", "a"): True, ("", "an"): False}
    if given not in known:
        raise ValueError(
            f"{names[0]} and {names[1]} must be 'n' and 'da' (pre-norm) or 'none' and 'dan' "
            f"(post-norm); they are {h[names[0]]!r} and {h[names[1]]!r}"
        )
    return known[given]


def block_options(h):
    """The arguments of the backbones that their blocks pass on."""
    heads = num_heads(h)
    geglu = h["ffn_layer"] == "geglu"
    return {
        "intermediate_dim": h["filter_size"],
        "key_dim": (h["attention_key_channels"] or h["hidden_size"]) // heads,
        "value_dim": (h["attention_value_channels"] or h["hidden_size"]) // heads,
        "activation": "geglu_approximate" if geglu else "relu",
        "normalize_first": normalize_first(h),
        "dropout": h["layer_prepostprocess_dropout"],
        "attention_dropout": h["attention_dropout"],
        "activation_dropout": h["relu_dropout"],
        "attention_bias": False,
        "feed_forward_bias": not geglu,
        "use_head_dense": True,
        "layer_norm_epsilon": h["norm_epsilon"],
        "kernel_initializer": keras.initializers.VarianceScaling(
            h["initializer_gain"], "fan_avg", "uniform"
        ),
    }


def head_groups(h, layer, kind, image_shape=None, token_bias=False):
    """The head groups of one layer, in the order of that code: what clusters comes first.

    Args:
        h: hyperparameters as `read_hparams` returns them.
        layer: number of the layer, from 0.
        kind: "encoder", "decoder", or "cross" for a decoder's attention to an encoder.
        image_shape: `(height, width, channels)`, or None for text.
        token_bias: whether the heads take a token bias.
    """
    clusters, local = h["sparsity_cluster_num_heads"], h["local_num_heads"]
    if layer < h["sparsity_skip_first"]:
        clusters, local = 0, local + clusters
    block_size = math.prod(h["query_shape"])
    bias = {"token_bias": ("trainable" if h["token_bias_wt_trainable"] else "fixed")}
    bias = bias if token_bias else {}

    def reach(name, of_itself=True):
        return h["max_relative_position"] if h[name] and of_itself else None

    groups = []
    if clusters:
        relative = reach("sparsity_cluster_relative", kind != "cross")
        groups.append(_cluster_heads(h, clusters, kind, relative, block_size, bias))
    if h["sparsity_cluster_strided_num_heads"]:
        groups.append(
            t2t.T2TClusterStridedHeads(
                h["sparsity_cluster_strided_num_heads"],
                h["sparsity_cluster_size"],
                h["sparsity_cluster_attention_window"],
                block_size,
                max_relative_distance=reach("sparsity_cluster_strided_relative"),
                # That code does not pass beta on to these heads.
                commitment_weight=1e-4,
                **bias,
            )
        )
    if h["sparsity_strided_num_heads"]:
        groups.append(
            t2t.T2TStridedHeads(
                h["sparsity_strided_num_heads"],
                block_size,
                max_relative_distance=reach("sparsity_strided_relative"),
            )
        )
    if local:
        relative = reach("local_relative", kind != "cross")
        groups.append(_local_heads(h, local, kind, relative, image_shape, bias))
    return groups


def _cluster_heads(h, count, kind, relative, block_size, bias):
    share_qk = h["share_qk"] and kind == "decoder"
    options = {"share_qk": share_qk, "max_relative_distance": relative, **bias}
    sizes = (count, h["sparsity_cluster_size"], h["sparsity_cluster_attention_window"], block_size)
    if h["hash_items"]:
        return t2t.T2THashedHeads(*sizes, **options)
    return t2t.T2TRoutingHeads(*sizes, commitment_weight=h["beta"], **options)


def _local_heads(h, count, kind, relative, image_shape, bias):
    grid, block_shape = None, h["query_shape"]
    keys = h["memory_query_shape"] if kind == "cross" else block_shape
    look_back = [flange // block for flange, block in zip(h["memory_flange"], keys)]
    if len(block_shape) > 1:
        grid = [side // block for side, block in zip(sides(image_shape, block_shape), block_shape)]
    return t2t.T2TLocalHeads(
        count,
        math.prod(block_shape),
        look_back=look_back[0] if grid is None else look_back,
        max_relative_distance=relative,
        grid=grid,
        key_block_size=math.prod(keys),
        **bias,
    )
