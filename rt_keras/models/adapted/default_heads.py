"""The heads that `adapt` gives a model if it is not told which."""

from rt_keras.layers import Heads
from rt_keras.layers.key_sets import FirstTokens, SelectedBlocks, Window
from rt_keras.models.adapted.architectures import architecture
from rt_keras.models.adapted.attention_layers import num_heads, window_of
from rt_keras.models.adapted.backbones import attention_blocks

# What a query reads at most beyond its window and the first tokens.
KEYS = 128
# Keys in a block: smaller ones find more of what full attention sees, and cost more to find.
BLOCK_SIZE = 4
# The window has the segments that have not become blocks yet.
SEGMENT_SIZE, LOOK_BACK = 256, 3
# What full attention gives weight that it has no other place for.
FIRST_TOKENS = 4


def default_head_groups(backbone, keys=None):
    """A window, the first tokens, and blocks of keys that are alike.

    Args:
        backbone: a backbone of KerasHub.
        keys: int, how many keys a query reads at most beyond the window and the first tokens; None,
            the default, for `KEYS`.

    Returns:
        A list of one head group, for all heads of a layer; and the numbers of the layers that get
        it: those without a window of their own.

    Raises:
        ValueError: if `keys` is no multiple of the size of a block, the model has an encoder, or
            every layer has a window.
    """
    keys = KEYS if keys is None else keys
    if isinstance(keys, bool) or not isinstance(keys, int) or keys < 1 or keys % BLOCK_SIZE:
        raise ValueError(
            f"keys must be a positive multiple of {BLOCK_SIZE}. Received: keys={keys!r}"
        )
    blocks = list(attention_blocks(backbone))
    if not all(causal for _, causal in blocks):
        raise ValueError(
            "head_groups can be left out for decoders alone. Received: head_groups=None for "
            f"{type(backbone).__name__}, which has an encoder"
        )
    attention = [getattr(block, architecture(backbone).attention) for block, _ in blocks]
    layers = [number for number, layer in enumerate(attention) if window_of(layer) is None]
    if not layers:
        raise ValueError(
            "head_groups must be given for a model whose layers all have a window. Received: "
            "head_groups=None"
        )
    num_blocks = keys // BLOCK_SIZE
    selected = SelectedBlocks(
        BLOCK_SIZE, num_blocks, segment_size=SEGMENT_SIZE, num_nodes=num_blocks
    )
    sets = [Window(SEGMENT_SIZE, look_back=LOOK_BACK), FirstTokens(FIRST_TOKENS), selected]
    return [Heads(num_heads(attention[layers[0]]), sets)], layers
