"""Learned relative positions as in the authors' code."""

import keras


class RelativeTables:
    """Mixin of this dialect's head groups: relative positions from tables shared by all heads.

    One table is added to the keys, the other to the values.
    """

    relative_values = None

    @property
    def adds_to_values(self):
        return self.relative_values is not None or super().adds_to_values

    def add_relative_embeddings(self, max_relative_distance, depth):
        def table(name, depth):
            return self.add_weight(
                name=name,
                shape=(1, 2 * max_relative_distance + 1, depth),
                initializer=keras.initializers.VarianceScaling(0.2, "fan_avg", "uniform"),
            )

        self.relative_embeddings = table("relative_embeddings", depth)
        self.relative_values = table("relative_values", self.value_depth)

    def tables(self):
        tables = super().tables()
        if tables:
            tables["relative_values"] = keras.ops.convert_to_tensor(self.relative_values)
        return tables
