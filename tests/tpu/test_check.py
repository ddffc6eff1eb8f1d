import pytest
import tensorflow as tf

from rt_keras.tpu import check
from rt_keras.tpu.compile import summed_bytes
from tests.tpu.checks import needs_compiler


@needs_compiler
def test_what_does_not_fit_is_told_in_one_line():
    @tf.function(jit_compile=True)
    def large(x):
        return tf.reduce_sum(tf.sort(tf.cumsum(tf.broadcast_to(x, [5, 2**20, 2**10])))[:, ::3])

    compiler_ir = large.experimental_get_compiler_ir(tf.TensorSpec([1, 1, 2**10]))
    program = compiler_ir(stage="hlo_serialized")
    with pytest.raises(ValueError, match="^for v5e:2x2: the step does not fit: [^\n]*15.75G"):
        check.compile_program(program, "v5e:2x2")


@needs_compiler
def test_loops_are_told_as_they_are_counted_once():
    @tf.function(jit_compile=True)
    def looped(x):
        return tf.while_loop(lambda i, x: i < 7, lambda i, x: (i + 1, x @ x), [0, x])[1]

    program = looped.experimental_get_compiler_ir(tf.TensorSpec([256, 256]))("hlo_serialized")
    found = check.compile_program(program, "v5e:2x2")
    assert found["loops"] == 1
    assert 2 * 256**3 <= found["operations"] < 4 * 256**3


@needs_compiler
def test_a_shape_that_does_not_exist_is_told_in_one_line():
    with pytest.raises(ValueError, match="^for v5e:3x7: [^\n]*3x7"):
        check.compile_program(b"", "v5e:3x7")


@needs_compiler
def test_cores_that_the_chips_do_not_have_are_told_in_one_line():
    with pytest.raises(ValueError, match="^for v5e:2x2: [^\n]*has 4 cores. Received: 3$"):
        check.compile_program(b"", "v5e:2x2", cores=3)


def test_a_batch_that_cores_cannot_share_is_refused():
    with pytest.raises(ValueError, match="data.batch_size is 4, which 16 cores cannot share"):
        check.share(4, cores=16)


def test_chips_with_two_cores_count_twice():
    check.check_cores(8, "v4:2x2x1")
    with pytest.raises(ValueError, match="--cores must be 1, or 8 for all of v4:2x2x1"):
        check.check_cores(4, "v4:2x2x1")


def test_an_exchange_that_is_no_sum_is_not_taken_for_one():
    program = "%a = f32[8]{0} all-reduce(%b)\n%parts = (f32[2], f32[8]) all-gather-start(%a)"
    with pytest.raises(ValueError, match="the step exchanges values by all-gather"):
        summed_bytes(program)


def test_a_package_that_is_missing_is_named_with_what_to_install():
    with pytest.raises(ModuleNotFoundError, match="none is installed: pip install no-such==1.2$"):
        check.check_packages({"no-such": "1.2"})
