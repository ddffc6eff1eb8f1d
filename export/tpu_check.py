#!/usr/bin/env python3
"""Compiles a configuration's training step for a Cloud TPU, without a TPU.

    pip install ".[train]" jax==0.10.2 jaxlib==0.10.2 libtpu==0.0.42.1
    python export/tpu_check.py --config quickstart --topology v5e:2x2

Reports whether the step compiles and fits into the memory of one core, its number of operations,
and the bytes that it accesses. The body of a loop counts once, and sums over several cores are not
included. The versions above are known to accept what TensorFlow 2.20 lowers.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path


def training_step(experiment, batch_size):
    """Builds one function of a training step of `fit` and the centroid update after it.

    Args:
        experiment: an `Experiment`.
        batch_size: int, number of sequences or images.

    Returns:
        The step as a `tf.function` for XLA, the list of its arguments' `tf.TensorSpec`s, and the
        model.
    """
    import tensorflow as tf

    from rt_keras.callbacks import CentroidEMA
    from rt_keras.layers.centroids import centroids_inside
    from rt_keras.training.run import compiled_model

    model = compiled_model(experiment)
    model.optimizer.build(model.trainable_variables)
    centroid_ema = None
    if centroids_inside(model):
        centroid_ema = CentroidEMA(**vars(experiment.config.centroids))
        centroid_ema.set_model(model)
    example = experiment.task.example_spec(experiment, batch_size)

    @tf.function(jit_compile=True)
    def step(*tensors):
        logs = model.train_step(tf.nest.pack_sequence_as(example, tensors))
        if centroid_ema is not None:
            centroid_ema.update_centroids()
        return logs

    return step, tf.nest.flatten(example), model


def lower(name, overrides):
    """Returns the serialized `HloModuleProto` of a training step, and its heading."""
    from rt_keras.training.config import load_config
    from rt_keras.training.experiment import Experiment

    config = load_config(name, overrides)
    step, specs, model = training_step(Experiment(config), config.data.batch_size)
    size = sum(math.prod(variable.shape) for variable in model.trainable_variables)
    heading = f"{name}: {size:,} parameters, {math.prod(specs[-1].shape):,} tokens"
    return step.experimental_get_compiler_ir(*specs)(stage="hlo_serialized"), heading


def compile_for(program, topology):
    """Compiles a serialized `HloModuleProto` for one core of a topology.

    Only imports JAX and libtpu: TensorFlow would need other versions of these.

    Returns:
        A dictionary of numbers, by their names in the report.
    """
    from jax._src import compiler
    from jax._src.interpreters import mlir
    from jax.experimental import topologies
    from jaxlib import _jax
    from jaxlib.mlir import ir

    device = topologies.get_topology_desc(platform="tpu", topology_name=topology).devices[0]
    options = compiler.get_compile_options(
        num_replicas=1, num_partitions=1, device_assignment=[[device]]
    )
    with mlir.make_ir_context():
        module = ir.Module.parse(_jax.mlir.hlo_to_stablehlo(program))
        module.operation.walk(as_on_tpu)
        compiled = device.client.compile(
            module, executable_devices=_jax.DeviceList((device,)), compile_options=options
        )
    memory, cost = compiled.get_compiled_memory_stats(), compiled.cost_analysis()
    kinds = {
        "arguments": "argument",
        "outputs": "output",
        "aliased": "alias",
        "temporaries": "temp",
        "code": "generated_code",
    }
    gib = {name: getattr(memory, f"{x}_size_in_bytes") / 2**30 for name, x in kinds.items()}
    return {
        **{f"{name} (GiB)": size for name, size in gib.items()},
        "held (GiB)": sum(gib.values()) - 2 * gib["aliased"],
        "operations (T)": cost["flops"] / 1e12,
        "accessed (GiB)": cost["bytes accessed"] / 2**30,
    }


def as_on_tpu(operation):
    """Replaces an operation of this machine by the one that TensorFlow uses on TPUs.

    A copy has no effect for the compiler and no name in StableHLO. Random bits come from the TPU's
    own generator, whose state is the last two of the three numbers of Philox's state. Philox would
    access five times as many bytes for each dropout.
    """
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    if operation.name == "mhlo.copy":
        operation.results[0].replace_all_uses_with(operation.operands[0])
        operation.erase()
    elif operation.name == "stablehlo.rng_bit_generator":
        with ir.InsertionPoint(operation), ir.Location.unknown():
            first = stablehlo.slice(operation.operands[0], [0], [1], [1])
            state = stablehlo.slice(operation.operands[0], [1], [3], [1])
            bits = stablehlo.RngBitGeneratorOp(
                state.type,
                operation.results[1].type,
                stablehlo.RngAlgorithmAttr.get("DEFAULT"),
                state,
            )
            whole_state = stablehlo.concatenate([first, bits.output_state], 0)
        operation.results[0].replace_all_uses_with(whole_state)
        operation.results[1].replace_all_uses_with(bits.output)
        operation.erase()
    return ir.WalkResult.ADVANCE


def compiled(program, topology):
    """Compiles a program in a separate process; returns the figures of `compile_for`.

    Raises:
        ValueError: if it does not compile, with a reason in one line.
    """
    # Keeps libtpu from asking Google Cloud's metadata server and from locking a device.
    environment = {**os.environ, "TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
    with tempfile.TemporaryDirectory() as folder:
        paths = Path(folder, "program"), Path(folder, "result")
        paths[0].write_bytes(program)
        command = [sys.executable, "-P", __file__, "--compile", *paths, topology]
        # The exit status is ignored, since libtpu may crash after it has finished.
        process = subprocess.run(command, env=environment, capture_output=True, text=True)
        if paths[1].exists():
            return json.loads(paths[1].read_text())
    message = (process.stderr.split("Error: ")[-1].strip() or "the compiler was killed").split(
        "\n\n"
    )
    raise ValueError(f"for {topology}: {' '.join(message[0].split())}")


def main(argv=None):
    """Prints the figures of a configuration."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--config", required=True, help="name or path of a configuration")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a key")
    parser.add_argument("--topology", default="v5e:2x2", help="the chips, such as v5p:2x2x1")
    args = parser.parse_args(argv)
    # Lowering runs in a separate process, which frees its memory for the compiler.
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        program, heading = pool.submit(lower, args.config, args.set).result()
    print(heading)
    for name, value in compiled(program, args.topology).items():
        print(f"{name:<24}{value:10,.3f}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--compile"]:
        source, result, chips = sys.argv[2:]
        figures = compile_for(Path(source).read_bytes(), chips)
        Path(result).write_text(json.dumps(figures))
    else:
        main()
