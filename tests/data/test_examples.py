import numpy as np
import pytest
import tensorflow as tf

from rt_keras.data import examples, pack_examples
from rt_keras.data.examples import shuffled_batches

COUNT = 14


def columns():
    return {
        "text": [b"\xff\x00" * number for number in range(COUNT)],
        "rows": [[[b"", b"%d" % number]] for number in range(COUNT)],
        "image": np.random.default_rng(0).integers(0, 256, [COUNT, 2, 3], dtype="uint8"),
        "label": np.arange(COUNT, dtype="int32"),
        "mask": np.arange(COUNT) % 2 == 0,
        "vector": np.linspace(-1, 1, COUNT * 2, dtype="float32").reshape(COUNT, 2),
    }


@pytest.fixture
def packed(tmp_path, monkeypatch):
    monkeypatch.setattr(examples, "SHARD_BYTES", 500)
    return pack_examples(tf.data.Dataset.from_tensor_slices(columns()), tmp_path / "packed")


def test_examples_are_read_as_they_were(packed):
    assert len(list(packed.glob("*.array_record"))) > 2
    batches = shuffled_batches(packed, 7)
    assert batches.element_spec == {
        "text": tf.TensorSpec([7], tf.string),
        "rows": tf.TensorSpec([7, 1, 2], tf.string),
        "image": tf.TensorSpec([7, 2, 3], tf.uint8),
        "label": tf.TensorSpec([7], tf.int32),
        "mask": tf.TensorSpec([7], tf.bool),
        "vector": tf.TensorSpec([7, 2], tf.float32),
    }
    written = columns()
    for batch in batches.take(4).as_numpy_iterator():
        for name in ("text", "rows"):
            assert batch[name].tolist() == [written[name][number] for number in batch["label"]]
        for name in ("image", "mask", "vector"):
            np.testing.assert_array_equal(batch[name], written[name][batch["label"]])


def test_tensors_of_any_shape_cannot_be_packed(tmp_path):
    rows = tf.data.Dataset.from_tensor_slices({"rows": tf.ragged.constant([["a"], ["b", "c"]])})
    with pytest.raises(ValueError, match="tensors of a fixed shape. Received: 'rows'"):
        pack_examples(rows, tmp_path / "rows")
