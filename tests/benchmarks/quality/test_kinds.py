import keras
import numpy as np
import pytest
import tensorflow as tf

from rt_keras.benchmarks.quality import kinds, training
from rt_keras.benchmarks.quality.tasks.text import Text
from rt_keras.layers import TransformerBlock

SETTINGS = {"keys": 16, "clusters": 8, "positions": "relative", "layers": 2, "width": 32}
SIZES = kinds.Sizes(keys=16, clusters=8)
# Their clusters choose members from the whole sequence.
SEE_THE_FUTURE = ("balanced", "hashed")


class Bytes(Text):
    """Random bytes."""

    def sample(self, rng, batch, held_out):
        rows = rng.integers(256, size=[batch, self.length + 1])
        return rows[:, :-1], rows[:, 1:], np.ones([batch, self.length])


@pytest.fixture(scope="module")
def models():
    keras.utils.set_random_seed(0)
    return {kind: training.build(Bytes(256), {**SETTINGS, "kind": kind}) for kind in kinds.KINDS}


@pytest.mark.parametrize("kind", kinds.KINDS)
def test_models_have_four_heads_and_as_many_weights(kind, models):
    groups = kinds.KINDS[kind](4, SIZES)
    assert sum(group.num_heads for group in groups) == 4
    sizes = [
        sum(int(tf.size(x)) for x in models[name].trainable_weights) for name in (kind, "full")
    ]
    # They differ in the number and length of windows with relative positions.
    assert sizes[0] == pytest.approx(sizes[1], rel=0.1)


@pytest.mark.end_to_end
@pytest.mark.parametrize("kind", kinds.KINDS)
def test_a_query_sees_about_the_keys_that_were_asked_for(kind, models):
    found = training.keys_seen(models[kind], Bytes(256), seed=0)
    if kind in ("full", "full_convolution"):
        assert found == pytest.approx(257 / 2)
    elif kind in ("local", "local_convolution"):
        # 11 keys before the block and 6 in it, but none before the first block.
        assert found == pytest.approx(16.5, abs=0.5)
    elif kind == "full_convolution_above":
        # The mean of two blocks.
        assert found == pytest.approx((257 / 2 + 16.5) / 2, abs=0.5)
    elif "gated_delta" in kind or kind == "native_sparse":
        # A state has no attention weights, and the weights of three branches are not kept.
        assert found is None
    elif kind == "local_routing_all":
        assert found == pytest.approx(257 / 2, abs=1)
    else:
        assert 0.5 * 16 <= found <= 1.5 * 16


@pytest.mark.end_to_end
@pytest.mark.parametrize("kind", [kind for kind in kinds.KINDS if kind not in SEE_THE_FUTURE])
def test_no_logit_depends_on_a_later_token(kind, models):
    tokens, _, _ = next(iter(Bytes(256).batches(0, 1)))
    changed = tf.concat([tokens[:, :200], (tokens[:, 200:] + 1) % 256], axis=1)
    ours, others = (models[kind]({"tokens": x}) for x in (tokens, changed))
    np.testing.assert_allclose(ours[:, :200], others[:, :200], atol=1e-5)
    assert np.abs(ours[:, 200:] - others[:, 200:]).max() > 1e-2


def test_blocks_with_convolutions(models):
    found = {}
    for name in ("local_convolution", "local_convolution_below", "full_convolution_above"):
        blocks = [x.attention for x in models[name].layers if isinstance(x, TransformerBlock)]
        found[name] = [(type(x.head_groups[0]).__name__, x.conv_kernel_size) for x in blocks]
    assert found == {
        "local_convolution": [("LocalHeads", 4)] * 2,
        "local_convolution_below": [("LocalHeads", 4), ("LocalRoutingHeads", None)],
        "full_convolution_above": [("LocalHeads", 4), ("FullHeads", 4)],
    }
    assert {*kinds.FIRST, *kinds.CONVOLVED} <= {*kinds.KINDS}


def test_random_members_differ_from_block_to_block_and_repeat_with_the_seed():
    def seeds():
        keras.utils.set_random_seed(5)
        return [kinds.random_members(4, SIZES)[1].seed for _ in range(2)]

    first, second = seeds()
    assert first != second and seeds() == [first, second]


def test_two_probes_see_twice_as_many_clusters_of_half_the_size():
    _, one = kinds.KINDS["local_and_nearest"](4, SIZES)
    _, two = kinds.KINDS["nearest_2_probes"](4, SIZES)
    assert (one.num_clusters, one.window_size, one.num_probes) == (8, 32, 1)
    assert (two.num_clusters, two.window_size, two.num_probes) == (16, 16, 2)


def test_sinusoidal_positions_are_the_only_ones():
    settings = {**SETTINGS, "positions": "sinusoidal", "kind": "local_routing"}
    model = training.build(Bytes(256), settings)
    assert "with_positions" in {layer.name for layer in model.layers}
    assert not [x.path for x in model.weights if "relative" in x.path]


def test_moba_sees_its_own_block_and_the_best_before_it():
    (heads,) = kinds.moba(4, kinds.Sizes(keys=96, clusters=8))
    window, blocks = heads.key_sets
    assert (window.block_size, window.look_back) == (16, 0)
    assert (blocks.block_size, blocks.num_blocks, blocks.deviation_weight) == (16, 6, 0.0)


@pytest.mark.parametrize("keys, expected", [(96, (16, 4, 12)), (32, (4, 1, 20))])
def test_routed_blocks_have_the_keys_of_two_windows_less(keys, expected):
    (heads,) = kinds.routed_blocks(4, kinds.Sizes(keys=keys, clusters=8))
    window, blocks = heads.key_sets
    assert (window.block_size, blocks.block_size, blocks.num_blocks) == expected


def test_routed_blocks_beside_nearest_are_half_of_the_heads():
    heads = kinds.routed_blocks_and_nearest(4, SIZES)
    assert [x.num_heads for x in heads] == [2, 2]
