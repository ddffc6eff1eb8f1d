"""Arguments of a constructor that are attributes and entries of the configuration alike."""

import keras


class KeptArguments:
    """Mixin of layers and models, before Keras's bases: the arguments that `get_config` returns."""

    _kept_arguments = ()

    def keep_arguments(self, arguments, leave=()):
        """Makes arguments of the constructor attributes and entries of the configuration.

        Args:
            arguments: dictionary of their values, which are plain data or initializers: `locals()`
                at the start of the constructor.
            leave: names of those that are neither, which the class keeps in another way. `dtype`
                and `kwargs` are left in any case.
        """
        leave = {"self", "__class__", "dtype", "kwargs", *leave}
        kept = {name: value for name, value in arguments.items() if name not in leave}
        self._kept_arguments = (*self._kept_arguments, *kept)
        for name, value in kept.items():
            setattr(self, name, value)

    def get_config(self):
        kept = {name: getattr(self, name) for name in self._kept_arguments}
        for name, value in kept.items():
            if isinstance(value, keras.Initializer):
                kept[name] = keras.initializers.serialize(value)
        return {**super().get_config(), **kept}
