"""A function of variables as one of values, which can be lowered for a device that is not there.

TensorFlow lowers a function for a platform without its device only if it takes no variables.
"""

import tensorflow as tf

# What changes a variable, as functions from its value to the new one.
CHANGES = {
    "AssignVariableOp": lambda old, new: new,
    "AssignAddVariableOp": tf.add,
    "AssignSubVariableOp": tf.subtract,
    "ResourceScatterAdd": lambda old, rows, values: tf.tensor_scatter_nd_add(
        old, rows[..., None], values
    ),
    "ResourceScatterSub": lambda old, rows, values: tf.tensor_scatter_nd_sub(
        old, rows[..., None], values
    ),
}


def lower_for_tpu(function):
    """Lowers a concrete function with the kernels of TPUs.

    Returns:
        The serialized `HloModuleProto`.

    Raises:
        ValueError: if an operation has no kernel; the message names it.
    """
    function, specs = of_values(function)
    try:
        compiler_ir = function.experimental_get_compiler_ir(*specs)
        return compiler_ir(stage="hlo_serialized", platform_name="TPU")
    except ValueError as error:
        # After its first line come advice and traces.
        raise ValueError(str(error).splitlines()[0]) from None


def of_values(function):
    """The function without variables.

    Args:
        function: a concrete function.

    Returns:
        A `tf.function` for XLA, of the function's arguments and the values of its variables, that
        returns its outputs and the values which it leaves in the variables; and the
        `tf.TensorSpec`s of its arguments.

    Raises:
        ValueError: when it is called, if a branch or a loop uses a variable.

    >>> total = tf.Variable([1.0, 2.0])
    >>> add = tf.function(total.assign_add).get_concrete_function(tf.TensorSpec([2]))
    >>> function, specs = of_values(add)
    >>> _, (left,) = function(tf.constant([1.0, 1.0]), tf.constant([3.0, 3.0]))
    >>> left.numpy(), total.numpy()
    (array([4., 4.], dtype=float32), array([1., 2.], dtype=float32))
    """
    captures = function.captured_inputs
    held = {id(variable.handle): variable for variable in function.graph.variables}
    variables = [held.get(id(tensor), tensor) for tensor in captures]
    specs = [
        tf.TensorSpec(tensor.shape, tensor.dtype)
        for tensor in (*function.inputs[: len(function.inputs) - len(captures)], *variables)
    ]

    @tf.function(jit_compile=True, autograph=False)
    def without_variables(*tensors):
        arguments, values = list(tensors), {}
        for i, tensor in enumerate(function.inputs):
            if tensor.dtype == tf.resource:
                arguments[i], values[tensor.name] = tensor.name, tensors[i]
        outputs = replay(function.graph, arguments, values)
        return outputs, list(values.values())

    return without_variables, specs


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
        elif operation.type in CHANGES:
            values[inputs[0]] = CHANGES[operation.type](values[inputs[0]], *inputs[1:])
            outputs = []
        elif any(isinstance(value, str) for value in inputs):
            if not operation.type.endswith("PartitionedCall"):
                raise ValueError(f"{operation.type} {operation.name} uses a variable inside")
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
