"""`rt-keras benchmark repetition`: recall of a passage that was read long ago.

A passage of random tokens occurs twice. Only a model that finds the first occurrence can predict
the second. Small models learn this on short sequences, and then read much longer ones in chunks.
"""

import math
import time

import rt_keras
from rt_keras import progress
from rt_keras.benchmarks import machine, options
from rt_keras.options import add_integers, check_range
from rt_keras.tables import table_of

VOCABULARY = 256
HEADS = 4
# Tokens of the passage, and how many of them must be repeated before it can be recognized.
PASSAGE, KNOWN = 64, 4
# Length and number of the sequences in a training batch.
TRAINED_LENGTH, TRAINED_BATCH = 1024, 4
# Tokens of a chunk, and the longest distance for kinds that keep all keys.
CHUNK, MOST_KEPT = 2048, 2**17
# Block size of a window of 128 positions.
BLOCK_SIZE = 64

# Memories need no training: they use the weights of local_routing.
MEMORIES = ("memory_oldest", "memory_random", "memory_least_attended", "memory_merged")
KINDS = ("local", "full", "one_cluster", "local_routing", *MEMORIES)
# The kinds whose queries see all preceding keys.
WHOLE = ("full", "one_cluster")
INTEGERS = {
    "steps": (400, "training steps"),
    "rows": (2, "sequences to read"),
    "clusters": (64, "clusters per routing head"),
    "window_size": (64, "maximum number of the last keys of a cluster that a query sees"),
    "memory_length": (2048, "members that the memory of a cluster holds"),
    "memory_keys": (4, "maximum number of remembered keys that a query sees"),
    "before": (0, "tokens before the passage, rounded up to whole chunks"),
    "seed": (0, "seed of weights and data"),
}


def add_arguments(parser):
    """Adds the command's options to an `argparse` parser."""
    parser.description = (
        "Trains small models to continue a repeated passage of random tokens, on sequences of "
        f"{TRAINED_LENGTH:,} tokens, and tests them on longer sequences, which they read in chunks "
        f"of {CHUNK}. Accuracy is next-token accuracy from the fifth token of the repetition on. "
        "Clusters with a memory use the weights of local_routing. one_cluster is full attention "
        "that, like a cluster, compares queries with the query of the position before each key."
    )
    parser.epilog = "example: rt-keras benchmark repetition --distances 10000 --kinds memory_oldest"
    options.add_names(parser, "kinds", KINDS)
    meaning = "tokens between a passage and its repetition, rounded up to whole chunks"
    options.add_numbers(parser, "distances", (10_000, 100_000), meaning)
    add_integers(parser, INTEGERS)


def main(args):
    """Trains and tests the models, and prints the table.

    Args:
        args: namespace of the options.

    Returns:
        A dictionary of JSON values: the machine, the settings, and one entry of `figures` for each
        kind and distance; see `read`. Kinds that see all keys are skipped at distances above
        `MOST_KEPT`.

    Raises:
        ValueError: if an option is out of range.
    """
    check(args)
    settings = options.values(args, INTEGERS)
    figures, weights = [], {}
    for kind in dict.fromkeys(args.kinds):
        base = "local_routing" if kind in MEMORIES else kind
        if base not in weights:
            weights[base] = train(base, settings)
        for distance in dict.fromkeys(args.distances):
            if kind in WHOLE and distance > MOST_KEPT:
                progress.say(f"{kind}: skipped at {distance:,} tokens, more than it keeps")
                continue
            figure = read(kind, weights[base], distance, settings)
            progress.say(f"{kind}: {distance:,} tokens, accuracy {figure['accuracy']:.3f}")
            figures.append(figure)
    result = {"benchmark": "repetition", "machine": machine.describe()}
    result |= {"settings": settings, "figures": figures}
    print(report(result))
    return result


def check(args):
    """Raises a `ValueError` if an option is out of range."""
    names = ("distances", "steps", "rows", "clusters", "window_size", "memory_keys")
    options.check_at_least_one(args, *names)
    check_range(args, "before", 0)
    # A memory stores the tokens of a chunk together.
    check_range(args, "memory_length", CHUNK)


def head_groups(kind, settings, length):
    """Returns the head groups of a block.

    Args:
        kind: string, one of `KINDS`.
        settings: dictionary of the ints of `INTEGERS`.
        length: int, the maximum sequence length; kinds in `WHOLE` keep this many keys.

    Returns:
        A list of one head group.
    """
    layers, reach = rt_keras.layers, 2 * BLOCK_SIZE - 1
    near = {"block_size": BLOCK_SIZE, "max_relative_distance": reach}
    sizes = {"num_clusters": settings["clusters"], "window_size": settings["window_size"]}
    if kind == "local":
        return [layers.LocalHeads(HEADS, **near)]
    if kind == "full":
        return [layers.FullHeads(HEADS, memory_length=length, max_relative_distance=reach)]
    if kind == "one_cluster":
        return [layers.LocalRoutingHeads(HEADS, **near, num_clusters=1, window_size=length)]
    if kind == "local_routing":
        return [layers.LocalRoutingHeads(HEADS, **near, **sizes)]
    sizes |= {name: settings[name] for name in ("memory_length", "memory_keys")}
    sizes |= {"eviction": kind.removeprefix("memory_"), "memory_block_size": CHUNK}
    return [layers.RoutingMemoryHeads(HEADS, **near, **sizes)]


def build(kind, settings, length):
    """Builds a model of two blocks of width 128; see `head_groups`."""
    backbone = rt_keras.models.RoutingTransformerBackbone(
        vocabulary_size=VOCABULARY,
        num_layers=2,
        hidden_dim=128,
        intermediate_dim=512,
        head_groups=head_groups(kind, settings, length),
        shift_tokens=True,
    )
    return rt_keras.models.RoutingTransformerCausalLM(backbone)


def train(kind, settings):
    """Trains a model with one kind of heads on short sequences.

    Args:
        kind: string, one of `KINDS` that is not in `MEMORIES`.
        settings: dictionary of the ints of `INTEGERS`.

    Returns:
        The weights, as returned by `get_weights`.
    """
    import keras

    from rt_keras.callbacks.centroid_ema import CentroidEMA, routing_heads

    keras.utils.set_random_seed(settings["seed"])
    model = build(kind, settings, TRAINED_LENGTH)
    steps = settings["steps"]
    schedule = keras.optimizers.schedules.CosineDecay(
        0.0, steps, alpha=0.05, warmup_target=2e-3, warmup_steps=steps // 8
    )
    model.compile(
        keras.optimizers.Adam(schedule, global_clipnorm=1.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        weighted_metrics=["accuracy"],
        jit_compile=True,
    )
    with progress.bar(f"training {kind}", steps, "steps") as update:

        def show(step, logs):
            update(completed=step + 1, note=f"accuracy {logs['accuracy']:.3f}")

        callbacks = [CentroidEMA()] if routing_heads(model) else []
        callbacks.append(keras.callbacks.LambdaCallback(on_train_batch_end=show))
        data, quiet = training_batches(settings["seed"]), {"shuffle": False, "verbose": 0}
        fitted = model.fit(data, steps_per_epoch=steps, callbacks=callbacks, **quiet)
    progress.say(f"trained {kind}: mean accuracy {fitted.history['accuracy'][-1]:.3f}")
    return model.get_weights()


def training_batches(seed):
    """Returns endless batches of sequences with a repeated passage, scored at the repetition."""
    import numpy as np
    import tensorflow as tf

    def draw():
        rng = np.random.default_rng(seed)
        while True:
            tokens = rng.integers(VOCABULARY, size=[TRAINED_BATCH, TRAINED_LENGTH + 1])
            weights = np.zeros([TRAINED_BATCH, TRAINED_LENGTH])
            for row, places in zip(tokens, weights):
                first, again = np.sort(rng.integers(TRAINED_LENGTH + 1 - PASSAGE, size=2))
                again = min(max(again, first + PASSAGE), TRAINED_LENGTH + 1 - PASSAGE)
                row[again : again + PASSAGE] = row[first : first + PASSAGE]
                places[again + KNOWN - 1 : again + PASSAGE - 1] = again - first >= PASSAGE
            inputs = {"token_ids": tokens[:, :-1], "padding_mask": np.ones_like(weights)}
            yield inputs, tokens[:, 1:], weights

    sizes = [TRAINED_BATCH, TRAINED_LENGTH]
    tokens, numbers = tf.TensorSpec(sizes, tf.int32), tf.TensorSpec(sizes, tf.float32)
    inputs = {"token_ids": tokens, "padding_mask": numbers}
    return tf.data.Dataset.from_generator(draw, output_signature=(inputs, tokens, numbers))


def read(kind, weights, distance, settings):
    """Reads long sequences in chunks, and scores the repetition at the end.

    Args:
        kind: string, one of `KINDS`.
        weights: list of arrays, the weights of its trained model.
        distance: int, the minimum number of tokens between the passage and its repetition.
        settings: dictionary of the ints of `INTEGERS`.

    Returns:
        A dictionary of `kind`, `distance`, `accuracy`, `kept` and `seen`, the maximum numbers of
        keys that a head keeps and that a query attends to, and `seconds` and `tokens_per_second`,
        both measured after the first chunk.
    """
    import numpy as np
    import tensorflow as tf

    first = math.ceil(settings["before"] / CHUNK)
    chunks = first + math.ceil((PASSAGE + distance) / CHUNK)
    model = build(kind, settings, chunks * CHUNK + PASSAGE)
    model.set_weights(weights)
    rows = settings["rows"]
    rng = np.random.default_rng([settings["seed"], distance])
    passage = rng.integers(VOCABULARY, size=[rows, PASSAGE])

    @tf.function(jit_compile=True)
    def next_chunk(tokens, state):
        inputs = {"token_ids": tokens, "padding_mask": tf.ones_like(tokens)}
        return model.call_with_state(inputs, state)

    state, start = model.new_state(rows), None
    for number in range(chunks):
        tokens = rng.integers(VOCABULARY, size=[rows, CHUNK])
        if number == first:
            tokens[:, :PASSAGE] = passage
        _, state = next_chunk(tf.constant(tokens, tf.int32), state)
        # The first chunk includes compilation.
        start = start or time.perf_counter()
    tf.nest.map_structure(lambda x: x.numpy(), state["position"])
    seconds = time.perf_counter() - start
    logits, _ = next_chunk(tf.constant(passage, tf.int32), state)
    found = np.argmax(logits[:, KNOWN - 1 : -1], axis=-1)
    group = model.backbone.transformer_blocks[0].attention.head_groups[0]
    kept, seen = _keys(kind, group, chunks * CHUNK + PASSAGE)
    return {
        "kind": kind,
        "distance": (chunks - first) * CHUNK - PASSAGE,
        "accuracy": float(np.mean(found == passage[:, KNOWN:])),
        "kept": kept,
        "seen": seen,
        "seconds": seconds,
        "tokens_per_second": rows * (chunks - 1) * CHUNK / seconds if chunks > 1 else None,
    }


def _keys(kind, group, length):
    """Returns the maximum numbers of keys that a head keeps, and that a query attends to."""
    if kind in WHOLE:
        return length, length
    kept = seen = 2 * group.block_size
    if kind != "local":
        kept += group.num_clusters * group.window_size
        seen += group.window_size
    if kind in MEMORIES:
        kept += group.num_clusters * group.memory_length
        seen += group.memory_keys
    return kept, seen


def report(result):
    """Formats the figures as a table.

    Args:
        result: dictionary from `main`.

    Returns:
        A string.
    """
    settings = result["settings"]
    columns = {
        **options.KIND,
        "tokens\nbetween": (",", lambda figure: figure["distance"]),
        "accuracy": (".3f", lambda figure: figure["accuracy"]),
        "keys kept\nper head": (",", lambda figure: figure["kept"]),
        "keys per\nquery": (",", lambda figure: figure["seen"]),
        "share": (".2%", lambda figure: figure["seen"] / figure["distance"]),
        "tokens/s": (",.0f", lambda figure: figure["tokens_per_second"]),
    }
    title = (
        f"repetition of {PASSAGE} random tokens, 2 blocks of width 128, {settings['steps']} steps, "
        f"{settings['clusters']} clusters, read in chunks of {CHUNK}, {settings['rows']} rows, "
        f"{settings['before']:,} tokens before the passage"
    )
    return f"{result['machine']}\n\n{title}\n\n{table_of(result['figures'], columns)}"
