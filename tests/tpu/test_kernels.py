import numpy as np
import pytest
import tensorflow as tf

from rt_keras.tpu import kernels


def test_a_function_of_values_leaves_what_that_of_variables_does():
    total, count = tf.Variable(tf.zeros([3])), tf.Variable(1)
    factor = tf.constant([2.0, 3.0, 4.0])

    @tf.function
    def inner(x):
        count.assign_sub(3)
        return x * tf.cast(count, x.dtype)

    @tf.function
    def outer(x):
        total.assign_add(x)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(inner(x) ** 2) + tf.reduce_sum(total)
        for change in (total.scatter_sub, total.scatter_add):
            change(tf.IndexedSlices(x[:2], tf.constant([2, 1])))
        total.scatter_sub(tf.IndexedSlices(x, tf.constant([0, 2, 0])))
        total.assign(total * factor + tape.gradient(y, x))
        left = total.read_value()
        return tf.cond(y > 0, lambda: left + 1.0, lambda: -left), left

    concrete = outer.get_concrete_function(tf.TensorSpec([3]))
    function, specs = kernels.of_values(concrete)
    started = {total.handle._id: total.numpy(), count.handle._id: count.numpy()}
    values = [
        tf.constant(started.get(tensor._id, factor.numpy())) for tensor in concrete.captured_inputs
    ]
    assert [spec.dtype for spec in specs[1:]] == [value.dtype for value in values]

    x = tf.constant([1.0, -2.0, 0.5])
    outputs, left = function(x, *values)
    np.testing.assert_array_equal(total, np.zeros(3))
    for mine, wanted in zip(outputs, outer(x), strict=True):
        np.testing.assert_allclose(mine, wanted, rtol=1e-6)
    after = {total.handle._id: total.numpy(), count.handle._id: count.numpy()}
    wanted = [after[t._id] for t in concrete.captured_inputs if t.dtype == tf.resource]
    for mine, value in zip(left, wanted, strict=True):
        np.testing.assert_allclose(mine, value, rtol=1e-6)


def test_a_variable_in_a_branch_is_refused():
    total = tf.Variable(1.0)
    branches = tf.function(lambda x: tf.cond(x > 0, lambda: total + 1.0, lambda: -total))
    function, specs = kernels.of_values(branches.get_concrete_function(tf.TensorSpec([])))
    with pytest.raises(ValueError, match="If cond uses a variable inside"):
        function.get_concrete_function(*specs)


def test_an_operation_without_a_kernel_is_told_in_one_line():
    # This machine has neither a kernel for it nor a device of this kind.
    function = tf.function(tf.strings.as_string).get_concrete_function(tf.TensorSpec([2]))
    with pytest.raises(ValueError, match="^[^\n]*$"):
        kernels.lower_for_tpu(function)
