"""The dependence of a language model on later tokens: changed outputs, and the gain in loss."""

import numpy as np
import tensorflow as tf

from rt_keras.data import progress
from rt_keras.data.batches import check_at_least_one
from rt_keras.data.tables import table
from rt_keras.models.chunked_loss import positions_at_once

# Differences of log-probabilities up to this are rounding errors.
TOLERANCE = 1e-3
# Lower limits of the groups of outputs by distance to the change.
DISTANCES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


def measure(model, sequences, num_positions=16, num_changes=2, seed=0, verbose=0):
    """Replaces later tokens of sequences at random and compares the earlier outputs of a model.

    At random positions p, all tokens from p on are replaced by random tokens of the sequences. The
    output at i < p is o_i = ln p(. | input). It has changed if an entry of o_i differs by more than
    1e-3. The gain from seeing the future is the difference between two losses of the same tokens:
    scored in parallel, and prefix by prefix, as in generation.

    Args:
        model: a `RoutingTransformerCausalLM`, or an adapted causal language model.
        sequences: int array `[count, length + 1]`, tokens. All tokens except the first of each row
            are predicted.
        num_positions: int, the number of positions p, and of scored prefixes, in each sequence.
            Defaults to 16.
        num_changes: int, the number of replacements at each position. Defaults to 2.
        seed: int, the random seed. Defaults to 0.
        verbose: int, 1 for a progress bar. Defaults to 0.

    Returns:
        A dictionary of
        - `share_changed`: the share of the outputs before a change that changed;
        - `mean_change`, `largest_change`: the total variation, from 0 to 1, between the
          distributions before and after, over all outputs before a change;
        - `share_by_distance`: list of dictionaries of `from`, `to` and `share`, by the distance to
          the change;
        - `nats_in_parallel`, `nats_by_prefix`: the mean loss of the same tokens, scored both ways;
        - `outputs`, `prefixes`: the numbers of outputs and prefixes; `length`, of positions.

    Raises:
        ValueError: if a number is less than 1, or a sequence shorter than 3 tokens.
    """
    sequences = np.asarray(sequences, np.int32)
    length = sequences.shape[1] - 1
    check_at_least_one(num_positions=num_positions, num_changes=num_changes)
    if length < 2 or not len(sequences):
        raise ValueError(
            "sequences must be [count, length + 1] with length at least 2. Received: shape "
            f"{sequences.shape}"
        )
    rng = np.random.default_rng(seed)
    label_nats, compare = _functions(model)
    distances, variations, changed, in_parallel, by_prefix = [], [], [], [], []
    for sequence in progress.track(sequences, "changing the future", len(sequences), verbose):
        tokens, labels = sequence[None, :-1], sequence[None, 1:]
        nats, before = label_nats(tokens, labels, tf.constant(length))
        for p in _draw(rng, length, num_positions):
            for _ in range(num_changes):
                other = tokens.copy()
                other[0, p:] = rng.choice(sequences.ravel(), length - p)
                variation, largest = map(np.asarray, compare(before, other))
                distances.append(p - np.arange(p))
                variations.append(variation[:p])
                changed.append(largest[:p] > TOLERANCE)
            in_parallel.append(nats[p])
            by_prefix.append(label_nats(tokens, labels, tf.constant(p + 1))[0][p])
    distances, variations, changed = map(np.concatenate, (distances, variations, changed))
    return {
        "share_changed": float(changed.mean()),
        "mean_change": float(variations.mean()),
        "largest_change": float(variations.max()),
        "share_by_distance": _by_distance(distances, changed),
        "nats_in_parallel": float(np.mean(in_parallel)),
        "nats_by_prefix": float(np.mean(by_prefix)),
        "outputs": len(changed),
        "prefixes": len(by_prefix),
        "length": length,
    }


def _functions(model):
    """Returns two compiled functions: the losses of a prefix, and the change of the outputs.

    They exchange hidden states, because the logits of all positions may not fit in memory.
    """

    def states(tokens, known):
        mask = tf.cast(tf.range(tf.shape(tokens)[1])[None] < known, tf.int32)
        return model.hidden_states({"token_ids": tokens, "padding_mask": mask}, training=False)

    def chunk_size(tokens):
        return positions_at_once(model.backbone.vocabulary_size, tokens.shape[1])

    def compare_chunk(pair):
        logits = (tf.cast(model.token_logits(hidden), tf.float32) for hidden in tf.unstack(pair))
        before, after = map(tf.nn.log_softmax, logits)
        variation = tf.reduce_sum(tf.abs(tf.exp(before) - tf.exp(after)), axis=-1) / 2
        return tf.stack([variation, tf.reduce_max(tf.abs(before - after), axis=-1)])

    @tf.function(jit_compile=True)
    def label_nats(tokens, labels, known):
        hidden = states(tokens, known)
        return model.token_losses(hidden, labels, chunk_size(tokens))[0][0], hidden[0]

    @tf.function(jit_compile=True)
    def compare(before, other):
        after, size = states(other, tf.shape(other)[1])[0], chunk_size(other)
        length, depth = after.shape
        pair = tf.pad(tf.stack([before, after]), [[0, 0], [0, -length % size], [0, 0]])
        # [chunks, 2, size, depth]
        chunks = tf.transpose(tf.reshape(pair, [2, -1, size, depth]), [1, 0, 2, 3])
        # [chunks, 2, size]
        options = {"fn_output_signature": tf.float32, "parallel_iterations": 1}
        changes = tf.map_fn(compare_chunk, chunks, **options)
        return tf.unstack(tf.reshape(tf.transpose(changes, [1, 0, 2]), [2, -1])[:, :length])

    return label_nats, compare


def _draw(rng, length, count):
    """Draws a position from each of `count` equal parts of the sequence, from position 1 on."""
    edges = np.linspace(1, length, min(count, length - 1) + 1).astype(int)
    return [int(rng.integers(low, high)) for low, high in zip(edges, edges[1:])]


def _by_distance(distances, changed):
    """Returns the share of changed outputs for each range of distances that occurs."""
    shares = []
    for low, high in zip(DISTANCES, (*DISTANCES[1:], np.inf)):
        within = (distances >= low) & (distances < high)
        if within.any():
            last = int(min(high - 1, distances.max()))
            shares.append({"from": low, "to": last, "share": float(changed[within].mean())})
    return shares


def report(figures):
    """Formats the figures of `measure` as lines of text.

    Args:
        figures: the dictionary that `measure` returned.

    Returns:
        A string.
    """
    gain = figures["nats_by_prefix"] - figures["nats_in_parallel"]
    columns = {"positions before\nthe change": "", "outputs\nchanged": ".2%"}
    rows = [
        (f"{row['from']:,} to {row['to']:,}", row["share"]) for row in figures["share_by_distance"]
    ]
    return (
        f"{figures['share_changed']:.2%} of {figures['outputs']:,} outputs before a change of the "
        "future changed\n"
        f"their distributions moved by {figures['mean_change']:.2g} on average and by "
        f"{figures['largest_change']:.2g} at most (total variation)\n"
        f"{figures['nats_in_parallel']:.4f} nats per token in parallel, "
        f"{figures['nats_by_prefix']:.4f} prefix by prefix: seeing the future saves {gain:.4f}\n"
        f"\n{table(columns, rows)}"
    )
