"""The default heads of `adapt`."""

from rt_keras.layers.clustered_heads import ClusteredHeads
from rt_keras.layers.heads import Heads
from rt_keras.layers.key_sets.first_tokens import FirstTokens
from rt_keras.layers.key_sets.selected_blocks import SelectedBlocks
from rt_keras.layers.key_sets.window import Window
from rt_keras.models.adapted.architectures import attention_blocks, attention_layers
from rt_keras.models.adapted.attention import num_heads, window_of

# Maximum number of keys that a query reads beyond its window and the first tokens.
KEYS = 128
# Keys in a block. Smaller blocks find more of what full attention sees, but are slower to find.
BLOCK_SIZE = 4
# A window contains the segments that have not been divided into blocks yet.
SEGMENT_SIZE, LOOK_BACK = 256, 3
# Blocks that a query looks back in models of which few layers look far. More cost little there.
FAR_LOOK_BACK = 7
# Full attention gives these tokens weight that it needs nowhere else.
FIRST_TOKENS = 4
# Number of groups of queries in an encoder. With 25, embeddings are further from the original.
CLUSTERS = 100


def default_head_groups(backbone, keys=None, rotary_distance=None):
    """Returns the default heads.

    In decoders, they see a window, the first tokens, and selected blocks of keys. In encoders, they
    are improved clustered attention: a query sees some keys with its own weights and all others
    with the weights of its group.

    Args:
        backbone: KerasHub backbone.
        keys: int, maximum number of keys that a query reads beyond the window and the first tokens,
            or, in encoders, sees with its own weights. Defaults to None, for `KEYS`.
        rotary_distance: int or None, distance of the keys outside the window, in decoders. Defaults
            to None, for their own distances.

    Returns:
        Tuple of a list of one head group for all heads of a layer, and the list of the numbers of
        the layers that get it, which are those without a window.

    Raises:
        ValueError: if `keys` is not positive or, for a decoder, not a multiple of the block size,
            the model has both an encoder and a decoder, or every layer has a window.
    """
    blocks = list(attention_blocks(backbone))
    causal = blocks[0][1]
    if any(other != causal for _, other in blocks):
        raise ValueError(
            "head_groups is required for models with both an encoder and a decoder. Received: "
            f"head_groups=None for {type(backbone).__name__}"
        )
    keys, size = KEYS if keys is None else keys, BLOCK_SIZE if causal else 1
    if isinstance(keys, bool) or not isinstance(keys, int) or keys < 1 or keys % size:
        of_size = f"a positive multiple of {size}" if causal else "a positive integer"
        raise ValueError(f"keys must be {of_size}. Received: keys={keys!r}")
    attention = attention_layers(backbone)
    layers = [number for number, layer in enumerate(attention) if window_of(layer) is None]
    if not layers:
        raise ValueError(
            "head_groups is required for a model whose layers all have a window. Received: "
            "head_groups=None"
        )
    heads = num_heads(attention[layers[0]])
    if causal:
        few = few_look_far(backbone)
        options = block_options(keys, few)
        selected = SelectedBlocks(**options, rotary_distance=rotary_distance)
        return [Heads(heads, [*sets_beside(few, rotary_distance), selected])], layers
    return [ClusteredHeads(heads, CLUSTERS, top_k=keys, seed=0)], layers


def few_look_far(backbone):
    """Returns whether most layers of a decoder have a window, as in Gemma 3.

    Few layers then have to find the single keys that matter. They have a wider window and score all
    blocks, because such a key can be lost among the other 31 of its node.
    """
    layers = attention_layers(backbone)
    return 2 * sum(window_of(layer) is None for layer in layers) < len(layers)


def sets_beside(few=False, rotary_distance=None):
    """Returns the other sets of the default heads of decoders: a window and the first tokens.

    Args:
        few: bool, see `few_look_far`. Defaults to False.
        rotary_distance: int or None, see `default_head_groups`. Defaults to None.

    >>> sets_beside()
    [Window(block_size=256, look_back=3), FirstTokens(num_first_tokens=4)]
    """
    look_back = FAR_LOOK_BACK if few else LOOK_BACK
    first = FirstTokens(FIRST_TOKENS, rotary_distance=rotary_distance)
    return [Window(SEGMENT_SIZE, look_back=look_back), first]


def block_options(keys, few=False):
    """Returns the default arguments of `SelectedBlocks`.

    Args:
        keys: int, number of keys that a query reads.
        few: bool, see `few_look_far`. Defaults to False.
    """
    number = keys // BLOCK_SIZE
    sizes = {"block_size": BLOCK_SIZE, "segment_size": SEGMENT_SIZE}
    return {**sizes, "num_blocks": number, "num_nodes": None if few else number}
