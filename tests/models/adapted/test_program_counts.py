"""What 30 layers cost before their first word: programs and operations, counted, never timed."""

import json
import re

import pytest

from tests.processes import dumped

pytestmark = pytest.mark.slow

# Each bound is about 1.5 times of what is found; 30 layers that share nothing have 12 times as many
# operations. The programs are a step of a block, and the choice of a token.
LAYERS, FEW_LAYERS, LARGEST_RATIO = 30, 2, 1.5
PROGRAMS, INSTRUCTIONS = 2, 4_800
TRAINING_OPERATIONS, STEP_OPERATIONS = 14_000, 4_500
SAVED_BYTES = 5_500_000

COUNT = """
import json, sys, tempfile
from pathlib import Path
import keras
import tensorflow as tf
import rt_keras
from rt_keras.models.adapted.token_loop import as_variables
from rt_keras.serving import export_saved_model
from tests.conftest import trace_fast
from tests.models.adapted.llama_folder import write_llama

trace_fast()
dump, layers, few = Path(sys.argv[1]), *map(int, sys.argv[2:])
folder = Path(tempfile.mkdtemp(dir=dump))

def adapted(layers):
    sizes = {"hidden_size": 64, "intermediate_size": 128, "max_position_embeddings": 2048}
    return rt_keras.adapt(write_llama(folder / str(layers), num_hidden_layers=layers, **sizes))

def made(model):
    # Programs that XLA has compiled, and traces.
    functions = model._kept.functions.values()
    traced = sum(function.experimental_get_tracing_count() for function in functions)
    return len([*dump.glob("*.before_optimizations.txt")]), traced

def operations(function, *inputs):
    traced = tf.function(function, autograph=False).get_concrete_function(*inputs)
    graph = traced.graph.as_graph_def()
    return len(graph.node) + sum(len(x.node_def) for x in graph.library.function)

def of_training(model):
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    y = tf.TensorSpec([None, None], tf.int32)
    x = {"token_ids": y, "padding_mask": y}
    return operations(lambda *data: model.train_step(data), x, y)

def of_a_step(model):
    caches = as_variables(model.new_cache(1, 2048))
    token, position = (tf.TensorSpec(shape, tf.int32) for shape in ([1, 1], []))
    return operations(model._step_programs(), token, caches, position)

model, found = adapted(layers), {}
# Beyond the window, where blocks are selected; all within one room.
calls = {"first": ("a dog ", 910), "prompt": ("cat, ", 770), "length": ("a dog ", 1000)}
for name, (text, length) in calls.items():
    model.generate(text * 150, max_length=length)
    found[name] = made(model)
models = model, adapted(few)
found |= {count.__name__: [*map(count, models)] for count in (of_a_step, of_training)}
export_saved_model(model, folder / "1")
found["bytes"] = (folder / "1" / "saved_model.pb").stat().st_size
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def counts():
    with dumped(COUNT, LAYERS, FEW_LAYERS) as (folder, output):
        texts = [x.read_text() for x in folder.glob("*.before_optimizations.txt")]
        found = json.loads(output.splitlines()[-1])
    return {**found, "instructions": max(len(re.findall(r"^ .* = ", x, re.M)) for x in texts)}


def test_all_layers_share_a_program_that_other_prompts_and_lengths_use_again(counts):
    assert counts["first"][0] == PROGRAMS
    assert counts["first"] == counts["prompt"] == counts["length"]
    assert counts["instructions"] < INSTRUCTIONS


@pytest.mark.parametrize(
    ("name", "bound"), [("of_training", TRAINING_OPERATIONS), ("of_a_step", STEP_OPERATIONS)]
)
def test_all_layers_share_the_operations_of_one(counts, name, bound):
    many, few = counts[name]
    assert many < min(bound, LARGEST_RATIO * few)


def test_the_file_of_a_saved_model_holds_the_operations_of_one_layer(counts):
    assert counts["bytes"] < SAVED_BYTES
