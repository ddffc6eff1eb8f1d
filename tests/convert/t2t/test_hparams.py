import json
from pathlib import Path

import pytest

from rt_keras.convert.t2t import hparams as t2t_hparams
from rt_keras.convert.t2t.heads import T2THashedHeads, T2TLocalHeads

GOLDEN = Path(__file__).parents[2] / "golden" / "t2t_hparams.json"
PUBLISHED = {
    name: known["hparams"] for name, known in json.loads(GOLDEN.read_text(encoding="utf-8")).items()
}
# The code of the paper's authors defines these two but cannot build them.
FULL = {
    "mnist_full": ("mnist_local1d", 28 * 28),
    "imagenet_full": ("imagenet_local1d", 64 * 64 * 3),
}
for name, (base, length) in FULL.items():
    window = {"query_shape": [length], "memory_query_shape": [length], "memory_flange": [0]}
    PUBLISHED[name] = {**PUBLISHED[base], **window}


def test_published_sets_are_those_of_the_authors():
    assert t2t_hparams.published().keys() == PUBLISHED.keys()
    for name, given in PUBLISHED.items():
        image = "frame_height" in given
        found, known = (t2t_hparams.read_hparams(x, image=image) for x in (name, given))
        if not image:
            # Blocks of an encoder that the decoder's cannot be paired with.
            known["cross_block_size"] = found["cross_block_size"]
        assert found == known, name


def test_defaults_are_those_of_their_models():
    text, image = t2t_hparams.read_hparams({}), t2t_hparams.read_hparams({}, image=True)
    assert (text["hidden_size"], image["hidden_size"]) == (512, 256)
    assert (text["ffn_layer"], image["ffn_layer"]) == ("geglu", "conv_hidden_relu")
    assert text["num_encoder_layers"] == 0 and "num_encoder_layers" not in image


def test_from_a_file(tmp_path):
    path = tmp_path / "hparams.json"
    path.write_text(json.dumps({"hidden_size": 64, "learning_rate": 0.1, "beta": 1}))
    found = t2t_hparams.read_hparams(path)
    assert found["hidden_size"] == 64 and found["beta"] == 1.0
    assert "learning_rate" not in found


@pytest.mark.parametrize(
    "hparams, message",
    [
        ({"hidden_sise": 64, "heads_": 1}, "unknown hyperparameters: heads_, hidden_sise"),
        ({"hidden_size": "64"}, "hidden_size is '64'; it must be an integer of at least 0"),
        ({"share_qk": 1}, "share_qk is 1; it must be true or false"),
        ({"beta": True}, "beta is True; it must be a number"),
        ({"query_shape": 32}, "query_shape is 32; it must be a list of integers"),
        ({"local_num_heads": 0}, "the numbers of heads are all 0"),
        ({"hidden_size": 63}, "hidden_size is 63, which is not a multiple of the 8 heads"),
        ({"memory_flange": [500]}, r"memory_flange, \[500\], must be a multiple of query_shape"),
        ({"ffn_layer": "none"}, "must have a feed-forward network"),
        ({"layer_postprocess_sequence": "dn"}, r"\(post-norm\); they are 'none' and 'dn'"),
        ({"query_shape": [0]}, "query_shape and memory_query_shape must be positive"),
        ({"max_relative_position": 0}, "local_relative needs max_relative_position above 0"),
        ({"sparsity_cluster_strided_num_heads": 8}, "at least as many cluster heads as"),
        ({"layer_postprocess_sequence": "adn"}, "layer_postprocess_sequence must be .*they are"),
        ({"sparsity_cluster_num_heads": 8}, "cluster heads need sparsity_cluster_size"),
    ],
)
def test_what_is_refused(hparams, message):
    with pytest.raises(ValueError, match=message):
        t2t_hparams.read_hparams(hparams)


@pytest.mark.parametrize(
    "before, after, rate, pre_norm",
    [
        ("n", "da", 0.1, True),
        ("none", "dan", 0.1, False),
        ("", "dan", 0.1, False),
        # Without dropout its letters do not matter.
        ("n", "a", 0.0, True),
        ("nd", "da", 0.0, True),
        ("none", "an", 0.0, False),
    ],
)
def test_pre_norm_and_post_norm(before, after, rate, pre_norm):
    given = {
        "layer_preprocess_sequence": before,
        "layer_postprocess_sequence": after,
        "layer_prepostprocess_dropout": rate,
    }
    assert t2t_hparams.normalize_first(t2t_hparams.read_hparams(given)) is pre_norm


def test_layers_before_routing_are_local():
    h = t2t_hparams.read_hparams(
        {
            "local_num_heads": 6,
            "sparsity_cluster_num_heads": 2,
            "sparsity_skip_first": 1,
            "sparsity_cluster_size": 8,
            "sparsity_cluster_attention_window": 32,
            "hash_items": True,
        }
    )
    first, second = (t2t_hparams.head_groups(h, layer, "decoder") for layer in range(2))
    assert [(type(group), group.num_heads) for group in first] == [(T2TLocalHeads, 8)]
    assert [(type(x), x.num_heads) for x in second] == [(T2THashedHeads, 2), (T2TLocalHeads, 6)]


def test_blocks_over_images():
    h = t2t_hparams.read_hparams(
        {"query_shape": [4, 12], "memory_query_shape": [4, 12], "memory_flange": [4, 24]},
        image=True,
    )
    (group,) = t2t_hparams.head_groups(h, 0, "decoder", image_shape=(16, 16, 3))
    assert (group.block_size, group.grid, group.look_back) == (48, (4, 4), (1, 2))
