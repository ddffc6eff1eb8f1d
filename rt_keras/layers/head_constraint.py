"""Constraints of weights that hold those of all heads side by side."""

import keras


class HeadConstraint(keras.constraints.Constraint):
    """Applies a constraint to weights with axes for heads and their depth.

    Dense layers of attention here hold `[features, heads * depth]`, those of
    `keras.layers.MultiHeadAttention` `[features, heads, depth]`, by which the axes of a constraint
    count.

    Args:
        constraint: `keras.constraints.Constraint`.
        shape: tuple of ints, the shape that it is applied to; -1 for one that follows.

    >>> weights = HeadConstraint(keras.constraints.UnitNorm(axis=0), (2, -1))(keras.ops.ones([6]))
    >>> [round(float(x), 2) for x in weights]
    [0.71, 0.71, 0.71, 0.71, 0.71, 0.71]
    """

    def __init__(self, constraint, shape):
        self.constraint = constraint
        self.shape = shape

    def __call__(self, w):
        return keras.ops.reshape(self.constraint(keras.ops.reshape(w, self.shape)), w.shape)

    def get_config(self):
        return {"constraint": keras.constraints.serialize(self.constraint), "shape": self.shape}

    @classmethod
    def from_config(cls, config):
        return cls(keras.constraints.deserialize(config["constraint"]), tuple(config["shape"]))
