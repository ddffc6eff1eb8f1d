"""One traced function for all equal blocks of a model.

Outside XLA, a graph of 30 blocks holds the operations of each. Here it holds 30 calls of one
function, whose arguments are the weights, so that a model is traced, optimized and saved in a
fraction of the time. Inside `compiled_blocks`, XLA compiles these functions. Where XLA compiles a
whole step, and on several replicas, nothing is shared.
"""

import contextlib
import contextvars
import functools

import keras
import numpy as np
import tensorflow as tf

from rt_keras.keras_internals import (
    all_layers_of,
    attach_mask,
    compiled_by_xla,
    global_seed_state,
    in_stateless_scope,
    is_training,
    mask_of,
    without_autocast,
)
from rt_keras.models.documents import SEGMENT_IDS, separated
from rt_keras.ops.devices import has_accelerator

COMPILED = contextvars.ContextVar("compiled", default=False)


@contextlib.contextmanager
def compiled_blocks(jit_compile=True):
    """Makes XLA compile the functions that equal blocks share, of calls inside this context."""
    token = COMPILED.set(jit_compile)
    try:
        yield
    finally:
        COMPILED.reset(token)


def function_of_its_own(function, jit_compile):
    """Returns a `tf.function` that TensorFlow does not inline into others, or that XLA compiles."""
    attributes = None if jit_compile else {"_noinline": True}
    return tf.function(
        function, jit_compile=jit_compile, autograph=False, experimental_attributes=attributes
    )


def share_equal_blocks(blocks, methods=("call",), never=()):
    """Makes blocks that differ only in the values of their weights call one function in graphs.

    Args:
        blocks: list of layers.
        methods: names of the methods that share functions. Defaults to `("call",)`.
        never: names of arguments that must be None in calls that share a function.
    """
    for method in methods:
        functions = {}
        for block in blocks:
            # Not `functools.wraps`, from which Keras would read another signature.
            shared = functools.partial(_call, block, getattr(block, method), functions, never)
            setattr(block, method, shared)


def _call(block, call, functions, never, *args, **kwargs):
    if not _can_share() or any(kwargs.get(name) is not None for name in never):
        return call(*args, **kwargs)
    tensors = [x for x in keras.tree.flatten((args, kwargs)) if tf.is_tensor(x)]
    segment_ids = SEGMENT_IDS.get()
    masks = [mask_of(x) for x in tensors]
    arguments = keras.tree.map_structure(_without_value, (args, kwargs))
    name = str(
        (
            what_differs(block),
            [None if x is None else (x.shape, x.dtype) for x in (*tensors, *masks, segment_ids)],
            arguments,
            is_training(),
            COMPILED.get(),
        )
    )
    shared = functions.get(name)
    if shared is None:
        # Another thread may create it at the same time.
        shared = functions.setdefault(name, _Shared(block, call, arguments, COMPILED.get()))
    # Each layer inside casts the weights to its own dtype.
    with without_autocast():
        values = [variable.value for variable in block.variables]
    outputs, updates, losses = shared.function(values, tensors, masks, segment_ids)
    state = _state(block)
    for number, value in zip(shared.updated, updates, strict=True):
        state[number].assign(value)
    for loss in losses:
        block.add_loss(loss)
    return outputs


def _without_value(x):
    return tf.Tensor if tf.is_tensor(x) else x


def _state(block):
    """Returns all variables that a call of a block may update."""
    return [*block.variables, *global_seed_state()]


def _can_share():
    """Returns whether operations that are created now are parts of a graph without XLA.

    On an accelerator, functions are worth their calls only if XLA compiles them.
    """
    in_graph = not (tf.executing_eagerly() or in_stateless_scope() or compiled_by_xla())
    worth_it = COMPILED.get() or not has_accelerator()
    return in_graph and worth_it and not tf.distribute.has_strategy()


class _Shared:
    """The function of equal blocks.

    Args:
        block: the first of them.
        call: its own method `call`.
        arguments: tuple of the positional and the keyword arguments of its call, with `tf.Tensor`
            in place of each tensor.
        jit_compile: bool, whether XLA compiles the function.

    Attributes:
        function: `tf.function` of the values of the block's variables, of the tensors among the
            arguments, of their masks, and of the documents in a row. It returns the outputs, the
            new values of the variables that a call updates, and the losses that it adds.
        updated: list of the numbers of these variables in `_state`, set when the function is
            traced.
    """

    def __init__(self, block, call, arguments, jit_compile):
        self.block, self.call, self.arguments, self.updated = block, call, arguments, []
        self.function = function_of_its_own(self._run, jit_compile)

    def _run(self, values, tensors, masks, segment_ids):
        for tensor, mask in zip(tensors, masks, strict=True):
            if mask is not None:
                attach_mask(tensor, mask)
        given = iter(tensors)
        args, kwargs = keras.tree.map_structure(
            lambda x: next(given) if x is tf.Tensor else x, self.arguments
        )
        variables = self.block.variables
        graph = tf.compat.v1.get_default_graph()
        # Only here: TensorFlow cannot save a graph with an own gradient.
        powers = {"Pow": "rt_keras>Power"} if is_training() else {}
        with (
            graph.gradient_override_map(powers),
            separated(segment_ids),
            keras.StatelessScope(zip(variables, values), collect_losses=True) as scope,
        ):
            before = [scope.get_current_value(x) for x in variables]
            outputs = self.call(*args, **kwargs)
        after = [scope.get_current_value(x) for x in _state(self.block)]
        # Keras's own seed has no value in the scope before it is drawn.
        self.updated = [i for i, (x, y) in enumerate(zip([*before, None], after)) if x is not y]
        return outputs, [after[i] for i in self.updated], scope.losses


@tf.RegisterGradient("rt_keras>Power")
def _power_gradient(op, upstream):
    """Computes the gradient of a square, as in KerasHub's norms, without the power x^(2 - 1).

    TensorFlow knows the exponent as a result of the forward pass instead of a constant.
    """
    x, exponent = op.inputs
    if np.array_equal(tf.get_static_value(exponent), 2):
        return 2 * x * upstream, None
    with tf.GradientTape() as tape:
        tape.watch([x, exponent])
        power = tf.pow(x, exponent)
    return tape.gradient(power, [x, exponent], upstream)


def new_caches(blocks, batch, max_length):
    """Returns an empty cache of each block, in a tuple. Equal blocks share theirs.

    Args:
        blocks: list of layers with `new_cache(batch, max_length)`.
        batch: int or scalar tensor, number of rows.
        max_length: int, maximum number of positions.
    """
    names, caches = [str(what_differs(block)) for block in blocks], {}
    for name, block in zip(names, blocks):
        if name not in caches:
            caches[name] = block.new_cache(batch, max_length)
    return tuple(caches[name] for name in names)


def what_differs(block):
    """Returns what determines the operations of a block, equal for blocks that share a function."""
    layers = [block, *all_layers_of(block)]
    weights = [(weight.shape, weight.dtype, weight.trainable) for weight in block.variables]
    return weights, [(type(x), x.dtype_policy, without_names(_config_of(x))) for x in layers]


def _config_of(layer):
    try:
        return layer.get_config()
    except AttributeError:
        # KerasHub's Llama block has a `get_config` that fails. The layers inside it differ with it.
        return None
    except NotImplementedError:
        if not type(layer).__module__.startswith("keras_hub."):
            # A user's layer without `get_config` equals no other.
            return id(layer)
        # As the normalization of Gemma 3, whose options are plain attributes.
        options = {name: x for name, x in vars(layer).items() if not name.startswith("_")}
        return {name: x for name, x in options.items() if isinstance(x, (int, float, str))}


def without_names(config):
    """Removes the names of layers from a configuration. Equal layers differ in them."""
    if isinstance(config, dict):
        return {key: without_names(x) for key, x in config.items() if key != "name"}
    if isinstance(config, (list, tuple)):
        return [without_names(x) for x in config]
    return config
