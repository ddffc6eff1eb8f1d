"""A function of variables as one of values, which can be lowered for a device that is not there.

TensorFlow lowers a function for a platform without its device only if it takes no variables.
"""

import tensorflow as tf


def lower_for_tpu(function):
    """Lowers a function with the kernels of TPUs.

    Args:
        function: a concrete function. Its variables become arguments, and what it leaves in them
            results.

    Returns:
        The serialized `HloModuleProto`.

    Raises:
        ValueError: if an operation has no kernel; the message names it.
    """
    captures = function.captured_inputs
    held = {id(variable.handle): variable for variable in function.graph.variables}
    variables = [held.get(id(tensor), tensor) for tensor in captures]
    specs = [
        tf.TensorSpec(tensor.shape, tensor.dtype)
        for tensor in (*function.inputs[: len(function.inputs) - len(captures)], *variables)
    ]

    @tf.function(jit_compile=True, autograph=False)
    def of_values(*tensors):
        arguments, values = list(tensors), {}
        for i, tensor in enumerate(function.inputs):
            if tensor.dtype == tf.resource:
                arguments[i], values[tensor.name] = tensor.name, tensors[i]
        outputs = replay(function.graph, arguments, values)
        return outputs, list(values.values())

    return of_values.experimental_get_compiler_ir(*specs)(
        stage="hlo_serialized", platform_name="TPU"
    )


def replay(graph, arguments, values):
    """Adds the operations of a graph to the one that is being traced, without its variables.

    Args:
        graph: a function's graph, whose operations stand in an order that they may run in.
        arguments: a tensor for each input of the graph, and the name of each variable.
        values: dict of the variables' values, by name, which assignments change.

    Returns:
        The tensors that stand for the graph's outputs.
    """
    made = {tensor.name: value for tensor, value in zip(graph.inputs, arguments)}
    for operation in graph.get_operations():
        inputs = [made[tensor.name] for tensor in operation.inputs]
        if operation.type == "Placeholder":
            continue
        if operation.type == "ReadVariableOp":
            outputs = [values[inputs[0]]]
        elif operation.type.startswith("Assign"):
            change = {"Assign": _second, "AssignAdd": tf.add, "AssignSub": tf.subtract}
            change = change[operation.type.removesuffix("VariableOp")]
            values[inputs[0]] = change(values[inputs[0]], inputs[1])
            outputs = []
        elif any(isinstance(value, str) for value in inputs):
            called = operation.get_attr("f").name
            outputs = replay(graph._get_function(called).graph, inputs, values)
        else:
            outputs = _same(operation, inputs).outputs
        made |= {tensor.name: value for tensor, value in zip(operation.outputs, outputs)}
    return [made[tensor.name] for tensor in graph.outputs]


def _same(operation, inputs):
    """The operation once more, in the graph that is being traced, with other inputs."""
    return tf.compat.v1.get_default_graph().create_op(
        operation.type,
        inputs,
        [tensor.dtype for tensor in operation.outputs],
        name=operation.name,
        attrs=dict(operation.node_def.attr),
    )


def _second(first, second):
    return second
