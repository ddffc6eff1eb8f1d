"""Language models whose files and outputs are stored in `tests/golden/saved`.

`python -m tests.models.saved_models FOLDER` writes such files. Those in `tests/golden/saved` were
written by the version that introduced them. Later versions must load them and never replace them.
"""

import shutil
import sys
import tempfile
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from rt_keras import layers
from rt_keras.callbacks import CentroidEMA
from rt_keras.callbacks.checkpoints import Checkpoints
from rt_keras.callbacks.keep_state import KeepState
from rt_keras.data import ByteTokenizer
from rt_keras.layers import key_sets
from rt_keras.models import (
    RoutingTransformerBackbone,
    RoutingTransformerCausalLM,
    RoutingTransformerCausalLMPreprocessor,
)
from rt_keras.models.head_kinds import HEAD_KINDS
from rt_keras.models.model_section import ModelSection
from tests.layers.saved_heads import draw_weights
from tests.models import checks

PRESET, UNION, STATEFUL = "default_heads", "union_heads", "stateful"
CONVOLVED = "convolutions"
# Steps of an epoch. The checkpoint is from the end of the first epoch.
STEPS, CHUNK = 2, 8


def default_model():
    """A model of default heads with small sizes."""
    keras.utils.set_random_seed(0)
    heads = HEAD_KINDS["local_routing"](block_size=4, num_clusters=4, window_size=4)
    section = ModelSection(num_layers=1, hidden_dim=16, intermediate_dim=16, local_routing=heads)
    model = RoutingTransformerCausalLM.from_section(section, ByteTokenizer().vocabulary_size())
    model.preprocessor = RoutingTransformerCausalLMPreprocessor(ByteTokenizer(), 24)
    return model


def union_model():
    """A model of heads with user-defined sets of keys."""
    keras.utils.set_random_seed(0)
    sets = [key_sets.Window(4), key_sets.Cluster(4, 4, routed_key="key", use_query_key_norm=False)]
    backbone = RoutingTransformerBackbone(
        ByteTokenizer().vocabulary_size(), 1, 16, 16, [layers.Heads(4, sets)]
    )
    preprocessor = RoutingTransformerCausalLMPreprocessor(ByteTokenizer(), 24)
    return RoutingTransformerCausalLM(backbone, preprocessor)


def convolved_model():
    """A model with convolutions of queries, keys and values in one of two blocks."""
    keras.utils.set_random_seed(0)
    groups = [layers.LocalHeads(2, 4), layers.RoutingHeads(2, 4, 4, share_qk=True)]
    backbone = RoutingTransformerBackbone(
        ByteTokenizer().vocabulary_size(), 2, 8, 16, groups, conv_kernel_size=[3, None]
    )
    preprocessor = RoutingTransformerCausalLMPreprocessor(ByteTokenizer(), 24)
    return RoutingTransformerCausalLM(backbone, preprocessor)


def stateful_model():
    """A compiled model with every kind of heads that supports a recurrent state."""
    keras.utils.set_random_seed(0)
    clusters = {"block_size": 4, "num_clusters": 4, "window_size": 4}
    memory = {**clusters, "memory_length": 5, "memory_keys": 2, "memory_block_size": 3}
    compressive = {"block_size": 4, "compressed_length": 4, "compression_rate": 2}
    learned = {"max_relative_distance": 5}
    groups = [
        layers.LocalHeads(1, 4, **learned),
        layers.LocalHeads(1, 4, relative_positions="sinusoidal", **learned),
        layers.RoutingHeads(1, 4, 4),
        layers.LocalRoutingHeads(1, **clusters, **learned, num_persistent_keys=3),
        *(
            layers.RoutingMemoryHeads(1, **memory, eviction=eviction)
            for eviction in ("oldest", "random", "least_attended", "merged")
        ),
        layers.CompressiveHeads(1, **compressive, **learned),
        layers.CompressiveHeads(1, **compressive, compression="most_used"),
        layers.FullHeads(1, memory_length=7, **learned),
    ]
    with tf.distribute.OneDeviceStrategy("CPU:0").scope():
        backbone = RoutingTransformerBackbone(
            checks.VOCABULARY, 1, 8, 16, groups, key_dim=4, shift_tokens=True, dropout=0.1
        )
        model = RoutingTransformerCausalLM(backbone)
        model.compile(
            keras.optimizers.SGD(0.1, momentum=0.9),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            run_eagerly=True,
        )
    return model


def chunk(number):
    """The inputs of a chunk of two texts, and the next tokens as labels."""
    tokens = checks.random_tokens(2, 10 * CHUNK + 1)
    place = slice(number * CHUNK, (number + 1) * CHUNK)
    return checks.inputs(tokens[:, place]), tokens[:, 1:][:, place]


def train(model, folder, epoch):
    """Trains an epoch on chunks; an epoch after the first resumes from the checkpoint in `folder`.

    Returns:
        A dictionary of the mean loss, and of the state after the epoch, by number.
    """
    model.make_stateful(2)
    batches = []
    for number in range(epoch * STEPS, (epoch + 1) * STEPS):
        inputs, labels = chunk(number)
        # The second text ends, and another starts.
        resets = np.array([number == 0, number in (0, 1, 3)])
        batches.append(({**inputs, "reset_states": resets}, labels))
    spec = tf.nest.map_structure(lambda x: tf.TensorSpec(x.shape, x.dtype), batches[0])
    ema = CentroidEMA(0.9)
    checkpoints = Checkpoints(folder, max_to_keep=1)
    keep_state = KeepState(checkpoints, 100, callbacks=[ema], first_step=epoch * STEPS)
    history = model.fit(
        tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=spec),
        initial_epoch=epoch,
        epochs=epoch + 1,
        steps_per_epoch=STEPS,
        shuffle=False,
        callbacks=[ema, keep_state],
        verbose=0,
    ).history
    keep_state.wait()
    rows = {str(i): x.numpy() for i, x in enumerate(model.state_variables)}
    return {"loss": np.array(history["loss"]), **rows}


def named(state, prefix=""):
    """The tensors of a state by their names, such as "cache/blocks/0/key"."""
    if not isinstance(state, (dict, tuple, list)):
        return {prefix[:-1]: np.asarray(state)}
    parts = state.items() if isinstance(state, dict) else enumerate(state)
    return {name: x for key, part in parts for name, x in named(part, f"{prefix}{key}/").items()}


def nested(tensors):
    """The inverse of `named`."""
    if "" in tensors:
        return tf.constant(tensors[""])
    keys = list(dict.fromkeys(name.partition("/")[0] for name in tensors))
    parts = {
        key: nested(
            {name.partition("/")[2]: x for name, x in tensors.items() if name.split("/")[0] == key}
        )
        for key in keys
    }
    return tuple(parts.values()) if all(key.isdecimal() for key in keys) else parts


def logits(model):
    """The logits of a loaded model for fixed tokens."""
    inputs = checks.inputs(checks.random_tokens(2, 24), [24, 20])
    return np.asarray(model(inputs))[..., : checks.VOCABULARY]


def write_preset(folder, make_model=default_model):
    model = draw_weights(make_model())
    model.save_to_preset(str(folder))
    np.save(folder / "logits.npy", logits(model))


def write_stateful(folder):
    folder.mkdir()
    model = draw_weights(stateful_model())
    train(model, folder, 0)
    state = model.new_state(2)
    for number in range(3):
        _, state = model.call_with_state(chunk(number)[0], state)
    outputs, after = model.call_with_state(chunk(3)[0], state)
    arrays = {f"state/{name}": x for name, x in named(state).items()}
    arrays |= {f"after/{name}": x for name, x in named(after).items()}
    with tempfile.TemporaryDirectory() as copy:
        shutil.copytree(folder, copy, dirs_exist_ok=True)
        model = stateful_model()
        arrays |= {f"next/{name}": x for name, x in train(model, copy, 1).items()}
    np.savez_compressed(folder.parent / f"{STATEFUL}.npz", **arrays, outputs=np.asarray(outputs))


def write_union(folder):
    write_preset(folder, union_model)


def write_convolved(folder):
    write_preset(folder, convolved_model)


def main(folder):
    for name, write in (
        (PRESET, write_preset),
        (UNION, write_union),
        (CONVOLVED, write_convolved),
        (STATEFUL, write_stateful),
    ):
        if (folder / name).exists():
            raise SystemExit(f"{folder / name} is there: later versions must load it")
        write(folder / name)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
