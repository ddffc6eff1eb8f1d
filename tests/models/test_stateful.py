import keras
import numpy as np
import pytest
import tensorflow as tf

from rt_keras.layers import FullHeads, GatedDeltaHeads, LocalHeads, LocalRoutingHeads, RoutingHeads
from rt_keras.layers.centroids import centroids_inside
from rt_keras.models.stateful import cleared
from tests.models import checks

pytestmark = pytest.mark.filterwarnings("ignore:.*nothing updates its centroids")

TOKENS = checks.random_tokens(2, 40)
OF_KEYS = LocalRoutingHeads(2, 4, 2, 4, routed_key="key")


def compiled(model, **options):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss, **options)
    return model


def read(model, state, chunks, **options):
    """Reads chunks one after the other; returns their logits and the last state."""
    outputs = []
    for inputs in chunks:
        logits, state = model.call_with_state(inputs, state, **options)
        outputs.append(logits)
    return np.concatenate(outputs, axis=1), state


@pytest.mark.slow
def test_rows_at_different_positions_equal_one_pass():
    heads = [*checks.groups(), GatedDeltaHeads(1, 4)]
    options = {"shift_tokens": True, "sinusoidal_positions": True, "conv_kernel_size": [4, None]}
    model = checks.make_lm(head_groups=heads, key_dim=4, **options)
    expected = model(checks.inputs(TOKENS))
    # The first row is padded at the end of the first chunk, so its position is smaller afterwards.
    first = checks.inputs(TOKENS[:, :16], [11, 16])
    _, state = model.call_with_state(first, model.new_state(2))
    assert state["position"].numpy().tolist() == [11, 16]
    chunks = [
        checks.inputs([TOKENS[0, a - 5 : z - 5], TOKENS[1, a:z]])
        for a, z in [(16, 24), (24, 25), (25, 40)]
    ]
    found, state = read(model, state, chunks)
    np.testing.assert_allclose(found[0], expected[0, 11:35], rtol=0, atol=1e-4)
    np.testing.assert_allclose(found[1], expected[1, 16:], rtol=0, atol=1e-4)
    assert state["position"].numpy().tolist() == [35, 40]


@pytest.mark.slow
def test_training_resumes_from_the_state():
    model = compiled(checks.make_lm(conv_kernel_size=3, num_layers=1), run_eagerly=True)
    model.make_stateful(2)
    state, batches = model.new_state(2), []
    for number, starts in enumerate([[True, True], [False, False], [False, True]]):
        chunk = checks.inputs(TOKENS[:, 8 * number : 8 * number + 8])
        batches.append({**chunk, "reset_states": np.array(starts)})
    for batch in batches:
        chunk = {name: batch[name] for name in ("token_ids", "padding_mask")}
        state = cleared(state, batch["reset_states"], model.new_state(2))
        expected, state = model.call_with_state(chunk, state)
        # The outputs of a step with the same weights.
        found = model.step_outputs(batch, None, training=False)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
        # A call does not use the state.
        np.testing.assert_array_equal(model(batch), model(chunk))
    assert model.state_variables
    kept = {"position": [x for x in model.state_variables if x.shape == [2]][0]}
    assert kept["position"].numpy().tolist() == [24, 8]
    names = {weight.path for weight in model.weights}
    model.train_on_batch(batches[1], TOKENS[:, 8:16])
    assert kept["position"].numpy().tolist() == [32, 16]
    # Statistics of the centroids are collected.
    assert np.any(centroids_inside(model)[0].member_counts)
    # A batch without "reset_states", such as a validation batch, does not use the state.
    model.test_on_batch(checks.inputs(TOKENS), TOKENS)
    assert kept["position"].numpy().tolist() == [32, 16]
    assert {weight.path for weight in model.weights} == names
    # A row whose step overflows keeps its state.
    table = model.backbone.token_embedding.embeddings
    table.assign(tf.tensor_scatter_nd_update(table, [[3]], tf.fill([1, table.shape[1]], np.inf)))
    tokens = np.array([[5, 3, 5, 5, 5, 5, 5, 5], [5] * 8])
    model.step_outputs({**batches[1], "token_ids": tokens}, None, training=False)
    assert kept["position"].numpy().tolist() == [32, 24]
    assert np.all([np.all(np.isfinite(x)) for x in model.state_variables])


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"head_groups": [FullHeads(1), LocalHeads(1, 4)]}, "bounded.*Received: Everything"),
        ({"head_groups": [RoutingHeads(2, 2, 4, assignment="balanced")]}, "Received: Cluster"),
        ({"head_groups": [OF_KEYS]}, "routed_key='previous_query'. Received: Window"),
        ({"max_sequence_length": 24}, "without learned positions.*max_sequence_length=24"),
    ],
)
def test_models_that_do_not_support_a_state(changes, message):
    with pytest.raises(ValueError, match=message):
        checks.make_lm(**changes).new_state(2)


def test_bad_arguments():
    model = checks.make_lm()
    with pytest.raises(ValueError, match="batch must be a positive integer.*batch=0"):
        model.new_state(0)
    inputs = checks.inputs(TOKENS)
    with pytest.raises(ValueError, match="state has 3 rows but the inputs have 2"):
        model.call_with_state(inputs, model.new_state(3))
    other = checks.make_lm(head_groups=checks.groups(max_relative_distance=None))
    with pytest.raises(ValueError, match="state does not belong to .*; use its new_state"):
        model.call_with_state(inputs, other.new_state(2))
    with pytest.raises(ValueError, match="need a call of make_stateful"):
        compiled(model).test_on_batch({**inputs, "reset_states": np.array([True, True])}, TOKENS)


def trained_rows(model, strategy):
    """The losses of three stateful batches, and the state after them."""
    model.make_stateful(2)
    x = {name: [] for name in ("token_ids", "padding_mask", "reset_states")}
    labels = []
    for number in range(3):
        chunk = slice(8 * number, 8 * number + 8)
        for name, value in checks.inputs(TOKENS[:, chunk]).items():
            x[name].extend(value)
        x["reset_states"].extend([number == 0, number != 1])
        labels.extend(TOKENS[:, chunk])
    x = {name: np.array(values) for name, values in x.items()}
    batches = tf.data.Dataset.from_tensor_slices((x, np.array(labels))).batch(2)
    if strategy is not None:
        batches = strategy.experimental_distribute_dataset(batches)
    history = model.fit(batches, steps_per_epoch=3, shuffle=False, verbose=0).history
    rows = [tf.convert_to_tensor(rows).numpy() for rows in model.state_variables]
    # Rows can be assigned in the form in which they are read.
    for variable, value in zip(model.state_variables, rows):
        variable.assign(value)
        np.testing.assert_array_equal(tf.convert_to_tensor(variable), value)
    return {"loss": history["loss"], "rows": [x.tolist() for x in rows]}
