"""Hyperparameters of the authors' code, and the models they describe.

That code consists of two Tensor2Tensor models, `sparse_transformer` for text and
`sparse_imagetransformer` for images. The names and defaults of the hyperparameters are the ones of
that code.
"""

import functools
import math
from pathlib import Path

import keras
import yaml

from rt_keras import files
from rt_keras.convert.t2t import heads as t2t
from rt_keras.models.image.image_embedding import sides

FOLDER = Path(__file__).parent
# The hyperparameters and their defaults.
_KNOWN = yaml.safe_load((FOLDER / "hparams.yaml").read_text(encoding="utf-8"))
TEXT, IMAGE = ({**_KNOWN["common"], **_KNOWN[kind]} for kind in ("text", "image"))
OTHERS = _KNOWN["others"].split()
# Each number of heads with the flag for their relative positions.
RELATIVE = {
    "local_num_heads": "local_relative",
    "sparsity_cluster_num_heads": "sparsity_cluster_relative",
    "sparsity_cluster_strided_num_heads": "sparsity_cluster_strided_relative",
    "sparsity_strided_num_heads": "sparsity_strided_relative",
}


@functools.cache
def published():
    """Returns the sets of hyperparameters that the authors published, by name."""
    return yaml.safe_load((FOLDER / "published.yaml").read_text(encoding="utf-8"))


def read_hparams(hparams, image=False):
    """Reads and checks hyperparameters, and adds defaults for missing ones.

    Args:
        hparams: a dictionary, the path of an `hparams.json`, or the name of a published set.
        image: bool, whether they describe an image model. Defaults to False.

    Returns:
        A dictionary of all hyperparameters that determine what the model computes.

    Raises:
        FileNotFoundError: if the file does not exist.
        ValueError: if the file holds no JSON object, a name is unknown, the type of a value differs
            from that of the default, or values contradict one another.
    """
    if not isinstance(hparams, dict):
        name = str(hparams)
        hparams = published()[name] if name in published() else files.read_json(hparams)
    defaults = IMAGE if image else TEXT
    unknown = sorted({*hparams} - {*TEXT, *IMAGE, *OTHERS})
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


# The description and the check of allowed values, by the type of the default.
ALLOWED = {
    list: ("a list of integers", _are_integers),
    bool: ("true or false", lambda value: isinstance(value, bool)),
    str: ("text", lambda value: isinstance(value, str)),
    int: ("an integer of at least 0", lambda x: _is_number(x) and x == int(x) and x >= 0),
    float: ("a number", _is_number),
}


def _checked(name, value, default):
    """Returns the value if it has the default's type; raises a ValueError otherwise."""
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
            raise ValueError(f"{name} is {h[name]}, which is not a multiple of the {heads} heads")
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
        raise ValueError('ffn_layer is "none", but blocks must have a feed-forward network')
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


def is_strictly_causal(h):
    """Returns whether no output depends on later positions, so that no head has clusters."""
    return not (h["sparsity_cluster_num_heads"] or h["sparsity_cluster_strided_num_heads"])


def num_heads(h):
    """Returns the number of heads of a layer, over all kinds."""
    return sum(h[count] for count in RELATIVE)


def normalize_first(h):
    """Returns whether blocks are pre-norm.

    Tensor2Tensor encodes the operations before and after each sublayer as letters: n for layer
    normalization, d for dropout, a for adding the input.
    """
    names = ("layer_preprocess_sequence", "layer_postprocess_sequence")
    given = tuple("" if h[name] == "none" else h[name] for name in names)
    known = {("n", "da"): True, ("", "dan"): False}
    if not h["layer_prepostprocess_dropout"]:
        # Then d has no effect in any position.
        given = tuple(letters.replace("d", "") for letters in given)
        known = {("n", "a"): True, ("", "an"): False}
    if given not in known:
        raise ValueError(
            f"{names[0]} and {names[1]} must be 'n' and 'da' (pre-norm) or 'none' and 'dan' "
            f"(post-norm); they are {h[names[0]]!r} and {h[names[1]]!r}"
        )
    return known[given]


def block_options(h):
    """Returns the arguments of the backbones that configure their blocks."""
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
    """Returns the head groups of one layer in the order of that code, clustered heads first.

    Args:
        h: hyperparameters from `read_hparams`.
        layer: int, index of the layer, from 0.
        kind: "encoder", "decoder", or "cross" for a decoder's attention to an encoder.
        image_shape: `(height, width, channels)`, or None for text.
        token_bias: bool, whether the heads have a token bias.
    """
    clusters, local = h["sparsity_cluster_num_heads"], h["local_num_heads"]
    if layer < h["sparsity_skip_first"]:
        clusters, local = 0, local + clusters
    block_size = math.prod(h["query_shape"])
    sizes = h["sparsity_cluster_size"], h["sparsity_cluster_attention_window"], block_size
    trained = "trainable" if h["token_bias_wt_trainable"] else "fixed"
    bias = {"token_bias": trained if token_bias else None}

    def reach(name, of_itself=True):
        return h["max_relative_position"] if h[name] and of_itself else None

    groups = []
    if clusters:
        relative = reach("sparsity_cluster_relative", kind != "cross")
        options = {"share_qk": h["share_qk"] and kind == "decoder", **bias}
        cls = t2t.T2THashedHeads if h["hash_items"] else t2t.T2TRoutingHeads
        options |= {} if h["hash_items"] else {"commitment_weight": h["beta"]}
        groups.append(cls(clusters, *sizes, max_relative_distance=relative, **options))
    if count := h["sparsity_cluster_strided_num_heads"]:
        relative = reach("sparsity_cluster_strided_relative")
        # That code does not pass beta to these heads.
        options = {"max_relative_distance": relative, "commitment_weight": 1e-4, **bias}
        groups.append(t2t.T2TClusterStridedHeads(count, *sizes, **options))
    if count := h["sparsity_strided_num_heads"]:
        relative = reach("sparsity_strided_relative")
        groups.append(t2t.T2TStridedHeads(count, block_size, max_relative_distance=relative))
    if local:
        relative = reach("local_relative", kind != "cross")
        groups.append(_local_heads(h, local, kind, relative, image_shape, bias))
    return groups


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
        key_block_size=kind == "cross" and h["cross_block_size"] or math.prod(keys),
        **bias,
    )
