from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from rt_keras.ops import clustered_attention, hamming_groups
from tests.ops import checks, reference

GOLDEN = Path(__file__).parents[1] / "golden" / "clustered"
KINDS = pytest.mark.parametrize("top_k", [None, 4])


def arrays(length, clusters=3, heads=2, batch=2, **options):
    """Inputs with groups in which some have no members."""
    found = checks.arrays(length, heads=heads, batch=batch, **options)
    drawn = np.random.default_rng(3).integers(0, clusters, (batch, heads, length))
    return found, np.where(drawn == 1, 0, drawn)


@KINDS
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("length, clusters", [(17, 3), (75, 4), (4, 4), (6, 1)])
def test_equation(top_k, shared, length, clusters):
    inputs, groups = arrays(length, clusters, shared=shared)
    options = {"num_clusters": clusters, "groups": groups, "top_k": top_k}
    checks.holds(clustered_attention, reference.grouped, inputs, **options)


@KINDS
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("padding", ["left", "right", "scattered", "a whole row"])
def test_padding(top_k, shared, padding):
    mask = checks.mask(padding, 15)
    inputs, groups = arrays(15, shared=shared)
    checks.holds(
        clustered_attention,
        reference.grouped,
        inputs,
        num_clusters=3,
        # That of padding may be any number.
        groups=np.where(mask[:, None], groups, -7),
        top_k=top_k,
        query_mask=mask,
        key_mask=None if shared else mask,
    )


@pytest.mark.parametrize("real", [0, 1, 3, 30])
def test_the_best_keys_of_many_are_real_ones(real):
    # 60 keys are searched in parts, of which a query sees four at most.
    inputs, groups = arrays(60)
    mask = np.broadcast_to(np.isin(np.arange(60), np.arange(5, 5 + real)), [2, 60])
    options = {"num_clusters": 3, "groups": groups, "top_k": 4, "key_mask": mask}
    checks.holds(clustered_attention, reference.grouped, inputs, **options)


@KINDS
@pytest.mark.parametrize("length, keys", [(9, 14), (14, 5)])
def test_cross_attention(top_k, length, keys):
    inputs, groups = arrays(length, keys=keys)
    checks.holds(
        clustered_attention,
        reference.grouped,
        inputs,
        num_clusters=3,
        groups=groups,
        top_k=top_k,
        query_mask=checks.mask("right", length),
        key_mask=checks.mask("scattered", keys),
    )


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padding", [None, "right", "a whole row"])
@pytest.mark.parametrize("length, clusters, top_k", [(1, 3, 4), (5, 40, 2), (5, 40, 9), (9, 3, 32)])
def test_fewer_queries_than_groups_and_keys_than_best_ones(
    length, clusters, top_k, padding, causal
):
    inputs, groups = arrays(length, clusters)
    mask = checks.mask(padding, length)
    options = {"num_clusters": clusters, "top_k": top_k, "query_mask": mask, "key_mask": mask}
    checks.holds(
        clustered_attention, reference.grouped, inputs, groups=groups, causal=causal, **options
    )
    # The op's own groups: one for each direction if there are enough groups.
    projections = tf.random.stateless_normal([2, 63, 6], [1, 2], dtype=tf.float64)
    found = clustered_attention(**inputs, projections=projections, causal=causal, **options)
    if length <= clusters:
        alone = np.broadcast_to(np.arange(length), groups.shape)
        expected = reference.grouped(**inputs, groups=alone, causal=causal, **options)
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


def test_causal():
    inputs, groups = arrays(17)
    mask = checks.mask("scattered", 17)
    options = {"num_clusters": 3, "groups": groups, "top_k": 4, "causal": True}
    options |= {"query_mask": mask, "key_mask": mask}
    checks.holds(clustered_attention, reference.grouped, inputs, **options)


def test_all_keys_at_the_top_are_full_attention():
    inputs, groups = arrays(13)
    checks.holds(
        lambda **given: clustered_attention(**given, num_clusters=3, groups=groups, top_k=13),
        reference.full,
        inputs,
    )


def test_queries_are_grouped_by_their_directions():
    inputs, _ = arrays(20)
    mask = checks.mask("scattered", 20)
    projections = np.random.default_rng(4).normal(size=(2, 8, 6))
    given = {**checks.tensors(inputs), "query_mask": mask, "num_clusters": 5, "top_k": 4}
    groups = hamming_groups(inputs["query"], projections, num_clusters=5, iterations=2, mask=mask)
    found = clustered_attention(projections=projections, iterations=2, **given)
    np.testing.assert_array_equal(found, clustered_attention(groups=groups, **given))


@pytest.mark.end_to_end
def test_in_chunks(monkeypatch):
    inputs, groups = arrays(18)
    given = dict(num_clusters=3, top_k=4, groups=groups, key_mask=checks.mask("right", 18))
    checks.holds_in_chunks(clustered_attention, inputs, monkeypatch, **given)


@pytest.mark.end_to_end
def test_compiled():
    inputs, _ = arrays(40)
    mask = checks.mask("scattered", 40)
    projections = tf.random.stateless_normal([2, 40, 6], [1, 2], dtype=tf.float64)
    given = dict(projections=projections, num_clusters=5, query_mask=mask, key_mask=mask)
    checks.holds_compiled(clustered_attention, inputs, top_k=4, **given)


@pytest.mark.parametrize("dtype, atol", [(tf.float32, 1e-5), (tf.bfloat16, 0.06)])
def test_lower_precision(dtype, atol):
    inputs, groups = arrays(9)
    # All keys are at the top: rounding cannot change which ones are.
    options = {"num_clusters": 3, "groups": groups, "top_k": 9}
    checks.holds_in_lower_precision(
        clustered_attention, reference.grouped, inputs, dtype, atol, **options
    )


@pytest.mark.end_to_end
def test_unknown_shapes():
    def inputs(length):
        found = checks.arrays(length, keys=length + 3, batch=1 + length % 3)
        return {**found, "query_mask": checks.mask("scattered", length, 1 + length % 3)}

    projections = tf.random.stateless_normal([2, 10, 6], [1, 2], dtype=tf.float64)
    options = {"projections": projections, "num_clusters": 4, "top_k": 5}
    checks.holds_for_unknown_shapes(clustered_attention, (8, 5, 13, 1), inputs, **options)


def test_dropout():
    inputs, groups = arrays(9, batch=1)

    def op(query, **given):
        of_copies = np.broadcast_to(groups, query.shape[:3])
        return clustered_attention(query, **given, num_clusters=3, groups=of_copies)

    checks.drops_out(op, inputs)


@pytest.mark.end_to_end
def test_no_tensor_has_all_pairs_of_positions():
    length, clusters = 2048, 8
    inputs = checks.arrays(length, batch=1, heads=1)
    options = {"num_clusters": clusters, "top_k": 8, "projections": np.ones([1, 8, 6], "float32")}
    largest = checks.largest_tensor(clustered_attention, inputs, **options)
    assert largest <= 32 * clusters * length


@pytest.mark.parametrize(
    "options, message",
    [
        ({"num_clusters": 0}, "num_clusters must be at least 1. Received: num_clusters=0"),
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
    case = np.load(GOLDEN / f"{name}.npz")
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
