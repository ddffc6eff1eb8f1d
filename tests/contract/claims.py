"""Compares the declared abilities of a kind of heads with its behavior."""

import functools
import re

import numpy as np
import pytest
import tensorflow as tf

from rt_keras.layers import GatedDeltaHeads, MultiHeadAttention
from rt_keras.ops.full import naive_full_attention
from tests.contract.kinds import BATCH, DEPTH, HEADS, VALUE_DEPTH, move_weights
from tests.contract.loops import of_each_head
from tests.contract.ways import agree, directions, new_cache, one_pass, part, tensors

# Above it, a change of the future has been seen in the past.
SEEN = 1e-6
# Features of the layers that the heads are in.
WIDTH = 8


def keeps_its_causality(heads):
    """`strictly_causal`: no later position changes an earlier output; else one does somewhere."""
    group, start = heads.group, heads.length // 2
    if not group.abilities.causal:
        return
    # Many rows, since what a hash lets through is seen in some of them alone.
    before, after = (_rows(heads, seeds) for seeds in (range(32), range(100, 132)))
    joined = {name: _joined(x, after[name], start) for name, x in before.items()}
    outputs = [one_pass(heads, x, causal=True)[:, :, :start] for x in (before, joined)]
    worst = np.max(np.abs(outputs[0] - outputs[1]))
    if group.abilities.strictly_causal:
        assert worst <= 1e-12, f"strictly_causal, but the past changes by {worst}"
    elif not heads.chosen:
        assert worst > SEEN, "not strictly_causal, but nothing of the future is seen"


def _rows(heads, seeds):
    """The inputs of several seeds as one batch."""
    drawn = [heads.inputs(seed) for seed in seeds]
    return {
        name: x if x is None else np.concatenate([inputs[name] for inputs in drawn])
        for name, x in drawn[0].items()
    }


def _joined(before, after, start):
    """Joins one input up to a position and another one from it."""
    if before is None:
        return None
    axis = 1 if before.ndim == 2 else 2
    parts = np.split(before, [start], axis)[0], np.split(after, [start], axis)[1]
    return np.concatenate(parts, axis)


def keeps_its_directions(heads):
    """`needs_causal_mask` and `takes_causal_mask`: the other direction is refused by name."""
    refused = [False] if not heads.group.abilities.bidirectional else []
    refused += [] if heads.group.abilities.causal else [True]
    for causal in refused:
        with pytest.raises(ValueError, match=re.escape(heads.group.kind)):
            one_pass(heads, heads.inputs(), causal)


def keeps_its_bound(heads):
    """`cache_grows`: whether a cache for more positions is larger."""
    if not heads.group.abilities.cached or "grid" in heads.chosen:
        return
    sizes = [
        sum(np.size(x) for x in tf.nest.flatten(new_cache(heads, length))) for length in (64, 640)
    ]
    assert (sizes[0] < sizes[1]) != heads.group.abilities.bounded, f"caches of {sizes} numbers"


def keeps_its_state(heads):
    """`can_be_stateful`: chunks train from a cache, or others refuse by name."""
    group = heads.group
    if not group.abilities.cached:
        assert not group.abilities.stateful and not group.abilities.chunks
        return
    inputs = tensors(heads.inputs())
    cache = new_cache(heads, heads.length)

    def train():
        return group.call_with_cache(
            **part(inputs, 0, 7), cache=cache, position=0, dropout=0.5, seed=[1, 2], training=True
        )

    if group.abilities.chunks:
        assert np.all(np.isfinite(train()[0]))
    else:
        with pytest.raises(ValueError, match=re.escape(heads.group.kind)):
            train()


def keeps_its_masks(heads):
    """`takes_attention_mask`: masks of pairs are heeded, or refused by name."""
    if heads.keys != heads.length:
        return
    inputs, group = heads.inputs(), heads.group
    mask = np.random.default_rng(1).random((BATCH, heads.length, heads.length)) < 0.5
    if not group.abilities.pair_masks:
        with pytest.raises(ValueError, match=re.escape(group.kind) + ".*attention_mask"):
            group(**inputs, attention_mask=mask, use_causal_mask=not group.abilities.causal)
        return
    found = group(**inputs, attention_mask=mask)
    if not heads.chosen:
        key, value = (of_each_head(inputs[name], HEADS) for name in ("key", "value"))
        masked = naive_full_attention(inputs["query"], key, value, attention_mask=mask)
        agree(found, masked, "a mask of pairs")
    else:
        assert np.max(np.abs(found - group(**inputs))) > SEEN


def attention(heads, **options):
    """A layer of such heads, built for sequences of any length."""
    group = heads.group
    layer = MultiHeadAttention(
        [type(group).from_config(group.get_config())],
        key_dim=DEPTH,
        value_dim=VALUE_DEPTH,
        num_key_value_heads=None if heads.key_heads == HEADS else heads.key_heads,
        dtype="float64",
        **options,
    )
    layer.build((None, None, WIDTH), (None, None, WIDTH))
    return layer


def takes_any_shape(heads):
    """One trace of a training step serves all batch sizes and lengths, also 0, as known ones do.

    The first direction is tried without masks, and with attention weights; the last with masks and
    with documents.
    """
    if heads.keys != heads.length or "grid" in heads.chosen:
        return
    layer, rng = move_weights(attention(heads)), np.random.default_rng(0)
    ways = directions(heads.group)
    for causal, masked in ((ways[0], False), (ways[-1], True)):
        step = functools.partial(_training_step, layer, causal, masked)
        spec = tf.TensorSpec([None, None, WIDTH], tf.float64), tf.TensorSpec([None, None], tf.bool)
        traced = tf.function(step, input_signature=spec, autograph=False)
        for batch, length in ((0, 9), (2, 0), (1, 3), (2, 11)):
            x = tf.constant(rng.normal(size=(batch, length, WIDTH)))
            mask = tf.constant(rng.random((batch, length)) < 0.7)
            for found, expected in zip(traced(x, mask), step(x, mask), strict=True):
                assert found.shape == expected.shape
                agree(found, expected, f"{batch} sequences of {length}, {causal=}, {masked=}")
    if layer.cached_decoding:
        # Chunks may be empty too.
        empty, none = layer.new_cache(2, 9), tf.zeros([2, 0, WIDTH], tf.float64)
        for output, cache in (layer.prefill(none, 0, 9), layer.call_with_cache(none, empty, 0)):
            assert output.shape == layer(none, none, use_causal_mask=True).shape
            tf.nest.map_structure(lambda x, y: agree(x, y, "an empty chunk"), cache, empty)


def _training_step(layer, causal, masked, x, mask):
    """The output, its gradients, the loss, and if not masked the attention weights."""
    options = {"use_causal_mask": causal, "training": True}
    if masked:
        # Runs of equal values are documents.
        documents = tf.cast(mask, tf.int32)
        options |= {"query_mask": mask, "value_mask": mask, "segment_ids": documents}
    else:
        options["return_attention_scores"] = layer.head_groups[0].abilities.weighted
    return _with_gradients(layer, x, lambda x: layer(x, x, **options))


def _with_gradients(layer, x, call):
    """What a call returns, the loss, and the gradients of the inputs and weights."""
    weights = [weight.value for weight in layer.trainable_variables]
    with tf.GradientTape() as tape:
        tape.watch(x)
        outputs = tf.nest.flatten(call(x))
        losses = [tf.cast(loss, x.dtype) for loss in layer.losses]
        loss = tf.add_n([tf.reduce_sum(tf.sin(outputs[0])), *losses])
    gradients = tape.gradient(loss, [x, *weights], unconnected_gradients="zero")
    return [*outputs, loss, *map(tf.convert_to_tensor, gradients)]


def drops_weights_in_training_alone(heads):
    """Dropout changes the outputs of a call in training; a recurrent state has no weights."""
    options = {"dropout": 0.5, "seed": np.array([1, 2])}
    inputs, causal = heads.inputs(), heads.group.abilities.causal
    plain, evaluated, dropped = (
        one_pass(heads, inputs, causal, **more)
        for more in ({}, options, {**options, "training": True})
    )
    np.testing.assert_array_equal(evaluated, plain)
    assert np.any(dropped != plain) != isinstance(heads.group, GatedDeltaHeads)


def gives_its_weights(heads):
    """`returns_attention_scores`: weights times values are the outputs, or a refusal by name."""
    if heads.keys != heads.length or heads.key_heads != HEADS:
        return
    group, layer = heads.group, attention(heads)
    x = np.random.default_rng(0).normal(size=(BATCH, heads.length, WIDTH))
    options = {"use_causal_mask": group.abilities.causal}
    if not group.abilities.weighted:
        with pytest.raises(ValueError, match=re.escape(heads.group.kind)):
            layer(x, x, return_attention_scores=True, **options)
        return
    output, scores = layer(x, x, return_attention_scores=True, **options)
    assert scores.shape == (BATCH, HEADS, heads.length, heads.length)
    values = layer._to_heads(layer._project(None, x, x), 0).value
    outputs = tf.einsum("bhqk,bhkd->bhqd", scores, values)
    if group.abilities.linear:
        agree(layer._merge([outputs]), output, "weights times values")


def keeps_its_global_tokens(heads):
    """`takes_global_tokens`: a first token that sees all and is seen by all, or a refusal."""
    group = heads.group
    if not group.abilities.global_tokens:
        with pytest.raises(ValueError, match=re.escape(heads.group.kind)):
            attention(heads, num_global_tokens=1)
        return
    if heads.keys != heads.length or "grid" in heads.chosen:
        return
    causal = not group.abilities.bidirectional
    layer = attention(heads, num_global_tokens=1)
    x = np.random.default_rng(0).normal(size=(BATCH, heads.length, WIDTH))
    mask = np.broadcast_to(np.arange(heads.length) == 3, [BATCH, heads.length])
    found = []
    for moved in (0, 1):
        x[:, 3] += moved
        found.append(np.asarray(layer(x, x, global_mask=mask, use_causal_mask=causal)))
    changed = np.abs(found[0] - found[1]).max(axis=(0, 2)) > 1e-9
    assert changed[3:].all() if causal else changed.all(), "a global token is not seen by all"


def keeps_documents_apart(heads):
    """Documents in one row are as each alone: outputs, gradients, and chunks read into caches."""
    if heads.keys != heads.length or "grid" in heads.chosen:
        return
    layer = move_weights(attention(heads, conv_kernel_size=2))
    rng, lengths = np.random.default_rng(0), [[5, 9, 1, 6], [10, 2, 8, 1]]
    x = tf.constant(rng.normal(size=(BATCH, heads.length, WIDTH)))
    ids = tf.constant([np.repeat([3, 0, 3, 1], row) for row in lengths])
    attend = functools.partial(layer, use_causal_mask=directions(heads.group)[-1])

    def each_alone(x):
        rows = [tf.split(x[i : i + 1], row, axis=1) for i, row in enumerate(lengths)]
        return tf.concat([tf.concat([attend(y, y) for y in row], 1) for row in rows], 0)

    together = _with_gradients(layer, x, lambda x: attend(x, x, segment_ids=ids))
    alone = _with_gradients(layer, x, each_alone)
    for found, expected in zip(together, alone, strict=True):
        agree(found, expected, "documents of a row and their gradients")
    if not layer.cached_decoding:
        return
    outputs, cache = [], layer.new_cache(BATCH, heads.length)
    # Positions of the rows' documents before each chunk of 7.
    for i, position in enumerate(([0, 0], [2, 7], [0, 2])):
        chunk, of_chunk = (y[:, 7 * i : 7 * i + 7] for y in (x, ids))
        found, cache = layer.call_with_cache(chunk, cache, position, segment_ids=of_chunk)
        outputs.append(found)
    agree(tf.concat(outputs, axis=1), alone[0], "documents read in chunks")


CLAIMS = [
    keeps_its_causality,
    keeps_its_directions,
    keeps_its_bound,
    keeps_its_state,
    keeps_its_masks,
    drops_weights_in_training_alone,
    gives_its_weights,
    keeps_its_global_tokens,
    keeps_documents_apart,
]


def keeps_all_claims(heads):
    for claim in CLAIMS:
        claim(heads)
