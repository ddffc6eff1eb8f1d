import numpy as np
import pytest
import tensorflow as tf

from rt_keras.data import examples, pack_documents, pack_examples
from rt_keras.data.byte_tokenizer import ByteTokenizer
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


def numbers(packed, *arguments, batches, **options):
    found = shuffled_batches(packed, *arguments, **options).take(batches).as_numpy_iterator()
    return np.stack([batch["label"] for batch in found])


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


def test_each_pass_has_every_example_in_an_order_of_its_own(packed):
    passes = numbers(packed, COUNT, seed=1, batches=4)
    assert all(sorted(order) == list(range(COUNT)) for order in passes)
    orders = {tuple(order) for order in [*passes, *numbers(packed, COUNT, seed=2, batches=4)]}
    assert len(orders) == 8


def test_what_cannot_be_packed(packed, tmp_path):
    rows = tf.data.Dataset.from_tensor_slices({"rows": tf.ragged.constant([["a"], ["b", "c"]])})
    with pytest.raises(ValueError, match="tensors of a fixed shape. Received: 'rows'"):
        pack_examples(rows, tmp_path / "rows")
    with pytest.raises(ValueError, match="examples must not be empty"):
        pack_examples(tf.data.Dataset.range(0).map(lambda x: {"x": x}), tmp_path / "empty")
    with pytest.raises(ValueError, match="packed data whose tensors is"):
        pack_examples(tf.data.Dataset.range(3).map(lambda x: {"x": x}), packed)
    texts = pack_documents(
        tf.data.Dataset.from_tensors("a"), ByteTokenizer(), tmp_path / "documents"
    )
    with pytest.raises(ValueError, match="must hold packed examples; it holds packed documents"):
        shuffled_batches(texts, 1)
    with pytest.raises(ValueError, match="batch_size must be at least 1. Received: batch_size=0"):
        shuffled_batches(packed, 0)
