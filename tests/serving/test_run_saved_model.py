"""Runs the SavedModel with TensorFlow's own loader in a program without Python."""

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from tests.serving import served

pytestmark = pytest.mark.end_to_end

LIBRARIES = ("libtensorflow_cc.so.2", "libtensorflow_framework.so.2")


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """Builds the program, linked against the libraries of the installed TensorFlow."""
    if shutil.which("g++") is None:
        pytest.skip("there is no g++ to compile the program with")
    folder = Path(tf.sysconfig.get_lib())
    program = tmp_path_factory.mktemp("program") / "run_saved_model"
    subprocess.run(
        ["g++", "-std=c++17", f"-I{tf.sysconfig.get_include()}"]
        + [str(Path(__file__).parent / "run_saved_model.cc"), "-o", str(program)]
        + [f"-L{folder}", *(f"-l:{library}" for library in LIBRARIES), f"-Wl,-rpath,{folder}"],
        check=True,
    )
    return program


def signatures():
    path = served.exported() / "saved_model.pb"
    saved = saved_model_pb2.SavedModel.FromString(path.read_bytes())
    return saved.meta_graphs[0].signature_def


def call(signature, inputs):
    """Formats a call of a signature for the program; inputs are tensors."""
    definition = signatures()[signature]
    lines = [f"call {len(inputs)} {len(definition.outputs)}"]
    for name, tensor in inputs.items():
        end = definition.inputs[name].name.replace(":", " ")
        sizes = " ".join(map(str, tensor.shape))
        values = np.array(tensor.numpy(), ndmin=1).ravel().tolist()
        lines.append(f"{end} {tensor.dtype.as_datatype_enum} {tensor.shape.rank} {sizes}")
        lines[-1] += f" {len(values)}"
        lines += [f"x{value.hex()}" if isinstance(value, bytes) else str(value) for value in values]
    lines += [info.name.replace(":", " ") for info in definition.outputs.values()]
    return "\n".join(lines)


def answers(program, calls):
    """Returns the program's output: for each call, a dict of arrays or an error message."""
    result = subprocess.run(
        [program, served.exported()],
        input="\n".join(call(*item) for item in calls),
        capture_output=True,
        text=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"},
    )
    assert result.returncode == 0, result.stderr
    lines = iter(result.stdout.splitlines())
    return [answer(next(lines), lines, signature) for signature, _ in calls]


def answer(first, lines, signature):
    kind, rest = first.split(" ", 1)
    if kind == "error":
        return rest
    outputs = {}
    for name in signatures()[signature].outputs:
        code, rank, *sizes, count = map(int, next(lines).split())
        values = [next(lines) for _ in range(count)]
        if tf.as_dtype(code) == tf.string:
            values = [bytes.fromhex(value[1:]) for value in values]
        assert len(sizes) == rank
        outputs[name] = np.array(values, tf.as_dtype(code).as_numpy_dtype).reshape(sizes)
    return outputs


def test_every_signature_runs_and_errors_leave_it_running(program):
    good = [
        ("score", {"ids": [[5, 6, 7], [8, 9, 10]]}),
        ("serving_default", {"ids": [[5]]}),
        ("score_text", {"texts": ["the café", "", b"\xff"]}),
        ("generate", {"prompts": ["once", "", b"\xff\x00"], "seed": 3, "top_k": [0, 3, 5]}),
    ]
    bad = list(served.BAD_REQUESTS.values())
    calls = [(signature, inputs) for signature, inputs, _ in bad] + good
    found = answers(program, [(name, served.tensors(name, inputs)) for name, inputs in calls])
    for message, (_, _, name) in zip(found, bad):
        assert isinstance(message, str), name
        assert f"[{name}: " in message or f"{name}_must_have_rank" in message, message
    for outputs, (signature, inputs) in zip(found[len(bad) :], good):
        for name, expected in served.ask(signature, **inputs).items():
            if expected.dtype == object:
                assert outputs[name].tolist() == expected.tolist()
            else:
                np.testing.assert_allclose(outputs[name], expected, rtol=1e-5)


def test_a_wrong_type_is_an_error_and_leaves_it_running(program):
    calls = [("score", {"ids": tf.zeros([1, 2])}), ("score", {"ids": tf.ones([1, 2], tf.int32)})]
    refused, taken = answers(program, calls)
    assert "int32" in refused and "float" in refused
    assert taken["log_probabilities"].shape == (1, 2)
