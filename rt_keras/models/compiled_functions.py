"""Cache of a model's compiled functions for generation, streaming and evaluation."""

import types

from rt_keras.models.shared_blocks import compiled_blocks, function_of_its_own
from rt_keras.ops.devices import has_accelerator, has_tpu


class CompiledFunctions:
    """Mixin that caches compiled functions, as `keras.Model` does with `test_function`.

    List it before KerasHub's base classes.
    """

    # True if XLA compiles the functions; set by `compile`.
    jit_generate = True
    _kept = None

    def compiled_function(self, name, make):
        """Returns a cached function, which is created at its first use.

        It is created again after `compile` and after variables are replaced, as quantization and
        LoRA do.

        Args:
            name: string, name of the function.
            make: function without arguments that creates it.

        Returns:
            The return value of `make`.

        >>> from rt_keras import models
        >>> from rt_keras.layers import LocalHeads
        >>> backbone = models.RoutingTransformerBackbone(9, 1, 4, 4, [LocalHeads(1, block_size=4)])
        >>> model = models.RoutingTransformerCausalLM(backbone)
        >>> first = model.compiled_function("own", lambda: object())
        >>> model.compiled_function("own", lambda: object()) is first
        True
        """
        variables = [id(variable) for variable in self.variables]
        kept = self._kept
        if kept is None or kept.variables != variables:
            # A plain object, whose contents neither Keras nor `tf.saved_model` saves.
            self._kept = kept = types.SimpleNamespace(variables=variables, functions={})
        # Another thread may create it at the same time.
        return kept.functions.get(name) or kept.functions.setdefault(name, make())

    def make_function(self, function, jit_compile=None):
        """Returns a `tf.function`, or the given function itself if the model runs eagerly.

        Args:
            function: function of tensors.
            jit_compile: bool, whether XLA compiles it. Defaults to None, for `jit_generate`.
        """
        if self.run_eagerly:
            return function
        return function_of_its_own(
            function, self.jit_generate if jit_compile is None else jit_compile
        )

    def make_function_of_blocks(self, function):
        """Returns a `tf.function` in which equal blocks share functions.

        XLA compiles these functions on accelerators, and the whole function on a TPU.

        Args:
            function: function of tensors, which runs the blocks.
        """
        if has_tpu():
            return self.make_function(function)

        def run(*args, **kwargs):
            with compiled_blocks(self.jit_generate and has_accelerator()):
                return function(*args, **kwargs)

        return self.make_function(run, False)
