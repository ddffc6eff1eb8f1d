"""Language models that carry on what they have read, from each chunk of a text to the next."""

import types

import tensorflow as tf

from rt_keras.layers.head_group import positive_int
from rt_keras.layers.layers_inside import layers_inside
from rt_keras.layers.multi_head_attention import MultiHeadAttention
from rt_keras.models.training import ModelCall, is_replicated

# Longer than any sequence. What is carried does not grow with it.
NO_END = 2**30


class CarriedState:
    """Mixin of language models, before `LanguageModel`: texts that are read in chunks.

    A state is what later tokens need of those before them: the number of tokens read, and what each
    head keeps. `call_with_state` reads the next chunk of each row. Its outputs are those of one
    pass over everything that the row has had; gradients stay in the chunk. So a state bounds
    memory, not what a token depends on.

    For `fit`, the model keeps the state itself, as Keras's stateful RNNs do: see `carry_state`.

    Source: Dai et al. 2019, Transformer-XL, section 3.2, where the state is the last keys.
    """

    _carried = None

    def new_state(self, batch):
        """The state of rows that have read nothing yet.

        Args:
            batch: int or int scalar, the number of rows.

        Returns:
            A dictionary of "position", int32 `[batch]`, and "cache", nested dictionaries and tuples
            of tensors with the batch on axis 0.

        Raises:
            ValueError: if the model cannot carry a state.
        """
        check_carries_state(self.backbone)
        if not tf.is_tensor(batch):
            positive_int("batch", batch)
        cache = self.backbone.new_cache(batch, NO_END)
        return {"position": tf.zeros([batch], tf.int32), "cache": cache}

    def carry_state(self, batch_size):
        """Has training go on where it was: row r of each batch continues row r of the one before.

        From then on, each step of a batch with "starts" beside its inputs, bool `[batch]`, begins
        with the state that the step before ended with, except in rows that start a text. Batches
        without it are read by themselves. The state is no weight of the model, and is saved with
        none. Gradients stay in the batch.

        Args:
            batch_size: int, the rows of a batch, those of all replicas together.

        Raises:
            ValueError: if the model cannot carry a state, or the replicas do not divide the rows.
        """
        replicas = self.distribute_strategy.num_replicas_in_sync
        if positive_int("batch_size", batch_size) % replicas:
            raise ValueError(
                f"batch_size must be a multiple of the number of replicas, {replicas}. Received: "
                f"batch_size={batch_size}"
            )
        state = self.new_state(batch_size // replicas)
        with self.distribute_strategy.scope():
            variables = tf.nest.map_structure(_variable, state)
        # A plain object, so that these are no weights.
        self._carried = types.SimpleNamespace(variables=variables)

    @property
    def carried_rows(self):
        """The state that `carry_state` keeps, as variables of all rows; a list."""
        if self._carried is None:
            return []
        strategy = self.distribute_strategy
        variables = tf.nest.flatten(self._carried.variables)
        if not is_replicated(strategy):
            return variables
        return [RowsOfReplicas(variable, strategy) for variable in variables]

    def call(self, inputs, training=None, mask=None):
        # What a batch says of its rows to a step is no input.
        inputs = {name: x for name, x in inputs.items() if name != "starts"}
        return super().call(inputs, training=training, mask=mask)

    def call_with_state(self, inputs, state, training=False):
        """Reads the next chunk of each row.

        Args:
            inputs: dictionary as in a call, with padding at the right.
            state: the state after the tokens before these, from `new_state` or the last call.
            training: bool, whether dropout is on and statistics of the centroids are collected.
                Defaults to False.

        Returns:
            Logits, `[batch, length, vocabulary_size]`, and the state after these tokens.

        Raises:
            ValueError: if the state is of another model, or of another number of rows.
        """

        def read(inputs, state, training):
            hidden, state = self._read_inputs(inputs, state, training)
            return self.token_logits(hidden), state

        return ModelCall(self, read)(inputs, state, training=training)

    def step_outputs(self, x, y, training):
        if "starts" not in x:
            return super().step_outputs(x, y, training)
        if self._carried is None:
            raise ValueError('"starts" among the inputs needs a call of carry_state() first')
        return ModelCall(self, self._go_on)(x, y, training=training)

    def _go_on(self, x, y, training):
        """Reads a batch after those before it, and keeps the state; the outputs of the step."""
        state = tf.nest.map_structure(tf.convert_to_tensor, self._carried.variables)
        state = cleared(state, x["starts"], self.new_state(state["position"].shape[0]))
        hidden, state = self._read_inputs(x, state, training)
        tf.nest.map_structure(
            lambda variable, value: variable.assign(value), self._carried.variables, state
        )
        if self.loss_chunk_size is None:
            return self.token_logits(hidden)
        return self.token_scores(hidden, y)

    def _read_inputs(self, inputs, state, training):
        """The hidden states of inputs as of a call, and the state after them."""
        token_ids = tf.convert_to_tensor(inputs["token_ids"])
        self._check_state(state, token_ids.shape[0])
        count = tf.reduce_sum(tf.cast(inputs["padding_mask"], tf.int32), axis=1)
        return self.read_on(token_ids, state, count, bool(training))

    def read_on(self, token_ids, state, count, training=False):
        """Reads the next tokens of each row.

        Args:
            token_ids: int `[batch, length]`.
            state: the state after the tokens before these.
            count: int `[batch]`, how many of the tokens count, the first ones.
            training: bool, whether dropout is on and statistics are collected. Defaults to False.

        Returns:
            The states that logits are computed from, `[batch, length, hidden_dim]`, and the state
            after these tokens.
        """
        position, cache = state["position"], tf.nest.map_structure(tf.stop_gradient, state["cache"])
        hidden, cache = self.backbone.call_with_cache(
            token_ids, cache, position, count=count, training=training
        )
        return hidden, {"position": position + count, "cache": cache}

    def _check_state(self, state, batch):
        """Raises a ValueError if a state is not one of this model, for so many rows."""
        rows = state["position"].shape[0]
        if None not in (rows, batch) and rows != batch:
            raise ValueError(f"state has {rows} rows, the inputs have {batch}")
        expected = self.new_state(rows or 1)
        found, expected = (
            tf.nest.map_structure(lambda x: str(x.shape[1:]), x) for x in (state, expected)
        )
        if found != expected:
            raise ValueError(f"state is of another model than {self.name}: use its new_state()")


def cleared(state, rows, empty):
    """A state in which some rows have read nothing.

    Args:
        state: a state of `CarriedState`.
        rows: bool `[batch]`, which rows.
        empty: the state of as many rows that have read nothing.

    Returns:
        A state.

    >>> state, empty = {"position": tf.constant([5, 7])}, {"position": tf.constant([0, 0])}
    >>> cleared(state, tf.constant([False, True]), empty)["position"].numpy().tolist()
    [5, 0]
    """

    def of_tensor(kept, none):
        return tf.where(tf.reshape(rows, [-1, *[1] * (kept.shape.rank - 1)]), none, kept)

    return tf.nest.map_structure(of_tensor, state, empty)


def check_carries_state(backbone):
    """Raises a ValueError if a backbone cannot carry on what it has read.

    Args:
        backbone: a `RoutingTransformerBackbone`.
    """
    reason = why_no_state(backbone)
    if reason is not None:
        raise ValueError(f"A state needs {reason}")


def why_no_state(backbone):
    """What a backbone lacks to carry on what it has read, in words; None if it lacks nothing.

    Args:
        backbone: a `RoutingTransformerBackbone`, or the adapted backbone of a causal model.
    """
    groups = head_groups_inside(backbone)
    wrong = sorted({type(group).__name__ for group in groups if not group.carries_state})
    if wrong:
        return (
            "heads that keep a bounded number of keys and read a chunk in one pass, such as "
            "LocalHeads, FullHeads with a memory_length, RoutingHeads of assignment 'nearest' and "
            "LocalRoutingHeads with routed_key='previous_query'. Received: "
            f"{', '.join(wrong)}"
        )
    learned = getattr(backbone, "max_sequence_length", None)
    if learned is not None:
        return (
            "a model without learned positions, of which there are only "
            f"max_sequence_length={learned}"
        )
    return None


def head_groups_inside(backbone):
    """The head groups of all attention in a backbone, as a list."""
    return [
        group
        for attention in layers_inside(backbone, MultiHeadAttention)
        for group in attention.head_groups
    ]


class RowsOfReplicas:
    """The rows of all replicas as one array that is read and assigned whole.

    Args:
        variable: a variable of which each replica has its own value, `[rows, ...]`.
        strategy: the `tf.distribute.Strategy` that it is of.
    """

    def __init__(self, variable, strategy):
        self.variable, self.strategy = variable, strategy

    @property
    def shape(self):
        rows, *sizes = self.variable.shape
        return tf.TensorShape([rows * self.strategy.num_replicas_in_sync, *sizes])

    def __tf_tensor__(self, dtype=None, name=None):
        """All rows, in the order of the replicas. All workers must ask for them."""
        return self.strategy.gather(self.strategy.run(self.variable.read_value), axis=0)

    def assign(self, values):
        """Gives each replica its rows."""
        rows = self.variable.shape[0]

        def assign_own():
            number = tf.distribute.get_replica_context().replica_id_in_sync_group
            first = tf.cast(number, tf.int32) * rows
            self.variable.assign(tf.convert_to_tensor(values)[first : first + rows])

        self.strategy.run(assign_own)


def _variable(value):
    """A variable of which each replica has its own value."""
    return tf.Variable(
        value,
        trainable=False,
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.NONE,
    )
