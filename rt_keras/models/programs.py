"""The compiled functions of a model, for training, generation, streaming and evaluation."""

from rt_keras.models.shared_blocks import compiled_blocks, function_of_its_own
from rt_keras.ops.devices import has_accelerator, has_tpu


class Programs:
    """The compiled functions of a model, by name, and the variables that they were compiled for.

    A plain object, whose contents neither Keras nor `tf.saved_model` saves.
    """

    def __init__(self, variables):
        self.variables, self.functions = variables, {}


def compile_once(model, name, function, jit_compile=None, of_blocks=False):
    """Returns a compiled function of a model; see `make_once` and `compile_function`."""
    return make_once(model, name, lambda: compile_function(model, function, jit_compile, of_blocks))


def make_once(model, name, make):
    """Returns a function of a model, which is made at its first use, as Keras's `test_function`.

    It is made again after `compile` and after variables are replaced, as quantization and LoRA do.

    Args:
        model: a task with `rt_keras.models.training.Training`.
        name: string, name of the function.
        make: function without arguments that makes it.

    Returns:
        The return value of `make`.

    >>> from rt_keras import models
    >>> from rt_keras.layers import LocalHeads
    >>> backbone = models.RoutingTransformerBackbone(9, 1, 4, 4, [LocalHeads(1, block_size=4)])
    >>> model = models.RoutingTransformerCausalLM(backbone)
    >>> first = make_once(model, "first", lambda: object())
    >>> make_once(model, "first", lambda: object()) is first
    True
    """
    variables = [id(variable) for variable in model.variables]
    programs = model.programs
    if programs is None or programs.variables != variables:
        model.programs = programs = Programs(variables)
    # Another thread may make it at the same time.
    return programs.functions.get(name) or programs.functions.setdefault(name, make())


def compile_function(model, function, jit_compile=None, of_blocks=False):
    """Returns a `tf.function`, or the given function itself if the model runs eagerly.

    Args:
        model: a task with `rt_keras.models.training.Training`.
        function: function of tensors.
        jit_compile: bool, whether XLA compiles it. Defaults to None, for `model.jit_generate`.
        of_blocks: bool, whether the function calls blocks, so that equal blocks share functions.
            XLA compiles these on accelerators, and the whole function on a TPU. Defaults to False.
    """
    if model.run_eagerly:
        return function
    if not of_blocks or has_tpu():
        jit_compile = model.jit_generate if jit_compile is None else jit_compile
        return function_of_its_own(function, jit_compile)

    def call_blocks(*args, **kwargs):
        with compiled_blocks(model.jit_generate and has_accelerator()):
            return function(*args, **kwargs)

    return function_of_its_own(call_blocks, False)
