"""Which values of a configuration go together."""

import math
from pathlib import Path

# The keys of a model that say nothing of models of other kinds.
_OF_SEQ_2_SEQ = ("num_encoder_layers", "encoder_input_dropout", "local.cross_block_size")
_OF_TEXT = (
    "embedding_dim",
    "tie_embeddings",
    "embedding_dropout",
    "token_dropout",
    "max_sequence_length",
    "sinusoidal_positions",
    "loss_chunk_size",
)
_FOREIGN = {
    "causal_lm": _OF_SEQ_2_SEQ,
    "seq_2_seq_lm": ("reversible",),
    "image_lm": (*_OF_SEQ_2_SEQ, *_OF_TEXT, "shift_tokens", "reversible"),
}


def check_together(config):
    """Raises a ValueError where values do not go together."""
    _check_heads(config.model)
    _check_kind(config)
    _check_lengths(config)
    _check_steps(config)


def _check_heads(model):
    kinds = ("local", "routing", "cluster_strided", "strided", "full")
    heads = {name: model.get(name).num_heads for name in kinds}
    total = sum(heads.values())
    if total == 0:
        raise ValueError(f"model.{', model.'.join(kinds)} all have num_heads 0")
    if model.key_dim is None and model.hidden_dim % total:
        listed = ", ".join(f"{name} {count}" for name, count in heads.items() if count)
        below = model.hidden_dim - model.hidden_dim % total
        raise ValueError(
            f"model.hidden_dim is {model.hidden_dim}, which its {total} heads ({listed}) do not "
            f"divide; it must be a multiple of {total}, such as {below or total}, or model.key_dim "
            "be given"
        )
    routing = model.routing
    if routing.first_layer > model.num_layers:
        raise ValueError(
            f"model.routing.first_layer is {routing.first_layer}; it must be at most "
            f"model.num_layers, {model.num_layers}"
        )
    if routing.num_heads:
        _check_routing(routing, model.reference)


def _check_routing(routing, reference):
    if routing.num_probes > routing.num_clusters:
        raise ValueError(
            f"model.routing.num_probes is {routing.num_probes}; it must be at most "
            f"model.routing.num_clusters, {routing.num_clusters}"
        )
    if routing.num_probes > 1 and routing.assignment != "nearest":
        raise ValueError(
            f"model.routing.num_probes is {routing.num_probes}; it must be 1 with assignment "
            f"{routing.assignment}"
        )
    if reference and routing.assignment not in ("balanced", "hashed"):
        raise ValueError(
            f"model.routing.assignment is {routing.assignment}; with model.reference it must be "
            "balanced or hashed"
        )
    if routing.assignment == "hashed" and routing.num_clusters < 2:
        raise ValueError("model.routing.num_clusters is 1; assignment hashed needs at least 2")
    if routing.assignment == "random" and routing.share_qk:
        raise ValueError("model.routing.share_qk is true; assignment random needs false")


def _check_kind(config):
    """Raises where a key is set that the model's kind has no use for, or one is missing."""
    model = config.model
    defaults = type(model)()
    of_images = (
        [] if model.kind == "image_lm" else [f"image.{key}" for key in model.image.as_dict()]
    )
    for key in (*_FOREIGN[model.kind], *of_images):
        value = _value(model, key)
        if value != _value(defaults, key):
            raise ValueError(
                f"model.{key} is {value!r}, which a model of kind {model.kind} has no use for"
            )
    if model.reversible and (model.remat or not model.normalize_first):
        raise ValueError(
            f"model.reversible is true, model.remat {model.remat} and model.normalize_first "
            f"{model.normalize_first}; reversible blocks need remat false, normalize_first true"
        )
    if model.kind == "seq_2_seq_lm" and not model.num_encoder_layers:
        raise ValueError("model.num_encoder_layers is 0; kind seq_2_seq_lm needs at least 1")
    _check_data(model.kind, config.data)
    if model.kind == "image_lm":
        _check_image(model)


def _check_data(kind, data):
    from rt_keras.data import documents, images, pairs

    if kind != "seq_2_seq_lm":
        for key in ("encoder_sequence_length", "reverse"):
            if data.get(key):
                raise ValueError(
                    f"data.{key} is {data.get(key)}, which a model of kind {kind} has no use for"
                )
    if kind == "seq_2_seq_lm":
        known = data.name == "pairs_folder" or pairs.PAIRS.fullmatch(data.name)
        allowed = (
            "pairs_folder, scientific_papers/arxiv, scientific_papers/pubmed, or a pair of WMT's "
        )
        allowed += "languages such as wmt14_translate/de-en"
    else:
        names = images.NAMES if kind == "image_lm" else documents.NAMES
        known, allowed = data.name in names, f"one of {', '.join(names)}"
    if not known:
        raise ValueError(f"data.name is {data.name!r}; for kind {kind} it must be {allowed}")


def _value(section, key):
    for name in key.split("."):
        section = section.get(name)
    return section


def _check_image(model):
    image, size = model.image, model.local.block_size
    if image.block_height is None:
        sides, block = (image.height * image.width * image.channels,), (size,)
    else:
        sides = (image.height, image.width * image.channels)
        block = (image.block_height, size // image.block_height)
    if math.prod(block) != size or any(side % b for side, b in zip(sides, block)):
        raise ValueError(
            f"model.local.block_size is {size} and model.image.block_height {image.block_height}: "
            f"blocks of that shape do not divide an image of {' x '.join(map(str, sides))} values"
        )


def _check_lengths(config):
    model, data = config.model, config.data
    if model.kind == "image_lm":
        return
    lengths = {"data.sequence_length": data.sequence_length}
    if data.encoder_sequence_length is not None:
        lengths["data.encoder_sequence_length"] = data.encoder_sequence_length
    for name, length in lengths.items():
        _check_windows(model, name, length)
    longest = model.max_sequence_length
    if longest is not None and longest < data.sequence_length:
        raise ValueError(
            f"model.max_sequence_length is {longest}; it must be at least data.sequence_length, "
            f"{data.sequence_length}, or null"
        )
    if model.kind == "seq_2_seq_lm" and model.local.num_heads:
        _check_cross_blocks(model.local, data)


def _check_windows(model, name, length):
    routing = model.routing
    for key, value, num_heads in (
        ("model.local.block_size", model.local.block_size, model.local.num_heads),
        ("model.routing.window_size", routing.window_size, routing.num_heads),
    ):
        if num_heads and value > length:
            raise ValueError(
                f"{key} is {value} and {name} only {length}; "
                f"a sequence must be at least as long as one window"
            )


def _check_cross_blocks(local, data):
    """Local attention pairs the blocks of the decoder with as many of the encoder."""
    encoder_length = data.encoder_sequence_length or data.sequence_length
    blocks = math.ceil(data.sequence_length / local.block_size)
    cross_block_size = local.cross_block_size or local.block_size
    if math.ceil(encoder_length / cross_block_size) != blocks:
        raise ValueError(
            f"model.local.cross_block_size is {local.cross_block_size}; the encoder's "
            f"{encoder_length} positions must make {blocks} blocks, as many as the decoder's "
            f"{data.sequence_length}: {math.ceil(encoder_length / blocks)} would do"
        )


def check_sources(config):
    """Raises a ValueError where files or addresses that training needs are not named or not there.

    A configuration can be looked at, and its model made, without them.
    """
    from rt_keras.data.documents import OF_FOLDERS

    tokenizer, data = config.tokenizer, config.data
    if config.model.kind != "image_lm" and tokenizer.name != "bytes":
        if tokenizer.vocabulary is None:
            raise ValueError(
                f"tokenizer.vocabulary must name a file for tokenizer {tokenizer.name}"
            )
        if not Path(tokenizer.vocabulary).is_file():
            raise ValueError(f"tokenizer.vocabulary is {tokenizer.vocabulary!r}, which is no file")
    if data.name in (*OF_FOLDERS, "pairs_folder") and data.directory is None:
        raise ValueError(f"data.directory must name the folder for data {data.name}")
    if config.trainer.strategy == "tpu" and config.trainer.tpu_address is None:
        raise ValueError('trainer.tpu_address must be set for strategy tpu; "" is a local one')


def _check_steps(config):
    trainer = config.trainer
    for key, value, whole_key, whole in (
        ("trainer.validation_every", trainer.validation_every, "trainer.steps", trainer.steps),
        (
            "trainer.steps_per_execution",
            trainer.steps_per_execution,
            "trainer.validation_every",
            trainer.validation_every,
        ),
    ):
        if whole % value:
            raise ValueError(f"{key} is {value}; it must divide {whole_key}, {whole}")
    if config.schedule.warmup_steps > trainer.steps:
        raise ValueError(
            f"schedule.warmup_steps is {config.schedule.warmup_steps}; it must be at most "
            f"trainer.steps, {trainer.steps}"
        )
