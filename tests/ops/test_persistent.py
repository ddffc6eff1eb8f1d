import numpy as np
import tensorflow as tf

from rt_keras.ops import full_attention, persistent_attention
from rt_keras.ops.attend import merge_sets
from rt_keras.ops.full import naive_full_attention
from tests.ops import checks


def test_equation_and_gradients_beside_other_keys():
    rng, mask = np.random.default_rng(1), checks.mask("right", 9)
    keys, values = rng.normal(size=[2, 3, 6]), rng.normal(size=[2, 3, 5])

    def op(query, key, value):
        others = full_attention(query, key, value, query_mask=mask, return_logsumexp=True)
        output = merge_sets(others, persistent_attention(query, keys, values))
        return tf.where(mask[:, None, :, None], output, tf.zeros_like(output))

    def equation(query, key, value):
        joined = (np.concatenate([x, [y] * 2], axis=2) for x, y in ((key, keys), (value, values)))
        return naive_full_attention(query, *joined, query_mask=mask)

    checks.holds(op, equation, checks.arrays(9))
