"""Stateful language models, which keep a recurrent state between the chunks of a text."""

import types

import tensorflow as tf

from rt_keras.arguments import wrong_value
from rt_keras.layers.head_group import positive_int
from rt_keras.layers.layers_inside import layers_inside
from rt_keras.layers.multi_head_attention import MultiHeadAttention
from rt_keras.models.documents import have_documents
from rt_keras.models.training import ModelCall, is_replicated

# Longer than any sequence. The size of a state does not depend on it.
NO_END = 2**30


class Stateful:
    """Mixin of stateful language models, which read texts in chunks.

    List it before `LanguageModel`. The state of a row holds the number of tokens read and the
    caches of the heads. `call_with_state` reads the next chunk of each row. Its outputs are those
    of a single pass over all chunks of the row, but gradients do not flow into earlier chunks. A
    state thus bounds memory, but not the context of a token.

    For `fit`, the model stores the state itself, as Keras's stateful RNNs do; see `make_stateful`.

    Source: Dai et al. 2019, Transformer-XL, section 3.2, where the state is the last keys.
    """

    _stored_state = None

    def new_state(self, batch):
        """Creates an empty state.

        Args:
            batch: int or int scalar, batch size.

        Returns:
            A dictionary of "position", int32 `[batch]`, and "cache", nested dictionaries and tuples
            of tensors with the batch on axis 0.

        Raises:
            ValueError: if the model does not support a state, or `batch` is not positive.
        """
        check_can_be_stateful(self.backbone)
        if not tf.is_tensor(batch):
            positive_int("batch", batch)
        return {"position": tf.zeros([batch], tf.int32), "cache": self.new_cache(batch, NO_END)}

    def make_stateful(self, batch_size):
        """Makes training stateful: row r of each batch continues row r of the previous batch.

        From then on, a step whose inputs include "reset_states", bool `[batch]`, begins with the
        final state of the previous step. Rows in which "reset_states" is True begin with an empty
        state. Batches without "reset_states" neither use nor change the state. The state is not a
        weight of the model and is not saved with it. Gradients do not flow into earlier batches.

        Args:
            batch_size: int, global batch size, over all replicas.

        Raises:
            ValueError: if the model does not support a state, or the number of replicas does not
                divide `batch_size`.
        """
        replicas = self.distribute_strategy.num_replicas_in_sync
        if positive_int("batch_size", batch_size) % replicas:
            needed = f"a multiple of the number of replicas, {replicas}"
            raise wrong_value("batch_size", needed, batch_size)
        state = self.new_state(batch_size // replicas)
        with self.distribute_strategy.scope():
            variables = tf.nest.map_structure(_variable, state)
        # A plain object, so that these are not weights.
        self._stored_state = types.SimpleNamespace(variables=variables)

    @property
    def state_variables(self):
        """The variables of the state of `make_stateful`, with the rows of all replicas; a list."""
        if self._stored_state is None:
            return []
        strategy = self.distribute_strategy
        variables = tf.nest.flatten(self._stored_state.variables)
        if not is_replicated(strategy):
            return variables
        return [RowsOfReplicas(variable, strategy) for variable in variables]

    def call(self, inputs, training=None, mask=None):
        # "reset_states" is for training steps only.
        inputs = {name: x for name, x in inputs.items() if name != "reset_states"}
        return super().call(inputs, training=training, mask=mask)

    def call_with_state(self, inputs, state, training=False):
        """Reads the next chunk of each row.

        Args:
            inputs: dictionary as in a call, with padding at the right.
            state: state after the preceding tokens, from `new_state` or the previous call.
            training: bool, whether to apply dropout and collect statistics of the centroids.
                Defaults to False.

        Returns:
            Logits, `[batch, length, vocabulary_size]`, and the state after these tokens.

        Raises:
            ValueError: if the state belongs to another model or has another number of rows.
        """

        def read(inputs, state, training):
            hidden, state = self._read_inputs(inputs, state, training)
            return self.token_logits(hidden), state

        return ModelCall(self, read)(inputs, state, training=training)

    # Training.

    def step_outputs(self, x, y, training):
        if "reset_states" not in x:
            return super().step_outputs(x, y, training)
        if self._stored_state is None:
            raise ValueError('inputs with "reset_states" need a call of make_stateful() first')
        return ModelCall(self, self._continue_rows)(x, y, training=training)

    def _continue_rows(self, x, y, training):
        """Reads a batch from the stored state and updates it; returns the outputs of the step."""
        variables = self._stored_state.variables
        state = tf.nest.map_structure(tf.convert_to_tensor, variables)
        before = cleared(state, x["reset_states"], self.new_state(state["position"].shape[0]))
        hidden, state = self._read_inputs(x, before, training)
        # An overflow would stay in the state; loss scaling skips such a step.
        is_real = tf.cast(x["padding_mask"], tf.bool)[:, :, None]
        failed = tf.reduce_any(is_real & ~tf.math.is_finite(hidden), axis=[1, 2])  # [batch]
        state = cleared(state, failed, before)
        tf.nest.map_structure(lambda variable, value: variable.assign(value), variables, state)
        if self.loss_chunk_size is None:
            return self.token_logits(hidden)
        return self.token_scores(hidden, y)

    def _read_inputs(self, inputs, state, training):
        """Returns the hidden states of the inputs of a call, and the state after them."""
        if have_documents(inputs):
            raise ValueError(
                "Each row of a state continues one document. Inputs must have no segment_ids or "
                f"positions. Received: {sorted(inputs)}"
            )
        token_ids = tf.convert_to_tensor(inputs["token_ids"])
        self._check_state(state, token_ids.shape[0])
        count = tf.reduce_sum(tf.cast(inputs["padding_mask"], tf.int32), axis=1)
        return self.read_on(token_ids, state, count, bool(training))

    def read_on(self, token_ids, state, count, training=False):
        """Reads the next tokens of each row.

        Args:
            token_ids: int `[batch, length]`.
            state: state after the preceding tokens.
            count: int `[batch]`, number of valid tokens in each row; the tokens after them are
                padding.
            training: bool, whether to apply dropout and collect statistics of the centroids.
                Defaults to False.

        Returns:
            The hidden states that the logits are computed from, `[batch, length, hidden_dim]`, and
            the state after these tokens.
        """
        position, cache = state["position"], tf.nest.map_structure(tf.stop_gradient, state["cache"])
        hidden, cache = self.backbone.call_with_cache(
            token_ids, cache, position, count=count, training=training
        )
        return hidden, {"position": position + count, "cache": cache}

    def _check_state(self, state, batch):
        """Raises a ValueError if a state belongs to another model or batch size."""
        rows = state["position"].shape[0]
        if None not in (rows, batch) and rows != batch:
            raise ValueError(f"state has {rows} rows but the inputs have {batch}")
        if _shapes_of_rows(state) != _shapes_of_rows(self.new_state(rows or 1)):
            raise ValueError(f"state does not belong to {self.name}; use its new_state()")


def _shapes_of_rows(state):
    """Returns the shape of a row of each tensor of a state, as strings."""
    return tf.nest.map_structure(lambda x: str(x.shape[1:]), state)


def cleared(state, rows, empty):
    """Resets some rows of a state.

    Args:
        state: a state of `Stateful`.
        rows: bool `[batch]`, True for the rows to reset.
        empty: an empty state of the same batch size.

    Returns:
        A state.

    >>> state, empty = {"position": tf.constant([5, 7])}, {"position": tf.constant([0, 0])}
    >>> cleared(state, tf.constant([False, True]), empty)["position"].numpy().tolist()
    [5, 0]
    """

    def clear(x, empty):
        # [batch] -> [batch, 1, ...]
        is_cleared = tf.reshape(rows, [-1, *[1] * (x.shape.rank - 1)])
        return tf.where(is_cleared, empty, x)

    return tf.nest.map_structure(clear, state, empty)


def check_can_be_stateful(backbone):
    """Raises a ValueError if a backbone does not support a recurrent state.

    Args:
        backbone: a `RoutingTransformerBackbone`.
    """
    reason = why_not_stateful(backbone)
    if reason is not None:
        raise ValueError(f"A recurrent state needs {reason}")


def why_not_stateful(backbone):
    """Explains why a backbone does not support a recurrent state.

    Args:
        backbone: a `RoutingTransformerBackbone`, or the adapted backbone of a causal model.

    Returns:
        String, the missing requirement; None if the backbone supports a state.
    """
    groups = head_groups_inside(backbone)
    wrong = sorted({group.kind for group in groups if not group.abilities.stateful})
    if wrong:
        return (
            "heads that cache a bounded number of keys and read a chunk in one pass, such as "
            "LocalHeads, FullHeads or SelectedBlocks with a memory_length, RoutingHeads of "
            "assignment 'nearest' and LocalRoutingHeads with routed_key='previous_query'. "
            f"Received: {', '.join(wrong)}"
        )
    learned = getattr(backbone, "max_sequence_length", None)
    if learned is not None:
        return (
            f"a model without learned positions, which are limited to max_sequence_length={learned}"
        )
    return None


def head_groups_inside(backbone):
    """Returns the head groups of all attention layers in a backbone, as a list."""
    return [
        group
        for attention in layers_inside(backbone, MultiHeadAttention)
        for group in attention.head_groups
    ]


class RowsOfReplicas:
    """The rows of all replicas as a single array.

    Args:
        variable: variable with a separate value, `[rows, ...]`, on each replica.
        strategy: the `tf.distribute.Strategy` of the variable.
    """

    def __init__(self, variable, strategy):
        self.variable, self.strategy = variable, strategy

    @property
    def shape(self):
        rows, *sizes = self.variable.shape
        return tf.TensorShape([rows * self.strategy.num_replicas_in_sync, *sizes])

    def __tf_tensor__(self, dtype=None, name=None):
        """Returns all rows in the order of the replicas. All workers must call this."""
        return self.strategy.gather(self.strategy.run(self.variable.read_value), axis=0)

    def assign(self, values):
        """Assigns each replica its rows."""
        rows = self.variable.shape[0]

        def assign_rows():
            number = tf.distribute.get_replica_context().replica_id_in_sync_group
            first = tf.cast(number, tf.int32) * rows
            self.variable.assign(tf.convert_to_tensor(values)[first : first + rows])

        self.strategy.run(assign_rows)


def _variable(value):
    """Creates a variable with a separate value on each replica."""
    return tf.Variable(
        value,
        trainable=False,
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.NONE,
    )
