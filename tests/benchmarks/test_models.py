import numpy as np
import pytest

from rt_keras.benchmarks import decode, model, models

SIZES = {"length": 32, "window": 8, "layers": 1, "width": 16}


def test_heads_have_the_window_and_clusters_fill_the_sequence():
    for kind in dict.fromkeys((*model.KINDS, *decode.KINDS)):
        groups = models.head_groups(kind, 32, 8)
        assert sum(group.num_heads for group in groups) == models.HEADS
    for kind in models.ROUTING:
        local, routing = models.head_groups(kind, 32, 8)
        assert (local.num_heads, local.block_size) == (2, 8)
        assert (routing.num_heads, routing.num_clusters, routing.window_size) == (2, 4, 8)
        assert kind == f"{routing.assignment}_{'shared' if routing.share_qk else 'separate'}"
    for kind in model.KINDS:
        for group in models.head_groups(kind, 32, 8, relative_positions=True):
            assert group.max_relative_distance == 8


@pytest.mark.weekly
def test_steps_train_the_model_and_move_its_centroids_and_generation_writes_last_tokens():
    step = models.prepare_step("nearest_shared", batch=2, **SIZES)
    cells = [cell.cell_contents for cell in step.__closure__]
    (trained,) = [x for x in cells if hasattr(x, "trainable_weights")]
    heads = trained.backbone.transformer_blocks[0].attention.head_groups[1]
    centroids = heads.centroids.numpy()
    losses = [step() for _ in range(3)]
    assert losses == sorted(losses, reverse=True) and len(set(losses)) == 3
    assert np.abs(heads.centroids.numpy() - centroids).max() > 0
    tokens = models.prepare_generation("nearest_separate", tokens=3, **SIZES)()
    assert tokens.shape == (1, 32) and not tokens[0, :29].any()
