"""Sets of keys that ops of one signature compute."""

import dataclasses

from rt_keras.layers.key_sets.key_set import KeySet


@dataclasses.dataclass(frozen=True, repr=False)
class ByOps(KeySet):
    """A set that names its ops, and tells what they are given besides queries, keys and values."""

    # The ops of a whole sequence, of a chunk, and of one position, given a state.
    attention_op = chunk_op = step_op = None
    # Whether the op of a whole sequence is causal without being told.
    always_causal = False
    # Whether the ops need keys of each head of queries.
    repeats_keys = False
    # Whether the ops return the logsumexp of the logits without being told.
    always_with_logsumexp = False

    def op_options(self, heads, chunk, joins):
        """The arguments that all ops take; see `KeySet.attend`."""
        raise NotImplementedError

    def placed(self, heads, query, key):
        """Queries and keys as the ops take them."""
        return query, key

    def attend(self, heads, chunk, joins, **options):
        options |= {**chunk.of_sequence, **self.op_options(heads, chunk, joins)}
        if self.always_causal:
            del options["causal"]
        return self._output(self.attention_op(*self._inputs(heads, chunk), **options), joins)

    def read(self, heads, chunk, states, joins):
        if self.chunk_op is None:
            return super().read(heads, chunk, states, joins)
        options = {"dropout": chunk.dropout, "seed": chunk.seed}
        return self._read_by(self.chunk_op, heads, chunk, states, joins, options)

    def step(self, heads, chunk, states, joins):
        return self._read_by(self.step_op, heads, chunk, states, joins, {})

    def _read_by(self, op, heads, chunk, states, joins, options):
        """The next positions, by the op for a chunk or that for one position."""
        options = {"count": chunk.count, **options, **self.op_options(heads, chunk, joins)}
        state, position = states[self.name], chunk.position
        found, state = op(*self._inputs(heads, chunk), state, position, **options)
        return self._output(found, joins), state

    def _output(self, found, joins):
        """What an op found, without the logsumexp where that is not needed."""
        return found[0] if self.always_with_logsumexp and not joins else found

    def _inputs(self, heads, chunk):
        key, value = chunk.keys, chunk.value
        if self.repeats_keys:
            key, value = chunk.of_each_head()
        return *self.placed(heads, chunk.query, key), value
