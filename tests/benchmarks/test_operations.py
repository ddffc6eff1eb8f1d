import pytest

from rt_keras.benchmarks import operations

SIZES = {"length": 32, "heads": 3, "depth": 5, "window": 8}
# Numbers of keys, or groups, that each of the 32 queries is multiplied with, and of routing
# directions.
EXPECTED = {
    "full": (32, 0),
    "local": (16, 0),
    "balanced_shared": (8, 4),
    "balanced_separate": (8, 2 * 4),
    "nearest_shared": (16, 4),
    "nearest_separate": (32, 2 * 4),
    "local_routing": (16 + 16, 4),
    "clustered": (100, 63),
    "improved_clustered": (132, 63),
    "causal_clustered": (12, 4),
    "lsh": (4 * 16, 4 * 2),
    "gated_delta": (2 * 64 + 1.5 * 5, 0),
    "moba": (2 * 64, 1),
    "content_blocks": (2 * 256 + 128, 2 * (1 + 8 * 32)),
}


@pytest.mark.parametrize("kind", operations.KINDS)
def test_operations_are_those_of_the_products_of_matrices(kind):
    keys, routed = EXPECTED[kind]
    # A row of logits, a row of the output, and a score for each direction.
    products = 3 * 32 * keys * (2 * 5 + 2 * 5)
    selection = 3 * 32 * routed * 2 * 5
    assert operations.count(kind, "forward", **SIZES) == products + selection
    assert operations.count(kind, "forward_backward", **SIZES) == 3 * products + selection


def test_the_product_of_matrices_is_one():
    import tensorflow as tf

    noise = tf.random.Generator.from_seed(0)
    x, y = noise.normal([4, 4]), noise.normal([4, 4])
    assert operations.prepare_product(4)() == pytest.approx(float((x @ y)[0, 0]), abs=1e-5)
