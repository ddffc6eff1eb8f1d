import pytest
import tensorflow as tf

from rt_keras.ops.decode import check_position, pad_to, write


def test_writing_changes_one_position_alone():
    cache = {"key": tf.zeros([1, 2, 4, 3]), "other": tf.zeros([1])}
    found = write(cache, 2, key=tf.ones([1, 2, 1, 3]))
    assert found["key"].numpy()[0, 1].tolist() == [[0] * 3, [0] * 3, [1] * 3, [0] * 3]
    assert found["other"] is cache["other"] or found["other"].numpy() == 0


def test_padding_to_a_length():
    x = tf.ones([1, 1, 3, 2])
    assert pad_to(x, 5)[0, 0, :, 0].numpy().tolist() == [1, 1, 1, 0, 0]
    assert pad_to(x, 2).shape == (1, 1, 2, 2)


def test_positions_that_a_cache_has_not():
    check_position(4, 5)
    for position in (-1, 5):
        with pytest.raises(ValueError, match=f"holds 5 positions, 0 to 4. .*position={position}"):
            check_position(position, 5)
