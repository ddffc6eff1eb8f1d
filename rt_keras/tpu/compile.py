"""Compiles a program for a TPU without one, in a separate process.

`python -P compile.py PROGRAM TOPOLOGY CORES RESULT` reads an `HloModuleProto`, compiles it for one
or all cores of the topology, and writes the compiler's figures as JSON. It only imports JAX and
libtpu. TensorFlow would need other versions of these, and they may crash when the process ends, so
only the file RESULT counts.
"""

import json
import math
import os
import re
import sys

# Operations that exchange values between cores.
EXCHANGES = (
    "all-reduce|reduce-scatter|all-gather|all-to-all|collective-permute|collective-broadcast"
)


def main(program, topology, cores, result):
    """Compiles a program and writes a dictionary as JSON.

    If the program compiles, the dictionary holds `argument_bytes`, `output_bytes`, `aliased_bytes`
    (outputs that reuse the memory of arguments), `temporary_bytes`, `code_bytes`, `operations`,
    `accessed_bytes`, `summed_bytes` (the size of the values summed over cores) and `loops`, the
    number of loops. Loop bodies count once in `operations`, `accessed_bytes` and `summed_bytes`.
    All figures are per core. Otherwise it holds `error`, the compiler's message.

    Args:
        program: path of the file to read.
        topology: string, the chips to compile for.
        cores: string, "1" or the number of all cores of the chips.
        result: path of the file to write.
    """
    # Prevents libtpu from querying Google Cloud's metadata server.
    os.environ["TPU_SKIP_MDS_QUERY"] = "1"
    # There is no device, so several processes may load libtpu.
    os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"
    import jax

    try:
        with open(program, "rb") as file:
            figures = compile_for(file.read(), topology, int(cores))
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        figures = {"error": str(error)}
    with open(result, "w", encoding="utf-8") as file:
        json.dump(figures, file)


def compile_for(program, topology, cores):
    """Compiles a serialized `HloModuleProto` for cores of a topology; see `main`."""
    from jax._src import compiler
    from jax._src.interpreters import mlir
    from jax.experimental import topologies
    from jaxlib import _jax
    from jaxlib.mlir import ir

    devices = topologies.get_topology_desc(platform="tpu", topology_name=topology).devices
    if cores not in (1, len(devices)):
        raise ValueError(f"{topology} has {len(devices)} cores. Received: {cores}")
    devices = devices[:cores]
    options = compiler.get_compile_options(
        num_replicas=cores, num_partitions=1, device_assignment=[[device] for device in devices]
    )
    with mlir.make_ir_context():
        module = ir.Module.parse(_jax.mlir.hlo_to_stablehlo(program))
        module.operation.walk(as_on_tpu)
        loops = []
        module.operation.walk(lambda operation: count_loop(operation, loops))
        compiled = devices[0].client.compile(
            module, executable_devices=_jax.DeviceList(tuple(devices)), compile_options=options
        )
    memory, cost = compiled.get_compiled_memory_stats(), compiled.cost_analysis()
    return {
        "argument_bytes": memory.argument_size_in_bytes,
        "output_bytes": memory.output_size_in_bytes,
        "aliased_bytes": memory.alias_size_in_bytes,
        "temporary_bytes": memory.temp_size_in_bytes,
        "code_bytes": memory.generated_code_size_in_bytes,
        "operations": cost["flops"],
        "accessed_bytes": cost["bytes accessed"],
        "summed_bytes": summed_bytes(compiled.hlo_modules()[0].to_string()),
        "loops": len(loops),
    }


def summed_bytes(text):
    """Returns the size in bytes of the values that a compiled program sums over cores.

    Args:
        text: string, the text form of the program.

    Returns:
        An int.

    Raises:
        ValueError: if cores exchange values in another way, which is not supported.

    >>> sums = "%sums = (f32[4,8]{1,0:T(4,128)}, bf16[]) all-reduce(%x, %y), channel_id=1"
    >>> summed_bytes(f"%x = f32[4,8] add(%y, %y)\\n{sums}")
    130
    """
    total = 0
    for shapes, operation in re.findall(rf" = (.*?) ({EXCHANGES})(?:-start)?\(", text):
        if operation != "all-reduce":
            raise ValueError(
                f"the step exchanges values by {operation}, which this check does not count"
            )
        for kind, shape in re.findall(r"([a-z]+\d*)\w*\[([\d,]*)\]", shapes):
            bits = int("".join(filter(str.isdigit, kind)) or 8)
            total += bits // 8 * math.prod(map(int, filter(None, shape.split(","))))
    return total


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


def count_loop(operation, loops):
    """Appends an operation to the list if it is a loop."""
    from jaxlib.mlir import ir

    if operation.name == "stablehlo.while":
        loops.append(operation.name)
    return ir.WalkResult.ADVANCE


if __name__ == "__main__":
    main(*sys.argv[1:])
