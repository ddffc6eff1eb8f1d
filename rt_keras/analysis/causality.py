"""How much a language model sees of the future: what changes before a change, and what it gains."""

import numpy as np
import tensorflow as tf

from rt_keras import progress
from rt_keras.tables import table

# Differences of log-probabilities up to this are rounding.
TOLERANCE = 1e-3
# How far before a change outputs are, for the shares by distance: from each to the next.
DISTANCES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


def measure(model, sequences, num_positions=16, num_changes=2, seed=0, verbose=0):
    """Changes the future of a language model at random, and looks at its past.

    At each of some positions p everything from p on is replaced by other text, drawn from the same
    sequences. With o_i = ln p(. | what the model saw) at i < p, before and after the change, output
    i has changed if any entry of o_i did by more than 1e-3. The gain of seeing the future is the
    difference of two losses of the same tokens: scored in parallel, all at once, and prefix by
    prefix, as in generation.

    Args:
        model: a `RoutingTransformerCausalLM`.
        sequences: int `[count, length + 1]`, tokens; those of each row but the first are predicted.
        num_positions: places of the change in each sequence, and prefixes of each that are scored.
        num_changes: other futures tried at each place.
        seed: int, of all draws.
        verbose: 1 for a progress bar.

    Returns:
        A dict of
        - `share_changed`: of the outputs before a change, how many changed;
        - `mean_change`, `largest_change`: total variation between the distributions before and
          after, 0 to 1, over all outputs before a change;
        - `share_by_distance`: list of `from`, `to` and `share`, by how far before the change;
        - `nats_in_parallel`, `nats_by_prefix`: mean loss of the same tokens, scored both ways;
        - `outputs`, `prefixes`, `length`: how many were looked at, and positions of a sequence.

    Raises:
        ValueError: if a number is less than 1, or a sequence shorter than 3 tokens.
    """
    sequences = np.asarray(sequences)
    length = sequences.shape[1] - 1
    for name, number in (("num_positions", num_positions), ("num_changes", num_changes)):
        if number < 1:
            raise ValueError(f"{name} is {number}; it must be at least 1")
    if length < 2 or not len(sequences):
        raise ValueError(
            f"sequences must be [count, length + 1], length at least 2; they are {sequences.shape}"
        )
    rng = np.random.default_rng(seed)
    label_nats, compare = _functions(model)
    distances, variations, changed, in_parallel, by_prefix = [], [], [], [], []
    for sequence in progress.track(
        sequences, "changing the future", len(sequences), "sequences", verbose
    ):
        tokens, labels = sequence[None, :-1], sequence[None, 1:]
        nats, before = label_nats(tokens, labels, length)
        for p in _draw(rng, length, num_positions):
            for _ in range(num_changes):
                other = tokens.copy()
                other[0, p:] = rng.choice(sequences.ravel(), length - p)
                variation, largest = compare(before, other)
                distances.append(p - np.arange(p))
                variations.append(variation[:p])
                changed.append(largest[:p] > TOLERANCE)
            in_parallel.append(nats[p])
            by_prefix.append(label_nats(tokens, labels, p + 1)[0][p])
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
    """The two compiled passes: the losses of a prefix, and what another text changes in outputs."""

    def log_probabilities(tokens, known):
        mask = tf.cast(tf.range(tf.shape(tokens)[1])[None] < known, tf.int32)
        logits = model({"token_ids": tokens, "padding_mask": mask}, training=False)
        return tf.nn.log_softmax(tf.cast(logits[0], tf.float32))

    @tf.function(jit_compile=True)
    def label_nats(tokens, labels, known):
        found = log_probabilities(tokens, known)
        return -tf.gather(found, labels[0], batch_dims=1), found

    @tf.function(jit_compile=True)
    def compare(before, other):
        after = log_probabilities(other, tf.shape(other)[1])
        variation = tf.reduce_sum(tf.abs(tf.exp(before) - tf.exp(after)), axis=-1) / 2
        return variation, tf.reduce_max(tf.abs(before - after), axis=-1)

    def nats_in_numpy(tokens, labels, known):
        nats, found = label_nats(*map(_int32, (tokens, labels, known)))
        return nats.numpy(), found

    def compare_in_numpy(before, other):
        return [x.numpy() for x in compare(before, _int32(other))]

    return nats_in_numpy, compare_in_numpy


def _int32(x):
    return tf.convert_to_tensor(x, tf.int32)


def _draw(rng, length, count):
    """Positions from 1 on, spread over the sequence, one at random in each part of it."""
    edges = np.linspace(1, length, min(count, length - 1) + 1).astype(int)
    return [int(rng.integers(low, high)) for low, high in zip(edges, edges[1:])]


def _by_distance(distances, changed):
    found = []
    for low, high in zip(DISTANCES, (*DISTANCES[1:], np.inf)):
        within = (distances >= low) & (distances < high)
        if within.any():
            last = int(min(high - 1, distances.max()))
            found.append({"from": low, "to": last, "share": float(changed[within].mean())})
    return found


def report(figures):
    """The figures of `measure` as lines of text.

    Args:
        figures: what `measure` returned.

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
