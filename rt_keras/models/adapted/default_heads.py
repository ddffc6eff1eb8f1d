"""The default heads of `adapt`."""

from rt_keras.layers import Heads
from rt_keras.layers.key_sets import FirstTokens, SelectedBlocks, Window
from rt_keras.models.adapted.architectures import architecture
from rt_keras.models.adapted.attention_layers import num_heads, window_of
from rt_keras.models.adapted.backbones import attention_blocks

# Maximum number of keys that a query reads beyond its window and the first tokens.
KEYS = 128
# Keys in a block. Smaller blocks find more of what full attention sees, but are slower to find.
BLOCK_SIZE, ENCODER_BLOCK_SIZE = 4, 2
# A decoder's window contains the segments that have not been divided into blocks yet.
SEGMENT_SIZE, LOOK_BACK = 256, 3
# An encoder's window need not contain any; its keys are better spent on blocks.
ENCODER_SEGMENT_SIZE = 4
# Full attention gives these tokens weight that it needs nowhere else. In encoders, blocks
# contain them.
FIRST_TOKENS = 4


def default_head_groups(backbone, keys=None):
    """Returns the default heads: a window, first tokens in decoders, and selected blocks of keys.

    Args:
        backbone: KerasHub backbone.
        keys: int, maximum number of keys that a query reads beyond the window and the first tokens.
            Defaults to None, for `KEYS`.

    Returns:
        Tuple of a list of one head group for all heads of a layer, and the list of the numbers of
        the layers that get it, which are those without a window.

    Raises:
        ValueError: if `keys` is not a multiple of the block size, the model has both an encoder and
            a decoder, or every layer has a window.
    """
    blocks = list(attention_blocks(backbone))
    causal = blocks[0][1]
    if any(other != causal for _, other in blocks):
        raise ValueError(
            "head_groups is required for models with both an encoder and a decoder. Received: "
            f"head_groups=None for {type(backbone).__name__}"
        )
    keys, size = KEYS if keys is None else keys, BLOCK_SIZE if causal else ENCODER_BLOCK_SIZE
    if isinstance(keys, bool) or not isinstance(keys, int) or keys < 1 or keys % size:
        raise ValueError(f"keys must be a positive multiple of {size}. Received: keys={keys!r}")
    attention = [getattr(block, architecture(backbone).attention) for block, _ in blocks]
    layers = [number for number, layer in enumerate(attention) if window_of(layer) is None]
    if not layers:
        raise ValueError(
            "head_groups is required for a model whose layers all have a window. Received: "
            "head_groups=None"
        )
    selected = SelectedBlocks(**block_options(causal, keys))
    return [Heads(num_heads(attention[layers[0]]), [*sets_beside(causal), selected])], layers


def sets_beside(causal):
    """Returns the other sets of the default heads: a window, and first tokens in decoders.

    Args:
        causal: bool, whether the heads belong to a decoder.

    >>> sets_beside(causal=False)
    [Window(block_size=4)]
    """
    if causal:
        return [Window(SEGMENT_SIZE, look_back=LOOK_BACK), FirstTokens(FIRST_TOKENS)]
    return [Window(ENCODER_SEGMENT_SIZE)]


def block_options(causal, keys):
    """Returns the default arguments of `SelectedBlocks`.

    Args:
        causal: bool, whether the heads belong to a decoder.
        keys: int, number of keys that a query reads.
    """
    if causal:
        sizes = {"block_size": BLOCK_SIZE, "segment_size": SEGMENT_SIZE}
        return {**sizes, "num_blocks": keys // BLOCK_SIZE, "num_nodes": keys // BLOCK_SIZE}
    # In blocks this small, neighbors are as good as similar keys, and the deviation is noise.
    sizes = {"block_size": ENCODER_BLOCK_SIZE, "segment_size": ENCODER_SEGMENT_SIZE}
    num_blocks = keys // ENCODER_BLOCK_SIZE
    return {**sizes, "num_blocks": num_blocks, "by_content": False, "deviation_weight": 0.0}
