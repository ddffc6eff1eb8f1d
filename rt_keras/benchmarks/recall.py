"""`rt-keras benchmark recall`: can a kind of attention continue a repetition beyond its window?

The second half of each sequence repeats the first, whose tokens are random. So the next token
depends on the place where the current one occurred before, which is further back than local heads
see. Small models of equal size are trained for equally many steps.
"""

from rt_keras import progress
from rt_keras.benchmarks import machine, options
from rt_keras.tables import table

VOCABULARY = 64
LENGTH = 128
WINDOW = 16
CLUSTERS = 8
BATCH = 32
STEPS_BETWEEN_TESTS = 50

# The routing heads beside two local heads in each block.
ROUTING = {
    "balanced_shared": {"assignment": "balanced", "share_qk": True},
    "balanced": {"assignment": "balanced"},
    "nearest_shared": {"share_qk": True},
    "nearest": {},
    "nearest_2_probes": {"num_probes": 2},
}
KINDS = ("local", "full", *ROUTING)


def add_arguments(parser):
    """Adds the command's options to an `argparse` parser."""
    parser.description = (
        f"Trains models of equal size with local, full and routing attention on sequences of "
        f"{LENGTH} tokens whose second half repeats the first, and measures their accuracy there."
    )
    parser.epilog = "example: rt-keras benchmark recall --kinds full nearest --json recall.json"
    parser.add_argument(
        "--kinds",
        nargs="+",
        default=KINDS,
        metavar="KIND",
        help=f"what to train: {', '.join(KINDS)} (default: all)",
    )
    parser.add_argument(
        "--steps", type=int, default=2400, help="number of training steps (default: 2400)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of weights and data (default: 0)")


def main(args):
    """Trains a model of each kind and prints the table.

    Args:
        args: namespace of the options.

    Returns:
        A dictionary of JSON values: the machine, the settings, and one entry of `figures` for each
        kind.

    Raises:
        ValueError: if an option is out of range.
    """
    options.check_among("kinds", args.kinds, KINDS)
    if args.steps < STEPS_BETWEEN_TESTS:
        raise ValueError(f"--steps must be at least {STEPS_BETWEEN_TESTS}. Received: {args.steps}")
    result = {
        "benchmark": "recall",
        "machine": machine.describe(),
        "settings": {"steps": args.steps, "seed": args.seed, "length": LENGTH, "window": WINDOW},
        "figures": [train(kind, args.steps, args.seed) for kind in dict.fromkeys(args.kinds)],
    }
    print(report(result))
    return result


def train(kind, steps, seed):
    """Trains one model.

    Args:
        kind: string, one of `KINDS`.
        steps: int, the number of batches.
        seed: int, the seed of weights and data.

    Returns:
        A dictionary of `kind`; `weights`, their number; `keys`, the most that a query attends to;
        `accuracy`, that on the second half of held-out sequences after every `STEPS_BETWEEN_TESTS`
        steps; and `cluster_use`, what `CentroidEMA` logged at these steps.
    """
    import keras

    from rt_keras.callbacks import CentroidEMA

    keras.utils.set_random_seed(seed)
    model = build(kind)
    model.compile(
        optimizer=keras.optimizers.Adam(
            keras.optimizers.schedules.CosineDecay(
                0.0, max(steps - 50, 1), alpha=0.05, warmup_target=2e-3, warmup_steps=50
            ),
            global_clipnorm=1.0,
        ),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        weighted_metrics=[keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
    )
    routing = [CentroidEMA()] if kind in ROUTING else []
    with progress.bar(f"training {kind}", steps, "steps") as update:
        history = model.fit(
            sequences(seed),
            steps_per_epoch=STEPS_BETWEEN_TESTS,
            epochs=steps // STEPS_BETWEEN_TESTS,
            # Far from the seeds of training.
            validation_data=sequences(seed + 10**6).take(16),
            shuffle=False,
            callbacks=[*routing, _shown(kind, steps, update)],
            verbose=0,
        ).history
    return {
        "kind": kind,
        "weights": sum(int(keras.ops.size(weight)) for weight in model.trainable_weights),
        "keys": keys_of_a_query(kind),
        "accuracy": history["val_accuracy"],
        "cluster_use": {name: values for name, values in history.items() if "routing" in name},
    }


def _shown(kind, steps, update):
    """A callback that updates the bar after each step and prints the accuracy of each test."""
    import keras

    def report_test(epoch, logs):
        step, accuracy = (epoch + 1) * STEPS_BETWEEN_TESTS, f"accuracy {logs['val_accuracy']:.3f}"
        update(note=accuracy)
        options.say(f"{kind}: step {step} of {steps}, {accuracy}")

    return keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: update(advance=1), on_epoch_end=report_test
    )


def build(kind):
    """A language model of two blocks with this kind of attention.

    Token embeddings are mixed with those of the preceding tokens, and there are no positions.
    """
    import keras
    from keras_hub.layers import ReversibleEmbedding

    from rt_keras.layers import TokenShift, TransformerBlock

    tokens = keras.Input([LENGTH], dtype="int32")
    embedding = ReversibleEmbedding(
        VOCABULARY, 128, embeddings_initializer=keras.initializers.RandomNormal(stddev=0.02)
    )
    x = TokenShift()(embedding(tokens))
    for _ in range(2):
        x = TransformerBlock(head_groups(kind), intermediate_dim=512)(x, use_causal_mask=True)
    logits = embedding(keras.layers.LayerNormalization()(x), reverse=True)
    return keras.Model(tokens, logits)


def head_groups(kind):
    """The heads of one block."""
    from rt_keras.layers import FullHeads, LocalHeads, RoutingHeads

    if kind == "full":
        return [FullHeads(4)]
    if kind == "local":
        return [LocalHeads(4, WINDOW)]
    return [LocalHeads(2, WINDOW), RoutingHeads(2, CLUSTERS, WINDOW, **ROUTING[kind])]


def sequences(seed):
    """Endless batches of sequences whose second half repeats the first.

    Args:
        seed: int.

    Returns:
        A `tf.data.Dataset` of (tokens, next tokens, weights); only the second half has weight.
    """
    import tensorflow as tf

    def batch(index):
        half = tf.random.stateless_uniform(
            [BATCH, LENGTH // 2], [seed, index], 0, VOCABULARY, tf.int64
        )
        tokens = tf.concat([half, half, half[:, :1]], axis=1)
        weights = tf.broadcast_to(tf.range(LENGTH) >= LENGTH // 2, [BATCH, LENGTH])
        return tokens[:, :-1], tokens[:, 1:], tf.cast(weights, tf.float32)

    return tf.data.Dataset.range(2**62).map(batch).prefetch(4)


def keys_of_a_query(kind):
    """The most keys that a query attends to in one head."""
    if kind == "full":
        return LENGTH
    if kind == "local":
        return 2 * WINDOW
    return WINDOW * ROUTING[kind].get("num_probes", 1)


def steps_to(accuracies, wanted):
    """The number of steps after which an accuracy was first reached, or None."""
    tests = enumerate(accuracies, start=1)
    return next((i * STEPS_BETWEEN_TESTS for i, found in tests if found >= wanted), None)


def report(result):
    """The figures as a table with one row for each kind.

    Args:
        result: the figures that `main` collects.

    Returns:
        Lines of text. "keys" is the most keys that a query attends to in one head; "fullest" and
        "entropy" describe the clusters of the worst layer at the end: see `CentroidEMA`.
    """
    columns = {"kind": "", "weights": ",", "keys": ",", "accuracy": ".3f"}
    columns |= {"steps to\n0.90": ",", "steps to\n0.95": ",", "fullest": ".2f", "entropy": ".2f"}
    rows = []
    for figure in result["figures"]:
        use = figure["cluster_use"]
        fullest = [values[-1] for name, values in use.items() if name.endswith("fullest")]
        entropy = [values[-1] for name, values in use.items() if name.endswith("entropy")]
        rows.append(
            [
                figure["kind"].replace("_", " "),
                figure["weights"],
                figure["keys"],
                figure["accuracy"][-1],
                *(steps_to(figure["accuracy"], wanted) for wanted in (0.90, 0.95)),
                max(fullest, default=None),
                min(entropy, default=None),
            ]
        )
    return (
        f"Recall over {LENGTH // 2} tokens, {result['settings']['steps']:,} steps of {BATCH} "
        f"sequences, chance {1 / VOCABULARY:.3f}\n{result['machine']}\n\n{table(columns, rows)}"
    )
