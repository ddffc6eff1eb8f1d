import numpy as np

from rt_keras.ops.random import random_scores


def test_draws_are_even_and_independent():
    heads, clusters, length, count = 200, 10, 12, 4
    seeds = np.stack([np.zeros(heads), np.arange(heads)], axis=-1).astype("int32")
    scores = random_scores(seeds, clusters, length).numpy()
    ranks = np.argsort(np.argsort(-scores, axis=-1), axis=-1).reshape(-1, length)
    chosen = (ranks < count).astype("float64")
    draws, share = heads * clusters, count / length
    of_pairs = (chosen.T @ chosen / draws)[~np.eye(length, dtype=bool)]
    # 4.5 standard errors of a binomial: of positions, of pairs, and of one draw and the next.
    for found, expected in (
        (chosen.mean(axis=0), share),
        (of_pairs, share * (count - 1) / (length - 1)),
        (chosen[1:].T @ chosen[:-1] / draws, share**2),
        (chosen[clusters:].T @ chosen[:-clusters] / draws, share**2),
    ):
        error = 4.5 * np.sqrt(expected * (1 - expected) / draws)
        np.testing.assert_allclose(found, expected, rtol=0, atol=error)
