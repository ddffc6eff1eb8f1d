import numpy as np
import pytest
import tensorflow as tf

from rt_keras.ops import clustered_attention
from rt_keras.ops.clustered import naive_clustered_attention
from tests.ops import checks


def arrays(length, clusters=3, heads=2, batch=2, **options):
    """Inputs with groups in which some have no members."""
    found = checks.arrays(length, heads=heads, batch=batch, **options)
    drawn = np.random.default_rng(3).integers(0, clusters, (batch, heads, length))
    return found, np.where(drawn == 1, 0, drawn)


@pytest.mark.parametrize("real", [0, 1, 3, 30])
def test_the_best_keys_of_many_are_real_ones(real):
    # 60 keys are searched in parts, of which a query sees four at most.
    inputs, groups = arrays(60)
    mask = np.broadcast_to(np.isin(np.arange(60), np.arange(5, 5 + real)), [2, 60])
    # The group of padding may be any number.
    groups[:, :, 50:], query_mask = -7, np.broadcast_to(np.arange(60) < 50, [2, 60])
    options = {"num_clusters": 3, "groups": groups, "top_k": 4, "key_mask": mask}
    options["query_mask"] = query_mask
    checks.holds(clustered_attention, naive_clustered_attention, inputs, **options)


def test_queries_are_groups_of_their_own_if_there_are_enough():
    inputs, options = checks.arrays(5), {"num_clusters": 40, "top_k": 2}
    projections = np.random.default_rng(4).normal(size=(2, 63, 6))
    found = clustered_attention(**inputs, projections=projections, **options)
    alone = np.broadcast_to(np.arange(5), [2, 2, 5])
    expected = naive_clustered_attention(**inputs, groups=alone, **options)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_no_queries_and_no_keys():
    projections = np.ones([2, 8, 6])
    for queries, keys in ((0, 0), (0, 5), (5, 0)):
        inputs = checks.arrays(queries, keys=keys)
        for top_k in (None, 4):
            options = {"projections": projections, "num_clusters": 3, "top_k": top_k}
            output, gradients = checks.run(clustered_attention, inputs, options)
            np.testing.assert_array_equal(output, np.zeros([2, 2, queries, 5]))
            assert all(np.all(np.isfinite(x)) for x in gradients.values())


@pytest.mark.parametrize(
    "options, message",
    [
        ({"top_k": 0}, "top_k must be at least 1. Received: top_k=0"),
        ({"groups": None}, "needs projections or groups"),
        ({"causal": True}, "needs top_k if causal=True"),
    ],
)
def test_bad_arguments(options, message):
    inputs, groups = arrays(9)
    given = {"num_clusters": 3, "groups": groups, **checks.tensors(inputs), **options}
    with pytest.raises(ValueError, match=message):
        clustered_attention(**given)


@pytest.mark.parametrize("kind", ["clustered", "improved"])
@pytest.mark.parametrize("name", ["self_attention", "cross_attention", "padded"])
def test_fast_transformers_computed_the_same(name, kind):
    case = checks.golden_clustered(name)
    query, key, value = (tf.constant(case[x].transpose(0, 2, 1, 3)) for x in "qkv")
    masks = {
        f"{of}_mask": np.arange(x.shape[2]) < case[lengths][:, None]
        for of, x, lengths in (("query", query, "query_lengths"), ("key", key, "key_lengths"))
    }
    with tf.GradientTape() as tape:
        tape.watch([query, key, value])
        output = clustered_attention(
            query,
            key,
            value,
            num_clusters=int(case["clusters"]),
            top_k=int(case["topk"]) if kind == "improved" else None,
            groups=case[f"{kind}/groups"],
            **masks,
        )
        loss = tf.reduce_sum(output**2)
    real = masks["query_mask"][:, :, None, None]
    found = output.numpy().transpose(0, 2, 1, 3)
    np.testing.assert_allclose(found, case[f"{kind}/output"] * real, rtol=0, atol=1e-5)
    gradients = dict(zip("qkv", tape.gradient(loss, [query, key, value])))
    # With top keys, the original code treats their weight as constant.
    for which in "v" if kind == "improved" else "qkv":
        found = gradients[which].numpy().transpose(0, 2, 1, 3)
        np.testing.assert_allclose(found, case[f"{kind}/grad_{which}"], rtol=0, atol=1e-4)
