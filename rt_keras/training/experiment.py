"""What a configuration describes: its tokenizer, model, optimizer and strategy."""

from pathlib import Path

import keras

from rt_keras.training.schedule import make_schedule


def make_tokenizer(config):
    """The tokenizer of a `TokenizerConfig`."""
    from rt_keras import data

    if config.name == "bytes":
        return data.ByteTokenizer()
    if config.name == "sentence_piece":
        return data.SentencePieceTokenizer(proto=config.vocabulary)
    if config.name == "t2t_subwords":
        return data.T2TSubwordTokenizer(vocabulary=config.vocabulary)
    return data.WordPieceTokenizer(vocabulary=config.vocabulary)


def load_split(config, split, tokenizer):
    """The documents of one split of the text that a `DataConfig` names."""
    from rt_keras import data

    return data.load_documents(
        config.name,
        split,
        directory=config.directory,
        data_dir=config.data_dir,
        require_utf8=tokenizer.needs_utf8,
    )


def make_preprocessor(config):
    """The preprocessor of an `ExperimentConfig`, with its tokenizer."""
    from rt_keras import models

    return models.RoutingTransformerCausalLMPreprocessor(
        make_tokenizer(config.tokenizer), sequence_length=config.data.sequence_length
    )


def make_model(config, vocabulary_size):
    """The language model of an `ExperimentConfig`, with new weights.

    It has no preprocessor, so that `fit` takes the batches of `rt_keras.data`, which are tokens.
    """
    from rt_keras import models

    model = config.model
    backbone = models.RoutingTransformerBackbone(
        vocabulary_size=vocabulary_size,
        num_layers=model.num_layers,
        hidden_dim=model.hidden_dim,
        intermediate_dim=model.intermediate_dim,
        head_groups=[make_head_groups(model, layer) for layer in range(model.num_layers)],
        activation=model.activation,
        normalize_first=model.normalize_first,
        dropout=model.dropout,
        shift_tokens=model.shift_tokens,
        max_sequence_length=model.max_sequence_length,
        dtype="mixed_bfloat16" if config.trainer.mixed_bfloat16 else "float32",
    )
    return models.RoutingTransformerCausalLM(backbone)


def load_model(path):
    """The language model in the folder of a run, which holds its best one, or of a preset.

    Raises:
        FileNotFoundError: if there is neither.
    """
    from rt_keras import models

    path = Path(path)
    for folder in (path / "model", path):
        if (folder / "task.json").is_file():
            return models.RoutingTransformerCausalLM.from_preset(str(folder))
    if (path / "config.yaml").is_file():
        raise FileNotFoundError(f"the run in {path} has not reached its first validation yet")
    raise FileNotFoundError(f"{path} holds neither a run nor a preset of a language model")


def make_head_groups(config, layer):
    """The groups of heads of one block.

    Args:
        config: a `ModelConfig`.
        layer: number of the block, from 0.

    Returns:
        A list of head groups, those without heads left out.
    """
    from rt_keras import layers

    local, routing, full = config.local, config.routing, config.full
    routes = layer >= routing.first_layer
    num_local = local.num_heads + (0 if routes else routing.num_heads)
    groups = []
    if num_local:
        groups.append(
            layers.LocalHeads(
                num_local,
                block_size=local.block_size,
                look_back=local.look_back,
                max_relative_distance=local.max_relative_distance,
            )
        )
    if routing.num_heads and routes:
        groups.append(
            layers.RoutingHeads(
                routing.num_heads,
                num_clusters=routing.num_clusters,
                window_size=routing.window_size,
                assignment=routing.assignment,
                share_qk=routing.share_qk,
                num_probes=routing.num_probes,
                max_relative_distance=routing.max_relative_distance,
                commitment_weight=routing.commitment_weight,
            )
        )
    if full.num_heads:
        groups.append(
            layers.FullHeads(full.num_heads, max_relative_distance=full.max_relative_distance)
        )
    return groups


def make_optimizer(config):
    """The optimizer of an `ExperimentConfig`, with its learning rate schedule."""
    optimizer = config.optimizer
    arguments = {
        "learning_rate": make_schedule(
            config.schedule.name,
            optimizer.learning_rate,
            config.schedule.warmup_steps,
            config.trainer.steps,
            config.schedule.final_fraction,
        ),
        # Adam and Adafactor save the work of no decay at None, which AdamW does not take.
        "weight_decay": optimizer.weight_decay or (0.0 if optimizer.name == "adamw" else None),
        "global_clipnorm": optimizer.global_clipnorm,
    }
    if optimizer.name == "adafactor":
        # Its own relative step would take the place of the schedule.
        return keras.optimizers.Adafactor(relative_step=False, **arguments)
    kind = {"adam": keras.optimizers.Adam, "adamw": keras.optimizers.AdamW}[optimizer.name]
    return kind(
        beta_1=optimizer.beta_1,
        beta_2=optimizer.beta_2,
        epsilon=optimizer.epsilon,
        **arguments,
    )


def make_strategy(config):
    """The strategy of a `TrainerConfig`, over the GPUs of this machine or else its CPU."""
    import tensorflow as tf
    from official.common import distribute_utils

    num_gpus = len(tf.config.list_physical_devices("GPU"))
    return distribute_utils.get_distribution_strategy(
        config.strategy,
        num_gpus=min(num_gpus, 1) if config.strategy == "one_device" else num_gpus,
        tpu_address=config.tpu_address,
    )
