"""How every task trains: `compile`, the steps of `fit` and `evaluate`, and several replicas."""

import itertools
import types

import keras
import tensorflow as tf

from rt_keras.keras_internals import FirstBatch, keep_gradients
from rt_keras.layers.centroids import heads_with_centroids
from rt_keras.layers.head_group import positive_int
from rt_keras.models.compiled_functions import CompiledFunctions


class Training(CompiledFunctions, FirstBatch):
    """Mixin of tasks, before KerasHub's bases: Keras's `fit` under any `tf.distribute` strategy.

    A step computes what it would on one device with the whole batch: each replica the gradients of
    its share, which are then added up. Several machines get their data by
    `strategy.distribute_datasets_from_function`.

    What a step scores is what the model's call returns. A subclass in which it is something else
    overrides `step_outputs`, and `compile_arguments` if losses and metrics change with it. Neither
    `compile` nor a step is overridden anywhere else.

    Keras 3 supports neither several machines nor XLA on several replicas. What is in its way is
    mended here, and nowhere else:

    - XLA compiles no collective operation. So each replica compiles its forward and backward pass
      by itself, if `jit_compile` says so, and what follows is not compiled.
    - Keras clips the gradients of each replica before it adds them up. Here they are clipped
      afterwards.
    - Before `fit` it averages a batch over the replicas, to see its shape. Several machines cannot
      average a structure of tensors. Here the share of one replica is enough.
    - KerasHub takes data that are distributed already for arrays. They go to Keras's own `fit`.
    - Keras averages the logs of several machines over their first axis. They are scalars; here they
      get one.
    - Keras's loop of `steps_per_execution` steps looks for more data before each of them, which
      fails on several replicas. Here an execution starts once it has all of its batches.

    Source: Keras's issue 20585.
    """

    # XLA compiles the forward and backward pass of a replica; see `compile`.
    jit_replica = False
    _of_fit = None

    def compile(self, *args, jit_compile="auto", gradient_accumulation_steps=1, **kwargs):
        """Configures the model for training and generation.

        Args:
            *args, **kwargs: arguments of KerasHub's `compile`; see `compile_arguments`.
            jit_compile: bool or "auto", whether XLA compiles training, and generation with it.
                Defaults to "auto", which is Keras's default in training and True in generation.
            gradient_accumulation_steps: int, equal parts of a batch, or of a replica's share, that
                go through the model one after the other; their gradients are added up, and the
                weights move once. It takes the memory of one part. Defaults to 1. That of Keras's
                optimizers moves the weights every so many steps instead, and fails on several
                replicas.
        """
        args, kwargs = self.compile_arguments(*args, **kwargs)
        super().compile(*args, jit_compile=jit_compile, **kwargs)
        self.jit_generate, self._kept = bool(jit_compile), None
        self.gradient_accumulation_steps = positive_int(
            "gradient_accumulation_steps", gradient_accumulation_steps
        )
        with self.distribute_strategy.scope():
            norm = tf.Variable(
                0.0,
                trainable=False,
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
            )
        # A plain object: the norm is no weight of the model.
        self._of_fit = types.SimpleNamespace(gradient_norm=norm, is_built=False)
        if is_replicated(self.distribute_strategy):
            # `TPUStrategy` has all of a step compiled.
            is_tpu = isinstance(self.distribute_strategy, tf.distribute.TPUStrategy)
            self.jit_replica, self.jit_compile = self.jit_compile and not is_tpu, False
            # They come as sums.
            keep_gradients(getattr(self.optimizer, "inner_optimizer", self.optimizer))

    def compile_arguments(self, *args, **kwargs):
        """The arguments of KerasHub's `compile` for those that `compile` was given.

        Args:
            *args, **kwargs: arguments of KerasHub's `compile`.

        Returns:
            A tuple and a dictionary.
        """
        return args, kwargs

    def step_outputs(self, x, y, training):
        """What the loss and the metrics of a step read of a batch.

        Args:
            x: the inputs of the batch.
            y: its labels.
            training: bool, whether the step is one of training.

        Returns:
            What losses and metrics take as `y_pred`; here what a call of the model returns.
        """
        return self(x, training=training)

    def fit(self, x=None, *args, **kwargs):
        if isinstance(x, tf.distribute.DistributedDataset):
            return keras.Model.fit(self, x, *args, **kwargs)
        return super().fit(x, *args, **kwargs)

    @property
    def gradient_norm(self):
        """The norm of all gradients of the last step together, a float; 0 before the first."""
        return float(tf.convert_to_tensor(self._of_fit.gradient_norm))

    def train_step(self, data):
        if not self.trainable_weights:
            return super().train_step(data)
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        gradients_and_logs = self._gradients_and_logs
        if self.jit_replica:
            gradients_and_logs = tf.function(gradients_and_logs, jit_compile=True)
        gradients, logs = gradients_and_logs(x, y, sample_weight)
        # Weights that the loss does not depend on have none.
        used = [i for i, gradient in enumerate(gradients) if gradient is not None]
        gradients = [gradients[i] for i in used]
        if is_replicated(self.distribute_strategy):
            replica = tf.distribute.get_replica_context()
            gradients = replica.all_reduce(tf.distribute.ReduceOp.SUM, gradients)
        self._of_fit.gradient_norm.assign(tf.linalg.global_norm(gradients))
        weights = [self.trainable_weights[i] for i in used]
        self.optimizer.apply_gradients(zip(gradients, weights))
        return self._logs(logs)

    def test_step(self, data):
        batch = keras.utils.unpack_x_y_sample_weight(data)
        _, y_pred = self._loss(*batch, training=False)
        return self._logs(self.compute_metrics(*batch[:2], y_pred, sample_weight=batch[2]))

    def _gradients_and_logs(self, *batch):
        """The gradients of the mean loss of all replicas, this one's share, and its metrics."""
        count = self.gradient_accumulation_steps
        if count == 1:
            return self._gradients(*batch), self.get_metrics_result()
        parts = _each(lambda x: _split(x, count), batch)
        unused = set()

        def add_part(number, sums):
            gradients = self._gradients(*_each(lambda x: x[number], parts))
            unused.update(i for i, gradient in enumerate(gradients) if gradient is None)
            return number + 1, [
                total if gradient is None else total + tf.convert_to_tensor(gradient) / count
                for total, gradient in zip(sums, gradients)
            ]

        zeros = [tf.zeros(weight.shape, weight.dtype) for weight in self.trainable_weights]
        _, sums = tf.while_loop(lambda i, _: i < count, add_part, [0, zeros])
        for heads in heads_with_centroids(self):
            heads.count_as_one_batch(count)
        gradients = [None if i in unused else total for i, total in enumerate(sums)]
        return gradients, self.get_metrics_result()

    def _gradients(self, x, y, sample_weight):
        """The gradients of the mean loss of a batch; its loss and metrics are noted."""
        with tf.GradientTape() as tape:
            loss, y_pred = self._loss(x, y, sample_weight, training=True)
            loss = self.optimizer.scale_loss(loss)
        self.compute_metrics(x, y, y_pred, sample_weight=sample_weight)
        return tape.gradient(loss, self.trainable_weights)

    def _loss(self, x, y, sample_weight, training):
        """The loss of a batch, this replica's share, which is noted; and what it was read from."""
        y_pred = self.step_outputs(x, y, training)
        loss = self.compute_loss(x, y, y_pred, sample_weight, training=training)
        mean = next(metric for metric in self.metrics if metric.name == "loss")
        # Keras has divided it by the number of replicas.
        replicas = self.distribute_strategy.num_replicas_in_sync
        mean.update_state(loss * replicas, sample_weight=tf.shape(tf.nest.flatten(x)[0])[0])
        return loss, y_pred

    def _logs(self, logs):
        if _is_multi_worker(self.distribute_strategy):
            return {name: value[None] for name, value in logs.items()}
        return logs

    def make_train_function(self, force=False):
        made = self.train_function
        super().make_train_function(force)
        if self.train_function is not made:
            self.train_function = self._by_executions(self.train_function)

    def make_test_function(self, force=False):
        made = self.test_function
        super().make_test_function(force)
        if self.test_function is not made:
            self.test_function = self._by_executions(self.test_function)

    def _by_executions(self, function):
        """Keras's function of an iterator, which takes all batches of an execution before it."""
        steps = self.steps_per_execution
        if steps == 1 or not is_replicated(self.distribute_strategy):
            return function
        # Keras's function takes one step with each batch of a list.
        take_steps = tf.function(function)

        def execute(iterator):
            batches = list(itertools.islice(iterator, steps))
            if not batches:
                raise StopIteration
            return take_steps(batches)

        return execute

    def look_at_batch(self, look, iterator, data_batch):
        strategy = self.distribute_strategy
        if iterator is None or not is_replicated(strategy):
            look(iterator, data_batch)
        elif not self._of_fit.is_built:
            _, _, batches = next(iter(iterator))
            data_batch = keras.tree.map_structure(
                lambda values: strategy.experimental_local_results(values)[0], next(batches)
            )
            look(data_batch=data_batch)
            self._of_fit.is_built = True


def _each(function, batch):
    """A function of each tensor of a batch, which may have no labels or weights."""
    return tf.nest.map_structure(lambda x: x if x is None else function(x), batch)


def _split(values, count):
    """`[batch, ...]` as `[count, batch / count, ...]`."""
    size = tf.shape(values)[0] if values.shape[0] is None else values.shape[0]
    message = (
        "gradient_accumulation_steps must divide the number of examples of a replica. Received: "
        f"{count}"
    )
    if not isinstance(size, int):
        with tf.control_dependencies([tf.debugging.assert_equal(size % count, 0, message)]):
            size = tf.identity(size)
    elif size % count:
        raise ValueError(f"{message}, for {size} examples")
    return tf.reshape(values, [count, size // count, *values.shape[1:]])


def _is_multi_worker(strategy):
    return isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)


def is_replicated(strategy):
    """Whether several replicas share each batch, or several workers may.

    Args:
        strategy: a `tf.distribute.Strategy`.

    >>> is_replicated(tf.distribute.get_strategy())
    False
    """
    return strategy.num_replicas_in_sync > 1 or _is_multi_worker(strategy)


class ModelCall(keras.layers.Layer):
    """Runs a function of a model as Keras runs its call: in its dtype, with losses begun anew.

    Args:
        model: a Keras model.
        function: function of tensors and `training`.
    """

    def __init__(self, model, function):
        super().__init__(dtype=model.dtype_policy)
        # The model is a layer inside this one.
        self.model, self.function = model, function
        self.built = True

    def call(self, *tensors, training=None):
        return self.function(*tensors, training=training)
