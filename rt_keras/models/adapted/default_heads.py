"""The heads that `adapt` gives a model if it is not told which."""

from rt_keras.layers import Heads
from rt_keras.layers.key_sets import FirstTokens, SelectedBlocks, Window
from rt_keras.models.adapted.architectures import architecture
from rt_keras.models.adapted.attention_layers import num_heads, window_of
from rt_keras.models.adapted.backbones import attention_blocks

# What a query reads at most beyond its window and the first tokens.
KEYS = 128
# Keys in a block: smaller ones find more of what full attention sees, and cost more to find.
BLOCK_SIZE, ENCODER_BLOCK_SIZE = 4, 2
# The window of a decoder has the segments that have not become blocks yet.
SEGMENT_SIZE, LOOK_BACK = 256, 3
# That of an encoder has no such task: the keys that it does without go further in blocks.
ENCODER_SEGMENT_SIZE = 4
# What full attention gives weight that it has no other place for. In an encoder, they are found.
FIRST_TOKENS = 4


def default_head_groups(backbone, keys=None):
    """A window, in decoders the first tokens, and the blocks of keys that suit a query best.

    Args:
        backbone: a backbone of KerasHub.
        keys: int, how many keys a query reads at most beyond the window and the first tokens; None,
            the default, for `KEYS`.

    Returns:
        A list of one head group, for all heads of a layer; and the numbers of the layers that get
        it: those without a window of their own.

    Raises:
        ValueError: if `keys` is no multiple of the size of a block, the model has both an encoder
            and a decoder, or every layer has a window.
    """
    blocks = list(attention_blocks(backbone))
    causal = blocks[0][1]
    if any(other != causal for _, other in blocks):
        raise ValueError(
            "head_groups can be left out for an encoder or a decoder alone. Received: "
            f"head_groups=None for {type(backbone).__name__}, which has both"
        )
    keys, size = KEYS if keys is None else keys, BLOCK_SIZE if causal else ENCODER_BLOCK_SIZE
    if isinstance(keys, bool) or not isinstance(keys, int) or keys < 1 or keys % size:
        raise ValueError(f"keys must be a positive multiple of {size}. Received: keys={keys!r}")
    attention = [getattr(block, architecture(backbone).attention) for block, _ in blocks]
    layers = [number for number, layer in enumerate(attention) if window_of(layer) is None]
    if not layers:
        raise ValueError(
            "head_groups must be given for a model whose layers all have a window. Received: "
            "head_groups=None"
        )
    selected = SelectedBlocks(**block_options(causal, keys))
    return [Heads(num_heads(attention[layers[0]]), [*sets_beside(causal), selected])], layers


def sets_beside(causal):
    """What every query sees: a window, and in decoders the first tokens.

    Args:
        causal: bool, whether the heads are those of a decoder.

    >>> sets_beside(causal=False)
    [Window(block_size=4)]
    """
    if causal:
        return [Window(SEGMENT_SIZE, look_back=LOOK_BACK), FirstTokens(FIRST_TOKENS)]
    return [Window(ENCODER_SEGMENT_SIZE)]


def block_options(causal, keys):
    """The arguments of `SelectedBlocks`.

    Args:
        causal: bool, whether the heads are those of a decoder.
        keys: int, how many keys a query reads.
    """
    if causal:
        sizes = {"block_size": BLOCK_SIZE, "segment_size": SEGMENT_SIZE}
        return {**sizes, "num_blocks": keys // BLOCK_SIZE, "num_nodes": keys // BLOCK_SIZE}
    # Of so few keys, neighbours are as good as those that are alike, and spread is noise.
    sizes = {"block_size": ENCODER_BLOCK_SIZE, "segment_size": ENCODER_SEGMENT_SIZE}
    num_blocks = keys // ENCODER_BLOCK_SIZE
    return {**sizes, "num_blocks": num_blocks, "by_content": False, "deviation_weight": 0.0}
