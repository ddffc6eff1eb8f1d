"""Sets of keys whose ops share one signature."""

import dataclasses

from rt_keras.layers.key_sets.key_set import KeySet


@dataclasses.dataclass(frozen=True, repr=False)
class ByOps(KeySet):
    """Base class of sets that name their ops and return the ops' additional arguments."""

    # The ops for a whole sequence, for a chunk and a state, and for one position and a state.
    attention_op = chunk_op = step_op = None
    # Whether the ops always return the logsumexp of the logits.
    always_with_logsumexp = False

    def op_options(self, heads, joins):
        """Returns the arguments that all ops share; see `KeySet.attend`."""
        raise NotImplementedError

    def placed(self, heads, query, key):
        """Returns queries and keys in the form that the ops expect."""
        return query, key

    def attend(self, heads, chunk, joins, **options):
        options |= {**chunk.of_sequence, **self.op_options(heads, joins)}
        return self._output(self.attention_op(*self._inputs(heads, chunk), **options), joins)

    def read_chunk(self, heads, chunk, states, joins):
        options = {"dropout": chunk.dropout, "seed": chunk.seed}
        return self._read_by(self.chunk_op, heads, chunk, states, joins, options)

    def decode_step(self, heads, chunk, states, joins):
        return self._read_by(self.step_op, heads, chunk, states, joins, {})

    def _read_by(self, op, heads, chunk, states, joins, options):
        """Computes the next positions with the op for a chunk or the op for one position."""
        options = {"count": chunk.count, **options, **self.op_options(heads, joins)}
        state, position = states[self.name], chunk.position
        found, state = op(*self._inputs(heads, chunk), state, position, **options)
        return self._output(found, joins), state

    def _output(self, found, joins):
        """Returns the result of an op, without the logsumexp if that is not needed."""
        return found[0] if self.always_with_logsumexp and not joins else found

    def _inputs(self, heads, chunk):
        return *self.placed(heads, chunk.query, chunk.keys), chunk.value
