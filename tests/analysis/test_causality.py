import types

import keras
import numpy as np
import pytest

from rt_keras.analysis import causality
from rt_keras.layers import RoutingHeads
from tests.models.checks import VOCABULARY, make_lm, random_tokens


@pytest.fixture(scope="module")
def sequences():
    return random_tokens(2, 25)


@pytest.mark.slow
def test_heads_that_arrange_whole_sequences_do_and_the_seed_decides(sequences):
    model = make_lm(head_groups=[RoutingHeads(2, 3, 4, assignment="balanced")])
    figures, again, other = (
        causality.measure(model, sequences, num_positions=6, seed=seed) for seed in (1, 1, 2)
    )
    assert 0.05 < figures["share_changed"] <= 1.0
    assert 0.0 < figures["mean_change"] < figures["largest_change"] <= 1.0
    assert figures["nats_by_prefix"] != pytest.approx(figures["nats_in_parallel"], abs=1e-4)
    assert figures == again != other


def test_a_model_that_looks_one_token_ahead_changes_there_alone(sequences):
    class OneAhead:
        backbone = types.SimpleNamespace(vocabulary_size=VOCABULARY)

        def hidden_states(self, inputs, training):
            ahead = keras.ops.pad(inputs["token_ids"][:, 1:], [[0, 0], [0, 1]])
            return 5.0 * keras.ops.one_hot(ahead, VOCABULARY)

        def token_logits(self, hidden):
            return hidden

        def token_losses(self, hidden, labels, chunk_size):
            losses = keras.losses.sparse_categorical_crossentropy(labels, hidden, from_logits=True)
            return losses, None

    figures = causality.measure(OneAhead(), sequences, num_positions=8, num_changes=3)
    first, *rest = figures["share_by_distance"]
    assert (first["from"], first["to"]) == (1, 1) and first["share"] > 0.8
    assert all(row["share"] == 0.0 for row in rest)
    # In parallel, the model sees the label; at the end of a prefix, it does not.
    assert figures["nats_in_parallel"] < 0.5


def test_bad_numbers_and_sequences_that_are_too_short_are_named(sequences):
    for name in ("num_positions", "num_changes"):
        with pytest.raises(ValueError, match=f"{name} must be at least 1. Received: {name}=0"):
            causality.measure(None, sequences, **{name: 0})
    with pytest.raises(ValueError, match=r"\(2, 2\)"):
        causality.measure(None, np.ones([2, 2], int))
