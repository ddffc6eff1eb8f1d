"""Constraints of weights that contain those of all heads."""

import keras


class HeadConstraint(keras.constraints.Constraint):
    """Applies a constraint to weights after splitting the axes of heads and depth.

    The dense layers of attention here store `[features, heads * depth]`. Those of
    `keras.layers.MultiHeadAttention` store `[features, heads, depth]`, and the axes of a constraint
    refer to that shape.

    Args:
        constraint: `keras.constraints.Constraint`.
        shape: tuple of ints, the shape to which the constraint applies. One entry may be -1.

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
