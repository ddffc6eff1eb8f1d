import keras
import numpy as np
import pytest
import tensorflow as tf

from rt_keras.benchmarks.quality import kinds, training
from rt_keras.benchmarks.quality.tasks.text import Text
from rt_keras.layers import TransformerBlock

SETTINGS = {"keys": 16, "clusters": 8, "positions": "relative", "layers": 2, "width": 32}
SIZES = kinds.Sizes(keys=16, clusters=8)
# The keys that a query sees of 256 tokens.
SEEN = {
    # The mean of two blocks, of which the second is local: 11 keys before the block and 6 in it,
    # but none before the first block.
    "full_convolution_above": (257 / 2 + 16.5) / 2,
    # A state has no attention weights.
    "gated_delta_below": None,
}
ABOUT_AS_MANY = ("nearest_2_probes", "local_routing", "content_blocks", "oracle")


class Bytes(Text):
    """Random bytes."""

    def sample(self, rng, batch, held_out):
        rows = rng.integers(256, size=[batch, self.length + 1])
        return rows[:, :-1], rows[:, 1:], np.ones([batch, self.length])


def model_of(kind):
    keras.utils.set_random_seed(0)
    return training.build(Bytes(256), {**SETTINGS, "kind": kind})


def test_all_kinds_have_four_heads():
    assert {*kinds.FIRST, *kinds.CONVOLVED, *kinds.FROZEN} <= {*kinds.KINDS}
    for kind, make in kinds.KINDS.items():
        assert sum(group.num_heads for group in make(4, SIZES)) == 4, kind


@pytest.mark.weekly
@pytest.mark.parametrize("kind", [*SEEN, *ABOUT_AS_MANY])
def test_a_query_sees_the_keys_that_were_asked_for_and_no_later_token(kind):
    model = model_of(kind)
    found = training.keys_seen(model, Bytes(256), seed=0)
    if kind in ABOUT_AS_MANY:
        assert 0.5 * 16 <= found <= 1.5 * 16
    else:
        assert found == pytest.approx(SEEN[kind], abs=0.6)
    tokens, _, _ = next(iter(Bytes(256).batches(0, 1)))
    changed = tf.concat([tokens[:, :200], (tokens[:, 200:] + 1) % 256], axis=1)
    ours, others = (model({"tokens": x}) for x in (tokens, changed))
    np.testing.assert_allclose(ours[:, :200], others[:, :200], atol=1e-5)
    assert np.abs(ours[:, 200:] - others[:, 200:]).max() > 1e-2


def test_blocks_with_convolutions():
    found = {}
    for name in ("local_convolution", "local_convolution_below", "full_convolution_above"):
        blocks = [x.attention for x in model_of(name).layers if isinstance(x, TransformerBlock)]
        found[name] = [(type(x.head_groups[0]).__name__, x.conv_kernel_size) for x in blocks]
    assert found == {
        "local_convolution": [("LocalHeads", 4)] * 2,
        "local_convolution_below": [("LocalHeads", 4), ("LocalRoutingHeads", None)],
        "full_convolution_above": [("LocalHeads", 4), ("FullHeads", 4)],
    }


def test_random_members_differ_from_block_to_block_and_repeat_with_the_seed():
    def seeds():
        keras.utils.set_random_seed(5)
        return [kinds.random_members(4, SIZES)[1].seed for _ in range(2)]

    first, second = seeds()
    assert first != second and seeds() == [first, second]


def test_sizes_of_clusters_and_blocks():
    for kind, sizes in {"local_and_nearest": (8, 32, 1), "nearest_2_probes": (16, 16, 2)}.items():
        _, group = kinds.KINDS[kind](4, SIZES)
        assert (group.num_clusters, group.window_size, group.num_probes) == sizes
    # The keys of two windows less.
    for keys, expected in ((96, (16, 4, 12)), (32, (4, 1, 20))):
        (heads,) = kinds.routed_blocks(4, kinds.Sizes(keys=keys, clusters=8))
        window, blocks = heads.key_sets
        assert (window.block_size, blocks.block_size, blocks.num_blocks) == expected
