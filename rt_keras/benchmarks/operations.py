"""Operation counts of attention, and the speed of the machine.

The counts are of multiplications and additions in matrix products, including masked entries, for n
positions, window w and k = n / w clusters:

```
products(full) = n²                    products(nearest_shared) = n (w + B)
products(local) = 2 n w                products(nearest_separate) = 2 n (w + B)
products(balanced_...) = n w           products(clustered) = n C
products(lsh) = 2 n r w                products(improved_clustered) = n (C + T)
products(local_routing) = n (3 w + B)
products(causal_clustered) = n (w + k)       products(gated_delta) = n (2 D + 1.5 depth)
products(moba) = n (8 S + S)           products(content_blocks) = n (2 · 256 + 128)
selection = 2 n k depth                for queries, and for keys if separate
selection(clustered) = 2 n P depth     selection(lsh) = r n k depth
selection(moba) = 2 n (n / S) depth    selection(content_blocks) = 4 n (n / 32 + 256) depth
forward = heads (2 products (depth + value_depth) + selection)
forward + backward = heads (6 products (depth + value_depth) + selection)
```

B is the number of queries in a block of nearest attention, and D that of the gated delta rule,
whose state adds three products of depth · value_depth for each position. P projections make C
groups, each with T top keys; r hashes have k buckets each. MoBA reads 8 blocks of S positions and
its own; content blocks read 32 of 4 keys, which they find among the 8 blocks of each of 32 nodes,
and a window of up to 512. The gradient triples the products, because each matrix product needs one
more for each of its factors. The selection of clusters has no gradient.
"""

# Clustered attention: numbers of groups, of projections and, in the improved form, of top keys.
NUM_CLUSTERS, BITS, TOP_K = 100, 63, 32
# Number of hashes of the Reformer's attention.
NUM_ROUNDS = 4
# Positions in a block of the gated delta rule.
DELTA_BLOCK = 64
# MoBA: positions in a block, and number of blocks beside the query's own.
SPARSE_BLOCK, BLOCKS = 64, 8
# Content blocks: positions in a segment, keys in a block, and numbers of blocks and nodes, those of
# `rt_keras.adapt`.
SEGMENT, CONTENT_BLOCK, CONTENT_BLOCKS, CONTENT_NODES = 256, 4, 32, 32
# Rows and columns of the matrices whose product measures the rate of the machine.
SIZE = 3072


def count(kind, direction, length, heads, depth, window, block_size=None):
    """Returns the number of operations of one run of `rt_keras.benchmarks.kinds.prepare`.

    Args:
        kind: string, one of `KINDS`.
        direction, length, heads, depth, window: see `rt_keras.benchmarks.kinds.prepare`.
        block_size: int, B above. Defaults to None, for the window.

    Returns:
        An int.

    >>> count("balanced_shared", "forward", length=8, heads=1, depth=2, window=4)
    320
    """
    counts = _keys_and_directions(length, depth, window, block_size or window)
    keys, directions = counts[kind]
    gradient = 3 if direction == "forward_backward" else 1
    attention = int(gradient * 2 * length * keys * 2 * depth)
    return heads * (attention + 2 * length * directions * depth)


def _keys_and_directions(length, depth, window, block_size):
    """Returns, by kind, the numbers of keys and routing directions that each query multiplies."""
    clusters, blocks = length // window, -(-length // SPARSE_BLOCK)
    return {
        "full": (length, 0),
        "local": (2 * window, 0),
        "balanced_shared": (window, clusters),
        "balanced_separate": (window, 2 * clusters),
        "nearest_shared": (window + block_size, clusters),
        "nearest_separate": (2 * (window + block_size), 2 * clusters),
        "local_routing": (3 * window + block_size, clusters),
        "clustered": (NUM_CLUSTERS, BITS),
        "improved_clustered": (NUM_CLUSTERS + TOP_K, BITS),
        "causal_clustered": (window + clusters, clusters),
        "lsh": (2 * NUM_ROUNDS * window, NUM_ROUNDS * clusters // 2),
        "gated_delta": (2 * DELTA_BLOCK + 1.5 * depth, 0),
        "moba": ((min(BLOCKS, blocks) + 1) * SPARSE_BLOCK, blocks),
        "content_blocks": (
            2 * SEGMENT + CONTENT_BLOCKS * CONTENT_BLOCK,
            # Means and deviations, of nodes and then of the 8 blocks of some.
            2 * (length // (8 * CONTENT_BLOCK) + 8 * CONTENT_NODES),
        ),
    }


KINDS = tuple(_keys_and_directions(1, 1, 1, 1))


def prepare_product(size=SIZE):
    """Makes two float32 matrices and a function that multiplies them, compiled with XLA.

    A run takes `2 size³` operations. Their number divided by its seconds is the machine's rate.

    Args:
        size: int, the number of rows and columns. Defaults to `SIZE`.

    Returns:
        A function without arguments that returns an entry of the product.
    """
    import tensorflow as tf

    noise = tf.random.Generator.from_seed(0)
    matrices = [noise.normal([size, size]) for _ in range(2)]
    product = tf.function(tf.matmul, jit_compile=True)

    def run():
        # Reading a value waits for the device.
        return float(product(*matrices)[0, 0])

    return run
