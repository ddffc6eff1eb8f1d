import numpy as np
import pytest

from rt_keras.benchmarks import decode, model, models

SIZES = {"length": 32, "window": 8, "layers": 1, "width": 16}


def test_every_kind_that_a_command_takes_can_be_built():
    for kind in dict.fromkeys((*model.KINDS, *decode.KINDS)):
        groups = models.head_groups(kind, 32, 8)
        assert sum(group.num_heads for group in groups) == models.HEADS


@pytest.mark.parametrize("kind", models.ROUTING)
def test_routing_heads_have_the_window_and_as_many_clusters_as_fill_the_sequence(kind):
    local, routing = models.head_groups(kind, 32, 8)
    assert (local.num_heads, local.block_size) == (2, 8)
    assert (routing.num_heads, routing.num_clusters, routing.window_size) == (2, 4, 8)
    assert kind == f"{routing.assignment}_{'shared' if routing.share_qk else 'separate'}"


def test_local_heads_with_the_same_keys_see_no_more_than_a_cluster():
    first, second = models.head_groups("local_same_keys", 32, 8)
    assert (first.block_size, second.block_size) == (8, 4)
    (both,) = models.head_groups("local", 32, 8)
    assert both.block_size == 8


def test_heads_that_do_both_see_as_many_keys_as_the_two_kinds_on_average():
    (both,) = models.head_groups("local_routing", 32, 8)
    local, routing = models.head_groups("nearest_separate", 32, 8)
    furthest = [2 * group.block_size for group in (both, local)]
    assert furthest[0] + both.window_size == (furthest[1] + routing.window_size) / 2
    assert both.num_clusters == routing.num_clusters


def test_relative_positions_reach_as_far_as_the_window():
    for kind in model.KINDS:
        for group in models.head_groups(kind, 32, 8, relative_positions=True):
            assert group.max_relative_distance == 8
        for group in models.head_groups(kind, 32, 8):
            assert group.max_relative_distance is None


def test_the_model_is_of_the_shape_it_says():
    built = models.build("local", **SIZES)
    config = built.backbone.get_config()
    assert (config["hidden_dim"], config["intermediate_dim"]) == (16, 64)
    assert built.backbone.vocabulary_size == models.VOCABULARY == 256
    assert models.HEADS == 4


@pytest.mark.end_to_end
def test_steps_train_the_model_and_move_its_centroids():
    step = models.prepare_step("nearest_shared", batch=2, **SIZES)
    trained = next(
        cell.cell_contents
        for cell in step.__closure__
        if hasattr(cell.cell_contents, "trainable_weights")
    )
    heads = trained.backbone.transformer_blocks[0].attention.head_groups[1]
    centroids = heads.centroids.numpy()
    losses = [step() for _ in range(3)]
    assert losses == sorted(losses, reverse=True) and len(set(losses)) == 3
    assert np.abs(heads.centroids.numpy() - centroids).max() > 0
    # The statistics of the step were applied and cleared.
    assert not heads.member_counts.numpy().any()


@pytest.mark.end_to_end
def test_generation_with_and_without_a_cache_writes_the_last_tokens():
    for kind in ("nearest_separate", "gated_delta", "native_sparse", "moba", "balanced_shared"):
        tokens = models.prepare_generation(kind, tokens=3, **SIZES)()
        assert tokens.shape == (1, 32)
        assert not tokens[0, :29].any()
