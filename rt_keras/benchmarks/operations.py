"""How many operations a kind of attention needs, and how fast the machine can make them.

Counted are the multiplications and additions of the matrix products, masked entries included, for
n positions, window w and k = n / w clusters:

```
products(full) = n²                    products(nearest_shared) = n (w + B)
products(local) = 2 n w                products(nearest_separate) = 2 n (w + B)
products(balanced_...) = n w
selection = 2 n k depth                of each of query and key, where separate
forward = heads (2 products (depth + value_depth) + selection)
forward + backward = heads (6 products (depth + value_depth) + selection)
```

B is the number of queries in a block of nearest attention. With the gradient there are three times
as many, as each product of two matrices has one for either of them; which clusters a position
belongs to has no gradient.
"""

# Rows and columns of the matrices whose product shows the rate of the machine.
SIZE = 3072


def count(kind, direction, length, heads, depth, window, block_size=None):
    """Operations of one run of `rt_keras.benchmarks.kinds.prepare`; see the module.

    Args:
        kind, direction, length, heads, depth, window: as there.
        block_size: B above; None for the window.

    >>> count("balanced_shared", "forward", length=8, heads=1, depth=2, window=4)
    320
    """
    block_size = block_size or window
    keys = {
        "full": length,
        "local": 2 * window,
        "balanced_shared": window,
        "balanced_separate": window,
        "nearest_shared": window + block_size,
        "nearest_separate": 2 * (window + block_size),
    }[kind]
    gradient = 3 if direction == "forward_backward" else 1
    attention = gradient * 2 * length * keys * 2 * depth
    routed = {"shared": 1, "separate": 2}.get(kind.rpartition("_")[2], 0)
    selection = routed * 2 * length * (length // window) * depth
    return heads * (attention + selection)


def prepare_product(size=SIZE):
    """Makes two matrices of float32 and the function that multiplies them, compiled by XLA.

    It makes `2 size³` operations: over its seconds, the rate that a floor is counted with.
    """
    import tensorflow as tf

    noise = tf.random.Generator.from_seed(0)
    matrices = [noise.normal([size, size]) for _ in range(2)]
    product = tf.function(tf.matmul, jit_compile=True)

    def run():
        # A value that is read must have been computed.
        return float(product(*matrices)[0, 0])

    return run
