import numpy as np
import pytest
import tensorflow as tf

from rt_keras.data import ByteTokenizer, evaluation_dataset, masked_batches
from rt_keras.models import RoutingTransformerMaskedLMPreprocessor

LENGTH, BATCH = 200, 4
PREPROCESSOR = RoutingTransformerMaskedLMPreprocessor(
    ByteTokenizer(), sequence_length=LENGTH, mask_selection_rate=0.2
)
MASK = PREPROCESSOR.mask_token_id


def sequences(batch_size=BATCH):
    """Returns eleven sequences of letters, the last one short, in whole batches."""
    rng = np.random.default_rng(0)
    text = bytes(rng.integers(97, 123, 10 * LENGTH + 29, dtype="uint8"))
    documents = tf.data.Dataset.from_tensors(text)
    return evaluation_dataset(documents, ByteTokenizer(), LENGTH, batch_size)


def rows(batches):
    """Concatenates the inputs, labels and weights of all batches."""
    batches = list(batches.as_numpy_iterator())
    inputs = {name: np.concatenate([x[name] for x, _, _ in batches]) for name in batches[0][0]}
    return inputs, *(np.concatenate([batch[part] for batch in batches]) for part in (1, 2))


@pytest.fixture(scope="module")
def masked():
    return rows(masked_batches(sequences(), PREPROCESSOR, BATCH, seed=1))


def test_labels_are_the_tokens_at_their_positions_and_the_others_stay(masked):
    inputs, labels, weights = masked
    tokens, mask = (rows(sequences())[0][name] for name in ("token_ids", "padding_mask"))
    assert weights.shape == (12, 40)
    # 20% of the letters: the first row starts with end of text, and the last one has 30.
    assert weights.sum(axis=1).tolist() == [40] * 10 + [6, 0]
    for row, (positions, weight) in enumerate(zip(inputs["mask_positions"], weights)):
        places = positions[weight == 1]
        assert sorted(set(places)) == places.tolist()
        np.testing.assert_array_equal(labels[row][weight == 1], tokens[row, places])
        assert mask[row, places].all() and 1 not in tokens[row, places]
        others = np.setdiff1d(np.arange(LENGTH), places)
        np.testing.assert_array_equal(inputs["token_ids"][row, others], tokens[row, others])
    np.testing.assert_array_equal(inputs["padding_mask"], mask)


def test_most_become_the_mask_some_another_token_and_some_stay(masked):
    inputs, labels, weights = masked
    found = np.take_along_axis(inputs["token_ids"], inputs["mask_positions"], axis=1)[weights == 1]
    kept = np.mean(found == labels[weights == 1])
    assert abs(np.mean(found == MASK) - 0.8) < 0.06 and abs(kept - 0.1) < 0.05
    assert found.min() >= 0 and found.max() < PREPROCESSOR.vocabulary_size == MASK + 1


def test_a_sequence_is_masked_by_its_number_and_the_seed_alone(masked):
    whole, _, _ = masked

    def positions(batches, *arguments, **options):
        return rows(masked_batches(batches, PREPROCESSOR, *arguments, **options))[0][
            "mask_positions"
        ]

    expected = whole["mask_positions"]
    np.testing.assert_array_equal(positions(sequences(2), 2, seed=1)[:11], expected[:11])
    later = positions(sequences().skip(1), BATCH, seed=1, first_batch=1)
    np.testing.assert_array_equal(later, expected[4:])
    halves = sequences().map(lambda *batch: tf.nest.map_structure(lambda x: x[2:], batch))
    mine = positions(halves, BATCH, seed=1, share=(1, 2))
    np.testing.assert_array_equal(mine, expected.reshape(3, BATCH, -1)[:, 2:].reshape(6, -1))
    assert (positions(sequences(), BATCH, seed=2) != expected).any()
