"""Training of every task: `compile`, the steps of `fit` and `evaluate`, multiple replicas."""

import itertools
import types

import keras
import tensorflow as tf

from rt_keras.keras_internals import FirstBatch, clear_losses, keep_gradients
from rt_keras.layers.centroids import centroids_inside
from rt_keras.layers.head_group import positive_int
from rt_keras.models.programs import compile_once
from rt_keras.models.shares_of_parts import Shares, check_entries, shares_of, shares_of_loss


class Training(FirstBatch):
    """Mixin of tasks whose `fit` runs under any `tf.distribute` strategy.

    List it before KerasHub's base classes. A step computes the same as on one device with the whole
    batch: each replica computes the gradients of its share, and the gradients are summed. Multiple
    workers get their data from `strategy.distribute_datasets_from_function`.

    By default, losses and metrics read the output of the model's call. A subclass in which they
    read something else overrides `step_outputs`, and `compile_arguments` if it also needs other
    losses and metrics. No subclass overrides `compile` or the steps.

    Keras 3 supports neither multiple workers nor XLA on multiple replicas. This class contains all
    workarounds:

    - XLA cannot compile collective operations. With `jit_compile`, each replica therefore compiles
      its forward and backward pass, and the rest of the step is not compiled.
    - Keras clips the gradients of each replica before summing them. Here, the sum is clipped.
    - Before `fit`, Keras averages a batch over the replicas to infer its shape. Multiple workers
      cannot average a structure of tensors. Here, the share of one replica is used.
    - KerasHub mistakes distributed datasets for arrays. Here, they are passed to Keras's `fit`.
    - Keras averages the logs of multiple workers over the first axis, but logs are scalars. Here,
      they get an axis.
    - Keras's loop of `steps_per_execution` steps checks for more data before each step, which fails
      on multiple replicas. Here, an execution starts once it has all of its batches.

    Source: Keras's issue 20585.
    """

    # True if XLA compiles the forward and backward pass of each replica; see `compile`.
    jit_replica = False
    # True if the loss reads the outputs of all replicas. XLA then compiles their computation alone.
    loss_reads_all_replicas = False
    # True if XLA compiles what is called outside `fit`, and the `Programs` of the model; see
    # `rt_keras.models.programs`.
    jit_generate = True
    programs = None
    _fit_state = None

    def compile(self, *args, jit_compile="auto", gradient_accumulation_steps=1, **kwargs):
        """Configures the model for training and generation.

        Args:
            *args, **kwargs: arguments of KerasHub's `compile`; see `compile_arguments`.
            jit_compile: bool or `"auto"`, whether to compile training and generation with XLA.
                Defaults to `"auto"`, Keras's default in training and True in generation.
            gradient_accumulation_steps: int, number of equal parts of a batch, or of a replica's
                share, that the model processes one after the other. The weights are updated once,
                with the accumulated gradients. A step takes the memory of one part. Defaults to 1.
                Keras's optimizers have an option of the same name, which updates the weights only
                once in several steps and fails on multiple replicas. Parts count in the loss by
                their weights and tokens, as in the whole batch.
        """
        args, kwargs = self.compile_arguments(*args, **kwargs)
        super().compile(*args, jit_compile=jit_compile, **kwargs)
        self.jit_generate, self.programs = bool(jit_compile), None
        self.gradient_accumulation_steps = positive_int(
            "gradient_accumulation_steps", gradient_accumulation_steps
        )
        if self.loss_reads_all_replicas and gradient_accumulation_steps > 1:
            raise ValueError(
                "gradient_accumulation_steps must be 1 for a loss that compares the examples of a "
                f"batch. Received: {gradient_accumulation_steps}"
            )
        with self.distribute_strategy.scope():
            norm = tf.Variable(
                0.0,
                trainable=False,
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
            )
        # A plain object, so that the norm is not a weight of the model.
        self._fit_state = types.SimpleNamespace(gradient_norm=norm, is_built=False)
        if is_replicated(self.distribute_strategy):
            # `TPUStrategy` compiles the whole step.
            is_tpu = isinstance(self.distribute_strategy, tf.distribute.TPUStrategy)
            self.jit_replica, self.jit_compile = self.jit_compile and not is_tpu, False
            # They are already summed over the replicas.
            keep_gradients(getattr(self.optimizer, "inner_optimizer", self.optimizer))

    def compile_arguments(self, *args, **kwargs):
        """Adapts the arguments of KerasHub's `compile`.

        Args:
            *args, **kwargs: arguments of KerasHub's `compile`.

        Returns:
            A tuple of positional arguments and a dictionary of keyword arguments.
        """
        return args, kwargs

    def step_outputs(self, x, y, training):
        """Computes the outputs that the loss and the metrics of a step read.

        Args:
            x: inputs of the batch.
            y: labels of the batch.
            training: bool, whether this is a training step.

        Returns:
            The `y_pred` of losses and metrics. By default, the output of a call of the model.
        """
        return self(x, training=training)

    def compiled_call(self, inputs):
        """Computes the outputs of a call in a compiled function.

        Args:
            inputs: inputs of the model.

        Returns:
            The outputs of the model.
        """

        def call(inputs):
            return self(inputs, training=False)

        return compile_once(self, "call", call)(inputs)

    def fit(self, x=None, *args, **kwargs):
        if isinstance(x, tf.distribute.DistributedDataset):
            return keras.Model.fit(self, x, *args, **kwargs)
        return super().fit(x, *args, **kwargs)

    @property
    def gradient_norm(self):
        """The global norm of the gradients of the last step, a float; 0 before the first step."""
        return float(tf.convert_to_tensor(self._fit_state.gradient_norm))

    def train_step(self, data):
        if not self.trainable_weights:
            return super().train_step(data)
        batch = keras.utils.unpack_x_y_sample_weight(data)
        gradients_and_logs = self._gradients_and_logs
        if self.jit_replica and not self.loss_reads_all_replicas:
            gradients_and_logs = tf.function(gradients_and_logs, jit_compile=True, autograph=False)
        shares = self._shares(*batch, self.gradient_accumulation_steps)
        gradients, logs = gradients_and_logs(*batch, shares)
        # Weights that the loss does not depend on have no gradient.
        pairs = zip(gradients, self.trainable_weights)
        gradients, weights = map(list, zip(*(pair for pair in pairs if pair[0] is not None)))
        if is_replicated(self.distribute_strategy):
            replica = tf.distribute.get_replica_context()
            gradients = replica.all_reduce(tf.distribute.ReduceOp.SUM, gradients)
        # Those of float32 in a model of another dtype, as of LoRA, and the squares of float16.
        norm = tf.linalg.global_norm([tf.cast(x, tf.float32) for x in gradients])
        self._fit_state.gradient_norm.assign(norm / self.optimizer.scale_loss(1.0))
        self.optimizer.apply_gradients(zip(gradients, weights))
        return self._logs(logs)

    def test_step(self, data):
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        shares = self._shares(x, y, sample_weight, parts=1)
        _, y_pred = self._loss(x, y, sample_weight, _entry(shares, 0), training=False)
        return self._logs(self.compute_metrics(x, y, y_pred, sample_weight=sample_weight))

    def _shares(self, x, y, sample_weight, parts):
        """Returns the `Shares` of the parts of a batch, each `[parts]`; None if there is one part.

        A loss of labels is as for the whole batch. Those of layers with centroids are means over
        tokens, in an encoder its own.
        """
        if parts == self.distribute_strategy.num_replicas_in_sync == 1:
            return None
        y, sample_weight = _map_tensors(lambda x: _split(x, parts), (y, sample_weight))
        masks = x if isinstance(x, dict) and centroids_inside(self) else {}
        mask = masks.get("decoder_padding_mask", masks.get("padding_mask"))
        layers, encoder = (
            tf.ones([parts]) if mask is None else shares_of(_split(mask, parts))
            for mask in (mask, masks.get("encoder_padding_mask", mask))
        )
        return Shares(shares_of_loss(self.loss, y, sample_weight), layers, encoder)

    def _gradients_and_logs(self, x, y, sample_weight, shares):
        """Returns this replica's share of the gradients of the mean loss, and its metrics."""
        count = self.gradient_accumulation_steps
        if count == 1:
            gradients = self._gradients(x, y, sample_weight, _entry(shares, 0))
            return gradients, self.get_metrics_result()
        # [batch, ...] -> [count, batch / count, ...]
        batch = _map_tensors(lambda values: _split(values, count), (x, y, sample_weight))
        unused = set()

        def add_part(number, sums):
            gradients = self._gradients(*_entry((*batch, shares), number))
            unused.update(i for i, gradient in enumerate(gradients) if gradient is None)
            return number + 1, [
                total if gradient is None else total + tf.convert_to_tensor(gradient) / count
                for total, gradient in zip(sums, gradients)
            ]

        zeros = [tf.zeros(weight.shape, weight.dtype) for weight in self.trainable_weights]
        _, sums = tf.while_loop(lambda i, _: i < count, add_part, [0, zeros])
        for heads in centroids_inside(self):
            heads.count_as_one_batch(count)
        gradients = [None if i in unused else total for i, total in enumerate(sums)]
        return gradients, self.get_metrics_result()

    def _gradients(self, x, y, sample_weight, shares):
        """Returns the gradients of the mean loss of a batch; updates the metrics."""
        with tf.GradientTape() as tape:
            loss, y_pred = self._loss(x, y, sample_weight, shares, training=True)
            loss = self.optimizer.scale_loss(loss)
        self.compute_metrics(x, y, y_pred, sample_weight=sample_weight)
        return tape.gradient(loss, self.trainable_weights)

    def _loss(self, x, y, sample_weight, shares, training):
        """Returns this replica's share of the loss of a batch, and `y_pred`; updates the mean."""
        replicas, layer_losses = self.distribute_strategy.num_replicas_in_sync, 0.0
        if self.loss_reads_all_replicas and replicas > 1:
            y_pred, layer_losses = self._outputs_and_losses(x, y, training)
        else:
            y_pred = self.step_outputs(x, y, training)
        # Keras divides all losses by the number of replicas, and adds those of layers.
        loss = self.compute_loss(x, y, y_pred, sample_weight, training=training)
        if shares is not None:
            check_entries(self.loss, y, y_pred)
            loss = self._weighted(loss, shares)
        loss += layer_losses / replicas
        mean = next(metric for metric in self.metrics if metric.name == "loss")
        mean.update_state(loss * replicas, sample_weight=tf.shape(tf.nest.flatten(x)[0])[0])
        return loss, y_pred

    def _weighted(self, loss, shares):
        """Returns the loss of a part, in which those of labels and of layers count by shares."""
        labels, layers, encoder = (tf.cast(share, loss.dtype) for share in shares)
        blocks = getattr(getattr(self, "backbone", None), "encoder_blocks", [])
        encoder_losses = [x for block in blocks for x in block.losses]
        all_losses, encoder_losses = (
            tf.cast(tf.add_n([*x, 0.0]), loss.dtype) for x in (self.losses, encoder_losses)
        )
        added = (layers - labels) * all_losses + (encoder - layers) * encoder_losses
        return labels * loss + added / self.distribute_strategy.num_replicas_in_sync

    def _outputs_and_losses(self, x, y, training):
        """Returns `step_outputs` and the sum of the layers' losses, before replicas meet."""

        def outputs_and_losses(x, y):
            losses = [tf.cast(x, tf.float32) for x in self.losses]
            return self.step_outputs(x, y, training), tf.add_n([*losses, 0.0])

        if self.jit_replica:
            outputs_and_losses = tf.function(outputs_and_losses, jit_compile=True, autograph=False)
        outputs = outputs_and_losses(x, y)
        # The layers hold tensors from inside the function. While this replica waits for the others,
        # they would also get those of another replica.
        clear_losses(self)
        return outputs

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
        """Wraps Keras's function of an iterator to get all batches of an execution first."""
        steps = self.steps_per_execution
        if steps == 1 or not is_replicated(self.distribute_strategy):
            return function
        # Keras's function takes one step for each batch of a list.
        take_steps = tf.function(function, autograph=False)

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
        elif not self._fit_state.is_built:
            _, _, batches = next(iter(iterator))
            data_batch = keras.tree.map_structure(
                lambda values: strategy.experimental_local_results(values)[0], next(batches)
            )
            look(data_batch=data_batch)
            self._fit_state.is_built = True


def _map_tensors(function, batch):
    """Applies a function to each tensor of a batch, whose labels and weights may be None."""
    return tf.nest.map_structure(lambda x: x if x is None else function(x), batch)


def _entry(batch, number):
    """Returns one entry of each tensor along its first axis."""
    return _map_tensors(lambda x: x[number], batch)


def _split(values, count):
    """Reshapes `[batch, ...]` to `[count, batch / count, ...]`."""
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
    """Returns True if multiple replicas share each batch, or if multiple workers may.

    Args:
        strategy: a `tf.distribute.Strategy`.

    >>> is_replicated(tf.distribute.get_strategy())
    False
    """
    return strategy.num_replicas_in_sync > 1 or _is_multi_worker(strategy)


class ModelCall(keras.layers.Layer):
    """Runs a function of a model as Keras runs its call: in its dtype and with losses reset.

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
