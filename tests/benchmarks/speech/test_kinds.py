import pytest
import tensorflow as tf

from rt_keras.benchmarks.speech.kinds import HEADS, MEANINGS, REPLACEMENTS, head_keys
from rt_keras.training.config import make_config


@pytest.mark.parametrize("kind", MEANINGS)
def test_configurations_have_four_heads(kind):
    values = head_keys(kind, keys=96, length=800)
    assert sum(value for name, value in values.items() if name.endswith("num_heads")) == HEADS
    make_config({"model.kind": "ctc", "data.name": "speech_folder", **values})


def test_every_other_kind_replaces_full_attention():
    assert set(REPLACEMENTS) == set(MEANINGS) - {"full"}
    q = tf.random.stateless_normal([1, HEADS, 32, 8], [0, 0])
    for make in REPLACEMENTS.values():
        (group,) = make(HEADS, 12, 32, causal=False)
        assert group.num_heads == HEADS and q.shape[1] == HEADS
