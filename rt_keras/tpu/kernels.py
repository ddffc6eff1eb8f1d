"""Lowers functions with TPU kernels, without a TPU.

Without the device, TensorFlow only lowers functions without variables, so variables are first
turned into arguments and outputs.
"""

import tensorflow as tf

from rt_keras.keras_internals import function_in

# Operations that update a variable, as functions of its value.
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
    """Lowers a function with TPU kernels.

    Args:
        function: a concrete function.

    Returns:
        The serialized `HloModuleProto`.

    Raises:
        ValueError: if an operation has no TPU kernel; the message names it.
    """
    function, specs = of_values(function)
    try:
        compiler_ir = function.experimental_get_compiler_ir(*specs)
        return compiler_ir(stage="hlo_serialized", platform_name="TPU")
    except ValueError as error:
        # The other lines are advice and stack traces.
        raise ValueError(str(error).splitlines()[0]) from None


def of_values(function):
    """Converts a function to one without variables.

    Args:
        function: a concrete function.

    Returns:
        A `tf.function` for XLA that takes the function's arguments and the values of its variables,
        and returns its outputs and the new values of the variables; and the `tf.TensorSpec`s of its
        arguments. Calling it raises a ValueError if a branch or a loop of the function uses a
        variable.

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
    """Adds the operations of a graph, without its variables, to the graph being traced.

    Args:
        graph: graph of a function, with its operations in an executable order.
        arguments: list with a tensor or the name of a variable for each input of the graph.
        values: dictionary from the names of variables to their values, updated by assignments.

    Returns:
        The list of the graph's outputs.
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
            outputs = replay(function_in(graph, called).graph, inputs, values)
        else:
            outputs = _same(operation, inputs).outputs
        made |= {tensor.name: value for tensor, value in zip(operation.outputs, outputs)}
    return [made[tensor.name] for tensor in graph.outputs]


def _same(operation, inputs):
    """Copies an operation with other inputs to the graph being traced."""
    return tf.compat.v1.get_default_graph().create_op(
        operation.type,
        inputs,
        [tensor.dtype for tensor in operation.outputs],
        name=operation.name,
        attrs=dict(operation.node_def.attr),
    )
