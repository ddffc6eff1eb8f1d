import numpy as np
import pytest

from rt_keras.layers import Heads
from rt_keras.layers.key_sets import Cluster, FirstTokens, RoutedBlocks, Window
from rt_keras.ops.convolution import naive_convolution
from rt_keras.ops.naive import naive_logits, naive_mask, naive_normalize
from tests.contract.kinds import move_weights
from tests.contract.loops import one_softmax

BATCH, HEADS, LENGTH, DEPTH, VALUE_DEPTH, BLOCK = 2, 2, 23, 6, 5, 4
# So many blocks that queries see all positions before them.
ALL = {"block_size": 2, "num_blocks": LENGTH, "segment_size": BLOCK}


def make_heads(key_heads=HEADS, **options):
    heads = Heads(HEADS, [Window(BLOCK), RoutedBlocks(**{**ALL, **options})], dtype="float64")
    heads.build((None, HEADS, None, DEPTH), (None, key_heads, None, VALUE_DEPTH))
    return move_weights(heads)


def make_inputs(key_heads=HEADS, seed=0):
    rng = np.random.default_rng(seed)
    shapes = (HEADS, DEPTH), (key_heads, VALUE_DEPTH), (key_heads, DEPTH)
    return [rng.normal(size=(BATCH, heads, LENGTH, depth)) for heads, depth in shapes]


def loop(heads, query, value, key, real=None):
    """The equation, when all blocks are seen. Each position has a key and a previous query."""
    real = np.ones((BATCH, LENGTH), bool) if real is None else real
    key, value = (np.repeat(x, HEADS // x.shape[1], axis=1) for x in (key, value))
    routed_blocks = heads.key_sets[1]
    kernel = routed_blocks.routed_kernel
    kernel = np.ones((HEADS, 1, DEPTH)) if kernel is None else kernel.numpy()
    routed = naive_normalize(naive_convolution(query, kernel, real))
    previous = np.pad(routed, [(0, 0), (0, 0), (1, 0), (0, 0)])[:, :, :-1]
    scale, bias = (
        x.numpy()[:, None, None] for x in (routed_blocks.routed_scale, routed_blocks.routed_bias)
    )
    seen = naive_mask(LENGTH, LENGTH, causal=True, query_mask=real, key_mask=real)
    block = np.arange(LENGTH) // BLOCK
    in_window = seen & (block[:, None] - block <= 1)
    logits = scale * naive_logits(routed, previous) + bias
    return one_softmax((naive_logits(query, key), in_window, value), (logits, seen, value))


@pytest.mark.parametrize(
    "key_heads, options", [(HEADS, {}), (1, {"kernel_size": 1}), (1, {"block_size": 4})]
)
def test_equation(key_heads, options):
    heads, (query, value, key) = make_heads(key_heads, **options), make_inputs(key_heads)
    found = heads(query, value, key, use_causal_mask=True)
    np.testing.assert_allclose(found, loop(heads, query, value, key), atol=1e-10)


def test_padding():
    heads, (query, value, key) = make_heads(), make_inputs()
    real = np.zeros((BATCH, LENGTH), bool)
    real[0, 3:18] = real[1, :15] = True
    found = heads(query, value, key, query_mask=real, key_mask=real, use_causal_mask=True)
    np.testing.assert_allclose(found, loop(heads, query, value, key, real), atol=1e-10)


@pytest.mark.parametrize(
    "others, message",
    [
        ([], "RoutedBlocks needs a Window without sliding_window .* and no Window"),
        ([Window(4, sliding_window=5)], "RoutedBlocks needs a Window without sliding_window"),
        ([Window(4), Cluster(4, window_size=4)], "RoutedBlocks can only be combined with Window"),
    ],
)
def test_bad_unions(others, message):
    with pytest.raises(ValueError, match=message):
        Heads(2, [*others, RoutedBlocks(**ALL)])


def test_bad_options():
    with pytest.raises(ValueError, match="kernel_size must be .*Received: kernel_size=0"):
        RoutedBlocks(**ALL, kernel_size=0)
    with pytest.raises(ValueError, match="segment_size must be block_size times a power of 2"):
        RoutedBlocks(3, num_blocks=1, segment_size=8)


def test_the_first_tokens_are_not_the_first_queries():
    heads = Heads(2, [Window(4), FirstTokens(2), RoutedBlocks(**ALL)])
    assert heads.key_sets[2].num_first_tokens == 0
    assert heads.key_sets[2].keys_read(True) == 8 + 2 * LENGTH
