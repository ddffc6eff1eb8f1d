"""Exact search for the most similar vectors."""

import tensorflow as tf

from rt_keras.layers.head_group import positive_int

# Number of vectors that are compared at once. More take more memory, and are not faster.
BLOCK = 2**16


class ExactIndex:
    """Finds the vectors with the largest dot products, block by block.

    ```
    search(q, k) = the k vectors v with the largest q · v
    ```

    Another index needs the same `search` and nothing else.

    Args:
        vectors: array `[vectors, features]`, or float32 tensor.

    Raises:
        ValueError: if `vectors` is empty or has another shape.

    >>> index = ExactIndex(tf.eye(3))
    >>> scores, numbers = index.search(tf.constant([[0.1, 0.0, 2.0]]), k=2)
    >>> numbers.numpy().tolist()
    [[2, 0]]
    """

    def __init__(self, vectors):
        if len(vectors.shape) != 2 or not vectors.shape[0]:
            raise ValueError(
                "vectors must have the shape [vectors, features], with at least one vector. "
                f"Received: shape {tuple(vectors.shape)}"
            )
        # A variable, since the graph of a SavedModel cannot hold constants of over two gigabytes.
        self.vectors = tf.Variable(vectors, trainable=False, dtype=tf.float32)

    def __len__(self):
        return self.vectors.shape[0]

    def search(self, queries, k):
        """Finds the most similar vectors, in TensorFlow functions too.

        Args:
            queries: float32 `[queries, features]`.
            k: int, number of vectors to find for each query.

        Returns:
            The dot products, float32, and the numbers of the vectors, int32, both
            `[queries, k]`, from the largest product to the smallest. Of equal products, the one
            with the lower number comes first. If there are fewer than k vectors, all of them.

        Raises:
            ValueError: if `k` is not positive, or the queries have another number of features.
        """
        positive_int("k", k)
        queries = tf.convert_to_tensor(queries, tf.float32)
        features = self.vectors.shape[1]
        if queries.shape.rank != 2 or queries.shape[1] != features:
            raise ValueError(
                f"queries must have the shape [queries, {features}]. Received: shape "
                f"{tuple(queries.shape)}"
            )
        # The best vectors of all blocks so far, [queries, k].
        scores = tf.zeros([tf.shape(queries)[0], 0])
        numbers = tf.cast(scores, tf.int32)
        for start in range(0, len(self), BLOCK):
            vectors = self.vectors[start : start + BLOCK]
            products = tf.matmul(queries, vectors, transpose_b=True)  # [queries, block]
            best, places = tf.math.top_k(products, min(k, vectors.shape[0]))
            numbers = tf.concat([numbers, places + start], axis=1)
            scores = tf.concat([scores, best], axis=1)
            # Of equal scores, top_k takes the first, which has the lower number.
            scores, places = tf.math.top_k(scores, tf.minimum(k, tf.shape(scores)[1]))
            numbers = tf.gather(numbers, places, batch_dims=1)
        return scores, numbers
