"""Constructor arguments as attributes and as entries of the config."""

import keras


class KeptArguments:
    """Mixin that stores constructor arguments and returns them from `get_config`.

    List it before Keras's base classes.
    """

    _kept_arguments = ()

    def keep_arguments(self, arguments, leave=()):
        """Stores arguments of the constructor as attributes and entries of the config.

        Args:
            arguments: dictionary of plain data or initializers by name, such as `locals()` at the
                start of the constructor.
            leave: names of arguments to leave out, which the class stores in another way. `dtype`
                and `kwargs` are always left out.

        Returns:
            Dictionary of the stored arguments.
        """
        leave = {"self", "__class__", "dtype", "kwargs", *leave}
        kept = {name: value for name, value in arguments.items() if name not in leave}
        for name, value in kept.items():
            setattr(self, name, value)
        self._kept_arguments = (*self._kept_arguments, *kept)
        return kept

    def get_config(self):
        kept = {name: getattr(self, name) for name in self._kept_arguments}
        for name, value in kept.items():
            if isinstance(value, keras.Initializer):
                kept[name] = keras.initializers.serialize(value)
        return {**super().get_config(), **kept}
