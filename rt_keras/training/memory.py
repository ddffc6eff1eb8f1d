"""A lower bound on the memory that training needs, checked before it starts."""

import math

import tensorflow as tf

from rt_keras.machine import machine_memory
from rt_keras.models.model_section import head_counts

# Copies of the weights: the weights, their gradients and the optimizer's state.
COPIES = {"adam": 4, "adamw": 4, "adafactor": 2}
# Activations of a feed-forward network that the gradient needs, per hidden unit.
OF_ACTIVATION = {"relu": 1, "gelu": 2, "geglu": 3, "geglu_approximate": 3}


def check_memory(experiment, num_workers=1):
    """Raises a ValueError if an experiment certainly needs more memory than the machine has.

    Accelerators have their own memory. With an accelerator, only the batches are checked.

    Args:
        experiment: an `Experiment`.
        num_workers: int, number of machines that share each batch. Defaults to 1.
    """
    trainer = experiment.trainer
    elsewhere = trainer.strategy == "tpu" or bool(tf.config.list_physical_devices("GPU"))
    state, example = 0, input_bytes(experiment)
    if not elsewhere:
        state = state_bytes(experiment)
        example += activation_bytes(experiment) / trainer.gradient_accumulation_steps
    example /= num_workers
    machine, batch_size = machine_memory(), experiment.data.batch_size
    needed = state + batch_size * example
    if needed <= machine:
        return
    sizes = "".join(f", {key} {length:,}" for key, length in _lengths(experiment).items())
    raise ValueError(
        f"data.batch_size is {batch_size:,}{sizes}: training needs at least {_gigabytes(needed)} "
        f"of memory and this machine has {_gigabytes(machine)}. "
        f"{_what_fits(experiment, state, example, machine)}"
    )


def _what_fits(experiment, state, example, machine):
    """Returns advice on what to change."""
    if state >= machine:
        return f"The weights and the optimizer alone take {_gigabytes(state)}: make model smaller"
    batch_size = int((machine - state) // example)
    if batch_size:
        return f"At this size, a data.batch_size of at most {batch_size:,} can fit"
    advice = "Not even a data.batch_size of 1 can fit"
    lengths = _lengths(experiment)
    if not lengths:
        return f"{advice}: make the image or model smaller"
    share = (machine - state) / example
    fitting = " and ".join(f"{key} {int(n * share):,}" for key, n in lengths.items())
    return f"{advice}; with it, at most {fitting} could"


def state_bytes(experiment):
    """Computes the bytes of the weights, their gradients and the optimizer's state.

    Args:
        experiment: an `Experiment`.

    >>> from rt_keras.training.config import load_config
    >>> from rt_keras.training.experiment import Experiment
    >>> round(state_bytes(Experiment(load_config("quickstart"))) / 1e6, 1)
    8.9
    """
    # Low-rank updates have few weights of their own.
    copies = COPIES[experiment.config.optimizer.name] if experiment.model.lora_rank is None else 1
    return 4 * copies * count_parameters(experiment)


def count_parameters(experiment):
    """Counts the weights of the embeddings and of the large matrices in each block."""
    model, vocabulary_size = experiment.task.sizes(experiment), experiment.vocabulary_size
    inner = _inner_dim(model)
    attention = 4 * model.hidden_dim * inner
    matrices = 3 if model.activation.startswith("geglu") else 2
    feed_forward = matrices * model.hidden_dim * model.intermediate_dim
    embedding_dim = model.embedding_dim or model.hidden_dim
    tables = 1 if model.tie_embeddings else 2
    count = tables * vocabulary_size * embedding_dim
    count += (model.max_sequence_length or 0) * model.hidden_dim
    if embedding_dim != model.hidden_dim:
        count += 2 * embedding_dim * model.hidden_dim
    count += model.num_layers * (attention + feed_forward)
    if model.num_encoder_layers:
        count += vocabulary_size * model.hidden_dim + model.num_layers * attention
        count += model.num_encoder_layers * (attention + feed_forward)
    return count


def activation_bytes(experiment):
    """Computes the bytes of activations for the gradient of one example, except in attention.

    Args:
        experiment: an `Experiment`.
    """
    model, task = experiment.task.sizes(experiment), experiment.task
    # Normalized inputs, projections, outputs of attention and of the feed-forward network.
    block = 4 * model.hidden_dim + 4 * _inner_dim(model)
    block += OF_ACTIVATION[model.activation] * model.intermediate_dim
    numbers = 0
    for _, length, num_layers in task.stacks(experiment):
        blocks = num_layers * block
        if model.remat:
            blocks = block + num_layers * model.hidden_dim
        numbers += length * blocks
    if model.loss_chunk_size is None:
        # The logits and their gradient.
        numbers += 2 * task.predictions(experiment) * experiment.vocabulary_size
    return (2 if experiment.trainer.mixed_bfloat16 else 4) * numbers


def input_bytes(experiment):
    """Computes the bytes of one example in a batch and in the prefetched next batch."""
    specs = tf.nest.flatten(experiment.task.example_spec(experiment, batch_size=1))
    return 2 * sum(spec.dtype.size * math.prod(spec.shape) for spec in specs)


def _lengths(experiment):
    """Returns the sequence lengths by the keys that set them."""
    stacks = experiment.task.stacks(experiment)
    return {key: length for key, length, _ in stacks if key.startswith("data.")}


def _inner_dim(model):
    """Returns the total depth of all heads of a block."""
    if model.key_dim is None:
        return model.hidden_dim
    return sum(head_counts(model).values()) * model.key_dim


def _gigabytes(count):
    return f"{count / 1e9:,.3g} GB" if count < 1e12 else f"{count / 1e9:,.0f} GB"
