import numpy as np

from rt_keras.t2t.ops.attend import attend


def test_a_query_without_keys_gets_the_mean_of_all():
    rng = np.random.default_rng(0)
    query, key, value = (rng.normal(size=(2, 3, n, 5)) for n in (4, 6, 6))
    allowed = rng.random((2, 3, 4, 6)) < 0.5
    allowed[..., 0] = True
    allowed[0, 1, 2] = False
    output = attend(query, key, value, (allowed,))
    np.testing.assert_allclose(output[0, 1, 2], value[0, 1].mean(axis=0), rtol=1e-12)
    logits = np.where(allowed, np.einsum("abid,abjd->abij", query, key), -np.inf)
    logits[0, 1, 2] = 0.0
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(output, weights @ value, rtol=0, atol=1e-12)
