"""Names of earlier versions in saved files, and the names that replaced them.

Files that were saved with the old names can still be loaded. Constructors and configuration files
of users accept only the new names.
"""

# Arguments of constructors, from old to new, by the name of the class.
ARGUMENTS = {
    "Cluster": {"normalize": "use_query_key_norm"},
    "HashedHeads": {"num_clusters": "num_buckets"},
    "LSHHeads": {"chunk_size": "block_size"},
    "LocalRoutingHeads": {"normalize": "use_query_key_norm"},
    "RoutingHeads": {"normalize": "use_query_key_norm"},
    "RoutingMemoryHeads": {"normalize": "use_query_key_norm"},
}
# Keys of configurations.
KEYS = {
    "model.hashed.num_clusters": "model.hashed.num_buckets",
    "model.lsh.chunk_size": "model.lsh.block_size",
    "model.union.cluster.normalize": "model.union.cluster.use_query_key_norm",
    "trainer.carry_state": "trainer.stateful",
}
# Sources of the arrays in a checkpoint, whose names are a source and a number.
SOURCES = {"carried": "state"}


def renamed_arguments(cls, config):
    """Returns the saved configuration of an object with the new names of its arguments.

    Args:
        cls: class of the object.
        config: dictionary from names of arguments to values.

    Returns:
        A dictionary.

    >>> from rt_keras.layers import LSHHeads
    >>> renamed_arguments(LSHHeads, {"num_buckets": 4, "chunk_size": 8})
    {'num_buckets': 4, 'block_size': 8}
    """
    names = {}
    for base in cls.__mro__:
        names |= ARGUMENTS.get(base.__name__, {})
    return {names.get(name, name): value for name, value in config.items()}


def renamed_keys(values):
    """Returns the values of a saved configuration with the new names of its keys.

    Args:
        values: dictionary from keys such as "model.hidden_dim" to values.

    Returns:
        A dictionary.

    >>> renamed_keys({"trainer.carry_state": True, "trainer.steps": 3})
    {'trainer.stateful': True, 'trainer.steps': 3}
    """
    return {KEYS.get(key, key): value for key, value in values.items()}


def renamed_arrays(arrays):
    """Returns the arrays of a checkpoint with the new names of their sources.

    Args:
        arrays: dictionary from names such as "model_0" to arrays.

    Returns:
        A dictionary.

    >>> renamed_arrays({"model_0": 1.0, "carried_12": 2.0})
    {'model_0': 1.0, 'state_12': 2.0}
    """
    found = {}
    for name, array in arrays.items():
        source, _, number = name.rpartition("_")
        found[f"{SOURCES.get(source, source)}_{number}"] = array
    return found
