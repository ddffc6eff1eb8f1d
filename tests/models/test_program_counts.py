"""What equal layers cost before the first word: programs and operations, counted, never timed."""

import json
import re

import pytest

from tests.processes import dumped

pytestmark = pytest.mark.slow

# Each bound is about 1.5 times of what is found; layers that share nothing have up to 12 times as
# many operations. The programs are a step of each kind of block, and the choice of a token.
ADAPTED = {"layers": 30, "programs": 2, "instructions": 4_600, "bytes": 5_700_000}
# Blocks of Gated DeltaNet, and of windows and clusters.
OWN = {"layers": 12, "programs": 3, "instructions": 1_300, "bytes": 6_500_000}

COUNT = """
import json, sys, tempfile
from pathlib import Path
import tensorflow as tf
import rt_keras
from rt_keras import layers, models
from rt_keras.data import ByteTokenizer
from rt_keras.serving import export_saved_model
from tests.conftest import trace_fast
from tests.models.adapted.llama_folder import write_llama

trace_fast()
dump, make, number = Path(sys.argv[1]), *sys.argv[2:]
folder = Path(tempfile.mkdtemp(dir=dump))

def adapted(layers):
    sizes = {"hidden_size": 64, "intermediate_size": 128, "max_position_embeddings": 2048}
    return rt_keras.adapt(write_llama(folder / str(layers), num_hidden_layers=layers, **sizes))

def own(number):
    below, above = [layers.GatedDeltaHeads(2)], [layers.LocalRoutingHeads(2, 4, 64, 96)]
    backbone = models.RoutingTransformerBackbone(
        258, number, 64, 128, [below] * (number // 2) + [above] * (number // 2)
    )
    preprocessor = models.RoutingTransformerCausalLMPreprocessor(ByteTokenizer(), 2048)
    return models.RoutingTransformerCausalLM(backbone, preprocessor)

def made(model):
    # Programs that XLA has compiled, and traces.
    functions = model.programs.functions.values()
    traced = sum(function.experimental_get_tracing_count() for function in functions)
    return len([*dump.glob("*.before_optimizations.txt")]), traced

model, found = globals()[make](int(number)), {}
model.compile(sampler="greedy")
# Beyond the window, where blocks are selected; all within one room.
calls = {"first": ("a dog ", 910), "prompt": ("cat, ", 770), "length": ("a dog ", 1000)}
for name, (text, length) in calls.items():
    model.generate(text * 150, max_length=length)
    found[name] = made(model)
export_saved_model(model, folder / "1")
found["bytes"] = (folder / "1" / "saved_model.pb").stat().st_size
print(json.dumps(found))
"""


@pytest.fixture(scope="module", params=["adapted", "own"])
def bounds_and_counts(request):
    bounds = {"adapted": ADAPTED, "own": OWN}[request.param]
    with dumped(COUNT, request.param, bounds["layers"]) as (folder, output):
        texts = [x.read_text() for x in folder.glob("*.before_optimizations.txt")]
        found = json.loads(output.splitlines()[-1])
    found["instructions"] = max(len(re.findall(r"^ .* = ", x, re.M)) for x in texts)
    return bounds, found


def test_equal_layers_share_a_program_that_other_prompts_and_lengths_use_again(bounds_and_counts):
    bounds, found = bounds_and_counts
    assert found["first"][0] == bounds["programs"]
    assert found["first"] == found["prompt"] == found["length"]
    assert found["instructions"] < bounds["instructions"]


def test_the_file_of_a_saved_model_holds_the_operations_of_one_layer(bounds_and_counts):
    bounds, found = bounds_and_counts
    assert found["bytes"] < bounds["bytes"]
