"""The compiled functions that a model keeps: for generation, for streaming, for evaluation."""

import types


class CompiledFunctions:
    """Mixin of models, before KerasHub's bases: functions that are compiled once and kept.

    They are to these models what `test_function` is to `keras.Model`.
    """

    # Whether XLA compiles them; `compile` sets it.
    jit_generate = True
    _kept = None

    def compiled_function(self, name, make):
        """Returns a function that is made at its first use, and again when it would be outdated.

        It is outdated after `compile` and when variables are replaced, as quantization and LoRA do.

        Args:
            name: string, what the function is for.
            make: function without arguments that makes it.

        Returns:
            What `make` returned.

        >>> from rt_keras import models
        >>> from rt_keras.layers import LocalHeads
        >>> backbone = models.RoutingTransformerBackbone(9, 1, 4, 4, [LocalHeads(1, block_size=4)])
        >>> model = models.RoutingTransformerCausalLM(backbone)
        >>> first = model.compiled_function("own", lambda: object())
        >>> model.compiled_function("own", lambda: object()) is first
        True
        """
        variables = [id(variable) for variable in self.variables]
        if self._kept is None or self._kept.variables != variables:
            # A plain object: neither Keras nor `tf.saved_model` saves what it holds.
            self._kept = types.SimpleNamespace(variables=variables, functions={})
        if name not in self._kept.functions:
            self._kept.functions[name] = make()
        return self._kept.functions[name]
